"""Chains against every sequence: best ones, the score of all, posteriors, samples, gradients; and
the library against the recurrence over times.
"""

import functools
import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import tenferro_jax as tj
from ext_tropical import Chain, log_sum_exp, viterbi
from ext_tropical.native.library import native, target
from ext_tropical.semirings.semiring import SemiringKey
from ext_tropical.sequences import chain_op
from ext_tropical.sequences.chain_op import ChainByEmission, ChainSamples, ChainScore
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..oracles import ALGEBRAS
from ..sweep import times
from .judges import OWN, check_derivatives, nothing_compiled, refusals, temporary_bytes

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


@pytest.mark.few(6)
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


@pytest.mark.parametrize(
    "shapes",
    [
        ("2", "2, 2", "t, 2"),
        ("2", "t - 1, 2, 2", "t, 2"),
        pytest.param(("s", "s, s", "t, s"), marks=pytest.mark.slow),
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


def test_second_derivatives_keep_the_digits_of_float32():
    tables = [
        np.log(np.random.default_rng(n).dirichlet(np.ones(3), n)).astype("f4") for n in (1, 3, 2000)
    ]
    slopes = jax.grad(lambda x, *xs: Chain(x[0], *xs).entropy(), (0, 1, 2))
    chex.assert_trees_all_close(
        slopes(*tables), slopes(*(x.astype("f8") for x in tables)), rtol=1e-4, atol=1e-4
    )


# --- chains with lengths, bands, final scores and transitions of single steps ---------------------

STATES, TIMES = 3, 4
SEQUENCES = np.array([*itertools.product(range(STATES), repeat=TIMES)])
FORMS = list(itertools.product([0, 2], [1, TIMES - 1]))  # band, R


def chains(seed, count, band, steps, dtype="float64", kind="forbidden"):
    """A batch: initial, transition, emission, lengths, final."""
    rng = np.random.default_rng([seed, band, steps])
    shapes = (STATES,), (steps, band or STATES, STATES), (TIMES, STATES), (STATES,)
    arrays = [rng.normal(size=(count, *shape)).astype(dtype) for shape in shapes]
    for x in arrays:
        if kind != "numbers":
            x[rng.random(x.shape) < 0.15] = -np.inf
        if kind in ("ties", "infinite"):
            x[np.isfinite(x)] = rng.integers(-2, 3, np.isfinite(x).sum())
        if kind == "infinite":
            x[rng.random(x.shape) < 0.03] = np.inf
            x[rng.random(x.shape) < 0.01] = np.nan
    initial, transition, emission, final = arrays
    return initial, transition, emission, rng.integers(1, TIMES + 1, count), final


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


@pytest.mark.few(3)
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


@pytest.mark.few(2)
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


# --- the library ----------------------------------------------------------------------------------

SCORES = ("max_plus", "min_plus", "max_mul", "min_max")
KINDS = ("numbers", "ties", "forbidden", "infinite")


def both_ways(op, arrays):
    """The op for a batch by whatever route is taken, and by the lowering."""
    return [
        list(
            map(np.asarray, jax.jit(jax.vmap(functools.partial(apply, op, runtimes=way)))(*arrays))
        )
        for way in (None, type(op).runtimes.only(RouteKind.LOWERING))
    ]


def kept(semiring, arrays):
    """Arrays of max_plus as those of another semiring: their zero forbids, and ties stay ties."""
    turned = {"max_plus": np.positive, "max_mul": np.exp2}.get(semiring, np.negative)
    return [turned(x) if x.dtype.kind == "f" else x for x in arrays]


@pytest.mark.few(8)
@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("semiring", SCORES)
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_best_sequences_are_those_of_the_recurrence(band, steps, semiring, dtype, k, monkeypatch):
    """Bit for bit; beside NaN a path says nothing. Where there is no library both are one. With
    little memory lists are computed twice.
    """
    monkeypatch.setattr(chain_op, "MEMORY", 0 if dtype == "float32" else chain_op.MEMORY)
    for kind in KINDS:
        count = times(400)
        arrays = chains(8, count, band, steps, dtype, kind)[:4]
        lengths = np.where(np.arange(count) % 11 == 0, TIMES + 1, arrays[3]).astype(np.int32)
        given = kept(semiring, [*arrays[:3], lengths])
        op = ChainScore(SemiringKey.of(semiring), band, True, k=k, detailed=True)
        (score, states), (want, path) = both_ways(op, given)
        np.testing.assert_array_equal(score, want)
        np.testing.assert_array_equal(states[want == want], path[want == want])


@pytest.mark.few(3)
@pytest.mark.parametrize("memory", [0, chain_op.MEMORY])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("band", "steps"), FORMS)
def test_posteriors_and_samples_are_those_of_the_recurrence(
    band, steps, dtype, memory, monkeypatch
):
    """With little memory messages are computed twice."""
    monkeypatch.setattr(chain_op, "MEMORY", memory)
    tolerance = {"float32": 2e-5, "float64": 1e-12}[dtype]
    for kind in KINDS:
        count = times(400)
        arrays = chains(9, count, band, steps, dtype, kind)[:4]
        lengths = np.where(np.arange(count) % 11 == 0, 0, arrays[3]).astype(np.int32)
        op = ChainScore(SemiringKey.of(log_sum_exp()), band, True, detailed=True)
        found, want = both_ways(op, [*arrays[:3], lengths])
        few = both_ways(
            ChainByEmission(op.semiring, band, True, detailed=True), [*arrays[:3], lengths]
        )
        for pair in ((found, want), *((x, want[::3]) for x in few)):
            chex.assert_trees_all_close(*pair, rtol=tolerance, atol=tolerance)
        uniforms = np.random.default_rng(1).random((count, 3, TIMES)).astype(dtype)
        op = ChainSamples(band, True)
        ((drawn,), (want,)) = both_ways(op, [*arrays[:3], lengths, uniforms])
        np.testing.assert_array_equal(drawn, want)


@pytest.mark.few(3)
@pytest.mark.parametrize("memory", [0, chain_op.MEMORY])
@pytest.mark.parametrize("band", [0, 5])
@pytest.mark.parametrize(("states", "count"), [(1, 1), (17, 1), (5, 1000), (70, 90)])
def test_the_direct_call_and_the_program(states, count, band, memory, monkeypatch):
    """Outside jit as inside and as the lowering, for sizes around those of vectors and blocks."""
    monkeypatch.setattr(chain_op, "MEMORY", memory)
    band = min(band, states)
    rng = np.random.default_rng([states, count])
    tables = [
        rng.normal(size=shape).astype(np.float32)
        for shape in ((states,), (1, band or states, states), (count, states))
    ]
    uniforms = rng.random((3, count)).astype(np.float32)
    for op, arrays in (
        (ChainScore("max_plus", band, detailed=True), tables),
        (ChainScore("max_plus", band, k=20), tables),
        (ChainByEmission("max_plus", band, detailed=True), tables),
        (ChainScore(log_sum_exp(), band, detailed=True), tables),
        (ChainByEmission(log_sum_exp(), band, detailed=True), tables),
        (ChainSamples(band), [*tables, uniforms]),
    ):
        lowered = apply(op, *arrays, runtimes=type(op).runtimes.only(RouteKind.LOWERING))
        for found in (apply(op, *arrays), jax.jit(functools.partial(apply, op))(*arrays)):
            chex.assert_trees_all_close(found, lowered, rtol=1e-4, atol=1e-4)


def test_which_route_is_taken():
    """One call for a batch where the library has chains; else the lowering, which says so."""
    arrays = [x[:5] for x in chains(10, 5, 0, 1)[:3]]
    ask = jax.vmap(lambda *xs: apply(ChainScore("max_plus", detailed=True), *xs))
    (route,) = routes(ask, *arrays)
    calls = sum(
        "custom_call" in line and target("chain") in line
        for line in jax.jit(ask).lower(*arrays).as_text().splitlines()
    )
    assert (route.kind is RouteKind.KERNEL) == (not native().problem) == (calls == 1)
    integers = [np.zeros(x.shape[1:], np.int32) for x in arrays]
    assert (
        routes(lambda *xs: apply(ChainScore("max_plus"), *xs), *integers)[0].kind
        is RouteKind.LOWERING
    )
    if not native().problem:
        chain = Chain(*(x[0, :1] if x.ndim == 4 else x[0] for x in arrays))
        Chain(np.zeros(2), np.zeros((1, 2, 2)), np.zeros((2, 2))).best()
        with nothing_compiled():
            apply(
                ChainScore("max_plus", detailed=True),
                *map(np.asarray, (chain.initial, chain.transition, chain.emission)),
            )


TABLES = [x[0] for x in chains(11, 1, 2, 3)[:3]]


def test_an_exported_program_needs_no_library():
    def ask(*tables):
        chain = Chain(*tables, 3, banded=True)
        return chain.best().states, jax.tree.leaves(chain.marginals())

    program = jax.export.export(jax.jit(ask), platforms=["cpu", "cuda", "tpu"])(*TABLES)
    assert "custom_call" not in program.mlir_module()
    chex.assert_trees_all_close(program.call(*TABLES), ask(*TABLES), rtol=1e-12)


def test_a_score_by_its_emission_alone_has_no_other_derivative():
    with pytest.raises(ADRuleError):
        jax.grad(lambda *xs: apply(ChainByEmission(log_sum_exp(), 2), *xs)[0])(*TABLES)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        ChainScore("max_plus", 2, True),
        ChainScore("min_plus", k=3),
        ChainScore(log_sum_exp(), 2, True),
        ChainScore(log_sum_exp(), detailed=True),
        ChainScore(log_sum_exp(), 0, True, True, detailed=True),
        ChainSamples(0, True, True),
    ],
)
def test_check(op):
    report = tj.check(op, order=1, only=OWN)
    assert report.ok, report


