"""max_mul of two operands is the greatest product for entries of any sign, also where a label of
one operand alone is reduced first.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import plan_tropical_einsum, tropical_einsum
from tenferro_jax.einsum.slices import SCRATCH

from ..sweep import times
from .bank import PATTERNS, sized
from .judges import assignment_and_gradient, check_assignment, places

ALONE = [
    case
    for case in map(sized, PATTERNS)
    if len(case.terms) == 2
    and any(case.equation.replace(label, "", 1).count(label) == 0 for label in case.sizes)
]
"""Equations of two operands with a label that stands once in them and not in the output."""


def entries(case, dtype=float):
    rng = np.random.default_rng(len(case.equation))
    low = rng.integers(0, 10)  # from all negative to all positive
    return [rng.permutation(rng.integers(low - 9, low + 1,
    shape).astype(dtype)) if shape else rng.integers(-9, 9, ()).astype(dtype)
            for shape in case.shapes]  # fmt: skip


def check(case, operands, found):
    """The assignment has NumPy's value, and the gradient is the partner's entry at each entry of
    the assignment.
    """
    best, gradient = found
    check_assignment("max_mul", case.equation, operands, best.value, best.labels)
    where = places(case.equation, best.labels, best.value.shape)
    chosen = [x[place] for x, place in zip(operands, where, strict=True)]
    for x, place, partner, got in zip(operands, where, chosen[::-1], gradient, strict=True):
        want = np.zeros(x.shape)
        np.add.at(want, place, np.broadcast_to(partner, best.value.shape))
        np.testing.assert_array_equal(got, want)


solve = functools.partial(assignment_and_gradient, semiring="max_mul")


@pytest.mark.few(1)
@pytest.mark.parametrize("part", range(times(8)))
def test_forms_of_equations_with_entries_of_any_sign(part):
    cases = random.Random(part).sample(ALONE, 3)
    given = [entries(case) for case in cases]
    found = jax.jit(
        lambda given: [solve(case.equation, *xs) for case, xs in zip(cases, given, strict=True)]
    )(given)
    for case, operands, each in zip(cases, given, found, strict=True):
        check(case, operands, each)


LARGE = sized("aij,jk->ik")._replace(sizes={"a": 32, "i": 16, "j": 16, "k": 16})


@pytest.mark.slow
def test_in_slices():
    operands = [
        -np.random.default_rng(0).integers(1, 99, shape).astype(float) for shape in LARGE.shapes
    ]
    free = plan_tropical_einsum(LARGE.equation, *operands, semiring="max_mul")
    plan = plan_tropical_einsum(
        LARGE.equation,
        *operands,
        semiring="max_mul",
        memory_limit=SCRATCH + (free.peak - SCRATCH) // 16,
    )
    assert {"i", "j"} <= set(plan.sliced)
    check(LARGE, operands, solve(LARGE.equation, *operands, memory_limit=plan.peak))


def test_symbolic_sizes_and_nothing_to_contract():
    rows, columns = jax.export.symbolic_shape("n, m")
    specs = (
        jax.ShapeDtypeStruct((rows, columns), np.float32),
        jax.ShapeDtypeStruct((columns,), np.float32),
    )
    program = jax.export.export(
        jax.jit(lambda x, y: tropical_einsum("ij,j->", x, y, semiring="max_mul"))
    )(*specs)
    x, y = -np.arange(1.0, 7.0, dtype=np.float32).reshape(2, 3), -np.ones(3, np.float32)
    assert program.call(x, y) == 6
    assert tropical_einsum("ij,j->", x[:0], y, semiring="max_mul") == 0
    assert jnp.isnan(
        tropical_einsum("i,j->", np.array([1, np.nan]), y.astype(float), semiring="max_mul")
    )
