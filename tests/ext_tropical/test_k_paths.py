"""The k best paths and the number of best ones, against all paths written out and networkx."""

import itertools

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest

from ext_tropical.graphs import k_paths
from ext_tropical.graphs.k_paths import PathRanking, k_shortest_paths
from ext_tropical.graphs.path_counts import count_shortest_paths
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths
from ext_tropical.native.library import native
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..helpers import equal, passes
from ..sweep import times
from .judges import OWN, refusals

pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(native().problem), reason=native().problem),
]

INF = np.inf
DIAMOND = EdgeGraph([0, 0, 1, 2, 1], [1, 2, 3, 3, 2], 4)
MINUTES = np.array([1.0, 2.0, 4.0, 3.0, 1.0])


def all_paths(graph, weights, source, target):
    """(length, edges) of every path that passes no node twice, in the order of their ranks."""
    senders, receivers = np.asarray(graph.senders).tolist(), np.asarray(graph.receivers).tolist()
    found = []

    def go_on(node, edges, nodes):
        if node == target:
            found.append((sum(weights[e] for e in edges), len(edges), edges))
            return
        for edge, (tail, head) in enumerate(zip(senders, receivers, strict=True)):
            if tail == node and head not in nodes and weights[edge] != INF:
                go_on(head, [*edges, edge], nodes | {head})

    go_on(source, [], {source})
    return [(length, edges) for length, _, edges in sorted(found)]


# Nodes and edges of generated graphs.
SIZES = ((1, 3), (3, 5), (5, 12), (7, 18))


def small_graph(rng):
    """A graph of few distinct whole weights, with parallel edges, edges that are none, and sometimes
    negative weights, mostly without cycles that get better.
    """
    nodes, count = SIZES[rng.choice(len(SIZES), p=[0.1, 0.2, 0.4, 0.3])]
    ends = rng.integers(0, nodes, (2, count))
    weights = rng.integers(rng.integers(0, 2), rng.choice([2, 4, 10]), count)
    form = rng.random()
    if form < 0.3:
        heights = rng.integers(-9, 9, nodes)
        weights = weights + heights[ends[0]] - heights[ends[1]]
    elif form < 0.4:
        weights = weights - 1
    weights = np.where(rng.random(count) < 0.05, 10**6, weights).astype(float)
    weights[weights == 10**6] = INF
    return EdgeGraph(*ends, nodes), weights, *rng.integers(0, nodes, 2).tolist()


def in_dtype(weights, dtype):
    """Weights in a dtype; in integers edges that are none are an end of the range."""
    if dtype != np.int32:
        return weights.astype(dtype)
    ends = np.iinfo(dtype)
    return np.clip(weights, ends.min, ends.max).astype(dtype)


def require_ranked(graph, weights, source, target, k, dtype, semiring):
    """The answer for weights whose sums are exact."""
    sign = -1 if semiring == "max_plus" else 1
    given = in_dtype(sign * weights, dtype)
    found = k_shortest_paths(graph, given, source, target, k, semiring=semiring)
    found = jax.tree.map(np.asarray, found)
    one = shortest_paths(graph, given, source, [target], semiring=semiring)
    (distance,) = np.asarray(one.distances)
    equal((found.lengths[0], distance))
    assert found.lengths.dtype == dtype
    counts = found.counts
    if not one.converged[0]:
        assert not counts.any()
        equal((found.lengths, [distance] * k))
        return
    every = all_paths(graph, weights, source, target)
    want = [sign * length for length, _ in every[:k]]
    count = len(want)
    equal((found.lengths[:count], np.array(want, dtype)))
    assert (counts > 0).tolist() == [i < count for i in range(k)]
    assert found.paths.shape == (k, max(counts.max(), 1))
    edges = [row[row >= 0].tolist() for row in found.edges]
    ranks = [(sign * float(x), len(y), y) for x, y in zip(found.lengths, edges, strict=True)]
    assert ranks[:count] == sorted(ranks[:count])
    assert len(set(map(tuple, edges[:count]))) == count
    for length, _, own in ranks[:count]:
        assert (length, own) in every
    for i, own in enumerate(edges[:count]):
        heads = np.asarray(graph.receivers)[own].tolist()
        assert found.paths[i, : counts[i]].tolist() == [source, *heads]
        assert (found.paths[i, counts[i] :] == -1).all()
    equal((found.paths[count:], -1), (found.edges[count:], -1))


