"""max_mul of two operands is the greatest product for entries of any sign, also where a label of one operand alone is reduced first."""

import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import best_assignment, plan_tropical_einsum, tropical_einsum
from ext_tropical.network.tropical_plan import SCRATCH
from tenferro_jax import export

from ..oracles import object_einsum
from ..sweep import times
from .bank import PATTERNS, sized

ALONE = [
    case
    for case in map(sized, PATTERNS)
    if len(case.terms) == 2 and any(case.equation.replace(label, "", 1).count(label) == 0 for label in case.sizes)
]
"""Equations of two operands with a label that stands once in them and not in the output."""


def entries(case, dtype=float):
    rng = np.random.default_rng(len(case.equation))
    low = rng.integers(0, 10)  # from all negative to all positive
    return [rng.permutation(rng.integers(low - 9, low + 1, shape).astype(dtype)) if shape else rng.integers(-9, 9, ()).astype(dtype)
            for shape in case.shapes]  # fmt: skip


def solve(equation, *operands, **options):
    """Value, labels and the gradient of the sum of all cells."""
    best = best_assignment(equation, *operands, semiring="max_mul", **options)
    gradient = jax.grad(lambda *x: tropical_einsum(equation, *x, semiring="max_mul", **options).sum(), (0, 1))(*operands)
    return best.value, best.labels, gradient


def check(case, operands, found):
    """The value is NumPy's, the assignment has it, and the gradient is the partner's entry at each entry of the assignment."""
    value, labels, gradient = jax.tree.map(np.asarray, found)
    np.testing.assert_array_equal(value, object_einsum("max_mul", case.equation, *operands))
    index = dict(zip(case.output, np.indices(value.shape))) | labels
    left, right = places = [tuple(index[label] for label in term) for term in case.terms]
    chosen = operands[0][left], operands[1][right]
    np.testing.assert_array_equal(chosen[0] * chosen[1], value)
    for x, place, partner, got in zip(operands, places, chosen[::-1], gradient, strict=True):
        want = np.zeros(x.shape)
        np.add.at(want, place, np.broadcast_to(partner, value.shape))
        np.testing.assert_array_equal(got, want)


def sample(seed, count):
    return pytest.mark.parametrize("case", random.Random(seed).sample(ALONE, times(count)), ids=lambda case: case.equation)


@pytest.mark.few(2)
@sample(0, 5)
def test_forms_of_equations_with_entries_of_any_sign(case):
    operands = entries(case)
    check(case, operands, jax.jit(lambda *x: solve(case.equation, *x))(*operands))


@pytest.mark.slow
@sample(1, 40)
def test_more_forms_of_equations_with_entries_of_any_sign(case):
    operands = entries(case)
    check(case, operands, jax.jit(lambda *x: solve(case.equation, *x))(*operands))


@pytest.mark.slow
def test_in_batches_and_in_integers():
    case = sized("aib,cb->i")
    operands = entries(case)
    many = [np.stack([x, -x, x[::-1]]) for x in operands]
    found = jax.jit(jax.vmap(lambda *x: solve(case.equation, *x)))(*many)
    for i in range(3):
        check(case, [x[i] for x in many], jax.tree.map(lambda x, i=i: x[i], found))
    whole = [x.astype(np.int32) for x in operands]
    np.testing.assert_array_equal(
        tropical_einsum(case.equation, *whole, semiring="max_mul"), object_einsum("max_mul", case.equation, *whole)
    )


LARGE = sized("aij,jk->ik")._replace(sizes={"a": 32, "i": 16, "j": 16, "k": 16})


@pytest.mark.slow
def test_in_slices():
    operands = [-np.random.default_rng(0).integers(1, 99, shape).astype(float) for shape in LARGE.shapes]
    free = plan_tropical_einsum(LARGE.equation, *operands, semiring="max_mul")
    plan = plan_tropical_einsum(LARGE.equation, *operands, semiring="max_mul", memory_limit=SCRATCH + (free.peak - SCRATCH) // 16)
    assert set(plan.sliced) == {"i", "j"}
    check(LARGE, operands, jax.jit(lambda *x: solve(LARGE.equation, *x, memory_limit=plan.peak))(*operands))


@pytest.mark.slow
def test_exported_and_within_the_memory_of_the_plan():
    operands = [-np.random.default_rng(0).integers(1, 99, shape).astype(float) for shape in LARGE.shapes]
    free = plan_tropical_einsum(LARGE.equation, *operands, semiring="max_mul").peak
    for limit in (free, SCRATCH + (free - SCRATCH) // 4):
        best = jax.jit(lambda *x, limit=limit: best_assignment(LARGE.equation, *x, semiring="max_mul", memory_limit=limit))
        memory = best.lower(*operands).compile().memory_analysis()
        assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= limit
    program = export(lambda *x: solve(LARGE.equation, *x), *operands)
    check(LARGE, operands, program.call(*operands))


def test_symbolic_sizes_and_nothing_to_contract():
    rows, columns = jax.export.symbolic_shape("n, m")
    specs = jax.ShapeDtypeStruct((rows, columns), np.float32), jax.ShapeDtypeStruct((columns,), np.float32)
    program = jax.export.export(jax.jit(lambda x, y: tropical_einsum("ij,j->", x, y, semiring="max_mul")))(*specs)
    x, y = -np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3), -np.ones(3, np.float32)
    assert program.call(x, y) == 6
    assert tropical_einsum("ij,j->", x[:0], y, semiring="max_mul") == 0
    assert jnp.isnan(tropical_einsum("i,j->", np.array([1, np.nan]), y.astype(float), semiring="max_mul"))
