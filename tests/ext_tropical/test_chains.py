"""Chains against every sequence: best ones, the score of all, posteriors, samples, gradients."""

import functools
import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from ext_tropical import Chain, viterbi
from ext_tropical.sequences.chain_op import ChainSamples, ChainScore
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from ..oracles import ALGEBRAS
from ..sweep import times
from .chain_judges import FORMS, STATES, TIMES, chains, kept, symbolic
from .judges import check_derivatives, temporary_bytes

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


def model(rng, values, states, length):
    return [rng.choice(values, shape) for shape in ((states,), (states, states), (length, states))]


@pytest.mark.few(3)
@pytest.mark.parametrize("k", [1, 3, 20])
@pytest.mark.parametrize("name", VALUES)
@pytest.mark.parametrize(("states", "length"), [(1, 1), (3, 1), (1, 4), (2, 4), (3, 3)])
def test_the_best_and_the_k_best_against_brute_force(name, states, length, k):
    """Few distinct values, so that equal sequences and impossible ones are many. No tie is lost, and
    equally good sequences come in the order of their last states.
    """
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
        found, rows = len(want), min(k, states**length)
        assert (result.score.shape, result.states.shape) == ((rows,), (rows, length))
        np.testing.assert_array_equal(result.score[:found], [score for score, _ in want])
        np.testing.assert_array_equal(result.score[found:], algebra.zero)
        np.testing.assert_array_equal(result.feasible, np.arange(rows) < found)
        assert (np.asarray(result.states)[found:] == -1).all()
        states_found = [tuple(row) for row in result.states[:found].tolist()]
        one = viterbi(*inputs, semiring=name)
        assert (one.states.dtype, bool(one.feasible)) == (np.int32, found > 0)
        np.testing.assert_array_equal(one.score, result.score[0])
        if name != "min_max":  # a worse beginning may be part of another best sequence
            np.testing.assert_array_equal(one.states, want[0][1] if want else [-1] * length)
        elif want:
            assert score_of(name, one.states.tolist(), *inputs) == want[0][0]
        if name in ("max_plus", "min_plus", "max_mul"):
            assert states_found == [row for _, row in want]
        else:  # equally good sequences may come in another order
            scores = {row: score for score, row in every}
            assert [scores[row] for row in states_found] == [score for score, _ in want]
            assert len(set(states_found)) == found


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_large_k_takes_the_memory_of_what_exists(transform):
    """All sequences of two states at three times; of a band also those that step down are listed."""
    emission = np.arange(6.0).reshape(3, 2) ** 2
    every = sorted(
        emission[np.arange(3), list(s)].sum() for s in itertools.product((0, 1), repeat=3)
    )
    banded = Chain(np.zeros(2), np.zeros((2, 2)), emission, banded=True)
    ways = {
        "dense": (Chain(np.zeros(2), np.zeros((2, 2)), emission), every[::-1]),
        "one row": (Chain(np.zeros(2), np.zeros((1, 2)), emission, banded=True), [35.0, 20.0]),
    }
    for chain, want in ways.values():
        best = transform(lambda chain: chain.best(k=10**12))(chain)
        np.testing.assert_array_equal(best.score, want)
        assert best.states.shape == (len(want), 3)
    found = transform(lambda chain: chain.best(k=10**12))(banded)
    rising = [s for s in itertools.product((0, 1), repeat=3) if list(s) == sorted(s)]
    want = sorted((emission[np.arange(3), list(s)].sum() for s in rising), reverse=True)
    np.testing.assert_array_equal(np.asarray(found.score)[np.asarray(found.feasible)], want)


@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_dtypes(dtype):
    inputs = [x.astype(dtype) for x in model(np.random.default_rng(0), np.arange(-4, 1), 3, 4)]
    result, want = viterbi(*inputs), viterbi(*(x.astype(float) for x in inputs))
    assert (result.score.dtype, float(result.score)) == (dtype, float(want.score))
    np.testing.assert_array_equal(result.states, want.states)