# Those of the native search of one path, which is asked the same; others compile for each graph.
DTYPES = (np.float64, np.float32, np.int32)


def require_small(seed, count):
    rng = np.random.default_rng(seed)
    for i in range(count):
        graph, weights, source, target = small_graph(rng)
        dtype, semiring = DTYPES[i % 3], ("min_plus", "max_plus")[i // 3 % 2]
        require_ranked(graph, weights, source, target, int(rng.choice([1, 3, 11])), dtype, semiring)


def test_small_graphs():
    require_small(0, times(500))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_small_graphs(seed):
    require_small(seed, times(800))


def large_graph(seed, nodes, edges, draw):
    """A graph without parallel edges, and the same of networkx."""
    rng = np.random.default_rng(seed)
    pairs = np.unique(rng.integers(0, nodes, (edges, 2)), axis=0)
    weights = draw(rng, len(pairs))
    theirs = nx.DiGraph()
    theirs.add_nodes_from(range(nodes))
    for (tail, head), weight in zip(pairs.tolist(), weights.tolist(), strict=True):
        theirs.add_edge(tail, head, weight=weight)
    return EdgeGraph(*pairs.T, nodes), weights, theirs


@pytest.mark.parametrize("seed", range(3))
def test_against_networkx(seed):
    graph, weights, theirs = large_graph(seed, 60, 240, lambda rng, n: rng.random(n))
    found = k_shortest_paths(graph, weights, 0, 1, 20)
    simple = nx.shortest_simple_paths(theirs, 0, 1, weight="weight")
    for i, path in enumerate(itertools.islice(simple, 20)):
        assert np.asarray(found.paths)[i, : len(path)].tolist() == path
        np.testing.assert_allclose(found.lengths[i], weights[found.edges[i, : len(path) - 1]].sum())
    assert (np.diff(found.lengths) >= 0).all()


@pytest.mark.slow
def test_a_thousand_nodes_against_networkx():
    graph, weights, theirs = large_graph(9, 1000, 5000, lambda rng, n: rng.random(n))
    found = k_shortest_paths(graph, weights, 3, 700, 50)
    simple = nx.shortest_simple_paths(theirs, 3, 700, weight="weight")
    for i, path in enumerate(itertools.islice(simple, 50)):
        assert np.asarray(found.paths)[i, : len(path)].tolist() == path


def test_cycles_of_weight_zero_up_to_rounding():
    """Differences of heights, whose cycles have a weight of 0 but for rounding."""
    rng = np.random.default_rng(0)
    for dtype in (np.float32, np.float64):
        for _ in range(times(20)):
            nodes = 6
            ends, heights = rng.integers(0, nodes, (2, 14)), rng.normal(size=nodes).astype(dtype)
            weights = heights[ends[0]] - heights[ends[1]]
            graph = EdgeGraph(*ends, nodes)
            found = k_shortest_paths(graph, weights, 0, 1, 8)
            every = all_paths(graph, weights.tolist(), 0, 1)[:8]
            np.testing.assert_allclose(
                found.lengths[: len(every)], [length for length, _ in every], atol=2e-6
            )
            assert (found.counts > 0).sum() == len(every)


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16, np.int32, np.int64])
def test_other_dtypes(dtype):
    found = k_shortest_paths(DIAMOND, MINUTES.astype(dtype), 0, 3, 4)
    assert found.lengths.dtype == dtype
    none = INF if jnp.issubdtype(dtype, jnp.floating) else np.iinfo(dtype).max
    assert [float(x) for x in found.lengths] == [5, 5, 5, float(none)]


