"""Arrays split over devices under jit: NamedSharding, explicit meshes of one and two axes, values
and derivatives.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ext_tropical import tropical_einsum
from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.extension import apply

from ..cases import CASES, ids
from ..extension_ops import HostTanh, PlacedTanh, Softplus
from ..helpers import each_ends_in, ends_in, made
from .matrix import agree, agree_numerically, sweep

pytestmark = pytest.mark.cpu
P = jax.P
DEVICES = 8
Auto, Explicit = AxisType.Auto, AxisType.Explicit


def mesh(kinds=(Auto,), shape=(DEVICES,)):
    return jax.make_mesh(shape, ("d", "e")[: len(shape)], axis_types=kinds)


def put(arrays, mesh, spec):
    return [jax.device_put(a, jax.NamedSharding(mesh, spec)) for a in arrays]


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
    want = [
        np.stack(column)
        for column in zip(*(case.stacked(*(b[i] for b in batch)) for i in range(2)))
    ]
    got, specs = on_mesh((Explicit, Explicit), (2, 4), jax.vmap(jax.vmap(case)), batch, P("d", "e"))
    agree(got, want)
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
        around = jax.grad(lambda *xs: jax.vmap(case.scalar)(*xs).sum(), case.argnums)(*xs)
        return *inside, *around

    got, specs = on_mesh((Explicit,), (DEVICES,), both, batch, P("d"))
    agree_numerically(got, 2 * case.stacked_gradients(*batch))
    assert set(specs) == {("d",)}


# All entries in one axis: JAX cannot tell where they lie when the last axis is split.
Folded = made(
    "Folded",
    family_id="test-package.folded.v1",
    lower_to_standard_ops=lambda self, x: [x.reshape(-1)],
)


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
            rf"{op.family_id} on an explicit mesh: given {problem}.*, and no infer_output_sharding",
        )
        assert type(caught.value.__cause__).__name__ == cause


def test_vmap_over_several_mesh_axes_at_once():
    case = CASES[0]
    batch = case.batch(DEVICES)
    placed = put(batch, mesh((Auto, Auto), (2, 4)), P(("d", "e")))
    agree(jax.jit(jax.vmap(case, spmd_axis_name=("d", "e")))(*placed), case.stacked(*batch))


def test_a_stated_sharding_is_mapped_over_every_level():
    mapped = jax.vmap(jax.vmap(lambda x: apply(PlacedTanh(), x), in_axes=1))
    x = np.arange(24.0).reshape(2, 3, 4)
    (got,), specs = on_mesh((Explicit, Explicit), (2, 4), mapped, [x], P("d", None, "e"))
    assert specs == [("d", "e", None)]
    np.testing.assert_array_equal(got, np.tanh(x).swapaxes(1, 2))


TWICE = tuple(
    case
    for case in CASES
    if case.kind
    in ("two inputs", "batch level", "host only, output sharding stated", "tropical einsum")
)


@pytest.mark.few(1)
@pytest.mark.parametrize("case", TWICE, ids=ids(TWICE))
def test_second_derivatives_on_an_explicit_mesh(case):
    """Against the same on one device, which test_derivatives.py holds against finite
    differences.
    """
    batch = case.batch(DEVICES)

    def along(*xs):
        gradient = jax.grad(lambda *xs: jax.vmap(case.scalar)(*xs).sum())
        tangents = tuple(x * 0.5 for x in xs)
        return *jax.jvp(gradient, xs, tangents), jax.grad(lambda *xs: (gradient(*xs) ** 2).sum())(
            *xs
        )

    got, specs = on_mesh((Explicit,), (DEVICES,), along, batch, P("d"))
    agree(got, jax.jit(along)(*batch), 1e-9)
    assert set(specs) == {("d",)}


def test_an_explicit_mesh_that_the_einsum_cannot_serve_is_refused():
    with jax.set_mesh(mesh((Explicit,))):
        rows = jax.device_put(jnp.ones((8, 8)), P("d"))
        columns = jax.device_put(jnp.ones((8, 8)), P(None, "d"))
        each_ends_in(
            (
                lambda: jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b))(columns, rows),
                Unsupported,
                "contracted labels split over the mesh",
            ),
            (
                lambda: jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b))(rows, columns),
                Unsupported,
                "two output labels split over one mesh axis",
            ),
        )
