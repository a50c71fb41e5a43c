"""The k best, all best, counted and sampled assignments of a Network, against all assignments of
small models, toulbar2 and chi-squared tests.
"""

import math
import string

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from benchmarks.network_peers import listed
from ext_tropical import Network
from ext_tropical.einsums import planning as tropical_plan
from ext_tropical.networks.many import NetworkBest, NetworkSamples
from ext_tropical.networks.plan_text import text_of
from tenferro_jax import plan_einsum
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply

from ..helpers import ends_in, equal
from .judges import nothing_compiled
from .small_networks import all_scores, factors, probabilities
from .test_model import in_slices


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def numbers_of(scores, names, weights):
    """How many of the possible assignments have each sum of the weights of their values."""
    at = dict(zip(names, np.indices(scores.shape), strict=True))
    sums = sum((np.array(row)[at[name]] for name, row in weights.items()), np.zeros_like(scores))
    found, counts = np.unique(sums[np.isfinite(scores)].astype(int), return_counts=True)
    return dict(zip(found.tolist(), counts.tolist(), strict=True))


@pytest.mark.few(3)
@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.parametrize(
    ("seed", "variables"),
    [
        *((seed, 6) for seed in range(4)),
        *(pytest.param(s, 12, marks=pytest.mark.slow) for s in range(4)),
    ],
)
def test_lists_and_counts_against_all_assignments(seed, variables, whole):
    """Values are NumPy's sorted scores, attained by distinct assignments, also in slices. Whole
    scores: many assignments are equal, so that no tie may be lost.
    """
    tables = factors(seed, variables, whole)
    names, scores = all_scores(tables)
    net, falling = Network.from_factors(tables), np.sort(scores, axis=None)[::-1]
    rtol, most = 0.0 if whole else 1e-12, falling[0]
    for model in (net, in_slices(tables)):
        for k in (1, 7, 900):
            best = model.best(k=k)
            want = falling[:k]
            np.testing.assert_allclose(best.value, want, rtol=rtol, atol=rtol / 100)
            found = np.isfinite(want)
            np.testing.assert_array_equal(best.feasible, found)
            at = np.array([best.labels[name] for name in names])
            np.testing.assert_allclose(
                scores[tuple(at[:, found])], want[found], rtol=rtol, atol=rtol / 100
            )
            assert (at[:, ~found] == -1).all()
            assert len(set(map(tuple, at[:, found].T))) == found.sum()
        assert model.count() == np.isfinite(scores).sum()
        if not whole:
            continue
        every = sorted(tuple(x[name] for name in names) for x in model.all_best())
        possible = np.argwhere(scores == most).tolist() if np.isfinite(most) else []
        assert every == list(map(tuple, possible))
        for gap in (0, 0.5, 1, 3):
            assert model.count(within=gap) == ((scores >= most - gap) & np.isfinite(scores)).sum()
    weights = {name: [0, 3, 1][: scores.shape[names.index(name)]] for name in names[:3]}
    assert net.count_by(weights) == numbers_of(scores, names, weights)


def op_and_tables(seed, kind, *arguments):
    tables = factors(seed, whole=True)
    text = text_of(Network.from_factors(tables).plan().plan)
    return kind(*(text if x is None else x for x in arguments)), list(tables.values())


@pytest.mark.parametrize(
    ("count", "seed"), [(3, 0), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 3, 12))]
)
def test_standard_ops_list_the_same_assignments(seed, count):
    op, tables = op_and_tables(seed, NetworkBest, None, count)
    native = apply(op, *tables)
    lowered = jax.jit(op.lower_to_standard_ops)(*tables)
    jax.tree.map(np.testing.assert_array_equal, list(native), list(lowered))


@pytest.mark.parametrize("transform", [lambda f: f, jax.jit])
def test_a_large_k_takes_the_memory_of_what_exists(transform):
    table = np.arange(4.0).reshape(2, 2)
    best = transform(lambda net: net.best(k=10**12))(Network("ab->", table))
    np.testing.assert_array_equal(best.value, [3, 2, 1, 0])
    np.testing.assert_array_equal(
        [best.labels["a"], best.labels["b"]], [[1, 1, 0, 0], [1, 0, 1, 0]]
    )
    assert best.feasible.all()