OK = [np.zeros(2), np.zeros((2, 2)), np.zeros((3, 2))]


def symbolic(ask, *shapes):
    scope = jax.export.SymbolicScope()
    sizes = [jax.export.symbolic_shape(x, scope=scope) for x in shapes or ("2", "2, 2", "t, 2")]
    specs = [jax.ShapeDtypeStruct(x, np.float64) for x in sizes]
    return jax.export.export(jax.jit(ask))(*specs)


test_refusals = refusals(
    (Unsupported, "symbolic shape", lambda: symbolic(lambda *a: viterbi(*a, k=3).states)),
    (
        Unsupported,
        "Chain.sample: given the symbolic shape",
        lambda: symbolic(lambda *a: Chain(*a).sample(jax.random.key(0))),
    ),
    *(
        (
            ShapeError,
            "viterbi: given log_initial",
            functools.partial(viterbi, *OK[:i], x, *OK[i + 1 :]),
        )
        for i, x in enumerate(map(np.zeros, [(3,), (2, 3), (3, 3)]))
    ),
    (ShapeError, "", lambda: viterbi(np.zeros(0), np.zeros((0, 0)), np.zeros((3, 0)))),
    (
        DTypeError,
        "viterbi: given operands of dtype float64 and float32",
        lambda: viterbi(*OK[:2], OK[2].astype(np.float32)),
    ),
    (DTypeError, "viterbi: given dtype complex128", lambda: viterbi(*(x + 0j for x in OK))),
    (DTypeError, "viterbi, transition", lambda: viterbi(OK[0], None, OK[2])),
    *(
        (InvalidConfig, "viterbi, k: given", functools.partial(viterbi, *OK, k=k))
        for k in (0, -1, 2.0, True, np.array([1]))
    ),
    (InvalidConfig, "semiring", lambda: viterbi(*OK, semiring="plus")),
    *(
        (
            ShapeError,
            "Chain.best: given initial of shape",
            lambda xs=xs, how=how: Chain(*xs, **how).best(),
        )
        for xs, how in [
            ([np.zeros(3), *OK[1:]], {}),
            ([OK[0], np.zeros((3, 2, 2)), OK[2]], {}),
            ([OK[0], np.zeros((3, 2)), OK[2]], {"banded": True}),
            ([*OK[:2], np.zeros(2)], {}),
            (OK, {"final": np.zeros(3)}),
            (OK, {"final": np.float64(0)}),
        ]
    ),
    (
        ShapeError,
        "leading axes",
        lambda: Chain(*OK, np.ones((2, 3), int), final=np.zeros((2, 2))).best(),
    ),
    (ShapeError, "columns of shape", lambda: Chain(*OK, columns=np.zeros(3, int)).best()),
    (DTypeError, "Chain.best, columns", lambda: Chain(*OK, columns=np.zeros(2)).best()),
    (DTypeError, "Chain.best, lengths", lambda: Chain(*OK, 1.0).best()),
    (DTypeError, "under log_sum_exp", lambda: Chain(*(x.astype(int) for x in OK)).log_partition()),
    (DTypeError, "log_prob, states: given float64", lambda: Chain(*OK).log_prob(np.zeros(3))),
    (ShapeError, "log_prob, states: given shape", lambda: Chain(*OK).log_prob(np.zeros(2, int))),
    (InvalidConfig, "sample, shape", lambda: Chain(*OK).sample(jax.random.key(0), (-1,))),
    (InvalidConfig, "sample, shape", lambda: Chain(*OK).sample(jax.random.key(0), 3)),
    (InvalidConfig, "field band", lambda: ChainScore("max_plus", -1)),
    (InvalidConfig, "payload", lambda: ChainScore("max_plus", k=-1)),
    (InvalidConfig, "payload", lambda: ChainScore(log_sum_exp(), k=1)),
    (InvalidConfig, r"payload.*log_sum_exp\(1\)", lambda: ChainScore(log_sum_exp(0.5))),
    (ShapeError, r"\(R, K, S\)", lambda: apply(ChainScore("max_plus"), *OK)),
    (
        ShapeError,
        r"\(R, K, S\)",
        lambda: apply(ChainScore("max_plus", 3), OK[0], np.zeros((1, 3, 2)), OK[2]),
    ),
    (ShapeError, "equal", lambda: apply(ChainScore("max_plus"), OK[0], np.zeros((3, 2, 2)), OK[2])),
    (
        DTypeError,
        "of int32",
        lambda: apply(ChainScore("max_plus", has_length=True), OK[0], OK[1][None], OK[2], OK[0]),
    ),
    (
        ShapeError,
        r"\(N, T\)",
        lambda: apply(ChainSamples(), OK[0], OK[1][None], OK[2], OK[0]),
    ),
)


