"""Chains with durations: against every sequence, as a chain of more states, and by both routes."""

import dataclasses
import functools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import Chain, log_sum_exp
from ext_tropical.native.library import native
from ext_tropical.sequences.duration_op import DurationsSamples, DurationsScore
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..sweep import times
from .duration_judges import (
    STATES,
    TIMES,
    expanded,
    log_sum,
    partition_of,
    scores_of,
    segmented,
    segments,
    tails,
)
from .judges import refusals, temporary_bytes

FORMS = [(steps, censored) for steps in (1, TIMES - 1) for censored in (False, True)]
KINDS = ("numbers", "ties", "forbidden", "large")


def chain_of(arrays, censored, lengths=None):
    initial, moves, durations, seen, *_ = arrays
    return Chain(initial, moves, seen, lengths, durations=durations, censored=censored)


def close(found, want, arrays):
    """Up to rounding of float64, by the size of the scores."""
    size = max(np.abs(x[np.isfinite(x)]).max(initial=1) for x in arrays)
    np.testing.assert_allclose(found, want, rtol=1e-12, atol=1e-12 * size)


def uses_of(sequences, chances, arrays, length, censored):
    """The expected uses of transitions, durations and states, (N, ...)."""
    _, moves, durations, seen = arrays
    found = [np.zeros(x.shape) for x in (moves, durations, seen)]
    ends = tails(durations, True)
    for sequence, chance in zip(sequences, chances.T, strict=True):
        runs = segments(sequence)
        for run in runs:
            if run.first:
                step = 0 if moves.shape[1] == 1 else run.first - 1
                found[0][:, step, sequence[run.first - 1], run.state] += chance
            if censored and run is runs[-1]:
                tail = ends[:, run.state, run.times - 1, None]
                tail = np.where(np.isfinite(tail), tail, 0)
                share = np.exp(durations[:, run.state, run.times - 1 :] - tail)
                found[1][:, run.state, run.times - 1 :] += chance[:, None] * share
            else:
                found[1][:, run.state, run.times - 1] += chance
        for t, state in enumerate(sequence):
            found[2][:, t, state] += chance
    return found


@functools.partial(jax.jit, static_argnums=1)
def _answers(arrays, censored):
    chain = chain_of(arrays, censored, arrays[-1])
    return chain.best(), chain.log_partition(), chain.marginals(), chain.entropy(), chain.best(4)


def check_every_answer(seed, count, steps, censored, kind):
    """Best, k best, sum, marginals and entropy of a batch, against every sequence."""
    batch = segmented(seed, count, steps, kind=kind)
    best, whole, marginals, entropy, many = jax.tree.map(np.asarray, _answers(batch, censored))
    for length in range(1, TIMES + 1):
        of = batch[-1] == length
        arrays = [x[of] for x in batch[:-1]]
        sequences, scores = scores_of(arrays, length, censored, False)
        number = {tuple(x): i for i, x in enumerate(sequences)}
        ordered = -np.sort(-scores, axis=-1)
        is_possible = ordered[:, 0] > -np.inf
        close(best.score[of], ordered[:, 0], arrays)
        np.testing.assert_array_equal(best.feasible[of], is_possible)
        assert (best.states[of][:, length:] == -1).all()
        own = [
            scores[i, number[tuple(states[:length])]]
            for i, states in enumerate(best.states[of])
            if is_possible[i]
        ]
        close(own, ordered[is_possible, 0], arrays)
        known = min(4, ordered.shape[1])
        close(many.score[of][:, :known], ordered[:, :known], arrays)
        for i, (listed, feasible) in enumerate(zip(many.states[of], many.feasible[of])):
            rows = [tuple(x[:length]) for x in listed[feasible]]
            assert len({*rows}) == len(rows)
            close([scores[i, number[x]] for x in rows], many.score[of][i][feasible], arrays)
        sequences, scores = scores_of(arrays, length, censored, True)
        total = log_sum(scores, -1)
        close(whole[of], total, arrays)
        close(marginals.log_partition[of], total, arrays)
        shift = np.where(np.isfinite(total), total, 0)[:, None]
        chances = np.exp(scores - shift)
        wanted = uses_of(sequences, chances, arrays, length, censored)
        for x, want in zip((marginals.transitions, marginals.durations, marginals.states), wanted):
            close(x[of], want, arrays)
        parts = np.where(chances > 0, scores, shift) - shift
        wanted = np.where(is_possible, -(chances * parts).sum(-1), -np.inf)
        # Less than 2e-16 of the largest score may be lost of a chance, by which a score counts.
        size = max(np.abs(x[np.isfinite(x)]).max(initial=1) for x in arrays)
        np.testing.assert_allclose(entropy[of], wanted, rtol=1e-12, atol=1e-15 * size**2 + 1e-12)


