"""The k best, all best, counted and sampled assignments of a Network, against all assignments of
small models, published sequences and chi-squared tests.
"""

import collections
import itertools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import scipy.stats

from ext_tropical import Network
from ext_tropical.network import tropical_plan
from ext_tropical.network.network_best import NetworkBest
from ext_tropical.network.network_samples import NetworkSamples
from ext_tropical.network.plan_text import steps_of
from ext_tropical.step.native.library import NETWORK_TARGET
from tenferro_jax import check, plan_einsum
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply

from ..helpers import ends_in
from .test_model import all_scores, factors, probabilities


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def whole_numbers(seed):
    """Tables of small integers with many ties, and a few impossible entries."""
    rng = np.random.default_rng(seed)
    return {
        scope: np.where(np.isfinite(t), rng.integers(-2, 3, t.shape).astype(float), -np.inf)
        for scope, t in factors(seed).items()
    }


def check_best(net, scores, names, k, rtol=0.0):
    """Values are NumPy's sorted scores, and are attained by distinct assignments."""
    best = net.best(k=k)
    want = np.concatenate([np.sort(scores.ravel())[::-1], np.full(k, -np.inf)])[:k]
    np.testing.assert_allclose(best.value, want, rtol=rtol)
    found = np.isfinite(want)
    np.testing.assert_array_equal(best.feasible, found)
    at = np.array([best.labels[name] for name in names])
    np.testing.assert_allclose(scores[tuple(at[:, found])], want[found], rtol=rtol)
    assert (at[:, ~found] == -1).all()
    assert len(set(map(tuple, at[:, found].T))) == found.sum()
    return best


@pytest.mark.parametrize("k", [1, 7, 900])
@pytest.mark.parametrize("seed", range(4))
def test_k_best_against_all_assignments(seed, k):
    for tables, rtol in ((whole_numbers(seed), 0.0), (factors(seed), 1e-12)):
        names, scores = all_scores(tables)
        check_best(Network.from_factors(tables), scores, names, k, rtol)


@pytest.mark.parametrize("k", [1, 7])
def test_k_best_does_not_depend_on_how_it_is_asked(k):
    tables = whole_numbers(1)
    net = Network.from_factors(tables)
    names, scores = all_scores(tables)
    want = check_best(net, scores, names, k)
    small = Network.from_factors(tables, memory_limit=net.plan().peak - 1)
    assert small.plan().slices > 1
    check_best(small, scores, names, k)
    batch = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), net)
    for found in (
        jax.jit(lambda: net.best(k=k))(),
        jax.jit(lambda n: n.best(k=k))(net),
        jax.tree.map(lambda x: x[0], jax.vmap(lambda n: n.best(k=k))(batch)),
        jax.tree.map(lambda x: x[0], jax.jit(jax.vmap(lambda n: n.best(k=k)))(batch)),
    ):
        jax.tree.map(np.testing.assert_array_equal, found, want)


def op_and_tables(seed, kind, *arguments):
    tables = whole_numbers(seed)
    net = Network.from_factors(tables)
    text = steps_of(net.plan().plan).text
    return kind(*(text if x is None else x for x in arguments)), list(tables.values())


@pytest.mark.parametrize(
    ("count", "seed"), [(3, 0), *(pytest.param(n, 1, marks=pytest.mark.slow) for n in (1, 3, 12))]
)
def test_standard_ops_list_the_same_assignments(seed, count):
    op, tables = op_and_tables(seed, NetworkBest, None, count)
    native = apply(op, *tables)
    lowered = jax.jit(op.lower_to_standard_ops)(*tables)
    jax.tree.map(np.testing.assert_array_equal, list(native), list(lowered))


def test_nan_is_not_lost():
    op, tables = op_and_tables(0, NetworkBest, None, 3)
    tables[-1] = tables[-1].copy()
    tables[-1].flat[0] = np.nan
    nan = Network("a->", np.array([np.nan, 0])).best(k=2)
    assert not nan.feasible.any()
    for values, labels in (apply(op, *tables), op.lower_to_standard_ops(*tables)):
        assert np.isnan(values).all()
        assert (np.asarray(labels) == -1).all()