def test_nan_is_not_lost():
    op, tables = op_and_tables(0, NetworkBest, None, 3)
    tables[-1] = tables[-1].copy()
    tables[-1].flat[0] = np.nan
    assert not Network("a->", np.array([np.nan, 0])).best(k=2).feasible.any()
    for values, labels in (apply(op, *tables), op.lower_to_standard_ops(*tables)):
        assert np.isnan(values).all()
        assert (np.asarray(labels) == -1).all()


def test_gradients_pass_over_assignments_that_are_missing():
    net = Network("ab->", np.array([[0.0, -np.inf], [-np.inf, 1.0]]))
    (slope,) = jax.jacrev(lambda n: n.best(k=3).value)(net).tables
    equal((slope[2], np.zeros((2, 2))), (slope[0], [[0, 0], [0, 1]]))


def test_sums_of_three_hundred_coins():
    net = Network.from_factors({(): np.array(1.5)} | {(i,): np.zeros(2) for i in range(300)})
    by = net.count_by(dict.fromkeys(range(300), (0, 1)))
    assert by == {k: math.comb(300, k) for k in range(301)}
    best = {(i,): np.array([0.0, -1.0, 0.0]) for i in range(300)}
    assert Network.from_factors(best).count(within=0) == 2**300


@pytest.mark.parametrize(("size", "count"), [(5, 30), (2, 64), (2, 62), (2, 300), (3, 1)])
def test_free_variables_are_counted(size, count):
    net = Network.from_factors({(i,): np.zeros(size) for i in range(count)})
    assert net.count() == net.count(within=0) == size**count
    assert net.count_by({0: range(size)}) == dict.fromkeys(range(size), size ** (count - 1))


def test_a_gap_takes_scores_for_equal_that_rounding_makes_differ():
    net = Network("a,b,a->", np.array([0.1, 0.3]), np.zeros(1), np.array([0.2, 0.0]))
    assert (net.count(within=0), len(list(net.all_best()))) == (1, 1)
    assert (net.count(within=1e-9), len(list(net.all_best(within=1e-9)))) == (2, 2)


QUESTIONS = {
    "value": Network.value,
    "best": Network.best,
    "best(k)": lambda net: net.best(k=3),
    "all_best": lambda net: list(net.all_best()),
    "count": Network.count,
    "count_by": lambda net: net.count_by({0: (0, 1), 3: (1, 0)}),
    "log_partition": Network.log_partition,
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "sample": lambda net: net.sample(jax.random.key(0), (2,)),
    "gradient": jax.grad(Network.log_partition),
}


def test_all_questions_take_the_plan_that_is_printed(monkeypatch):
    plans = []

    def recorded(*args):
        plans.append(plan_einsum(*args))
        return plans[-1]

    monkeypatch.setattr(tropical_plan, "plan_einsum", recorded)
    rng = np.random.default_rng(4)
    square = grid(4, rng.normal(size=(2, 2)), rng.normal(size=2))
    net = Network.from_factors(
        dict(zip(square.scopes, square.tables, strict=True)), optimize="random-greedy"
    )
    printed = str(net)
    for ask in QUESTIONS.values():
        ask(net)
    assert len(plans) == 1
    assert f"value, best, log_partition: {plans[0].cost} candidates" in printed


def grid(size, edge, site=None):
    """The same table for each pair of neighbours of a square, and one for each site."""
    name = np.arange(size * size).reshape(size, size)
    pairs = [*zip(name[:, :-1].flat, name[:, 1:].flat), *zip(name[:-1].flat, name[1:].flat)]
    tables = {(int(a), int(b)): edge for a, b in pairs}
    values = np.zeros(len(edge)) if site is None else site
    return Network.from_factors(tables | {(int(i),): values for i in name.flat})