@pytest.mark.parametrize(("steps", "censored"), [(1, True), (TIMES - 1, False)])
def test_every_answer_against_every_sequence(steps, censored):
    for kind in KINDS:
        check_every_answer(1, times(50), steps, censored, kind)


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "censored"), FORMS)
def test_three_thousand_chains_against_every_sequence(steps, censored):
    for kind in KINDS:
        check_every_answer(2, 190, steps, censored, kind)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _slopes(arrays, lengths, censored):
    """The first and second derivatives of the score of all sequences, by all entries."""

    def score(*arrays):
        return chain_of(arrays, censored, lengths).log_partition()

    def want(*arrays):
        return partition_of(arrays, lengths, censored)

    def both(f):
        along = [jnp.cos(jnp.arange(x.size, dtype=x.dtype)).reshape(x.shape) for x in arrays]
        every = tuple(range(4))

        def slope(*arrays):
            return jax.jvp(f, arrays, tuple(along))[1]

        return jax.grad(f, every)(*arrays), jax.grad(slope, every)(*arrays)

    return both(score), both(want)


@pytest.mark.few(1)
@pytest.mark.parametrize(("steps", "censored"), [(1, True), (TIMES - 1, False)])
def test_derivatives_of_the_score_of_all_sequences(steps, censored):
    """Gradients and products of the Hessian, of scores of which some are -inf."""
    batch = segmented(3, 20, steps, kind="forbidden")[:-1]
    found, want = jax.vmap(lambda *x: _slopes(x, TIMES, censored))(*batch)
    want = jax.tree.map(lambda x: jnp.where(jnp.isfinite(x), x, 0), want)
    chex.assert_trees_all_close(found, want, atol=1e-9)


@pytest.mark.few(1)
@pytest.mark.parametrize("censored", [True, False])
def test_the_gradient_of_the_best_score(censored):
    """One at each entry that the sequence uses, as differences say; k scores have their own."""
    arrays = [x[0] for x in segmented(4, 1, 1, kind="numbers")[:-1]]

    def score(*arrays):
        return chain_of(arrays, censored).best(3).score

    found = jax.jacrev(score, (0, 1, 2, 3))(*arrays)
    one = jax.grad(lambda *x: chain_of(x, censored).best().score, (0, 1, 2, 3))(*arrays)
    for i, (x, of_best, of_all) in enumerate(zip(arrays, one, found, strict=True)):
        want = np.zeros((3, *x.shape))
        for place in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[place] = 1e-6
            both = [score(*arrays[:i], x + way * step, *arrays[i + 1 :]) for way in (1, -1)]
            want[(..., *place)] = (both[0] - both[1]) / 2e-6
        np.testing.assert_allclose(of_all, want, atol=1e-8)
        np.testing.assert_array_equal(of_best, of_all[0])