def test_nan_is_never_hidden():
    inputs = [np.zeros(2), np.zeros((2, 2)), np.array([[0, 0], [0, np.nan], [0, 0]])]
    result = viterbi(*inputs)
    assert (jnp.isnan(result.score), result.states[1]) == (True, 1)
    assert jnp.isnan(viterbi(*inputs, k=2).score[0])


def by_numpy(initial, transition, emission):
    """Score and expected uses, by sums of exponentials in float64."""
    initial, transition, emission = (
        np.asarray(x, np.float64) for x in (initial, transition, emission)
    )
    ahead, behind = [initial + emission[0]], [np.zeros(len(initial))]
    for t in range(1, len(emission)):
        ahead.append(np.logaddexp.reduce(ahead[-1][:, None] + transition, 0) + emission[t])
        after = behind[-1] + emission[len(emission) - t]
        behind.append(np.logaddexp.reduce(transition + after[None], 1))
    score, behind = np.logaddexp.reduce(ahead[-1]), np.array(behind[::-1])
    states = np.exp(np.array(ahead) + behind - score)
    after = (behind + emission)[1:, None]
    pairs = np.exp(np.array(ahead)[:-1, :, None] + transition + after - score).sum(0)
    return score, states[0], pairs[None], states


@pytest.mark.parametrize("backwards", [True, False])
@pytest.mark.parametrize("wide", [0, 43.6, 43.8, 50, 80])
def test_sums_with_and_without_the_library_against_numpy(wide, backwards):
    """Transitions that lie almost as far apart as sums of scaled numbers allow, and beyond; chains
    of both kinds, impossible states and moves, lengths and NaN in one batch. Emissions of any width.
    Chains that go on alone also as bands.
    """
    rng, state = np.random.default_rng(1), np.arange(5)
    before = state - state[:, None]  # of a row of a band and a state
    initial, transition, emission = (
        rng.normal(size=shape).astype(np.float32) for shape in ((13, 5), (13, 1, 5, 5), (13, 30, 5))
    )
    transition -= wide * (rng.random(transition.shape) < 0.4)
    if not backwards:
        transition[:, 0][:, *np.tril_indices(5, -1)] = -np.inf
    for array, at, value in (
        (emission, 0, emission[0] - 4096),  # which costs numbers none of their digits
        (emission, 1, 300 * emission[1]),
        (initial, np.s_[2, :4], -1e30),
        (emission, np.s_[3, ::2, 1], -np.inf),
        (transition, (3, 0, 2), -np.inf),
        (emission, (4, 7), -np.inf),
        (emission, (5, 3, 0), np.nan),
        (emission, np.s_[2, 17:], np.nan),
        # Chains from state 0 to state 4: only what is too small leads there.
        (initial, np.s_[6:, 1:], -np.inf),
        (transition, np.s_[6:, 0], np.where(before >= 0, 0, -np.inf)),
        (transition, np.s_[7:, 0, :4, 4], -80),
        (emission, np.s_[6:, -1, :4], -np.inf),
        # A start.
        (initial, np.s_[6, 1:], -100),
        (transition, np.s_[6, 0, 0, 1:], -np.inf),
        # One time.
        (initial, 8, [-np.inf] * 4 + [0]),
        (transition, np.s_[8, 0, :4, 4], -np.inf),
        (emission, np.s_[8, 5, :4], 100),
        # What is long past.
        (initial, (9, 4), 0),
        (transition, np.s_[9, 0, :4, 4], -np.inf),
        (transition, np.s_[9, 0, 0, 1:], -np.inf),
        (emission, np.s_[9, :, 4], -20),
        (emission, np.s_[9, -2, :4], -np.inf),
        # A move and a time, where a state out of reach has the greatest number.
        (transition, np.s_[10, 0, :4, 4], -25),
        (transition, np.s_[10, 0, :3, 3], -np.inf),
        (emission, (10, -1, 3), 80),
        # Less than any exponent.
        (initial, (11, 4), 0),
        (transition, np.s_[11, 0, :4, 4], -np.inf),
        (transition, (11, 0, 4, 4), -1e9),
        (emission, np.s_[11, :, 4], -1e9),
        # Exponents of which float32 keeps multiples of 128.
        (transition, np.s_[12, 0, :2, 1:], [[-1e9, *[-np.inf] * 3], [0, -np.inf, -np.inf, -1e9]]),
        (emission, np.s_[12, :10, 1:], -np.inf),
        (emission, np.s_[12, 10:20, [0, 4]], -np.inf),
        (emission, np.s_[12, 20:, :4], -np.inf),
    ):
        array[at] = value
    inputs = initial, transition, emission, np.array([30, 30, 17, *[30] * 10], np.int32)
    for detailed, band, way, rows in itertools.product(
        (False, True),
        (0, 5)[: 2 - backwards],
        (ChainScore.runtimes.only(RouteKind.LOWERING), None),
        (1, 29),  # as often the same moves
    ):
        run = functools.partial(
            apply,
            ChainScore(log_sum_exp(), band, has_length=True, detailed=detailed),
            runtimes=way,
        )
        # What is outside a band has no influence.
        banded = np.where(before >= 0, transition[:, :, before, state], np.nan)
        found = [
            *jax.jit(jax.vmap(run))(
                initial, np.repeat(banded if band else transition, rows, 1), *inputs[2:]
            )
        ]
        found[2:3] = (x.sum(1, keepdims=True) for x in found[2:3])
        for k in (0, 1, 2, 3, *range(6, 13)):
            wanted = [*by_numpy(initial[k], transition[k, 0], emission[k, : inputs[3][k]])]
            if band:
                wanted[2] = np.where(before >= 0, wanted[2][:, before, state], 0)
            for got, want in zip(found, wanted):
                known = got[k][tuple(map(slice, np.shape(want)))]  # not what lies behind the length
                np.testing.assert_allclose(known, want, rtol=5e-5, atol=1e-5, err_msg=str(k))
        np.testing.assert_array_equal(found[0][4:6], [-np.inf, np.nan])
        assert not any(np.any(x) for part in found[1:] for x in (part[4], found[1][2, :4]))