def test_lengths_beyond_the_dtype_are_no_paths():
    graph = EdgeGraph([0, 1, 0], [1, 2, 2], 3)
    most = np.iinfo(np.int32).max
    for weights in (np.float32([3e38, 3e38, 1]), np.int32([most - 1, 1, 1]), [INF, 2.0, 1.0]):
        found = k_shortest_paths(graph, weights, 0, 2, 2)
        assert (found.lengths[0], found.counts.tolist()) == (1, [2, 0])
    low = k_shortest_paths(EdgeGraph([0, 1], [1, 2], 3), np.int32([-most, -most]), 0, 2, 1)
    assert (low.lengths.tolist(), low.counts.tolist()) == ([-most - 1], [0])


def test_inside_transforms():
    """Arrays are as wide as there are nodes; batches are taken one after another."""
    want = k_shortest_paths(DIAMOND, MINUTES, 0, 3, 4)
    inside = jax.jit(k_shortest_paths, static_argnums=4)(DIAMOND, MINUTES, 0, 3, 4)
    for name in want._fields:
        equal((getattr(inside, name), getattr(want, name)))
    ends = jnp.array([3, 2, 0, 9])
    many = jax.jit(jax.vmap(lambda w, t: k_shortest_paths(DIAMOND, w, 0, t, 3)))(
        np.stack([MINUTES, MINUTES[::-1]] * 2), ends
    )
    assert many.paths.shape == (4, 3, 4)
    assert many.lengths.tolist() == [[5, 5, 5], [2, 3, INF], [0, INF, INF], [INF] * 3]
    assert many.paths[2].tolist() == [[0, -1, -1, -1]] + [[-1] * 4] * 2


SHARES = np.arange(1.0, 6)


@pytest.mark.parametrize("semiring", ["min_plus", "max_plus"])
def test_derivatives(semiring):
    graph, weights, _ = large_graph(5, 12, 30, lambda rng, n: rng.random(n))
    weights = weights * (-1 if semiring == "max_plus" else 1)

    def loss(weights):
        found = k_shortest_paths(graph, weights, 0, 1, 5, semiring=semiring)
        return jnp.sum(jnp.where(found.counts > 0, jnp.sin(found.lengths), 0) * SHARES)

    rows = 1e-6 * np.eye(len(weights))
    differences = [(loss(weights + row) - loss(weights - row)) / 2e-6 for row in rows]
    slope = jax.grad(loss)
    for found in (slope(weights), jax.jit(slope)(weights), jax.jacfwd(loss)(weights)):
        np.testing.assert_allclose(found, differences, atol=1e-7)
    bends = [(slope(weights + row) - slope(weights - row)) / 2e-6 for row in rows]
    np.testing.assert_allclose(jax.hessian(loss)(weights), bends, atol=1e-6)
    uses = jax.jacrev(lambda w: k_shortest_paths(graph, w, 0, 1, 5, semiring=semiring).lengths)
    found = k_shortest_paths(graph, weights, 0, 1, 5, semiring=semiring)
    for row, edges in zip(uses(weights), np.asarray(found.edges), strict=True):
        assert np.flatnonzero(row).tolist() == sorted(edges[edges >= 0])


@pytest.mark.slow
def test_contract():
    passes(PathRanking(4, 3), order=1, only=OWN)


def test_without_the_library(monkeypatch):
    monkeypatch.setattr(k_paths, "native", lambda: native()._replace(problem="none"))
    with pytest.raises(Unsupported, match="native library"):
        k_shortest_paths(DIAMOND, MINUTES, 0, 3, 2)


# --- how many best ones ---------------------------------------------------------------------------


def has_flat_cycle(graph, weights, source, target):
    """Whether a best path passes a node of a cycle of weight 0."""
    n, edges = graph.n, list(zip(*map(np.asarray, (graph.senders, graph.receivers)), strict=True))
    least = np.where(np.eye(n, dtype=bool), 0, INF)
    for (tail, head), weight in zip(edges, weights, strict=True):
        least[tail, head] = min(least[tail, head], weight)
    for node in range(n):
        least = np.minimum(least, least[:, node, None] + least[node])
    return any(
        least[source, tail] + least[tail, target] == least[source, target]
        and weight + least[head, tail] == 0
        for (tail, head), weight in zip(edges, weights, strict=True)
    )