def test_a_network_of_no_variable_has_one_assignment():
    for net in (PAIR.given(a=0, b=1), Network("ab,b->", np.eye(2), np.ones(2)).given(a=0, b=1)):
        value = float(net.value())
        for best in (net.best(k=3), jax.jit(lambda n: n.best(k=3))(net)):
            np.testing.assert_array_equal(best.value, [value])
            assert best.labels == {}
        assert net.count() == net.count(within=0) == net.count(within=1) == 1
        assert list(net.all_best()) == [{}]
        assert net.sample(jax.random.key(0), (3,)) == {}
    assert PAIR.sample(jax.random.key(0), (2, 0))["a"].shape == (2, 0)


def test_counts_of_16_bits_and_of_any_gap():
    net = Network("ab,b->", *(jnp.asarray(x, jnp.bfloat16) for x in (np.eye(2), np.ones(2))))
    assert (net.count(), net.count(within=0), net.count(within=np.inf)) == (4, 2, 4)
    assert net.count_by({"a": (0, 5)}) == {0: 2, 5: 2}
    assert len(list(net.all_best())) == 2


def test_the_labels_of_another_network_compile_nothing():
    """Cutting 300 labels apart in XLA took seconds."""

    def asked(count):
        rng = np.random.default_rng(count)
        scopes = [(i, i + 1) for i in range(count)]
        Network.from_factors({s: rng.normal(size=(2, 2)) for s in scopes}).best(k=5)

    asked(8)  # compiles what has the size of k
    with nothing_compiled():
        asked(9)


def test_integers_are_counted_too():
    net = Network("ab,b->", np.int32([[1, 0], [0, 1]]), np.int32([1, 1]))
    assert (net.count(), net.count(within=0)) == (4, 2)
    least = np.iinfo(np.int32).min  # impossible; a sum with -1 would wrap
    net = Network("ab,b->", np.int32([[least, 0], [0, 1]]), np.int32([-1, 0]))
    assert (int(net.value()), net.count(), net.count(within=0)) == (1, 3, 1)
    net = Network("a->", np.arange(2, dtype=np.int64))
    assert (net.count(), net.count(within=0)) == (2, 1)
    wide = Network("a->", np.int64([2**53, 0]))  # sums of such numbers have no float64
    ends_in(lambda: wide.count(within=0), DTypeError, "2\\*\\*53|float64")


# Samples

# The probability that one right test of all fails: each has its share of it (Bonferroni).
FAMILY = 0.01


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("seed", "sliced"),
    [
        *((s, False) for s in range(3)),
        (3, True),
        *(pytest.param(s, s % 2, marks=pytest.mark.slow) for s in range(4, 20)),
    ],
)
def test_samples_have_the_probabilities(seed, sliced):
    """float32 and float64 in turn: Pearson's chi-squared over all assignments, those that are
    expected less than five times together, and over the values of each variable by `marginals`.
    """
    tables = {s: t.astype(("f8", "f4")[seed % 2]) for s, t in factors(seed).items()}
    names, scores = all_scores(tables)
    net, draws = in_slices(tables) if sliced else Network.from_factors(tables), 40_000
    drawn = net.sample(jax.random.key(seed), (draws,), temperature=0.7)
    at = np.ravel_multi_index([np.asarray(drawn[name]) for name in names], scores.shape)
    have, want = np.bincount(at, minlength=scores.size), probabilities(scores, 0.7).ravel() * draws
    assert not have[want == 0].any()
    rare = want < 5
    pairs = [[np.append(x[~rare], x[rare].sum()) for x in (have, want)]]
    for name, share in net.marginals(temperature=0.7).items():
        counts = np.bincount(np.asarray(drawn[name]), minlength=len(share))
        pairs.append([counts, np.asarray(share, float) / float(share.sum()) * draws])
    for i, (have, want) in enumerate(pairs):
        have, want = (x[want > 0] for x in (have, want))
        chance = scipy.stats.chisquare(have, want * (draws / want.sum())).pvalue
        assert len(want) == 1 or chance > FAMILY / 20 / (2 if i == 0 else 2 * len(names)), i