INF = np.inf
CHANGES = (
    [],
    [(0, np.s_[1:], -INF), (1, np.s_[0, ::2, 2], -INF), (2, np.s_[::2, 1], -INF)],
    [(1, np.s_[0, 0, 1:], -80)],
    [(2, np.s_[:], 1e4)],
    [(1, np.s_[0, 3], -INF), (1, np.s_[0, :, 4], -INF), (2, np.s_[2000:, 0], -INF)],
    [(2, 8990, -INF), (2, (8991, 2), np.nan)],
    [(2, 7000, -INF)],
    [(2, (7000, 2), np.nan)],
)


@pytest.mark.parametrize("memory", [0, chain_op.MEMORY])
@pytest.mark.parametrize("direct", [False, True])
def test_one_long_chain_against_numpy(direct, memory, monkeypatch):
    """Two threads share it, from both ends: also with forbidden transitions, what lies behind the
    length, and where one half or both are impossible or need exponents of their own.
    """
    monkeypatch.setattr(chain_op, "MEMORY", memory)
    rng, run = np.random.default_rng(0), (lambda f: f) if direct else jax.jit
    op = ChainScore(log_sum_exp(), has_length=True, detailed=True)
    for changes in CHANGES:
        arrays = [rng.normal(size=s).astype(np.float32) for s in ((5,), (1, 5, 5), (9000, 5))]
        for part, at, value in changes:
            arrays[part][at] += value
        found = run(functools.partial(apply, op))(*arrays, np.int32(8990))
        if changes[0:1] and changes[0][1] in (7000, (7000, 2)):
            assert np.array_equal(found[0], changes[0][2], equal_nan=True)
            continue
        wanted = by_numpy(arrays[0], arrays[1][0], arrays[2][:8990])
        for got, want in zip((*found[:3], found[3][:8990]), wanted):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=2e-4, err_msg=str(changes))
        assert not np.any(found[3][8990:])


