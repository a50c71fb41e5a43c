"""Shortest paths where cycles have the weight zero, up to rounding: climbs and exchange rates. The
judges are potentials, which are known, and SciPy's Dijkstra on weights without them.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse

from ext_tropical import max_plus
from ext_tropical.graphs.path_op import PathSearch
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from ..sweep import times

ROUTES = [RouteKind.LOWERING, RouteKind.KERNEL]


@functools.cache  # so that graphs of one size share a program
def route(kind, n):
    """The search by one route, compiled."""
    op = PathSearch("min_plus", n)
    return jax.jit(functools.partial(apply, op, runtimes=op.runtimes.only(kind)))


def by_route(graph, weights, source, kind, n):
    """Distances and last edges by one route."""
    ends = (np.asarray(graph.senders), np.asarray(graph.receivers))
    none = np.zeros(0, np.int32)
    values, last = route(kind, n)(*ends, weights, np.asarray([source], np.int32), none)
    return np.asarray(values)[0], np.asarray(last)[0]


def road(seed, dtype, n=12, roads=20):
    """A connected road graph, both ways; heights of one decimal; whole costs, half of them 0."""
    rng = np.random.default_rng(seed)
    pairs = {(int(rng.integers(0, i)), i) for i in range(1, n)}
    while len(pairs) < roads:
        pairs.add(tuple(map(int, np.sort(rng.choice(n, 2, replace=False)))))
    senders, receivers = np.array(sorted({*pairs, *((v, u) for u, v in pairs)})).T
    heights = np.round(rng.uniform(0, 300, n), 1).astype(dtype)
    costs = rng.integers(0, 3, len(senders)) * rng.integers(0, 2, len(senders)) * (seed % 2)
    weights = (heights[receivers] - heights[senders] + costs.astype(dtype)).astype(dtype)
    return EdgeGraph(senders, receivers, n), heights, costs, weights


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", range(times(12)))
def test_climbs_have_distances_and_paths_by_every_route(seed, dtype):
    with jax.enable_x64(dtype == "float64"):
        graph, heights, costs, weights = road(seed, dtype)
        senders, receivers = (np.asarray(x) for x in (graph.senders, graph.receivers))
        dense = np.full((graph.n, graph.n), np.inf)
        np.minimum.at(dense, (senders, receivers), costs + 1e-4)  # 0 is no edge for SciPy
        cheapest = scipy.sparse.csgraph.dijkstra(dense, indices=3)
        want = np.round(cheapest) + heights.astype(float) - float(heights[3])
        rounding = 300 * 40 * np.finfo(dtype).eps
        found = [by_route(graph, weights, 3, kind, graph.n) for kind in ROUTES]
        for values, last in found:
            np.testing.assert_allclose(values, want, atol=rounding)
            assert (last >= 0).sum() == graph.n - 1
        np.testing.assert_array_equal(found[0][0], found[1][0])
        np.testing.assert_array_equal(found[0][1], found[1][1])
        paths = shortest_paths(graph, weights, 3)
        assert paths.converged.all()
        assert paths.feasible.all()
        slopes = jax.jacrev(lambda w: shortest_paths(graph, w, 3).distances)(jnp.asarray(weights))
        longest = shortest_paths(graph, -weights, 3, semiring=max_plus).distances
        np.testing.assert_array_equal(longest, -np.asarray(paths.distances))
        for node in range(graph.n):
            edges, nodes = paths.edges(node), paths.path(node)
            assert (nodes[0], nodes[-1], len(nodes)) == (3, node, len(edges) + 1)
            assert functools.reduce(np.add, weights[edges], weights.dtype.type(0)) == float(
                paths.distances[node]
            )
            np.testing.assert_array_equal(np.flatnonzero(slopes[node]), np.sort(edges))


def test_climbs_in_16_bits():
    graph = EdgeGraph([0, 1, 2, 1], [1, 2, 1, 3], n=4)
    weights = jnp.asarray([0.0078125, 256, -256, 1], jnp.bfloat16)
    paths = shortest_paths(graph, weights, 0)
    np.testing.assert_array_equal(paths.distances.astype(float), [0, 2.0**-7, 256, 1.0078125])
    assert paths.path(3).tolist() == [0, 1, 3]


@pytest.mark.parametrize("kind", ROUTES)
def test_a_small_weight_before_a_large_cycle_is_not_lost(kind):
    graph = EdgeGraph([0, 1, 2], [1, 2, 1], n=3)
    weights = np.float32([1e-3, 1e8, -1e8])
    values, last = by_route(graph, weights, 0, kind, 3)
    np.testing.assert_array_equal(values, np.float32([0, 1e-3, 1e8]))
    np.testing.assert_array_equal(last, [-1, 0, 1])


@pytest.mark.few(6)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("spread", [2.0, 1e-3])
@pytest.mark.parametrize("seed", range(times(6)))
def test_exchange_rates(seed, spread, dtype):
    """Consistent rates have no cycle that gains; one better rate gives all of them one."""
    with jax.enable_x64(dtype == "float64"):
        rng = np.random.default_rng(seed)
        n = 3 + 5 * (seed % 2)
        price = np.exp(rng.normal(size=n) * spread).astype(dtype)
        senders, receivers = np.nonzero(~np.eye(n, dtype=bool))
        graph = EdgeGraph(senders, receivers, n)
        weights = -np.log(price[senders] / price[receivers])
        want = np.log(price.astype(float)) - np.log(float(price[0]))
        better = np.where(np.arange(len(weights)) == 1, weights - 0.01, weights).astype(dtype)
        for kind in ROUTES:
            values, last = by_route(graph, weights, 0, kind, n)
            if spread > 1:
                np.testing.assert_allclose(values, want, atol=20 * n * np.finfo(dtype).eps)
                assert (last[1:] >= 0).all()
            assert np.isneginf(by_route(graph, better, 0, kind, n)[0]).all()


@pytest.mark.few(4)
@pytest.mark.parametrize("seed", range(times(12)))
def test_a_cycle_that_gains_beside_cycles_of_weight_zero(seed):
    """What it leads to has no least distance, all else has one."""
    graph, heights, _, weights = road(2 * seed, "float32")
    n = graph.n
    senders = np.r_[graph.senders, n, n + 1, n + 1]
    receivers = np.r_[graph.receivers, n + 1, n, n + 2]
    weights = np.r_[weights, np.float32([0.5, -0.75, 1.0])]
    lead = np.r_[senders, 3], np.r_[receivers, n], np.r_[weights, np.float32(1)]
    whole = EdgeGraph(lead[0], lead[1], n + 3)
    found = [by_route(whole, lead[2], 3, kind, n + 3) for kind in ROUTES]
    for values, last in found:
        assert np.isneginf(values[n:]).all()
        assert (last[n:] == -1).all()
        np.testing.assert_allclose(values[:n], heights - heights[3], atol=1e-2)
    np.testing.assert_array_equal(found[0][0], found[1][0])
    np.testing.assert_array_equal(found[0][1], found[1][1])


def test_a_batch_of_sources_and_of_weights():
    graph, _, _, weights = road(4, "float32")
    many = jnp.stack([weights, weights * 2, jnp.abs(weights)])
    sources = jnp.arange(graph.n)
    got = jax.jit(jax.vmap(lambda w: shortest_paths(graph, w, sources)))(many)
    for i, row in enumerate(many):
        for source in (0, 5):
            one = shortest_paths(graph, row, source)
            np.testing.assert_array_equal(got.distances[i, source], one.distances)
            np.testing.assert_array_equal(got.last_edges[i, source], one.last_edges)
