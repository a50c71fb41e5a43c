"""The GPU kernel: what it computes, on a card or by the interpreter of Mosaic GPU on CPU; that it
compiles to a call for CUDA; which steps it takes. benchmarks/tropical_gpu.py says how fast it is.
"""

import functools
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import (
    TropicalEinsum,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
    tropical_einsum,
)
from ext_tropical.steps.einsum_op import Outputs, run_gpu
from ext_tropical.steps.kernels import mosaic
from tenferro_jax import routes
from tenferro_jax.extension.routes import RouteKind

from ..helpers import equal, python
from ..oracles import brute_force

SEMIRINGS = (max_plus, min_plus, max_mul, min_max)
SPECIAL = (-3.0, -2.0, -1.0, 0.0, 1.0, 2.0, np.inf, -np.inf, np.nan)
CHANCES = (0.16, 0.16, 0.16, 0.16, 0.16, 0.16, 0.01, 0.02, 0.01)
HERE = pytest.mark.skipif(bool(mosaic.backend().problem), reason=mosaic.backend().problem)


def how():
    """The parameters of the interpreter, with simulated shared memory and copies that arrive later;
    None where a card runs the kernel.
    """
    return None if mosaic.cards() else mosaic.backend().module.InterpretGPUParams()


def found_by_kernel(op, *operands):
    return run_gpu(op, *map(jnp.asarray, operands), interpret=how())


def check(op, *operands):
    want = brute_force(op.algebra.name, op.layout.equation.explicit, *operands)
    got = found_by_kernel(op, *operands)
    assert len(got) == op.output_count
    equal(*zip(got, want))


@pytest.mark.few(2)
@HERE
@pytest.mark.parametrize(
    ("semiring", "outputs"),
    [*((semiring, Outputs.VALUE_AND_WINNER) for semiring in SEMIRINGS), (max_plus, Outputs.VALUE)],
    ids=repr,
)
def test_values_and_winners_by_brute_force(semiring, outputs):
    """Small integers, so that ties are many; NaN, infinities, inf - inf and 0 * inf among them; no
    size fits a tile or a block.
    """
    rng = np.random.default_rng(0)
    op = TropicalEinsum(semiring, "bij,bjk->bik", outputs)
    check(
        op,
        *(
            rng.choice(SPECIAL, shape, p=CHANCES).astype(np.float32)
            for shape in ((2, 5, 37), (2, 37, 35))
        ),
    )


@pytest.mark.few(1)
@HERE
@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", ((1, 1), (1, 1))),
        ("ij,jk->ik", ((130, 17), (17, 2))),
        ("ijb,kj->ibk", ((3, 90, 2), (4, 90))),
    ],
    ids=str,
)
def test_sizes_and_orders_of_axes(equation, shapes):
    rng = np.random.default_rng(1)
    op = TropicalEinsum(max_plus, equation, Outputs.VALUE_AND_WINNER)
    check(op, *(rng.integers(-9, 10, shape).astype(np.float32) for shape in shapes))


@pytest.mark.few(1)
@HERE
@pytest.mark.parametrize("with_winner", [False, True])
def test_the_large_tiles(with_winner, monkeypatch):
    monkeypatch.setattr(mosaic, "LEAST_PROGRAMS", 1)
    rng = np.random.default_rng(2)
    lhs, rhs = (
        rng.integers(-9, 10, shape).astype(np.float32) for shape in ((1, 20, 130), (1, 20, 66))
    )
    tiles = mosaic.TILES_WITH_WINNERS if with_winner else mosaic.TILES
    assert mosaic.tile_for(1, 130, 66, with_winner=with_winner) == tiles[0]
    got = mosaic.contract(
        min_plus, jnp.asarray(lhs), jnp.asarray(rhs), with_winner=with_winner, interpret=how()
    )
    equal(*zip(got, brute_force("min_plus", "bji,bjk->bik", lhs, rhs)))


@HERE
def test_integers_whose_infinities_absorb():
    rng = np.random.default_rng(3)
    op = TropicalEinsum(min_plus, "ij,jk->ik", Outputs.VALUE_AND_WINNER)
    entries = (-(2**31), 2**31 - 1, -2, -1, 0, 1, 2)
    operands = [rng.choice(entries, shape).astype(np.int32) for shape in ((4, 33), (33, 5))]
    check(op, *operands)


@HERE
def test_sixteen_bit_floats_compute_in_float32():
    dtype = "bfloat16"
    rng = np.random.default_rng(4)
    lhs, rhs = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((3, 20), (20, 4)))
    value, winner = found_by_kernel(
        TropicalEinsum(max_plus, "ij,jk->ik", Outputs.VALUE_AND_WINNER), lhs, rhs
    )
    want = brute_force(
        "max_plus", "ij,jk->ik", *(np.asarray(x.astype(np.float32)) for x in (lhs, rhs))
    )
    assert value.dtype == dtype
    equal((value, jnp.asarray(want[0]).astype(dtype)), (winner, want[1]))


@HERE
def test_the_first_of_equals_the_first_nan_and_cells_without_a_candidate():
    lhs = np.zeros((4, 40), np.float32)
    lhs[1, [20, 35]] = np.nan  # in two blocks
    lhs[2] = -np.inf
    lhs[3, [17, 18, 39]] = 1.0
    value, winner = found_by_kernel(
        TropicalEinsum(max_plus, "ij,jk->ik", Outputs.VALUE_AND_WINNER),
        lhs,
        np.zeros((40, 1), np.float32),
    )
    equal(
        (value[:, 0], np.array([0, np.nan, -np.inf, 1], np.float32)), (winner[:, 0], [0, 20, 0, 17])
    )


