"""tj.einsum in slices: what NumPy and the einsum without slices say, whatever the transform, the
limit and the place; memory as compiled; refusals.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from opt_einsum.testing import rand_equation

import tenferro_jax as tj
from tenferro_jax.einsum.slices import SCRATCH, Memory, slice_lengths
from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.tensor import TracedTensor

from ..helpers import each_ends_in
from ..sweep import some, times

CHAIN = "ij,jk,kl->il"
SHAPES = ((6, 40), (40, 30), (30, 4))
LIMIT = SCRATCH + 2_500
DTYPES = ("float32", "float64", "bfloat16", "int32", "complex64", "bool")


def tables(shapes=SHAPES, dtype="float32", seed=0):
    """Small integers: sums of products are exact in any order."""
    values = [np.random.default_rng([seed, i]).integers(-2, 3, s) for i, s in enumerate(shapes)]
    return [jnp.asarray(x, dtype) for x in values]


def peak(equation, shapes, dtype, limit=None):
    plan = tj.plan_einsum(equation, shapes)
    memory = Memory(plan, np.dtype(dtype).itemsize, max(np.dtype(dtype).itemsize, 4))
    lengths = slice_lengths("here", memory, limit)
    return memory.peak(lengths), lengths


def sliced(*operands, limit=LIMIT, equation=CHAIN, **how):
    return tj.einsum(equation, *operands, memory_limit=limit, **how)


whole = functools.partial(tj.einsum, CHAIN)


@pytest.mark.cpu
@pytest.mark.parametrize("seed", some(range(times(24)), 6))
def test_slices_are_the_einsum_and_within_their_limit(seed):
    """Exact sums, so the order does not matter; XLA's own count of the bytes."""
    equation, shapes = rand_equation(5, 3, n_out=seed % 4, d_min=3, d_max=10, seed=seed)
    dtype = DTYPES[seed % len(DTYPES)]
    operands = tables(shapes, dtype, seed)
    dtype = operands[0].dtype.name  # float64 is float32 while 64-bit types are off
    free, _ = peak(equation, shapes, dtype)
    for part in (0.7, 0.35):
        limit = SCRATCH + int((free - SCRATCH) * part)
        try:
            peak(equation, shapes, dtype, limit)
        except InvalidConfig:
            continue  # the result alone takes more
        run = jax.jit(functools.partial(sliced, limit=limit, equation=equation))
        memory = run.lower(*operands).compile().memory_analysis()
        assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= limit
        want = tj.einsum(equation, *operands)
        rtol = 0.05 if dtype == "bfloat16" else 0
        np.testing.assert_allclose(
            *(np.asarray(x, complex) for x in (run(*operands), want)), rtol=rtol, atol=rtol
        )


def test_the_plan_has_slices_of_both_kinds_of_labels():
    bytes, lengths = peak(CHAIN, SHAPES, "float32", LIMIT)
    assert bytes <= LIMIT
    assert [c for c, n in zip("ijkl", (6, 40, 30, 4), strict=True) if lengths[c] < n] == ["k", "l"]
    assert min(slice_lengths("here", Memory(tj.plan_einsum(CHAIN, SHAPES), 4, 4), None, 7)) == "i"


def test_derivatives_of_both_modes_and_two_orders():
    operands = tables()

    def loss(fn, *xs):
        return (jnp.sin(fn(*xs) / 50) * jnp.arange(4, dtype=np.float32)[None]).sum()

    for take in (
        lambda fn: jax.grad(functools.partial(loss, fn), (0, 1, 2))(*operands),
        lambda fn: jax.jvp(fn, operands, operands),
        lambda fn: jax.jit(jax.hessian(functools.partial(loss, fn)))(*operands),
        lambda fn: jax.vmap(fn, (0, None, None))(jnp.stack([operands[0]] * 3), *operands[1:]),
        lambda fn: jax.vmap(jax.grad(functools.partial(loss, fn)))(
            *(jnp.stack([x, -x]) for x in operands)
        ),
    ):
        got, want = take(sliced), take(whole)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), got, want)


@pytest.mark.cpu
def test_a_gradient_holds_one_slice_at_a_time():
    """The largest intermediate result takes 16 MiB, operands and gradients 0.1."""
    shapes = ((2, 2048), (2, 2048), (2048, 2), (2048, 2))
    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in shapes]

    def bytes(limit):
        run = functools.partial(
            sliced, limit=limit, equation="ai,aj,ib,jb->ab", optimize=[(0, 1), (0, 2), (0, 1)]
        )
        grad = jax.jit(jax.grad(lambda *xs: run(*xs).sum(), (0, 1, 2, 3)))
        return grad.lower(*specs).compile().memory_analysis().temp_size_in_bytes

    assert bytes(2**21) < 2**22 < 2**24 < bytes(None)


