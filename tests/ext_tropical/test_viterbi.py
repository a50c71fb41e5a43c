"""Viterbi against every sequence: score, first best sequence, gradient."""

import functools
import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import viterbi
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..oracles import ALGEBRAS
from .judges import refusals, temporary_bytes

VALUES = {
    "max_plus": [-2.0, -1.0, 0.0] * 3 + [-np.inf],
    "min_plus": [2.0, 1.0, 0.0] * 3 + [np.inf],
    "max_mul": [0.5, 1.0, 2.0] * 3 + [0.0],
    "min_max": [2.0, 1.0, 0.0] * 3 + [np.inf],
    "or_and": [True] * 9 + [False],
}


def score_of(name, states, initial, transition, emission):
    times = ALGEBRAS[name].times
    score = times(initial[states[0]], emission[0][states[0]])
    for t in range(1, len(states)):
        score = times(times(score, transition[states[t - 1]][states[t]]), emission[t][states[t]])
    return score


def every_sequence(name, *inputs):
    """(score, states) of the best sequence; of equal ones that with the smallest last state, then
    the smallest before it, ...
    """
    best, found = ALGEBRAS[name].zero, None
    for backwards in itertools.product(range(len(inputs[0])), repeat=len(inputs[2])):
        score = score_of(name, backwards[::-1], *inputs)
        if ALGEBRAS[name].better(score, best):
            best, found = score, backwards[::-1]
    return best, found


def model(rng, values, states, length):
    return [rng.choice(values, shape) for shape in ((states,), (states, states), (length, states))]


@pytest.mark.few(6)
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("states", "length"), [(1, 1), (3, 1), (1, 4), (2, 5), (3, 4)])
def test_brute_force(name, states, length):
    """Few distinct values, so that equal sequences and impossible ones are many."""
    rng = np.random.default_rng(states * 10 + length)
    impossible = 0
    for _ in range(6):
        inputs = model(rng, VALUES[name], states, length)
        score, found = every_sequence(name, *inputs)
        result = viterbi(*inputs, semiring=name)
        assert result.states.dtype == np.int32
        np.testing.assert_array_equal(result.score, score)
        assert bool(result.feasible) == (found is not None)
        if (
            name == "min_max" and found
        ):  # a worse beginning may be part of a best sequence, which is then another one
            assert score_of(name, result.states.tolist(), *inputs) == score
        else:
            np.testing.assert_array_equal(result.states, found or [-1] * length)
        impossible += found is None
    assert impossible < 6


@pytest.mark.few(6)
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("states", "length"), [(1, 1), (3, 1), (1, 4), (2, 4), (3, 3)])
def test_the_k_best_against_brute_force(name, states, length, k):
    """No tie is lost, and equally good sequences come in the order of their last states."""
    rng = np.random.default_rng(states * 10 + length)
    algebra = ALGEBRAS[name]
    for _ in range(4):
        inputs = model(rng, VALUES[name], states, length)
        every = [
            (score_of(name, backwards[::-1], *inputs), backwards[::-1])
            for backwards in itertools.product(range(states), repeat=length)
        ]
        every = [row for row in every if algebra.better(row[0], algebra.zero)]
        order = functools.cmp_to_key(
            lambda x, y, better=algebra.better: int(better(y[0], x[0])) - int(better(x[0], y[0]))
        )
        want = sorted(every, key=order)[:k]
        result = viterbi(*inputs, k=k, semiring=name)
        found = len(want)
        assert (result.score.shape, result.states.shape) == ((k,), (k, length))
        np.testing.assert_array_equal(result.score[:found], [score for score, _ in want])
        np.testing.assert_array_equal(result.score[found:], algebra.zero)
        np.testing.assert_array_equal(result.feasible, np.arange(k) < found)
        assert (np.asarray(result.states)[found:] == -1).all()
        states_found = [tuple(row) for row in result.states[:found].tolist()]
        if name in ("max_plus", "min_plus", "max_mul"):
            assert states_found == [row for _, row in want]
        else:  # equally good sequences may come in another order
            scores = {row: score for score, row in every}
            assert [scores[row] for row in states_found] == [score for score, _ in want]
            assert len(set(states_found)) == found


