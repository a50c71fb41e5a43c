"""shard_map checked and unchecked, NamedSharding in jit, explicit meshes, on four virtual devices."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from ext_tropical import tropical_einsum
from tenferro_jax import InvalidConfig, Unsupported
from tenferro_jax.extension import apply

from ..cases import CASES, LOWERED, ids
from ..extension_ops import RULES, RUNTIMES, HostCumulate, KernelSine
from ..oracles import central_difference

P = jax.P
sweep = pytest.mark.parametrize("case", CASES, ids=ids(CASES))
lowered = pytest.mark.parametrize("case", LOWERED, ids=ids(LOWERED))


def mesh(kind=AxisType.Auto):
    return jax.make_mesh((4,), ("d",), axis_types=(kind,))


def batch(case):
    return [np.stack([x, x + 0.3, x * 1.2, x - 0.1]) for x in case.inputs]


def oracle(case, args):
    return [np.stack(column) for column in zip(*(case.oracle(*(a[i] for a in args)) for i in range(4)))]


@sweep
@pytest.mark.parametrize("check_vma", [True, False])
def test_shard_map(case, check_vma):
    args = batch(case)
    fn = jax.shard_map(jax.vmap(case), mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    for got, want in zip(jax.jit(fn)(*args), oracle(case, args)):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@sweep
@pytest.mark.parametrize("check_vma", [True, False])
def test_grad_inside_and_through_shard_map(case, check_vma):
    args = batch(case)
    inner = jax.shard_map(jax.vmap(jax.grad(case.scalar)), mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    total = jax.shard_map(jax.vmap(case.scalar), mesh=mesh(), in_specs=P("d"), out_specs=P("d"), check_vma=check_vma)
    want = np.stack([central_difference(case.scalar_oracle, [a[i] for a in args], 0) for i in range(4)])
    np.testing.assert_allclose(jax.jit(inner)(*args), want, rtol=1e-5, atol=1e-5)
    through = jax.jit(jax.grad(lambda *xs: total(*xs).sum()))(*args)
    np.testing.assert_allclose(through, want, rtol=1e-5, atol=1e-5)


TWO_INPUTS = tuple(c for c in CASES if len(c.inputs) == 2)


@pytest.mark.parametrize("case", TWO_INPUTS, ids=ids(TWO_INPUTS))
def test_mixed_varying_inputs_get_their_psum(case):
    """One input varies over the mesh, the other is replicated: its gradient sums over the devices."""
    x, w = case.inputs
    xs = np.stack([x, x + 0.3, x * 1.2, x - 0.1])
    fn = jax.shard_map(
        lambda xs, w: jax.lax.psum(jax.vmap(case.scalar, in_axes=(0, None))(xs, w).sum(), "d"),
        mesh=mesh(),
        in_specs=(P("d"), P()),
        out_specs=P(),
    )
    got = jax.jit(jax.grad(fn, argnums=(0, 1)))(xs, w)
    want_w = sum(central_difference(case.scalar_oracle, [x, w], 1) for x in xs)
    want_x = np.stack([central_difference(case.scalar_oracle, [x, w], 0) for x in xs])
    np.testing.assert_allclose(got[1], want_w, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(got[0], want_x, rtol=1e-5, atol=1e-5)


@sweep
def test_scan_inside_shard_map(case):
    args = batch(case)

    def body(*xs):
        return jax.lax.scan(lambda total, x: (total + case.scalar(*x), None), xs[0].sum() * 0, xs)[0][None]

    fn = jax.shard_map(body, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    want = [case.scalar_oracle(*(a[i] for a in args)) for i in range(4)]
    np.testing.assert_allclose(jax.jit(fn)(*args), want, rtol=1e-10)


@lowered
def test_named_sharding_in_jit(case):
    args = batch(case)
    place = jax.NamedSharding(mesh(), P("d"))
    sharded = [jax.device_put(a, place) for a in args]
    for got, want in zip(jax.jit(jax.vmap(case))(*sharded), oracle(case, args)):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    for got, want in zip(jax.vmap(case, spmd_axis_name="d")(*sharded), oracle(case, args)):
        np.testing.assert_allclose(got, want, rtol=1e-12)


@lowered
def test_explicit_mesh(case):
    args = batch(case)
    with jax.set_mesh(mesh(AxisType.Explicit)):
        sharded = [jax.device_put(a, P("d")) for a in args]
        fn = jax.jit(jax.vmap(case))
        outs = fn(*sharded)
        for got, want in zip(outs, oracle(case, args)):
            np.testing.assert_allclose(got, want, rtol=1e-12)
            assert jax.typeof(got).sharding.spec[0] == "d"


def test_host_op_on_an_explicit_mesh_is_refused():
    with jax.set_mesh(mesh(AxisType.Explicit)):
        x = jax.device_put(jnp.ones((4, 4)), P("d"))
        with pytest.raises(InvalidConfig, match=r"test-package\.host_cumulate\.v1.*shard_map"):
            jax.jit(lambda x: apply(HostCumulate(), x)[0])(x)


def test_a_kernel_runs_on_one_device_or_inside_shard_map_but_not_where_xla_partitions():
    call = functools.partial(apply, KernelSine(offset=1.0), rules=RULES, runtimes=RUNTIMES)
    x = np.linspace(0.0, 1.0, 8)
    np.testing.assert_allclose(jax.jit(call)(x)[0], np.sin(x) + 1)
    sharded = jax.device_put(x, jax.NamedSharding(mesh(), P("d")))
    np.testing.assert_allclose(jax.jit(call)(sharded)[0], np.sin(x))
    manual = jax.shard_map(call, mesh=mesh(), in_specs=P("d"), out_specs=P("d"))
    np.testing.assert_allclose(jax.jit(manual)(sharded)[0], np.sin(x) + 1)


def test_the_result_of_a_host_op_is_usable_where_xla_partitions():
    x = np.arange(16.0).reshape(4, 4)
    sharded = jax.device_put(x, jax.NamedSharding(mesh(), P("d")))
    call = jax.jit(lambda x: apply(HostCumulate(), x)[0])
    np.testing.assert_allclose(call(call(sharded)) + 1, np.cumsum(np.cumsum(x, -1), -1) + 1)


def test_an_explicit_mesh_that_the_einsum_cannot_serve_is_refused():
    with jax.set_mesh(mesh(AxisType.Explicit)):
        rows = jax.device_put(jnp.ones((8, 8)), P("d"))
        columns = jax.device_put(jnp.ones((8, 8)), P(None, "d"))
        with pytest.raises(Unsupported, match="contracted labels split over the mesh"):
            jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b))(columns, rows)
        with pytest.raises(Unsupported, match="two output labels split over one mesh axis"):
            jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b))(rows, columns)