def require_counts(seed, count):
    rng, seen = np.random.default_rng(seed), [0, 0]
    for i in range(count):
        graph, weights, source, target = small_graph(rng)
        semiring, sign = (("min_plus", 1), ("max_plus", -1))[i % 2]
        given = (sign * weights).astype(DTYPES[i // 2 % 2])
        one = shortest_paths(graph, weights, source, [target])
        ask = lambda g=graph, w=given, s=source, t=target, of=semiring: count_shortest_paths(
            g, w, s, [t], semiring=of
        )
        is_reached = bool(one.feasible[0])
        is_flat = is_reached and has_flat_cycle(graph, weights, source, target)
        if not one.converged[0] or is_flat:
            with pytest.raises(InvalidConfig, match="cycle"):
                ask()
            seen[0] += 1
            continue
        lengths = [length for length, _ in all_paths(graph, weights, source, target)]
        assert ask() == [lengths.count(lengths[0]) if lengths else 0]
        seen[1] += len(lengths) > 1
    assert min(seen) > count // 20


def test_numbers_of_best_paths():
    require_counts(0, times(250))


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 4))
def test_more_numbers_of_best_paths(seed):
    require_counts(seed, times(600))


@pytest.mark.parametrize("seed", range(3))
def test_numbers_against_networkx(seed):
    draw = lambda rng, n: rng.integers(1, 3, n).astype(np.int32)
    graph, weights, theirs = large_graph(seed, 40, 800, draw)
    goals = [1, 5, 9, 1, 0]
    want = [len([*nx.all_shortest_paths(theirs, 0, t, weight="weight")]) for t in goals]
    assert count_shortest_paths(graph, weights, 0, goals) == want
    assert max(want) > 2


def test_numbers_are_exact():
    step = np.arange(2000)
    graph = EdgeGraph(np.tile(step, 2), np.tile(step + 1, 2), 2001)
    assert count_shortest_paths(graph, np.ones(4000), 0, [2000, 0, 64]) == [2**2000, 1, 2**64]
    assert count_shortest_paths(graph, np.ones(4000), 5, [4]) == [0]
    assert count_shortest_paths(DIAMOND, np.float16(MINUTES), 0, [3]) == [3]


TWO = EdgeGraph([0, 1], [1, 0], 2)
ONES = np.ones(2)
test_refusals = refusals(
    (InvalidConfig, "k: given 0", lambda: k_shortest_paths(TWO, ONES, 0, 1, 0)),
    (InvalidConfig, "k: given 1.5", lambda: k_shortest_paths(TWO, ONES, 0, 1, 1.5)),
    (InvalidConfig, "source: given 2", lambda: k_shortest_paths(TWO, ONES, 2, 1, 1)),
    (ShapeError, "target: given shape", lambda: k_shortest_paths(TWO, ONES, 0, [1], 1)),
    (ShapeError, "weights: given shape", lambda: k_shortest_paths(TWO, np.ones(3), 0, 1, 1)),
    (
        InvalidConfig,
        "given min_max; needed min_plus or max_plus",
        lambda: k_shortest_paths(TWO, ONES, 0, 1, 1, semiring="min_max"),
    ),
    (
        DTypeError,
        r"may reach .*below 2\*\*50",
        lambda: k_shortest_paths(TWO, np.int64([2**50, 1]), 0, 1, 1),
    ),
    (InvalidConfig, "payload", lambda: PathRanking(-1, 1)),
    (InvalidConfig, "payload", lambda: PathRanking(3, True)),
    (ShapeError, "targets: given shape", lambda: count_shortest_paths(TWO, ONES, 0, 1)),
    (
        InvalidConfig,
        "a cycle of weight 0 .* through node .*no node twice",
        lambda: count_shortest_paths(TWO, np.zeros(2), 0, [1]),
    ),
    (
        InvalidConfig,
        "distance -inf to node 1",
        lambda: count_shortest_paths(TWO, -ONES, 0, [1]),
    ),
    (
        InvalidConfig,
        "distance nan to node 1",
        lambda: count_shortest_paths(TWO, [np.nan, 1.0], 0, [1]),
    ),
    (
        Unsupported,
        "Count outside of it",
        lambda: jax.jit(lambda w: count_shortest_paths(TWO, w, 0, [1])[0])(ONES),
    ),
)
