"""Sizes of 1 beside longer ones: values, assignments, winners and gradients are those of the
repeated entries.
"""

import functools
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import (
    best_assignment,
    log_sum_exp,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from tenferro_jax.einsum.slices import SCRATCH
from tenferro_jax.errors import ShapeError

from ..oracles import ALGEBRAS, SIZES_OF_ONE, brute_force, log_einsum, object_einsum
from ..sweep import in_turn, times
from .bank import PATTERNS, sized
from .judges import assignment_and_gradient, check_assignment, places, uses

NAMES = [name for name in ALGEBRAS if name != "or_and"]


def repeated(equation, operands):
    """The operands with sizes of 1 repeated by NumPy, in explicit equations without an ellipsis."""
    terms = equation.split("->")[0].split(",")
    sizes = {}
    for term, x in zip(terms, operands, strict=True):
        sizes |= {
            label: size
            for label, size in zip(term, x.shape, strict=True)
            if sizes.get(label, 1) == 1
        }
    return [
        np.broadcast_to(x, [sizes[label] for label in term])
        for term, x in zip(terms, operands, strict=True)
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "case"), in_turn(NAMES, SIZES_OF_ONE, 1), ids=str)
def test_values_and_assignments(name, case):
    equation, shapes = case
    rng = np.random.default_rng(0)
    operands = [
        rng.integers(0 if name == "max_mul" else -4, 5, shape).astype(float) for shape in shapes
    ]
    best = best_assignment(equation, *operands, semiring=name)
    if 0 in (size for shape in shapes for size in shape):
        assert best.value == ALGEBRAS[name].zero
        assert best.labels["i"] == -1
        return
    want = object_einsum(name, equation, *operands)
    np.testing.assert_array_equal(best.value, want)
    if "..." not in equation and "->" in equation:
        check_assignment(name, equation, repeated(equation, operands), best.value, best.labels)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 1)]),
        ("ij,j->i", [(3, 4), (1,)]),
    ],
)
def test_winners_are_the_first_of_the_repeated_entries(equation, shapes):
    """Small integers, so that there are ties and no rounding."""
    rng = np.random.default_rng(0)
    operands = [rng.integers(-2, 3, shape).astype(float) for shape in shapes]
    result = tropical_einsum_with_argmax(equation, *operands)
    value, winner = brute_force("max_plus", equation, *repeated(equation, operands))
    np.testing.assert_array_equal(result.value, value)
    np.testing.assert_array_equal(result.coordinates()["j"], winner)
    value, _ = brute_force(
        "max_mul", equation, *repeated(equation, operands)
    )  # of entries of both signs
    np.testing.assert_array_equal(tropical_einsum(equation, *operands, semiring="max_mul"), value)


@pytest.mark.few(1)
@pytest.mark.parametrize("memory_limit", [None, SCRATCH + 3000])
def test_gradients_count_the_uses_of_an_entry(memory_limit):
    rng = np.random.default_rng(0)
    operands = [
        rng.permutation(20).astype(float).reshape(20, 1),
        rng.permutation(400).astype(float).reshape(20, 20),
        np.array([[0.5]]),
    ]
    equation = "ij,jk,kl->il"
    assert (plan_tropical_einsum(equation, *operands, memory_limit=memory_limit).slices > 1) == (
        memory_limit is not None
    )
    best, gradients = assignment_and_gradient(equation, *operands, memory_limit=memory_limit)
    counts = uses(equation, repeated(equation, operands), best.labels, best.value.shape)
    for x, count, gradient in zip(operands, counts, gradients, strict=True):
        ones = tuple(axis for axis, size in enumerate(x.shape) if size == 1)
        np.testing.assert_array_equal(gradient, count.sum(ones, keepdims=True))


def test_the_soft_neighbour_broadcasts_too():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1)), rng.normal(size=(3, 4))
    want = log_einsum(0.7, "ij,jk->ik", *repeated("ij,jk->ik", [a, b]))
    np.testing.assert_allclose(
        tropical_einsum("ij,jk->ik", a, b, semiring=log_sum_exp(0.7)), want, rtol=1e-12
    )


def test_a_diagonal_has_one_size():
    with pytest.raises(ShapeError, match="'i' of size 3, and of size 1 before"):
        tropical_einsum("ii->i", np.ones((1, 3)))


# --- max_mul of entries of any sign ---------------------------------------------------------------

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