def test_lazy_tensors_record_the_slices():
    operands = tables()
    lazy = [TracedTensor.from_array(np.asarray(x)) for x in operands]
    got = sliced(*lazy)
    np.testing.assert_array_equal(got.eval(), whole(*operands))
    np.testing.assert_array_equal(
        got.sum().grad(lazy[1]).eval(), jax.grad(lambda *x: whole(*x).sum(), 1)(*operands)
    )
    assert "Scan" in str(tj.trace(sliced, *operands))


def test_other_dtypes_and_numbers():
    x, y, z = tables()
    got = sliced(x.astype(jnp.bfloat16), y, z, limit=SCRATCH + 9_000)
    np.testing.assert_array_equal(got, whole(x, y, z))
    got = sliced(x, y, z, preferred_element_type=np.float16)
    np.testing.assert_array_equal(got, whole(x, y, z, preferred_element_type=np.float16))
    np.testing.assert_array_equal(
        tj.einsum("ij,->i", x, 2, memory_limit=SCRATCH + 200), 2 * x.sum(1)
    )
    np.testing.assert_array_equal(
        tj.einsum("...ij,...jk->...ik", x[None], y, memory_limit=SCRATCH + 4_000), (x @ y)[None]
    )
    pytest.importorskip("cotengra")
    np.testing.assert_array_equal(sliced(x, y, z, optimize="cotengra"), whole(x, y, z))


KINDS = (jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit)


@pytest.mark.cpu
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.parametrize(("shape", "over"), [((8,), "d"), ((2, 3), ("d", "e")), ((2, 4), "e")])
def test_slices_over_the_devices_of_a_mesh(kind, shape, over):
    operands = tables()
    axes, devices = ("d", "e")[: len(shape)], jax.devices()[: np.prod(shape)]
    mesh = jax.make_mesh(shape, axes, axis_types=(kind,) * len(shape), devices=devices)
    placed = jax.device_put(operands[0], jax.NamedSharding(mesh, jax.P(None, "d")))

    def run(*xs, limit=SCRATCH + 4_000):
        return sliced(*xs, over=over, limit=limit)

    def loss(fn, *xs):
        return (fn(*xs) ** 2).sum()

    np.testing.assert_array_equal(run(placed, *operands[1:]), whole(*operands))
    with jax.set_mesh(mesh):
        np.testing.assert_array_equal(jax.jit(run)(*operands), whole(*operands))
        bools = [x > 0 for x in operands]
        np.testing.assert_array_equal(run(*bools, limit=SCRATCH + 40_000), whole(*bools))
        got = jax.jit(jax.grad(functools.partial(loss, run), (0, 1, 2)))(placed, *operands[1:])
    want = jax.grad(functools.partial(loss, whole), (0, 1, 2))(*operands)
    jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.cpu
def test_refusals():
    x = tables()
    lazy = TracedTensor.from_array(np.asarray(x[0]))
    mesh = jax.make_mesh((2,), ("d",), devices=jax.devices()[:2])
    (n,) = jax.export.symbolic_shape("n")
    specs = [jax.ShapeDtypeStruct(s, np.float32) for s in ((n, 40), (40, 30), (30, n))]

    def under(*operands, **how):
        with jax.set_mesh(mesh):
            return sliced(*operands, **how)

    run = functools.partial(sliced, over="d")
    inside = jax.shard_map(run, mesh=mesh, in_specs=jax.P(), out_specs=jax.P())
    each_ends_in(
        (lambda: sliced(*x, limit="1GB"), InvalidConfig, "given '1GB'.*an integer"),
        (lambda: sliced(*x, limit=True), InvalidConfig, "given True"),
        (lambda: sliced(*x, limit=10), InvalidConfig, "needed at least 65760 bytes"),
        (
            lambda: sliced(*x, limit=2_000, preferred_element_type="complex64"),
            InvalidConfig,
            "more than 12480 bytes, which the operands take as complex64",
        ),
        (lambda: sliced(*x, over="d"), InvalidConfig, "no mesh.*jax.set_mesh"),
        (lambda: under(*x, over="e"), InvalidConfig, "over: given 'e'; needed one of 'd'"),
        (lambda: under(*x, over=("d", "d")), InvalidConfig, "needed one of 'd'"),
        (lambda: under(*x, over=3), InvalidConfig, "the name of a mesh axis"),
        (lambda: under(lazy, *x[1:], over="d"), Unsupported, "given lazy tensors"),
        (lambda: inside(*x), Unsupported, "inside jax.shard_map.*Leave over out"),
        (
            lambda: jax.export.export(jax.jit(sliced))(*specs),
            Unsupported,
            "memory_limit: given symbolic sizes",
        ),
    )