@pytest.mark.slow
def test_gradients_of_k_best_follow_their_assignments():
    tables = factors(3)
    net = Network.from_factors(tables)
    best = net.best(k=5)
    small = Network.from_factors(tables, memory_limit=net.plan().peak - 1)
    for model in (net, small):
        found = jax.jacrev(lambda n: n.best(k=5).value)(model)
        forward = jax.jacfwd(lambda n: n.best(k=5).value)(model)
        for scope, slope, other in zip(net.scopes, found.tables, forward.tables, strict=True):
            want = np.zeros(slope.shape)
            for i in range(5):
                want[(i, *(int(best.labels[name][i]) for name in scope))] = 1
            np.testing.assert_array_equal(slope, want)
            np.testing.assert_array_equal(other, want)


def test_gradients_pass_over_assignments_that_are_missing():
    net = Network("ab->", np.array([[0.0, -np.inf], [-np.inf, 1.0]]))
    (slope,) = jax.jacrev(lambda n: n.best(k=3).value)(net).tables
    np.testing.assert_array_equal(slope[2], np.zeros((2, 2)))
    np.testing.assert_array_equal(slope[0], [[0, 0], [0, 1]])


# All best, and counts


@pytest.mark.parametrize("seed", range(4))
def test_counts_against_all_assignments(seed):
    tables = whole_numbers(seed)
    net = Network.from_factors(tables)
    names, scores = all_scores(tables)
    assert net.count() == np.isfinite(scores).sum()
    assert net.count(within=0) == (scores == scores.max()).sum()
    assert net.count(within=1.5) == (scores >= scores.max() - 1.5).sum()
    small = Network.from_factors(tables, memory_limit=net.plan().peak - 1)
    assert small.count() == net.count()
    assert small.count(within=0) == net.count(within=0)
    found = [tuple(x[name] for name in names) for x in net.all_best()]
    assert sorted(found) == [tuple(map(int, x)) for x in np.argwhere(scores == scores.max())]
    weights = {"u": [0, 3, 1][: scores.shape[names.index("u")]], "w": [1, 0, 0]}
    weights["w"] = weights["w"][: scores.shape[names.index("w")]]
    at = dict(zip(names, np.indices(scores.shape), strict=True))
    sums = sum(np.array(values)[at[name]] for name, values in weights.items())
    numbers, counts = np.unique(sums[np.isfinite(scores)], return_counts=True)
    assert net.count_by(weights) == dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def polynomial(scores, at, weights):
    """How many of the possible assignments have each sum."""
    sums = sum((np.array(row)[at[name]] for name, row in weights.items()), np.zeros_like(scores))
    numbers, counts = np.unique(sums[np.isfinite(scores)].astype(int), return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def times(left, right):
    """The product of two polynomials."""
    found = collections.Counter()
    for (i, x), (j, y) in itertools.product(left.items(), right.items()):
        found[i + j] += x * y
    return dict(found)


@pytest.mark.parametrize("seed", range(5))
def test_counts_of_separate_parts_multiply(seed):
    """Parts whose numbers multiply beyond 2**200, between them free variables and a scalar."""
    rng = np.random.default_rng(seed)
    tables, count, best, polynomials, every = {(): np.array(1.5)}, 1, 1, {0: 1}, {}
    for part in range(3 + 16 * seed):
        drawn = [{("u",): np.zeros(int(rng.integers(1, 6)))}] * (not part % 3)
        drawn += map(whole_numbers, rng.integers(100, size=9))
        own = next(x for x in drawn if np.isfinite(all_scores(x)[1]).any())
        names, scores = all_scores(own)
        at = dict(zip(names, np.indices(scores.shape), strict=True))
        weights = {"u": rng.integers(0, 3, scores.shape[names.index("u")]).tolist()}
        tables |= {
            tuple(f"{x}{part}" for x in scope) or (f"one{part}",): np.atleast_1d(t)
            for scope, t in own.items()
        }
        count *= int(np.isfinite(scores).sum())
        best *= int((scores == scores.max()).sum())
        polynomials = times(polynomials, polynomial(scores, at, weights))
        every[f"u{part}"] = weights["u"]
    net = Network.from_factors(tables)
    assert (net.count(), net.count(within=0)) == (count, best)
    assert net.count_by(every) == polynomials
    assert sum(polynomials.values()) == count
    assert seed < 4 or count > 2**200
    ends_in(lambda: net.all_best(limit=best - 1), InvalidConfig, f"{best} best assignments")
    if best <= 20_000:
        assert len({tuple(x.values()) for x in net.all_best(limit=best)}) == best


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


@pytest.mark.parametrize("optimize", ["auto", "random-greedy"])
def test_all_questions_take_the_plan_that_is_printed(monkeypatch, optimize):
    plans = []

    def recorded(*args):
        plans.append(plan_einsum(*args))
        return plans[-1]

    monkeypatch.setattr(tropical_plan, "plan_einsum", recorded)
    rng = np.random.default_rng(len(optimize))
    square = grid(4, rng.normal(size=(2, 2)), rng.normal(size=2))
    net = Network.from_factors(
        dict(zip(square.scopes, square.tables, strict=True)), optimize=optimize
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


NO_NEIGHBOURS = np.array([[0.0, 0.0], [0.0, -np.inf]])

# OEIS A006506: independent sets of n x n grids.
INDEPENDENT = [2, 7, 63, 1234, 55447, 5598861, 1280128950, 660647962955, 770548397261707]
INDEPENDENT += [2030049051145980050, 12083401651433651945979, 162481813349792588536582997]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, pytest.param(11, marks=pytest.mark.slow), 12])
def test_independent_sets_of_grids(size):
    assert grid(size, NO_NEIGHBOURS).count() == INDEPENDENT[size - 1]


