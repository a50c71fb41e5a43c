"""Laws of networks of tables under selective semirings, on seeded networks judged by NumPy."""

import functools

import chex
import jax
import numpy as np
import pytest

from ext_tropical import (
    best_assignment,
    tropical_einsum,
    tropical_einsum_with_argmax,
)

from ..sweep import in_turn
from ..sweep import times as cases
from .small_networks import (
    RULES,
    brute,
    check,
    entries,
    grid,
    network,
    scattered,
    stepwise,
    tables,
)


def solved(name, equation, operands, weights, **options):
    """The best assignment, and the gradient of the weighted sum of all cells: one program."""

    @jax.jit
    def solve(*xs):
        best = best_assignment(equation, *xs, semiring=name, **options)
        result = tropical_einsum_with_argmax(equation, *xs, semiring=name, **options)
        return best, result.coordinates(), jax.grad(total, tuple(range(len(xs))))(*xs)

    def total(*xs):
        return (weights * tropical_einsum(equation, *xs, semiring=name, **options)).sum()

    return solve(*operands)


def weights_of(equation, operands):
    shape = brute("max_plus", equation, *operands).shape
    return np.random.default_rng(1).integers(1, 9, shape).astype(float)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "seed"), in_turn(["max_plus", "min_plus", "max_mul", "min_max"], range(cases(4)), 2)
)
def test_values_first_winners_and_gradients(name, seed):
    """The gradient of an entry is what the assignments that use it are worth to the entry."""
    equation, shapes = network(seed)
    operands = tables(name, shapes, seed)
    if name == "min_max":  # one bottleneck: all entries differ
        numbers = iter(np.random.default_rng(seed).permutation(sum(map(np.size, operands))))
        operands = [np.fromiter(numbers, float, x.size).reshape(x.shape) for x in operands]
    weights = weights_of(equation, operands)
    best, coordinates, gradients = solved(name, equation, operands, weights)
    places = check(name, equation, operands, best)
    chex.assert_trees_all_equal(coordinates, best.labels)
    inputs, _ = equation.split("->")
    used = entries(inputs, operands, places)
    amounts = [weights] * len(used)
    if name == "max_mul":
        amounts = [
            weights * functools.reduce(np.multiply, used[:i] + used[i + 1 :], 1.0)
            for i in range(len(used))
        ]
    if name == "min_max":
        amounts = [weights * (x == np.asarray(best.value)) for x in used]
    want = scattered(inputs, operands, places, amounts)
    chex.assert_trees_all_close(list(gradients), want, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "bool"])
@pytest.mark.parametrize("seed", range(1, 1 + cases(1)))
def test_dtypes(dtype, seed):
    """Outside jit, as most assignments are asked for."""
    equation, shapes = network(seed)
    names = ["or_and"] if dtype == "bool" else [name for name in RULES if name != "or_and"]
    for name in names:
        operands = tables(name, shapes, seed, dtype)
        check(name, equation, operands, best_assignment(equation, *operands, semiring=name))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_mul", "min_max"])
def test_a_nan_in_a_table_reaches_exactly_the_cells_that_can_use_it(name):
    """The first NaN wins each step; eagerly, as most assignments are asked for."""
    equation, shapes = grid(2, 2, "a")
    for i in (0, 5):
        operands = tables(name, shapes, 1)
        operands[i][(1,) * operands[i].ndim] = np.nan
        best = best_assignment(equation, *operands, semiring=name)
        check(name, equation, operands, best)
        assert np.isnan(best.value).any()


@pytest.mark.parametrize("name", ["max_plus", "min_plus"])
def test_where_nothing_is_allowed(name):
    """All entries of one table, or of all tables, are zeros of the semiring; of one row only the
    cells that need it.
    """
    zero = RULES[name][2]
    equation, shapes = grid(2, 2, "a")
    for closed in (slice(0, 1), slice(None)):
        operands = tables(name, shapes, 2)
        for x in operands[closed]:
            x[...] = zero
        best = best_assignment(equation, *operands, semiring=name)
        check(name, equation, operands, best)
        assert not best.feasible.any()
    operands = [np.where(x == zero, 0, x) for x in tables(name, shapes, 2)]
    operands[0][1] = zero
    best = best_assignment(equation, *operands, semiring=name)
    check(name, equation, operands, best)
    assert best.feasible.tolist() == [True, False]


@pytest.mark.parametrize("size", [0, 1])
def test_sizes_of_nothing_and_of_one(size):
    shapes = {"a": 2, "b": size, "c": 2, "d": 2}
    equation = "ab,bc,cd,ad->a"
    operands = [np.ones([shapes[k] for k in term]) for term in equation[:-3].split(",")]
    best, _, gradients = solved("max_plus", equation, operands, np.ones(2))
    if size:
        check("max_plus", equation, operands, best)
    else:
        assert best.value.tolist() == [-np.inf] * 2
        assert not best.feasible.any()
        assert {tuple(index.tolist()) for index in best.labels.values()} == {(-1, -1)}
        assert not any(np.asarray(x).any() for x in gradients)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_symbolic_sizes(size):
    """A network exported for any size of its variables answers as it does for one size."""
    equation, _ = grid(2, 2, "a")
    terms = equation.split("->")[0].split(",")
    (n,) = jax.export.symbolic_shape("n")
    specs = [jax.ShapeDtypeStruct([n] * len(term), np.float64) for term in terms]
    program = _exported(equation, tuple(specs))
    operands = tables("max_plus", [[size] * len(term) for term in terms], 4)
    value, labels, gradients = program.call(*operands)
    want, places = stepwise("max_plus", equation, operands)
    np.testing.assert_array_equal(value, want)
    chex.assert_trees_all_equal(labels, {k: places[k].astype(np.int32) for k in labels})
    inputs, amounts = equation.split("->")[0], [np.ones(size)] * len(terms)
    chex.assert_trees_all_equal(list(gradients), scattered(inputs, operands, places, amounts))


def _exported(equation, specs):
    def answers(*xs):
        best = best_assignment(equation, *xs)
        gradients = jax.grad(lambda *xs: tropical_einsum(equation, *xs).sum(), tuple(range(8)))
        return best.value, best.labels, gradients(*xs)

    return jax.export.export(jax.jit(answers))(*specs)