def test_samples_have_the_shape_and_a_key_of_each_element():
    net = Network.from_factors(factors(0))
    keys = jax.random.split(jax.random.key(1), 3)
    assert all(x.shape == () and x.dtype == np.int32 for x in net.sample(keys[0]).values())
    mapped = jax.vmap(lambda key: net.sample(key, (4, 5)))(keys)
    for i, key in enumerate(keys):
        jax.tree.map(
            np.testing.assert_array_equal,
            net.sample(key, (4, 5)),
            jax.tree.map(lambda x: x[i], mapped),
        )


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_standard_ops_draw_the_same(seed):
    op, tables = op_and_tables(seed, NetworkSamples, 0.7, None)
    numbers = np.random.default_rng(0).random((op.draws, 500))
    (native,) = apply(op, *tables, numbers)
    (lowered,) = jax.jit(op.lower_to_standard_ops)(*tables, numbers)
    np.testing.assert_array_equal(native, lowered)
    assert len(np.unique(native, axis=1).T) > 3
    never = [np.full(x.shape, -np.inf) for x in tables]
    for draw in (lambda *xs: apply(op, *xs), op.lower_to_standard_ops):
        assert (np.asarray(draw(*never, numbers)[0]) == -1).all()


# Both ops, and errors

TEXT = "ab,bc,c->|1,2:b|0,3:"
OPS = {"best": NetworkBest(TEXT, 4), "samples": NetworkSamples(0.7, TEXT)}


IMPOSSIBLE = Network("ab->", np.full((2, 2), -np.inf))
PAIR = Network("ab->", np.zeros((2, 3)))
WIDE = Network.from_factors({(i,): np.zeros(2) for i in range(40)})


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PAIR.sample(jax.random.key(0), (2**40,)), InvalidConfig, "int32 counts"),
        (lambda: PAIR.best(k=0), InvalidConfig, "at least 1"),
        (lambda: PAIR.best(k=2.0), InvalidConfig, "given 2.0"),
        (lambda: PAIR.best(k=True), InvalidConfig, "given True"),
        (lambda: Network("a->", np.arange(3)).best(k=2), DTypeError, "floating"),
        (lambda: list(PAIR.all_best(limit=5)), InvalidConfig, "given 6 best assignments"),
        (lambda: PAIR.all_best(limit=-1), InvalidConfig, "at least 0"),
        (lambda: PAIR.all_best(limit=None), InvalidConfig, "given None"),
        (lambda: WIDE.best(k=2**31), InvalidConfig, "int32"),
        (lambda: PAIR.count(within="a"), InvalidConfig, "given 'a'"),
        (lambda: PAIR.count_by(None), InvalidConfig, "a mapping"),
        (lambda: PAIR.count_by({"a": (0, 2**40)}), InvalidConfig, "bits"),
        (lambda: PAIR.sample(jax.random.key(0), 3), InvalidConfig, "a sequence"),
        (lambda: Network("a->", np.array([np.inf, 0])).count(), InvalidConfig, "inf"),
        (
            lambda: Network("a->", np.array([np.nan, 0])).sample(jax.random.key(0)),
            InvalidConfig,
            "NaN or inf",
        ),
        (lambda: PAIR.count(within=-1), InvalidConfig, "at least 0"),
        (lambda: PAIR.count(within=float("nan")), InvalidConfig, "at least 0"),
        (lambda: PAIR.count_by({"c": (0, 1)}), InvalidConfig, "one of 'a', 'b'"),
        (lambda: PAIR.count_by({"a": (0, -1)}), InvalidConfig, "at least 0"),
        (lambda: PAIR.count_by({"a": (0, 1, 2)}), InvalidConfig, "2 integers"),
        (lambda: PAIR.count_by({"a": (0.5, 1)}), InvalidConfig, "integers"),
        (lambda: Network("a->", np.array([np.nan, 0])).count(), InvalidConfig, "NaN"),
        (lambda: IMPOSSIBLE.sample(jax.random.key(0)), InvalidConfig, "all have the score -inf"),
        (lambda: PAIR.sample(jax.random.key(0), (-1,)), InvalidConfig, "at least 0"),
        (lambda: PAIR.sample(jax.random.key(0), temperature=0), InvalidConfig, "temperature"),
        (lambda: NetworkBest("ab->a|0:a", 1), InvalidConfig, "without output labels"),
        (lambda: NetworkSamples(1.0, "ab->a|0:a"), InvalidConfig, "without output labels"),
        (
            lambda: apply(
                OPS["samples"], np.zeros((2, 2)), np.zeros((2, 2)), np.zeros(2), np.zeros((1, 3))
            ),
            ShapeError,
            "needed equal dimensions",
        ),
    ],
)
def test_bad_input_is_a_typed_error(call, error, message):
    ends_in(call, error, message)