# OEIS A068253: a third of the proper 3-colourings of n x n grids.
COLOURINGS = [1, 6, 82, 2604, 193662, 33865632, 13956665236, 13574876544396, 31191658416342674]
COLOURINGS += [169426507164530254380]


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 9, pytest.param(10, marks=pytest.mark.slow)])
def test_colourings_of_grids(size):
    differ = np.where(np.eye(3) > 0, -np.inf, 0.0)
    assert grid(size, differ).count() == 3 * COLOURINGS[size - 1]


# OEIS A004003: domino tilings of 2n x 2n squares.
TILINGS = [2, 36, 6728, 12988816, 258584046368, 53060477521960000, 112202208776036178000000]


@pytest.mark.parametrize("half", [1, 2, 3, 6, pytest.param(7, marks=pytest.mark.slow)])
def test_perfect_matchings_of_grids(half):
    graph = nx.grid_2d_graph(2 * half, 2 * half)
    number = {frozenset(edge): i for i, edge in enumerate(graph.edges)}
    tables = {}
    for node in graph:
        own = tuple(number[frozenset((node, other))] for other in graph[node])
        tables[own] = np.where(np.indices((2,) * len(own)).sum(0) == 1, 0.0, -np.inf)
    assert Network.from_factors(tables).count() == TILINGS[half - 1]


@pytest.mark.parametrize(
    "name", ["petersen_graph", "bull_graph", "cubical_graph", "krackhardt_kite_graph"]
)
def test_maximum_independent_sets_of_named_graphs(name):
    graph = getattr(nx, name)()
    net = Network.from_factors(
        dict.fromkeys(graph.edges, NO_NEIGHBOURS)
        | {(node,): np.array([0.0, 1.0]) for node in graph}
    )
    independent = [
        set(nodes)
        for size in range(len(graph) + 1)
        for nodes in itertools.combinations(graph, size)
        if not graph.subgraph(nodes).edges
    ]
    most = max(map(len, independent))
    largest = [nodes for nodes in independent if len(nodes) == most]
    assert int(net.value()) == most
    assert net.count() == len(independent)
    assert net.count(within=0) == len(largest)
    found = [{node for node in graph if x[node]} for x in net.all_best()]
    assert sorted(map(sorted, found)) == sorted(map(sorted, largest))
    by_size = net.count_by(dict.fromkeys(graph, (0, 1)))
    assert by_size == {n: sum(len(x) == n for x in independent) for n in range(most + 1)}


def test_a_network_of_no_variable_has_one_assignment():
    for net in (PAIR.given(a=0, b=1), Network("ab,b->", np.eye(2), np.ones(2)).given(a=0, b=1)):
        value = float(net.value())
        for best in (net.best(k=3), jax.jit(lambda n: n.best(k=3))(net)):
            np.testing.assert_array_equal(best.value, [value, -np.inf, -np.inf])
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
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda event, seconds, **_: compiled.append(event) if "backend_compile" in event else None
    )
    asked(9)
    assert not compiled


def test_integers_are_counted_too():
    net = Network("ab,b->", np.int32([[1, 0], [0, 1]]), np.int32([1, 1]))
    assert (net.count(), net.count(within=0)) == (4, 2)
    least = np.iinfo(np.int32).min  # impossible; a sum with -1 would wrap
    net = Network("ab,b->", np.int32([[least, 0], [0, 1]]), np.int32([-1, 0]))
    assert (int(net.value()), net.count(), net.count(within=0)) == (1, 3, 1)
    wide = Network("a->", np.arange(2, dtype=np.int64))
    ends_in(wide.count, DTypeError, "32-bit integers")


