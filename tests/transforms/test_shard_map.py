"""shard_map, checked and unchecked: values, derivatives inside and through it, replicated inputs,
under vmap, with scan.
"""

import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from tenferro_jax.extension import apply

from ..extension_ops import RULES, RUNTIMES, KernelSine
from .matrix import agree, agree_numerically, sweep

pytestmark = pytest.mark.cpu
P = jax.P
DEVICES = 8
SPLIT = P("d")
check_vma = pytest.mark.parametrize(
    "check_vma", [True, pytest.param(False, marks=pytest.mark.slow)], ids=["checked", "unchecked"]
)


def sharded(fn, check_vma=True, in_specs=SPLIT, out_specs=SPLIT):
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Auto,))
    return jax.shard_map(fn, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=check_vma)


@pytest.mark.clause("X13.4")
@check_vma
@sweep("shard_map")
def test_values(case, check_vma):
    batch = case.batch(DEVICES)
    agree(jax.jit(sharded(jax.vmap(case), check_vma))(*batch), case.stacked(*batch))


@pytest.mark.clause("X13.4")
@check_vma
@sweep("grad inside shard_map, and of it")
def test_derivatives_inside_and_through(case, check_vma):
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
def test_scan_inside(case):
    batch = case.batch(DEVICES)

    def body(*xs):
        return jax.lax.scan(lambda carry, x: (carry, case(*x)), xs[0].sum() * 0, xs)[1]

    agree(jax.jit(sharded(body))(*batch), case.stacked(*batch))


@sweep("vmap(spmd_axis_name) of shard_map")
def test_under_vmap_with_a_mesh_axis(case):
    """One mesh axis maps by hand, the other one by vmap; value and gradient."""
    mesh = jax.make_mesh((2, 4), ("b", "d"), axis_types=(AxisType.Auto,) * 2)
    batch = [np.stack([b, 0.7 * b]) for b in case.batch(4)]
    want = [
        np.stack(column)
        for column in zip(*(case.stacked(*(b[i] for b in batch)) for i in range(2)))
    ]
    fn = jax.shard_map(jax.vmap(case), mesh=mesh, in_specs=P("d"), out_specs=P("d"))
    places = [jax.device_put(b, jax.NamedSharding(mesh, P("b", "d"))) for b in batch]
    agree(jax.jit(jax.vmap(fn, spmd_axis_name="b"))(*places), want)


@pytest.mark.clause("X8.4")
def test_a_kernel_runs_on_one_device_or_inside_shard_map_but_not_where_xla_partitions():
    def call(x):
        return apply(KernelSine(offset=1.0), x, rules=RULES, runtimes=RUNTIMES)

    x = np.linspace(0.0, 1.0, 8)
    np.testing.assert_allclose(jax.jit(call)(x)[0], np.sin(x) + 1)
    mesh = jax.make_mesh((DEVICES,), ("d",), axis_types=(AxisType.Auto,))
    placed = jax.device_put(x, jax.NamedSharding(mesh, P("d")))
    np.testing.assert_allclose(jax.jit(call)(placed)[0], np.sin(x))
    np.testing.assert_allclose(jax.jit(sharded(call))(placed)[0], np.sin(x) + 1)