@pytest.mark.few(1)
@pytest.mark.parametrize("censored", [True, False])
def test_samples_have_their_probabilities(censored):
    arrays = [x[0] for x in segmented(5, 1, 1, kind="numbers")[:-1]]
    arrays[3][1:3, 1] = -np.inf
    sequences, scores = scores_of(arrays, TIMES, censored, True)
    chances = np.exp(scores - log_sum(scores, -1))
    drawn = np.asarray(chain_of(arrays, censored).sample(jax.random.key(0), (40000,)))
    number = {tuple(x): i for i, x in enumerate(sequences)}
    counts = np.bincount([number[tuple(x)] for x in drawn], minlength=len(sequences))
    assert not counts[chances == 0].any()
    is_often = chances * len(drawn) > 5
    expected = chances[is_often] * len(drawn)
    distance = ((counts[is_often] - expected) ** 2 / expected).sum()
    assert distance < is_often.sum() + 5 * np.sqrt(2 * is_often.sum())


def test_the_log_probability_of_sequences():
    """Every sequence, also those with a segment that is too long, and with a state that is none."""
    arrays = [x[0] for x in segmented(6, 1, 1, kind="forbidden")[:-1]]
    for censored in (False, True):
        chain = chain_of(arrays, censored, 4)
        sequences, scores = scores_of(arrays, 4, censored, True)
        given = np.full((len(sequences) + 2, TIMES), 7, np.int32)
        given[:-2, :4] = sequences
        given[-2, :4] = 0  # longer than any duration
        given[-1, :4] = [0, 1, 3, 1]
        want = [*(scores - log_sum(scores, -1)), -np.inf, -np.inf]
        np.testing.assert_allclose(chain.log_prob(given), want, rtol=1e-12, atol=1e-12)


# --- routes ---------------------------------------------------------------------------------------


@functools.cache
def compiled(op, runtimes):
    return jax.jit(jax.vmap(functools.partial(apply, op, runtimes=runtimes)))