# Samples


def chi_squared(net, tables, key, count):
    """The p-value of samples against the probabilities of all assignments, those that are expected
    less than five times together.
    """
    names, scores = all_scores(tables)
    want = probabilities(scores).ravel() * count
    drawn = net.sample(key, (count,), temperature=0.7)
    at = np.ravel_multi_index([np.asarray(drawn[name]) for name in names], scores.shape)
    have = np.bincount(at, minlength=scores.size)
    assert not have[want == 0].any()
    rare = want < 5
    want, have = (np.append(x[~rare], x[rare].sum()) for x in (want, have))
    want, have = want[want > 0], have[want > 0]
    return scipy.stats.chisquare(have, want * have.sum() / want.sum()).pvalue


@pytest.mark.parametrize("seed", range(3))
def test_samples_have_the_probabilities(seed):
    tables = factors(seed)
    net = Network.from_factors(tables)
    assert chi_squared(net, tables, jax.random.key(seed), 40_000) > 1e-3


def test_more_samples_than_int32_counts_are_refused():
    ends_in(lambda: PAIR.sample(jax.random.key(0), (2**40,)), InvalidConfig, "int32 counts")


def test_samples_in_slices_have_the_probabilities():
    tables = factors(3)
    net = Network.from_factors(tables)
    small = Network.from_factors(tables, memory_limit=net.plan().peak - 1)
    assert small.plan().slices > 1
    assert chi_squared(small, tables, jax.random.key(0), 40_000) > 1e-3


def test_samples_do_not_depend_on_how_they_are_asked():
    net = Network.from_factors(factors(0))
    keys = jax.random.split(jax.random.key(1), 3)
    want = net.sample(keys[0], (4, 5))
    assert all(x.shape == (4, 5) and x.dtype == np.int32 for x in want.values())
    single = net.sample(keys[0])
    assert all(x.shape == () for x in single.values())
    batch = jax.tree.map(lambda x: jnp.stack([x, 2 * x]), net)
    for found in (
        jax.jit(lambda: net.sample(keys[0], (4, 5)))(),
        jax.jit(lambda n: n.sample(keys[0], (4, 5)))(net),
        jax.tree.map(lambda x: x[0], jax.vmap(lambda k: net.sample(k, (4, 5)))(keys)),
        jax.tree.map(lambda x: x[0], jax.vmap(lambda n: n.sample(keys[0], (4, 5)))(batch)),
    ):
        jax.tree.map(np.testing.assert_array_equal, found, want)


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


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_the_ops_conform(name):
    """Only an export with symbolic sizes fails: a plan counts entries (docs/limits.md)."""
    report = check(OPS[name])
    assert {failure.check for failure in report.failures} <= {"exported_sizes"}, str(report)


@pytest.mark.slow
def test_exports_have_no_call_of_the_library():
    tables = [np.arange(4.0).reshape(2, 2)] * 2 + [np.arange(2.0)]
    for op, more in ((OPS["best"], []), (OPS["samples"], [np.full((2, 3), 0.5)])):
        given = [*tables, *more]
        program = jax.export.export(jax.jit(lambda *xs, op=op: apply(op, *xs)))(*given)
        assert NETWORK_TARGET not in program.mlir_module()
        for found, want in zip(program.call(*given), apply(op, *given), strict=True):
            np.testing.assert_array_equal(found, want)


IMPOSSIBLE = Network("ab->", np.full((2, 2), -np.inf))
PAIR = Network("ab->", np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: PAIR.best(k=0), InvalidConfig, "at least 1"),
        (lambda: PAIR.best(k=2.0), InvalidConfig, "given 2.0"),
        (lambda: PAIR.best(k=True), InvalidConfig, "given True"),
        (lambda: Network("a->", np.arange(3)).best(k=2), DTypeError, "floating"),
        (lambda: list(PAIR.all_best(limit=5)), InvalidConfig, "given 6 best assignments"),
        (lambda: PAIR.all_best(limit=-1), InvalidConfig, "at least 0"),
        (lambda: PAIR.all_best(limit=None), InvalidConfig, "given None"),
        (lambda: PAIR.best(k=2**31), InvalidConfig, "int32"),
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
        (lambda: jax.jit(lambda n: n.count())(PAIR), Unsupported, "concrete tables"),
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