def test_impossible_networks_have_no_assignment():
    assert IMPOSSIBLE.count() == IMPOSSIBLE.count(within=0) == IMPOSSIBLE.count(within=1) == 0
    assert list(IMPOSSIBLE.all_best()) == []
    assert not IMPOSSIBLE.best(k=2).feasible.any()
    inside = jax.jit(lambda n: n.sample(jax.random.key(0), (2,)))(IMPOSSIBLE)
    assert all((np.asarray(x) == -1).all() for x in inside.values())


# --- toulbar2 -------------------------------------------------------------------------------------


def many_equal(seed, least, most):
    """Tables over one to three variables with two to four values, so many that the number of
    assignments lies between two bounds: each variable has a table with one before it. Scores are
    small integers, of which many sums are equal; a tenth is impossible.
    """
    rng = np.random.default_rng(seed)
    sizes = []
    while math.prod(sizes) < least:
        room = most // math.prod(sizes)
        sizes.append(int(rng.integers(2, 5)) if room >= 4 else room)
    names, count = string.ascii_lowercase, len(sizes)
    scopes = {(i,) for i in range(count)}
    scopes |= {(int(rng.integers(max(0, i - 4), i)), i) for i in range(1, count)}
    for _ in range(count // 2):
        near = rng.integers(max(1, count - 4)) + rng.permutation(min(5, count))
        scopes.add(tuple(near[near < count][:3].tolist()))
    tables = {}
    for scope in sorted(scopes):
        shape = [sizes[i] for i in scope]
        scores = rng.integers(-1, 2, shape).astype(float)
        impossible = rng.random(shape) < 0.1 * (len(scope) > 1)
        tables[tuple(names[i] for i in scope)] = np.where(impossible, -np.inf, scores)
    return tables


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_k_best_and_all_best_against_toulbar2(seed):
    """It lists all assignments above a bound, with a proof; networks of up to 10^11 assignments.
    The bound lets some two thousand pass, most of which are equal to others.
    """
    pytest.importorskip("pytoulbar2", reason="pip install pytoulbar2 (extra test, on Linux)")
    most = 10 ** (5 + seed % 7)
    net, k = Network.from_factors(many_equal(200 + seed, most // 4, most)), 2000
    best = net.best(k=k)
    bound = float(best.value[-1]) + 0.5
    theirs = listed(net.equation, [np.asarray(x) for x in net.tables], bound)
    scores, labels = zip(*theirs, strict=True)
    certain = int((best.value > bound).sum())
    assert len(theirs) == certain > 20 * len(set(np.round(scores)))
    np.testing.assert_allclose(best.value[:certain], scores, atol=1e-5)
    places = np.array([best.labels[name][:certain] for name in net.variables])
    assert sorted(map(tuple, places.T.tolist())) == sorted(labels)
    every = [tuple(x.values()) for x in net.all_best()]
    assert sorted(every) == sorted(x for score, x in theirs if score > scores[0] - 0.5)
    for within in range(int(scores[0] - bound) + 1):
        assert net.count(within=within) == sum(x > scores[0] - within - 0.5 for x in scores)
