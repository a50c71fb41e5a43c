"""Chains in the library, in a loop of standard ops and in exported programs: the same answers; and NumPy
and torch-struct beside them.
"""

import functools
import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import Chain, log_sum_exp, viterbi
from ext_tropical.native.library import native, target
from ext_tropical.semirings.registered import SemiringKey
from ext_tropical.sequences import chain_op
from ext_tropical.sequences.chain_op import ChainByEmission, ChainSamples, ChainScore
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..sweep import times
from .chain_judges import FORMS, TIMES, chains, kept, symbolic
from .judges import OWN, nothing_compiled, refusals

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


@pytest.mark.few(3)
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


@pytest.mark.few(1)
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


@pytest.mark.few(1)
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


@pytest.mark.few(1)
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


@pytest.mark.few(1)
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


@pytest.mark.few(2)
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