def both_ways(op, arrays):
    """The op for a batch by whatever route is taken, and by the lowering."""
    ways = None, type(op).runtimes.only(RouteKind.LOWERING)
    return [[np.asarray(x) for x in compiled(op, way)(*arrays)] for way in ways]


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("steps", "censored"), FORMS)
def test_the_library_and_standard_ops(steps, censored, dtype):
    """The same answers; equally good sequences are the same where scores are whole numbers."""
    tolerance = {"float32": 3e-5, "float64": 1e-11}[dtype]
    count = times(60)
    for kind in ("numbers", "ties", "forbidden"):
        arrays = segmented(7, count, steps, dtype, kind)
        lengths = np.where(np.arange(count) % 11 == 0, 9, arrays[-1]).astype(np.int32)
        given = [*arrays[:-1], lengths]
        for semiring, sign in (("max_plus", 1), ("min_plus", -1)):
            op = DurationsScore(semiring, censored, True, detailed=True)
            signed = [x if x.dtype.kind == "i" else sign * x for x in given]
            (score, states), (want, path) = both_ways(op, signed)
            np.testing.assert_allclose(score, want, rtol=tolerance, atol=tolerance)
            np.testing.assert_array_equal(states, path)
        op = DurationsScore(log_sum_exp(), censored, True, detailed=True)
        chex.assert_trees_all_close(*both_ways(op, given), rtol=tolerance, atol=tolerance)
        uniforms = np.random.default_rng(1).random((count, 3, TIMES, 2)).astype(dtype)
        ((drawn,), (want,)) = both_ways(DurationsSamples(censored, True), [*given, uniforms])
        np.testing.assert_array_equal(drawn, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("sizes", [(5, 1500, 40), (1, 7, 9), (17, 60, 1)])
def test_long_chains_by_all_routes(sizes):
    """Directly, in a program and in standard ops: for sizes around those of vectors and blocks."""
    count = sizes[1]
    arrays = [x[0] for x in segmented(8, 1, 1, "float32", "numbers", sizes)[:-1]]
    uniforms = np.random.default_rng(0).random((2, count, 2)).astype(np.float32)
    for censored in (False, True):
        for op, given in (
            (DurationsScore("max_plus", censored, detailed=True), arrays),
            (DurationsScore(log_sum_exp(), censored, detailed=True), arrays),
            (DurationsSamples(censored), [*arrays, uniforms]),
        ):
            lowered = apply(op, *given, runtimes=type(op).runtimes.only(RouteKind.LOWERING))
            for found in (apply(op, *given), jax.jit(functools.partial(apply, op))(*given)):
                if isinstance(op, DurationsSamples):
                    assert np.mean(np.asarray(found[0]) == np.asarray(lowered[0])) > 0.99
                else:
                    chex.assert_trees_all_close(found, lowered, rtol=2e-4, atol=2e-4)


@pytest.mark.few(1)
@pytest.mark.parametrize("steps", [1, 699])
@pytest.mark.parametrize("censored", [False, True])
def test_numbers_that_leave_their_range(steps, censored):
    """Scores far apart, -inf and large ones at any time: windows get new bases in between."""
    arrays = [x[0] for x in segmented(18, 1, steps, kind="numbers", sizes=(3, 700, 30))[:-1]]
    rng = np.random.default_rng(2)
    rare = rng.random(arrays[3].shape) < 0.02
    op = DurationsScore(log_sum_exp(), censored, detailed=True)
    for spread in (1.0, 30.0, 300.0):
        for other in (0.0, -1e5, -np.inf):
            seen = np.where(rare, other, spread * arrays[3])
            found = apply(op, *arrays[:3], seen)
            want = apply(op, *arrays[:3], seen, runtimes=type(op).runtimes.only(RouteKind.LOWERING))
            chex.assert_trees_all_close(found, want, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("is_entered", [True, False])
def test_a_state_of_no_sequence_beside_large_scores(is_entered):
    """What durations and moves add is beyond float64 together, and stands beside sums of 0."""
    initial, moves = np.zeros(3), np.zeros((1, 3, 3))
    durations, seen = np.zeros((3, 2)), np.zeros((10, 3))
    initial[2] = -np.inf
    durations[2, 0] = 290
    seen[:, 2] = -60
    seen[-1, 2] = -np.inf
    if is_entered:  # but never left
        moves[0, 2], moves[0, 0, 2] = -np.inf, 290
    else:
        moves[0, :, 2], moves[0, 2, 0] = -np.inf, 290
    uses = Chain(initial, moves, seen, durations=durations).marginals()
    two = Chain(initial[:2], moves[:, :2, :2], seen[:, :2], durations=durations[:2]).marginals()
    np.testing.assert_allclose(uses.log_partition, two.log_partition, rtol=1e-13)
    assert not np.asarray(uses.durations)[2].any()
    np.testing.assert_allclose(uses.durations[:2], two.durations, rtol=1e-12)
    np.testing.assert_allclose(uses.states[:, :2], two.states, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("censored", [False, True])
def test_as_a_chain_of_more_states(censored):
    """Scores, posteriors and sequences of the chain of states (s, times left). What a censored one
    says of the best is another question there: its sequences differ in what is not seen.
    """
    arrays = [x[0] for x in segmented(9, 1, 1, kind="numbers", sizes=(4, 60, 7))[:-1]]
    arrays[1] = arrays[1][0]
    chain, plain = chain_of(arrays, censored), Chain(**expanded(*arrays, censored=censored))
    np.testing.assert_allclose(chain.log_partition(), plain.log_partition(), rtol=1e-12)
    found, want = chain.marginals().states, plain.marginals().states
    np.testing.assert_allclose(found, want, atol=1e-11)
    np.testing.assert_allclose(chain.best().score, plain.best().score, rtol=1e-12)
    np.testing.assert_array_equal(chain.best().states, plain.best().states // 7)
    if not censored:
        np.testing.assert_allclose(chain.entropy(), plain.entropy(), rtol=1e-9)


def test_which_route_is_taken():
    arrays = [x[0] for x in segmented(10, 1, 1, kind="numbers")[:-1]]
    (route,) = routes(lambda *x: chain_of(x, False).log_partition(), *arrays)
    assert (route.kind is RouteKind.KERNEL) == (not native().problem)
    for ask in (lambda c: c.best(2), lambda c: c.best(semiring="max_mul")):
        (route,) = routes(lambda *x, ask=ask: ask(chain_of(x, False)), *arrays)
        assert route.kind is RouteKind.LOWERING


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", ["max_mul", "min_max"])
def test_other_semirings(semiring):
    arrays = [x[0] for x in segmented(11, 1, 1, kind="numbers")[:-1]]
    arrays = [np.exp(x) for x in arrays]
    found = chain_of(arrays, False).best(semiring=semiring)
    sequences, _ = scores_of(arrays, TIMES, False, False)
    product, choose = {"max_mul": (np.prod, max), "min_max": (np.max, min)}[semiring]
    initial, moves, durations, seen = arrays

    def score(states):
        used = [initial[states[0]], *(seen[t, s] for t, s in enumerate(states))]
        for run in segments(states):
            used.append(durations[run.state, run.times - 1])
            if run.first:
                used.append(moves[0, states[run.first - 1], run.state])
        return product(used)

    np.testing.assert_allclose(found.score, choose(map(score, sequences)))
    np.testing.assert_allclose(score(np.asarray(found.states)), found.score)


# --- forms ----------------------------------------------------------------------------------------


def test_lengths_and_what_lies_behind_them():
    """NaN behind the length, in transitions of a state into itself and in durations that are longer
    than the length has no influence; without it there is no sequence.
    """
    initial, moves, durations, seen, _ = segmented(12, 1, TIMES - 1, kind="numbers")
    bad, unseen, own = durations.copy(), seen.copy(), moves.copy()
    bad[:, :, 2:], unseen[:, 2:], own[:, 1:] = np.nan, np.nan, np.nan
    own[:, :, range(STATES), range(STATES)] = np.nan
    for way in (None, RouteKind.LOWERING):
        for n, durs in ((2, bad), (0, durations), (9, durations)):
            for semiring in ("max_plus", log_sum_exp()):
                op = DurationsScore(semiring, False, True, detailed=True)
                only = type(op).runtimes.only(way) if way else None
                given = [initial[0], own[0], durs[0], unseen[0], np.int32(n)]
                score, *more = apply(op, *given, runtimes=only)
                cut = [initial[0], moves[0, :1], durations[0, :, :2], seen[0, :2]]
                clean = [initial[0], moves[0], durations[0], seen[0], np.int32(n)]
                want = apply(dataclasses.replace(op, has_length=True), *clean)
                chex.assert_trees_all_close([score, *more], list(want), atol=1e-12)
                if n == 2:
                    op = dataclasses.replace(op, has_length=False)
                    np.testing.assert_allclose(score, apply(op, *cut)[0])
                else:
                    assert score == -np.inf
                    assert not np.any(np.asarray(more[0]) > 0)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_scores_that_are_nan_or_infinite(bad):
    """By both routes: sums and best scores are NaN or inf then, derivatives are NaN."""
    arrays = [x[0] for x in segmented(13, 1, 1, kind="numbers")[:-1]]
    for i in range(4):
        given = [x.copy() for x in arrays]
        given[i].flat[1] = bad
        for way in (None, RouteKind.LOWERING):
            op = DurationsScore(log_sum_exp(), detailed=True)
            only = type(op).runtimes.only(way) if way else None
            score, *uses = apply(op, *given, runtimes=only)
            assert not np.isfinite(score)
            assert all(np.isnan(x).any() for x in uses)
            (best,) = apply(DurationsScore("max_plus"), *given, runtimes=only)
            assert not np.isfinite(best)
            sampled = apply(DurationsSamples(), *given, np.full((1, TIMES, 2), 0.5), runtimes=only)
            assert (np.asarray(sampled[0]) == -1).all()


def test_scores_that_stand_for_impossible_ones():
    """-1e30, the least number and 1e4 among small ones cost no digits of the others."""
    rng = np.random.default_rng(0)
    arrays = [x[0] for x in segmented(14, 1, 1, kind="numbers", sizes=(4, 300, 20))[:-1]]
    where = rng.random(arrays[3].shape) < 0.3
    where[:, 0] = False
    forbidden = [*arrays[:3], np.where(where, -np.inf, arrays[3])]
    want = chain_of(forbidden, False).marginals()
    for low in (-1e30, np.finfo(np.float64).min / 1e3, -1e5):
        found = chain_of([*arrays[:3], np.where(where, low, arrays[3])], False).marginals()
        chex.assert_trees_all_close(found, want, rtol=1e-9, atol=1e-9)
    shared = arrays[3].copy()
    shared[7] -= 1e30  # of all states: the sequences share it
    found = chain_of([*arrays[:3], shared], False).marginals()
    chex.assert_trees_all_close(found.states.sum(-1), np.ones(300), atol=1e-9)
    assert float(found.log_partition) == -1e30


def test_bands_columns_final_scores_and_batches():
    """Each as the form without it."""
    initial, moves, durations, seen, lengths = segmented(15, 6, 1, kind="numbers")
    rng = np.random.default_rng(1)
    band, final = rng.normal(size=(2, STATES)), rng.normal(size=STATES)
    columns = np.array([0, 1, 0], np.int32)
    open_ = np.full((STATES, STATES), -np.inf)
    for k, j in np.ndindex(band.shape):
        if j >= k:
            open_[j - k, j] = band[k, j]
    whole = np.array(seen[..., columns])
    whole[np.arange(6), lengths - 1] += final
    found = Chain(
        initial, band, seen[..., :2], lengths,
        durations=durations[:1], final=final, banded=True, columns=columns, censored=True,
    )  # fmt: skip
    want = Chain(initial, open_, whole, lengths, durations=durations[:1], censored=True)
    chex.assert_trees_all_close(found.best(), want.best())
    chex.assert_trees_all_close(found.log_partition(), want.log_partition())
    ours, theirs = found.marginals(), want.marginals()
    of_columns = theirs.states @ np.eye(STATES)[:, :2][columns]
    chex.assert_trees_all_close(ours.states, np.stack([
        theirs.states[..., 0] + theirs.states[..., 2], theirs.states[..., 1]], -1))  # fmt: skip
    assert of_columns.shape == ours.states.shape
    np.testing.assert_allclose(ours.transitions[..., 1, 1], theirs.transitions[..., 0, 1])
    assert ours.transitions.shape == (6, 1, 2, STATES)
    each = jax.vmap(lambda *x: Chain(*x[:2], x[2], x[3], durations=durations[0]).log_partition())
    one = Chain(initial, moves, seen, lengths, durations=durations[0]).log_partition()
    chex.assert_trees_all_close(each(initial, moves, seen, lengths), one)


@pytest.mark.slow
def test_floats_of_16_bits():
    """Sums are taken in 32 bits."""
    initial, moves, durations, seen, lengths = segmented(15, 6, 1, kind="numbers")
    given = [x.astype(jnp.bfloat16) for x in (initial, moves, durations, seen)]
    half = chain_of(given, False, lengths)
    assert half.log_partition().dtype == half.entropy().dtype == jnp.bfloat16
    want = chain_of([initial, moves, durations, seen], False, lengths)
    np.testing.assert_allclose(half.entropy().astype(float), want.entropy(), atol=0.1)
    assert half.best().states.shape == (6, TIMES)


def test_an_exported_program_has_both_routes():
    """One for the CPU here and one for other machines."""
    arrays = [x[0] for x in segmented(16, 1, 1, kind="numbers")[:-1]]

    def ask(*arrays):
        chain = chain_of(arrays, True)
        return chain.best().states, chain.log_partition(), chain.marginals().durations

    want = ask(*arrays)
    for platforms in (["cpu"], ["cpu", "cuda"]):
        exported = jax.export.export(jax.jit(ask), platforms=platforms)(*arrays)
        again = jax.export.deserialize(exported.serialize())
        chex.assert_trees_all_close(again.call(*arrays), want, atol=1e-12)


def test_the_memory_of_a_gradient_in_standard_ops():
    """That of sqrt(T) times, not of T."""
    op = DurationsScore(log_sum_exp(), detailed=True)
    only = type(op).runtimes.only(RouteKind.LOWERING)
    shapes = (4,), (1, 4, 4), (4, 50), (2500, 4)
    specs = [jax.ShapeDtypeStruct(x, np.float32) for x in shapes]
    bytes_ = temporary_bytes(functools.partial(apply, op, runtimes=only), *specs)
    assert bytes_ < 2500 * 200 * 4 / 2


def plain(**changes):
    given = {"initial": np.zeros(2), "transition": np.zeros((2, 2)), "emission": np.zeros((3, 2))}
    return Chain(**given | {"durations": np.zeros((2, 4))} | changes)


test_refusals = refusals(
    (ShapeError, "durations", lambda: plain(durations=np.zeros(4)).best()),
    (ShapeError, "durations", lambda: plain(durations=np.zeros((3, 4))).best()),
    (ShapeError, "durations", lambda: plain(durations=np.zeros((2, 0))).best()),
    (ShapeError, "leading", lambda: plain(
        durations=np.zeros((3, 2, 4)), initial=np.zeros((2, 2))).best()),
    (DTypeError, "durations", lambda: plain(durations=np.zeros((2, 4), np.float32)).best()),
    (InvalidConfig, "censored", lambda: plain(durations=None, censored=True).best()),
    (InvalidConfig, "censored", lambda: plain(censored=3)),
    (InvalidConfig, "payload", lambda: DurationsScore(log_sum_exp(), k=2)),
    (Unsupported, "symbolic", lambda: jax.export.export(
        jax.jit(lambda x: plain(emission=x).log_partition()))(
            jax.ShapeDtypeStruct(jax.export.symbolic_shape("t, 2"), np.float64))),
)  # fmt: skip


@pytest.mark.parametrize("case", range(12))
def test_the_order_of_equally_good_sequences(case):
    """From the last segment back the smaller state, then the shorter duration."""
    rng = np.random.default_rng(case)
    states, steps, longest = rng.integers(2, 4), rng.integers(2, 6), rng.integers(1, 5)
    shapes = [(states,), (states, states), (steps, states), (states, longest)]
    initial, moves, seen, lasting = (-rng.integers(0, 2, shape) * 1.0 for shape in shapes)
    chain = Chain(initial, moves, seen, durations=lasting)
    found = []
    for sequence in np.ndindex(*[states] * steps):
        runs = segments(np.array(sequence))
        lengths = [run.times for run in runs]
        if max(lengths) > longest:
            continue
        score = initial[sequence[0]] + seen[np.arange(steps), list(sequence)].sum()
        for run, before in zip(runs, [None, *runs], strict=False):
            score += lasting[run.state, run.times - 1]
            score += moves[before.state, run.state] if before else 0
        order = [(run.state, run.times) for run in reversed(runs)]
        found.append((-score, order, list(sequence)))
    wanted = [sequence for *_, sequence in sorted(found)[:4]]
    if wanted:
        assert chain.best().states.tolist() == wanted[0]
        assert chain.best(len(wanted)).states.tolist() == wanted


def test_durations_beyond_the_times_do_no_harm():
    """A chain shorter than the longest duration: the others have no influence, unless censored."""
    arrays = [x[0] for x in segmented(17, 1, 1, kind="numbers", sizes=(2, 3, 50))[:-1]]
    cut = [*arrays[:2], arrays[2][:, :3], arrays[3]]
    chex.assert_trees_all_close(chain_of(arrays, False).best(), chain_of(cut, False).best())
    found = chain_of(arrays, True).log_partition()
    np.testing.assert_allclose(found, log_sum(scores_of(arrays, 3, True, True)[1], -1), rtol=1e-12)