@pytest.mark.few(2)
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=repr)
def test_the_winner_inside_a_block(semiring):
    """Plain JAX, so it is judged on every version: of the block that has the first best candidate,
    the winner.
    """
    rng = np.random.default_rng(5)
    lhs, rhs = (
        rng.choice(SPECIAL, shape, p=CHANCES).astype(np.float32)
        for shape in ((2, 37, 6), (2, 37, 5))
    )
    _, winner = brute_force(semiring.name, "bji,bjk->bik", lhs, rhs)
    filled = [mosaic._filled(jnp.asarray(x), 8) for x in (lhs, rhs)]
    assert [x.shape for x in filled] == [(2, 48, 8), (2, 48, 8)]
    found = mosaic._resolved(
        semiring, *filled, block=jnp.asarray(winner // mosaic.BLOCK_ENTRIES, jnp.int32)
    )
    assert found.dtype == np.int32
    np.testing.assert_array_equal(found, winner)


def lowered(fn, *operands):
    return jax.jit(fn).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()


@pytest.mark.few(2)
@HERE
@pytest.mark.parametrize("outputs", Outputs)
@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=repr)
def test_it_lowers_for_cuda_without_a_card(semiring, dtype, outputs):
    """Every layout of registers, copy and store has a form there. That a card accepts and runs it
    is not shown.
    """
    for n in (
        (70, 2000) if (semiring, dtype) == (max_plus, "float32") else (70,)
    ):  # 2000 takes a larger tile
        x = jax.ShapeDtypeStruct((2, 37, n), dtype)
        op = TropicalEinsum(semiring, "bji,bjk->bik", outputs)
        assert lowered(lambda a, b, op=op: run_gpu(op, a, b), x, x).count("@mosaic_gpu_v2") == 1


@HERE
@pytest.mark.parametrize("with_winner", [False, True])
def test_what_searches_twice_stores_its_operands_first(with_winner):
    """XLA may otherwise make them twice, with different rounding: only a card would show it."""
    x = jax.ShapeDtypeStruct((1, 32, 128), "float32")
    contract = functools.partial(mosaic.contract, max_plus, with_winner=with_winner)
    first = jax.make_jaxpr(contract)(x, x).eqns[0].primitive.name
    assert (first == "optimization_barrier") == with_winner


def test_it_takes_the_steps_that_it_serves_and_their_derivatives():
    """And says why not the others."""
    x = np.zeros((64, 64), np.float32)

    def route(*operands, equation="ij,jk->ik", semiring=max_plus, exporting=False):
        return routes(
            lambda *xs: tropical_einsum(equation, *xs, semiring=semiring),
            *operands,
            platform="cuda",
            exporting=exporting,
        )[0]

    assert {kernel.platform for kernel in TropicalEinsum.runtimes} == {"cpu", "cuda"}
    for taken, reason in (
        (route(x > 0, x > 0, semiring=or_and), "it computes in float32, int32"),
        (route(x.astype(np.float64), x.astype(np.float64)), "it computes in float32, int32"),
        (route(x, x[:, :1]), "one reduction does it"),
        (route(x, equation="ij->j"), "one reduction does it"),
        (route(x[:0], x), "nothing to search"),
        (route(x, x, exporting=True), "not portable"),
    ):
        assert taken.kind is RouteKind.LOWERING
        assert reason in taken.reason
    if mosaic.backend().problem:
        assert mosaic.backend().problem in route(x, x).reason
        return
    assert route(x, x).kind is RouteKind.KERNEL
    assert (
        lowered(lambda a: tropical_einsum("ij,jk->ik", a, a, semiring=min_plus), x).count(
            "@mosaic_gpu_v2"
        )
        == 1
    )
    gradient = jax.grad(lambda a: jax.vmap(lambda a: tropical_einsum("ij,jk->ik", a, a))(a).sum())
    assert lowered(gradient, np.stack([x, x])).count("@mosaic_gpu_v2") == 1


def test_what_is_missing_is_told(monkeypatch):
    monkeypatch.setattr(jax, "__version_info__", (0, 10, 2))
    old = mosaic.backend.__wrapped__()
    assert old.module is None
    assert old.problem.startswith("it needs JAX 0.11 or newer")
    monkeypatch.setattr(jax, "__version_info__", (0, 11, 2))
    monkeypatch.setitem(sys.modules, "jax.experimental.pallas.mosaic_gpu", None)
    assert mosaic.backend.__wrapped__().problem.startswith("Mosaic GPU is missing: ")
    ampere, hopper = (
        types.SimpleNamespace(device_kind=kind, compute_capability=c)
        for kind, c in (("A100", "8.0"), ("B200", "10.0"))
    )
    assert mosaic.problem_of_cards([hopper]) == ""
    assert (
        mosaic.problem_of_cards([hopper, ampere])
        == "it needs compute capability 9.0 or newer, and A100 has less"
    )


@pytest.mark.slow
def test_importing_the_package_loads_no_backend():
    program = """
import sys, ext_tropical
print("jax.experimental.pallas.mosaic_gpu" in sys.modules)
from ext_tropical.steps.kernels.mosaic import doctor
print(doctor())
"""
    assert python("-c", program).splitlines() == ["False", f"GPU kernel: {on_or_off()}"]


def on_or_off():
    problem = mosaic.problem() or ("" if mosaic.cards() else "JAX has no CUDA device here")
    return f"off ({problem})" if problem else "on"