def test_the_k_best_under_transforms():
    """Each score has the gradient of its sequence; a batch has that of each element."""
    initial, transition, _ = model(np.random.default_rng(6), np.arange(-5.0, 1.0), 3, 1)
    emissions = np.random.default_rng(7).choice(np.arange(-5.0, 1.0), (4, 5, 3))
    decode = functools.partial(viterbi, k=6)
    many = jax.jit(jax.vmap(decode, in_axes=(None, None, 0)))(initial, transition, emissions)
    for i, emission in enumerate(emissions):
        one = decode(initial, transition, emission)
        np.testing.assert_array_equal(many.states[i], one.states)
        np.testing.assert_array_equal(many.score[i], one.score)
    slopes = jax.jit(jax.jacobian(lambda *xs: decode(*xs).score, argnums=(0, 1, 2)))(
        initial, transition, emissions[0]
    )
    for r, states in enumerate(np.asarray(many.states[0])):
        want = [np.zeros_like(x) for x in (initial, transition, emissions[0])]
        want[0][states[0]] = 1
        np.add.at(want[1], (states[:-1], states[1:]), 1)
        want[2][np.arange(5), states] = 1
        for got, w in zip(slopes, want):
            np.testing.assert_array_equal(got[r], w)
    factors = [np.random.default_rng(8).uniform(0.5, 1.5, x) for x in ((2,), (2, 2), (3, 2))]
    best = jax.value_and_grad(lambda xs: viterbi(*xs, k=3, semiring="max_mul").score[2])
    value, slopes = jax.jit(best)(factors)
    for x, slope, uses in zip(factors, slopes, (1, 2, 3), strict=True):
        np.testing.assert_allclose((x * slope).sum(), uses * value, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_dtypes(dtype):
    inputs = [x.astype(dtype) for x in model(np.random.default_rng(0), np.arange(-4, 1), 3, 4)]
    score, found = every_sequence("max_plus", *(x.tolist() for x in inputs))
    result = viterbi(*inputs)
    assert result.score.dtype == dtype
    assert int(result.score) == score
    np.testing.assert_array_equal(result.states, found)


def test_integer_infinity_is_no_way():
    """The least integer is the zero of max_plus: no transition from 0 to 1."""
    no = np.iinfo(np.int32).min
    result = viterbi(
        *(np.array(x, np.int32) for x in ([0, no], [[0, no], [0, 0]], [[0, 0], [0, 9]]))
    )
    assert (result.states.tolist(), int(result.score)) == ([0, 0], 0)


@pytest.mark.parametrize("semiring", ["max_plus", "min_plus"])
def test_gradient_counts_what_the_sequence_uses(semiring):
    inputs = model(np.random.default_rng(1), np.arange(-5.0, 1.0), 3, 7)
    result = viterbi(*inputs, semiring=semiring)
    states = np.asarray(result.states)
    want = [np.zeros_like(x) for x in inputs]
    want[0][states[0]] = 1
    np.add.at(want[1], (states[:-1], states[1:]), 1)
    want[2][np.arange(7), states] = 1
    got = jax.jit(jax.grad(lambda *x: viterbi(*x, semiring=semiring).score, argnums=(0, 1, 2)))(
        *inputs
    )
    for g, w in zip(got, want):
        np.testing.assert_array_equal(g, w)
    assert want[1].max() > 1


def test_one_exported_program_for_all_lengths():
    (length,) = jax.export.symbolic_shape("length")
    inputs = model(np.random.default_rng(3), np.arange(-5.0, 1.0), 3, 6)
    specs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in inputs[:2]] + [
        jax.ShapeDtypeStruct((length, 3), np.float64)
    ]
    program = jax.export.export(jax.jit(lambda *xs: tuple(jax.tree.leaves(viterbi(*xs)))))(*specs)
    for count in (1, 2, 6):
        given = [*inputs[:2], inputs[2][:count]]
        chex.assert_trees_all_equal(
            tuple(program.call(*given)), tuple(jax.tree.leaves(viterbi(*given)))
        )


def test_a_long_sequence_needs_no_array_of_candidates():
    states, length = 64, 200
    specs = [
        jax.ShapeDtypeStruct(shape, np.float32)
        for shape in ((states,), (states, states), (length, states))
    ]
    assert temporary_bytes(viterbi, *specs) < 4 * (
        6 * length * states + 8 * states**2
    )  # T S winners; T S S would be 200 times S**2


OK = [np.zeros(2), np.zeros((2, 2)), np.zeros((3, 2))]
NEEDED = r"viterbi: given log_initial of shape.*needed shapes \(S,\), \(S, S\) and \(T, S\)"


def symbolic_k():
    (t,) = jax.export.symbolic_shape("t")
    given = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in OK[:2]]
    times = jax.ShapeDtypeStruct((t, *OK[2].shape[1:]), OK[2].dtype)
    return jax.export.export(jax.jit(lambda *a: viterbi(*a, k=3).states))(*given, times)


test_refusals = refusals(
    (Unsupported, "symbolic shape", symbolic_k),
    *(
        (ShapeError, NEEDED, functools.partial(viterbi, *OK[:i], np.zeros(shape), *OK[i + 1 :]))
        for i, shape in [
            (0, (3,)),
            (0, (2, 1)),
            (1, (2, 3)),
            (1, (2,)),
            (2, (3, 3)),
            (2, (0, 2)),
            (2, (3,)),
            (0, ()),
        ]
    ),
    (ShapeError, "", lambda: viterbi(np.zeros(0), np.zeros((0, 0)), np.zeros((3, 0)))),
    (
        DTypeError,
        "viterbi: given operands of dtype float64 and float32",
        lambda: viterbi(*OK[:2], OK[2].astype(np.float32)),
    ),
    (DTypeError, "viterbi: given dtype complex128", lambda: viterbi(*(x + 0j for x in OK))),
    (DTypeError, "viterbi, log_transition", lambda: viterbi(OK[0], None, OK[2])),
    *(
        (InvalidConfig, "viterbi, k: given", functools.partial(viterbi, *OK, k=k))
        for k in (0, -1, 2.0, True, np.array([1]), 2**31)
    ),
    (InvalidConfig, "semiring", lambda: viterbi(*OK, semiring="plus")),
)


def test_nan_is_never_hidden():
    inputs = [np.zeros(2), np.zeros((2, 2)), np.zeros((3, 2))]
    inputs[2][1, 1] = np.nan
    result = viterbi(*inputs)
    assert jnp.isnan(result.score)
    assert result.states[1] == 1
    assert jnp.isnan(viterbi(*inputs, k=2).score[0])