def test_integer_infinity_is_no_way():
    """The least integer is the zero of max_plus: no transition from 0 to 1."""
    no = np.iinfo(np.int32).min
    result = viterbi(
        *(np.array(x, np.int32) for x in ([0, no], [[0, no], [0, 0]], [[0, 0], [0, 9]]))
    )
    assert (result.states.tolist(), int(result.score)) == ([0, 0], 0)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    "shapes",
    [
        ("2", "2, 2", "t, 2"),
        ("2", "t - 1, 2, 2", "t, 2"),
        ("s", "s, s", "t, s"),
    ],
)
def test_one_exported_program_for_all_sizes(shapes):
    def ask(*xs):
        slopes = [
            jax.grad(lambda *xs, of=of: of(Chain(*xs)), (0, 1, 2))(*xs)
            for of in (lambda chain: chain.best().score, Chain.entropy)
        ]
        return jax.tree.leaves((viterbi(*xs), Chain(*xs).marginals(), slopes))

    program = symbolic(ask, *shapes)
    for count, states in itertools.product((1, 2, 6), (2, *(1, 33) * ("s" in shapes))):
        given = model(np.random.default_rng(3), np.arange(-5.0, 1.0), states, count)
        if "-" in shapes[1]:
            given[1] = np.repeat(given[1][None], count - 1, 0)
        chex.assert_trees_all_close(program.call(*given), ask(*given), rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(("states", "length"), [(64, 200), (3, 20_000), (8, 3000)])
def test_a_long_sequence(states, length):
    """It needs no array of candidates. In float32 it keeps the digits of its score, natively and
    where XLA computes, and is all but everywhere the sequence of float64; so is the first of k.
    """
    shapes = (states,), (states, states), (length, states)
    assert temporary_bytes(viterbi, *(jax.ShapeDtypeStruct(x, np.float32) for x in shapes)) < 4 * (
        6 * length * states + 8 * states**2
    )  # T S winners; T S S would be S times as much
    tables = [(np.random.default_rng(2).normal(size=x) - 9).astype("f4") for x in shapes]
    tables[2][(live := length * 9 // 10) :] = np.nan
    want = viterbi(*(x[:live].astype("f8") for x in tables))
    for semiring, k, way in itertools.product(
        ("max_plus", "min_plus"), (0, 2), (None, ChainScore.runtimes.only(RouteKind.LOWERING))
    ):
        initial, transition, emission = kept(semiring, tables)
        op = ChainScore(semiring, has_length=True, k=k, detailed=True)
        score, path = apply(op, initial, transition[None], emission, np.int32(live), runtimes=way)
        np.testing.assert_allclose(abs(score.reshape(-1)[0]), -want.score, rtol=1e-5)
        assert np.mean(path.reshape(-1, length)[0, :live] == want.states) > 0.999


@pytest.mark.slow
def test_second_derivatives_keep_the_digits_of_float32():
    tables = [
        np.log(np.random.default_rng(n).dirichlet(np.ones(3), n)).astype("f4") for n in (1, 3, 2000)
    ]
    slopes = jax.grad(lambda x, *xs: Chain(x[0], *xs).entropy(), (0, 1, 2))
    chex.assert_trees_all_close(
        slopes(*tables), slopes(*(x.astype("f8") for x in tables)), rtol=1e-4, atol=1e-4
    )


SEQUENCES = np.array([*itertools.product(range(STATES), repeat=TIMES)])


def hidden_rest(band, initial, transition, emission, lengths, final):
    """NaN in everything that has no influence."""
    transition, emission = transition.copy(), emission.copy()
    for moves, seen, length in zip(transition, emission, lengths % (TIMES + 1), strict=True):
        seen[length:] = np.nan
        if len(moves) > 1:
            moves[max(length - 1, 0) :] = np.nan
        for k in range(band):
            moves[:, k, :k] = np.nan
    return initial, transition, emission, lengths, final


def every_score(band, initial, transition, emission, length, final):
    """{sequence: its score}, by adding entries; none if the length is out of range."""
    scores = {(0,) * TIMES: -np.inf} if not 0 < length <= TIMES else {}
    for states in {tuple(row[:length]) for row in SEQUENCES if not scores}:
        score = initial[states[0]] + final[states[-1]]
        score += sum(emission[t, s] for t, s in enumerate(states))
        for t, (i, j) in enumerate(itertools.pairwise(states)):
            moves = transition[t if len(transition) > 1 else 0]
            inside = not band or 0 <= j - i < band
            score += moves[j - i if band else i, j] if inside else -np.inf
        scores[states] = score
    return scores


def posterior(band, steps, scores):
    """(log partition, states, transitions) from the scores of all sequences."""
    with np.errstate(divide="ignore"):
        whole = np.logaddexp.reduce([*scores.values()])
    states, moves = np.zeros((TIMES, STATES)), np.zeros((steps, band or STATES, STATES))
    for path, score in scores.items():
        if score > -np.inf:
            states[np.arange(len(path)), path] += np.exp(score - whole)
            for t, (i, j) in enumerate(itertools.pairwise(path)):
                at = (t if steps > 1 else 0, j - i if band else i, j)
                moves[at] += np.exp(score - whole)
    return whole, states, moves


def inverted(scores, uniforms, length):
    """The sequence that uniforms choose, from its end: the sums are over all sequences."""
    found = ()
    for t in reversed(range(length)):
        weights = np.zeros(STATES)
        for path, score in scores.items():
            if path[t + 1 :] == found:
                weights[path[t]] += np.exp(score)
        found = (int(np.argmax(np.cumsum(weights) > uniforms[t] * weights.sum())), *found)
    return found


@functools.partial(jax.jit, static_argnums=0)
def answers(band, initial, transition, emission, lengths, final):
    """All answers for a batch, in one program."""
    given = {"final": final, "banded": bool(band)}

    def asked(*tables):
        return Chain(*tables, lengths, **given)

    def five(chain):
        best = chain.best(k=5)
        return jnp.where(best.feasible, best.score, 0)

    chain = asked(initial, transition, emission)
    every = jnp.asarray(SEQUENCES)[:, None]
    gradients = [
        jax.grad(lambda *xs, ask=ask: jnp.sum(ask(asked(*xs))), (0, 1, 2))(
            initial, transition, emission
        )
        for ask in (Chain.log_partition, lambda c: c.best().score, Chain.entropy, five)
    ]
    return (
        chain.log_partition(),
        chain.best(),
        chain.best(k=5),
        chain.marginals(),
        chain.entropy(),
        chain.log_prob(every),
        gradients,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_every_answer_against_every_sequence(band, steps):
    """Impossible chains are among them; NaN stands wherever nothing has an influence."""
    arrays = chains(0, times(40), band, steps)
    arrays[3][::9], arrays[3][4::9] = 0, TIMES + 1
    given = hidden_rest(band, *arrays)
    whole, best, many, found, entropy, logs, slopes = answers(band, *given)
    impossible = 0
    for b, chain in enumerate(zip(*arrays, strict=True)):
        length, scores = chain[3], every_score(band, *chain)
        want, states, moves = posterior(band, steps, scores)
        close = functools.partial(np.testing.assert_allclose, rtol=1e-12, atol=1e-12)
        close(whole[b], want)
        close(found.log_partition[b], want)
        close(found.states[b], states)
        close(found.transitions[b], moves)
        for got, of_all in zip(slopes[0], (states[0], moves, states), strict=True):
            close(got[b], of_all)
        order = [*sorted(scores.values(), reverse=True), *[-np.inf] * 5][:5]
        close(best.score[b], order[0])
        close(many.score[b], order)
        uses = np.asarray(many.states[b])[:, :, None] == np.arange(STATES)
        np.testing.assert_array_equal(slopes[3][2][b], uses.sum(0))
        assert (np.asarray(best.states)[b, length:] == -1).all()
        impossible += order[0] == -np.inf
        if order[0] == -np.inf:
            assert (bool(best.feasible[b]), entropy[b]) == (False, -np.inf)
            assert (np.asarray(best.states[b]) == -1).all()
        else:
            path = tuple(best.states[b, :length].tolist())
            close(scores[path], order[0])
            there = [
                (scores[(*row[:length].tolist(),)], x)
                for row, x in zip(many.states[b], order, strict=True)
                if x > -np.inf
            ]
            close(*zip(*there, strict=True))
            _, once, used = posterior(band, steps, {path: 0.0})
            for got, of_one in zip(slopes[1], (once[0], used, once), strict=True):
                close(got[b], of_one)
            shares = np.exp(np.array([x for x in scores.values() if x > -np.inf]) - want)
            close(entropy[b], -(shares * np.log(shares)).sum())
        for states, got in zip(SEQUENCES, np.asarray(logs)[:, b], strict=True):
            score = scores.get(tuple(states[:length]), -np.inf)
            close(got, score if score == -np.inf else score - want)
        assert all(np.isfinite(x[b]).all() for x in slopes[2])
    assert 0 < impossible < len(whole) / 2


@pytest.mark.few(2)
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_samples_are_those_that_the_uniforms_choose(band, steps):
    arrays = chains(1, 20, band, steps)
    given = [x.astype(np.int32) if x.dtype == int else x for x in hidden_rest(band, *arrays)[:4]]
    emission = np.where(
        np.arange(TIMES)[None, :, None] == arrays[3][:, None, None] - 1,
        given[2] + arrays[4][:, None],
        given[2],
    )
    uniforms = np.random.default_rng(2).random((20, 30, TIMES))
    op = ChainSamples(band, True)
    ask = jax.jit(jax.vmap(lambda *xs: apply(op, *xs)[0]))
    drawn = np.asarray(ask(*given[:2], emission, given[3], uniforms))
    for b, chain in enumerate(zip(*arrays, strict=True)):
        scores, length = every_score(band, *chain), chain[3]
        assert (drawn[b, :, length:] == -1).all()
        for row, uniform in zip(drawn[b].tolist(), uniforms[b], strict=True):
            none = max(scores.values()) == -np.inf
            assert tuple(row[:length]) == (
                (-1,) * length if none else inverted(scores, uniform, length)
            )


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_states_that_share_columns(band, steps, final):
    """As if each had its own one. Derivatives are sums; one chain has no such column."""
    arrays = chains(12, times(60), band, steps)
    initial, transition, emission, lengths, last = arrays
    columns = np.random.default_rng(0).integers(0, 2, initial.shape)
    columns[0, 1], lengths[0], transition[0], emission[0] = -1, TIMES, 0, 0
    given = {"final": last if final else None, "banded": bool(band)}

    def asked(seen, columns=None):
        chain = Chain(initial, transition, seen, lengths, columns=columns, **given)
        parts = chain.log_partition(), chain.entropy(), chain.log_prob(SEQUENCES[5])
        return chain.best(), chain.best(k=3), parts, chain.sample(jax.random.key(0))

    def own(seen):
        return jnp.take_along_axis(seen, columns[:, None], -1).at[0, :, 1].set(jnp.nan)

    def slope(ask):
        return jax.grad(lambda x: sum(jnp.sum(p) for p in (ask(x)[0].score, *ask(x)[2][:2])))

    ways = (lambda x: asked(x, columns)), (lambda x: asked(own(x)))
    seen = emission[..., :2]
    shared, apart = (jax.jit(lambda x, f=f: (f(x), slope(f)(x)))(seen) for f in ways)
    assert np.isnan(shared[0][2][0][0])
    chex.assert_trees_all_close(shared, apart, rtol=1e-12, atol=1e-12)
    chain = Chain(initial, transition, seen, lengths, columns=columns, **given)
    single, whole = jax.tree.map(lambda x: x[1], chain), chain.log_partition()[1]
    np.testing.assert_allclose(single.log_partition(), whole, rtol=1e-12)
    uses = jax.grad(lambda x: jnp.sum(asked(x, columns)[2][0][1:]))(seen)
    np.testing.assert_allclose(chain.marginals().states[1:], uses[1:], rtol=1e-12, atol=1e-12)


def test_the_distribution_of_samples():
    initial, transition, emission, *_ = (x[0] for x in chains(3, 1, 0, 1, kind="numbers"))
    chain = Chain(initial, transition, emission)
    drawn = np.asarray(chain.sample(jax.random.key(0), (2, 10_000))).reshape(-1, TIMES)
    numbers = drawn @ STATES ** np.arange(TIMES)[::-1]
    scores = every_score(0, initial, transition, emission, TIMES, np.zeros(STATES))
    weights = np.exp([scores[tuple(row)] for row in SEQUENCES])
    counts = np.bincount(numbers, minlength=len(SEQUENCES))
    assert stats.chisquare(counts, 20_000 * weights / weights.sum()).pvalue > 1e-4


@pytest.mark.slow
def test_what_does_not_fit_32_or_16_bits_and_impossible_sequences():
    tables = [x[0] for x in chains(13, 1, 0, 1, kind="numbers")[:3]]
    assert Chain(*tables, np.int64(2**32 + 2)).log_partition() == -np.inf
    assert np.isnan(Chain(*tables, columns=np.array([0, 1, 2**32])).log_partition())
    assert Chain(*tables).log_prob(np.array([0, 1, 2, 2**32])) == -np.inf
    tables[1][0, 0, 0] = -np.inf
    assert not jax.grad(
        lambda x: Chain(tables[0], x, tables[2]).log_prob(np.zeros(4, int)),
    )(tables[1]).any()
    masked = [0, -1e30], np.zeros((2, 2)), [[1e6] * 2] * 3
    assert abs(Chain(*map(np.float32, masked)).entropy() - float(np.log(4))) < 1e-6
    rare = jnp.log(jnp.array([0.995, 0.005])).astype(jnp.bfloat16)
    short, long = (
        Chain(rare, jnp.zeros((2, 2), rare.dtype), jnp.zeros((count, 2), rare.dtype))
        for count in (1, 3001)
    )
    assert abs(short.sample(jax.random.key(0), (100_000,)).mean() - 0.005) < 0.001
    assert abs(long.marginals().transitions.astype(float).sum() - 3000) < 12


@pytest.mark.slow
def test_leading_axes_broadcast():
    """As a loop over the chains, and as vmap over a chain; what is shared stays so."""
    rng = np.random.default_rng(4)
    tables = [rng.normal(size=s) for s in ((3,), (2, 1, 1, 3, 3), (5, 4, 3))]
    lengths, final = rng.integers(1, 5, (2, 1)), rng.normal(size=(5, 3))
    chain = Chain(*tables, lengths, final=final)
    ask = jax.jit(
        lambda c: (c.best(), c.best(k=2), c.marginals(), c.log_prob(np.int32([0, 1, 2, 0])))
    )
    found = ask(chain)
    chex.assert_shape(found[2].transitions, (2, 5, 1, 3, 3))
    sampled = chain.sample(jax.random.key(0), (7,))
    chex.assert_shape(sampled, (7, 2, 5, 4))
    assert ((np.asarray(sampled) >= 0) == (np.arange(4) < lengths[..., None])).all()
    for i, j in itertools.product(range(2), range(5)):
        one = Chain(tables[0], tables[1][i, 0], tables[2][j], lengths[i, 0], final=final[j])
        chex.assert_trees_all_close(jax.tree.map(lambda x: x[i, j], found), ask(one), rtol=1e-12)
    many = Chain(tables[0], tables[1][0, 0], tables[2], final=final)
    axes = Chain(None, None, 0, final=0)
    mapped = jax.vmap(Chain.log_partition, in_axes=(axes,))(many)
    np.testing.assert_allclose(mapped, many.log_partition(), rtol=1e-12)


@pytest.mark.few(1)
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_derivatives_of_the_score_of_all(band, steps):
    """First and second, in both modes."""
    initial, transition, emission, *_ = (x[0] for x in chains(5, 1, band, steps, kind="numbers"))

    def score(*tables):
        return Chain(*tables, 3, banded=bool(band)).log_partition()

    def by_hand(*tables):
        return np.logaddexp.reduce([*every_score(band, *tables, 3, np.zeros(STATES)).values()])

    check_derivatives(score, (initial, transition, emission), by_hand)


def test_a_first_derivative_is_one_call_and_no_scan():
    """The score and its gradient come from one call of the op; in both modes."""
    tables = [x[0] for x in chains(6, 1, 0, 1)[:3]]
    for ask in (lambda *xs: Chain(*xs).log_partition(), lambda *xs: Chain(*xs).best().score):
        for program in (
            jax.make_jaxpr(jax.value_and_grad(ask, (0, 1, 2)))(*tables),
            jax.make_jaxpr(lambda *xs, ask=ask: jax.jvp(ask, xs, xs))(*tables),
        ):
            text = str(program)
            assert text.count(f"{ChainScore.family_id}[") == 1
            assert "scan[" not in text


def test_numbers_that_are_none():
    """An infinite or undefined score of all: NaN for what would be divided by it, no samples."""
    for wrong in (np.inf, np.nan):
        emission = np.zeros((3, 2))
        emission[1, 1] = wrong
        chain = Chain(np.zeros(2), np.zeros((2, 2)), emission)
        found = chain.marginals()
        np.testing.assert_array_equal(found.log_partition, wrong)
        for x in (found.states, found.transitions):
            assert np.isnan(x).all()
        assert (np.asarray(chain.sample(jax.random.key(0), (3,))) == -1).all()
    for length in (-1, 0, 4):
        chain = Chain(np.zeros(2), np.zeros((2, 2)), np.full((3, 2), np.nan), length)
        found, slope = jax.value_and_grad(
            lambda e: Chain(np.zeros(2), np.zeros((2, 2)), e, length).log_partition()
        )(jnp.full((3, 2), jnp.nan))
        assert (float(found), np.asarray(slope).any()) == (-np.inf, False)
        for best in (chain.best(), chain.best(k=2)):
            assert (np.asarray(best.states) == -1).all()
            assert not np.asarray(best.feasible).any()
        assert (np.asarray(chain.sample(jax.random.key(0), (3,))) == -1).all()