def test_a_crf_against_torch_struct():
    """Numbers of torch-struct 0.5 for the same scores, tags and steps of training."""
    wave = lambda *shape: 2 * np.sin(np.arange(1, 1 + np.prod(shape)) ** 2.0).reshape(shape)
    asked = lambda tables: Chain(*tables, np.array([7, 5, 2]))
    tags, losses = np.arange(21).reshape(3, 7) ** 2 % 4, []
    learn = jax.jit(jax.value_and_grad(lambda tables: -asked(tables).log_prob(tags).sum()))
    with jax.enable_x64(True):
        weights = tables = [wave(4), wave(4, 4), wave(3, 7, 4)]
        for _ in range(21):
            loss, slopes = learn(weights)
            losses.append(float(loss))
            weights = [x - 0.1 * slope for x, slope in zip(weights, slopes, strict=True)]
        chain = asked(tables)
        found = {
            "losses": np.array(losses[::10]),
            "partition": chain.log_partition(),
            "entropy": chain.entropy(),
            "three best": chain.best(k=3).score.T,
            "uses": chain.marginals().transitions.sum((0, 1))[2],
        }
    want = {
        "losses": [44.517576, 1.926265, 0.525936],
        "partition": [17.318656, 11.883377, 6.476973],
        "entropy": [2.941854, 3.025382, 0.241712],
        "three best": [
            [16.467914, 10.359283, 6.437223],
            [15.1398, 9.93141, 1.784895],
            [14.595784, 9.718969, 1.747941],
        ],
        "uses": [0.500494, 0.149878, 5.091837, 0.044735],
    }
    for name, numbers in want.items():
        np.testing.assert_allclose(found[name], numbers, atol=1e-6)
