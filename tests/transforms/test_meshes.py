"""Arrays split over devices, values and derivatives: NamedSharding and explicit meshes under jit;
shard_map, checked and unchecked, with replicated inputs, under vmap, with scan.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ext_tropical import tropical_einsum
from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.extension import ExtensionOp, apply

from ..cases import CASES
from ..extension_ops import HostTanh, PlacedTanh, Softplus
from ..helpers import ends_in
from .matrix import agree, agree_numerically, sweep

pytestmark = pytest.mark.cpu
P = jax.P
DEVICES = 8
Auto, Explicit = AxisType.Auto, AxisType.Explicit


def mesh(kinds=(Auto,), shape=(DEVICES,)):
    return jax.make_mesh(shape, ("d", "e")[: len(shape)], axis_types=kinds)


def put(arrays, mesh, spec):
    return [jax.device_put(a, jax.NamedSharding(mesh, spec)) for a in arrays]


def nested(case, batch):
    """The outputs for two batches, stacked."""
    rows = [case.stacked(*(b[i] for b in batch)) for i in range(2)]
    return [np.stack(column) for column in zip(*rows)]


@sweep("NamedSharding")
def test_named_sharding(case):
    batch = case.batch(DEVICES)
    two = mesh((Auto, Auto), (2, 4))
    agree(jax.jit(jax.vmap(case))(*put(batch, two, P(("d", "e")))), case.stacked(*batch))


@sweep("grad with NamedSharding")
def test_grad_with_named_sharding(case):
    batch = case.batch(DEVICES)
    got = jax.jit(jax.vmap(jax.grad(case.scalar, case.argnums)))(*put(batch, mesh(), P("d")))
    agree_numerically(got, case.stacked_gradients(*batch))


@sweep("vmap(spmd_axis_name)")
def test_vmap_over_a_mesh_axis(case):
    batch = case.batch(DEVICES)
    agree(
        jax.jit(jax.vmap(case, spmd_axis_name="d"))(*put(batch, mesh(), P("d"))),
        case.stacked(*batch),
    )


def on_mesh(kinds, shape, fn, arrays, spec):
    """fn(*arrays) under jit, the arrays placed by spec, and the specs in the types of the
    results.
    """
    specs = []

    def observed(*xs):
        outs = fn(*xs)
        specs.extend(tuple(jax.typeof(out).sharding.spec[: len(spec)]) for out in outs)
        return outs

    with jax.set_mesh(mesh(kinds, shape)):
        return jax.jit(observed)(*(jax.device_put(a, spec) for a in arrays)), specs


@pytest.mark.clause("X13.5")
@sweep("explicit mesh")
def test_explicit_mesh(case):
    batch = case.batch(DEVICES)
    got, specs = on_mesh((Explicit,), (DEVICES,), jax.vmap(case), batch, P("d"))
    agree(got, case.stacked(*batch))
    assert set(specs) == {("d",)}


@pytest.mark.clause("X13.5")
@sweep("explicit mesh of two axes")
def test_explicit_mesh_of_two_axes(case):
    """One vmap a mesh axis."""
    batch = [np.stack([b, 0.7 * b]) for b in case.batch(4)]
    got, specs = on_mesh((Explicit, Explicit), (2, 4), jax.vmap(jax.vmap(case)), batch, P("d", "e"))
    agree(got, nested(case, batch))
    assert set(specs) == {("d", "e")}


@pytest.mark.clause("X13.5")
@sweep("mesh with an explicit and an automatic axis")
def test_mesh_with_an_explicit_and_an_automatic_axis(case):
    batch = case.batch(2)
    got, specs = on_mesh((Explicit, Auto), (2, 4), jax.vmap(case), batch, P("d"))
    agree(got, case.stacked(*batch))
    assert set(specs) == {("d",)}


@pytest.mark.clause("X13.5")
@sweep("grad on an explicit mesh")
def test_grad_on_an_explicit_mesh(case):
    batch = case.batch(DEVICES)

    def both(*xs):
        inside = jax.vmap(jax.grad(case.scalar, case.argnums))(*xs)
        return *inside, *jax.grad(lambda *xs: jax.vmap(case.scalar)(*xs).sum(), case.argnums)(*xs)

    got, specs = on_mesh((Explicit,), (DEVICES,), both, batch, P("d"))
    agree_numerically(got, 2 * case.stacked_gradients(*batch))
    assert set(specs) == {("d",)}


class Folded(ExtensionOp):
    """All entries in one axis: JAX cannot tell where they lie when the last axis is split."""

    family_id = "test-package.folded.v1"

    def lower_to_standard_ops(self, x):
        return [x.reshape(-1)]


@pytest.mark.clause("X13.5")
@pytest.mark.parametrize(
    ("op", "problem", "cause"),
    [
        (Folded(), "a lowering that JAX cannot place: ", "ShardingTypeError"),
        (Softplus(), "a lowering that declines", "NoneType"),
        (HostTanh(), "an op without lowering", "NoneType"),
    ],
)
def test_an_op_whose_outputs_nobody_can_place_is_refused_with_the_reason(op, problem, cause):
    with jax.set_mesh(mesh((Explicit,))):
        x = jax.ShapeDtypeStruct((2, 8), np.float64, sharding=P(None, "d"))
        caught = ends_in(
            lambda: jax.eval_shape(lambda x: apply(op, x)[0], x),
            InvalidConfig,
            rf"{op.family_id} on an explicit mesh: given {problem}.*, and no sharding_rule",
        )
        assert type(caught.value.__cause__).__name__ == cause


def test_vmap_over_several_mesh_axes_at_once():
    case = CASES[0]
    batch = case.batch(DEVICES)
    placed = put(batch, mesh((Auto, Auto), (2, 4)), P(("d", "e")))
    agree(jax.jit(jax.vmap(case, spmd_axis_name=("d", "e")))(*placed), case.stacked(*batch))


def test_a_rule_is_mapped_over_every_level():
    mapped = jax.vmap(jax.vmap(lambda x: apply(PlacedTanh(), x), in_axes=1))
    x = np.arange(24.0).reshape(2, 3, 4)
    (got,), specs = on_mesh((Explicit, Explicit), (2, 4), mapped, [x], P("d", None, "e"))
    assert specs == [("d", "e", None)]
    np.testing.assert_array_equal(got, np.tanh(x).swapaxes(1, 2))


def test_one_mesh_axis_for_two_axes_of_a_result_is_refused():
    with jax.set_mesh(mesh((Explicit,))):
        rows = jax.device_put(jnp.ones((8, 8)), P("d"))
        columns = jax.device_put(jnp.ones((8, 8)), P(None, "d"))
        ends_in(
            lambda: jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b))(rows, columns),
            Unsupported,
            "two axes of an output split over one mesh axis",
        )


SPLIT = P("d")
check_vma = pytest.mark.parametrize(
    "check_vma", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["checked", "unchecked"]
)


def sharded(fn, check_vma=True, in_specs=SPLIT, out_specs=SPLIT):
    return jax.shard_map(
        fn, mesh=mesh(), in_specs=in_specs, out_specs=out_specs, check_vma=check_vma
    )


@pytest.mark.clause("X13.4")
@check_vma
@sweep("shard_map")
def test_shard_map(case, check_vma):
    batch = case.batch(DEVICES)
    agree(jax.jit(sharded(jax.vmap(case), check_vma))(*batch), case.stacked(*batch))


@pytest.mark.clause("X13.4")
@check_vma
@sweep("grad inside shard_map, and of it")
def test_derivatives_inside_and_through_shard_map(case, check_vma):
    batch = case.batch(DEVICES)
    inside = sharded(jax.vmap(jax.grad(case.scalar, case.argnums)), check_vma)
    total = sharded(jax.vmap(case.scalar), check_vma)
    through = jax.grad(lambda *xs: total(*xs).sum(), case.argnums)
    want = case.stacked_gradients(*batch)
    for got in jax.jit(lambda *xs: (inside(*xs), through(*xs)))(*batch):
        agree_numerically(got, want)


@pytest.mark.clause("X13.4")
@check_vma
@sweep("grad of shard_map, replicated inputs")
def test_the_gradient_of_a_replicated_input_is_summed_over_the_devices(case, check_vma):
    """The first input is replicated, the others vary; each device weighs its part differently."""
    x, batch = case.inputs[0], case.batch(DEVICES)[1:]
    specs = (P(), *(P("d") for _ in batch))

    def body(x, *parts):
        here = case.scalar(x, *(p[0] for p in parts))
        here *= 1 + jax.lax.axis_index("d").astype(here.dtype)
        return jax.lax.psum(here, "d")

    got = jax.jit(jax.grad(sharded(body, check_vma, specs, P()), case.argnums))(x, *batch)
    rows = [case.gradients(x, *(b[i] for b in batch)) for i in range(DEVICES)]
    weighed = [[(1 + i) * g for g in row] for i, row in enumerate(rows)]
    agree_numerically(
        got,
        [sum(row[0] for row in weighed), *(np.stack(column) for column in list(zip(*weighed))[1:])],
    )


@sweep("scan in shard_map")
def test_scan_in_shard_map(case):
    batch = case.batch(DEVICES)

    def body(*xs):
        return jax.lax.scan(lambda carry, x: (carry, case(*x)), xs[0].sum() * 0, xs)[1]

    agree(jax.jit(sharded(body))(*batch), case.stacked(*batch))


@sweep("vmap(spmd_axis_name) of shard_map")
def test_shard_map_under_vmap_with_a_mesh_axis(case):
    """One mesh axis maps by hand, the other one by vmap; value and gradient."""
    two = mesh((Auto, Auto), (2, 4))
    batch = [np.stack([b, 0.7 * b]) for b in case.batch(4)]
    fn = jax.shard_map(jax.vmap(case), mesh=two, in_specs=P("e"), out_specs=P("e"))
    placed = put(batch, two, P("d", "e"))
    agree(jax.jit(jax.vmap(fn, spmd_axis_name="d"))(*placed), nested(case, batch))
