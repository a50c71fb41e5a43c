"""Shortest paths against relaxations written out, SciPy and every path; their gradients against
differences; segments against NumPy.
"""

import dataclasses
import functools
import itertools
import math
import time

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.sparse
from jax.experimental import sparse
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from scipy.sparse import csgraph

import tenferro_jax as tj
from ext_tropical.graphs.path_op import PathSearch, TreeSums
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths, sparse_matvec
from ext_tropical.graphs.segments import segment_max, segment_min
from ext_tropical.native.library import native
from ext_tropical.semirings.shipped import max_plus, min_max, min_plus
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from ..helpers import close, equal, passes
from ..oracles import ALGEBRAS, object_einsum
from ..sweep import times
from .judges import OWN, nothing_compiled, refusals

INF = np.inf
# Nodes and edges of generated graphs.
SIZES = ((1, 3), (5, 12), (8, 24))


# --- all values and last edges --------------------------------------------------------------------


def written_out(nodes, edges, source, greatest, none, least):
    """(values, last edges) by relaxing all edges in turn; `edges` are (sender, receiver, weight)."""
    values, last, hops = [none] * nodes, [-1] * nodes, [None] * nodes
    inside = [
        (e, a, b, w)
        for e, (a, b, w) in enumerate(edges)
        if 0 <= a < nodes and 0 <= b < nodes and w != none
    ]
    numbers = [edge for edge in inside if edge[3] == edge[3]]

    def joined(value, weight):
        if none in (value, weight) or greatest:
            return none if none in (value, weight) else max(value, weight)
        if value == least or isinstance(none, float):
            return least if value == least else value + weight
        return max(least, min(none, value + weight))

    if not 0 <= source < nodes:
        return values, last
    values[source] = least if greatest else 0
    for turn in range(3 * nodes):
        for _, a, b, w in numbers:
            if joined(values[a], w) < values[b]:
                values[b] = least if turn > nodes and not greatest else joined(values[a], w)

    def is_best(a, b, w):
        ends = {none} if greatest else {none, least}
        return not {values[a], values[b]} & ends and joined(values[a], w) == values[b]

    hops[source] = 0 if values[source] != least or greatest else None
    for turn in range(nodes):
        for node in range(nodes):
            leads = [
                (a, e)
                for e, a, b, w in numbers
                if b == node and hops[a] == turn and is_best(a, b, w)
            ]
            if hops[node] is None and leads:
                hops[node], last[node] = turn + 1, min(leads)[1]
    marked = {b for _, a, b, w in inside if w != w and values[a] != none}
    while new := {b for _, a, b, _ in inside if a in marked} - marked:
        marked |= new
    for node in marked:
        values[node], last[node] = math.nan, -1
    return values, last


def graph_of(rng, nodes, count, dtype):
    """Few distinct weights, so that there are ties and zero cycles; some infinite, NaN, negative;
    some edges that are none.
    """
    senders, receivers = rng.integers(0, nodes, (2, count))
    if rng.random() < 0.5:
        senders = np.sort(senders)
    low = rng.integers(-2, 3) if rng.random() < 0.5 else 0
    weights = rng.integers(low, low + rng.choice([2, 5, 9]), count) * rng.choice([1, 1, 10**9])
    weights = np.clip(weights, -(2**31) + 1, 2**31 - 1).astype(dtype)
    is_float = np.issubdtype(dtype, np.floating)
    odd = [(0.3, INF if is_float else 2**31 - 1)]
    odd += [(0.3, np.nan), (0.1, -np.nan), (0.1, -INF)] if is_float else []
    for chance, value in odd:
        if rng.random() < chance:
            weights[rng.random(count) < 0.15] = value
    if rng.random() < 0.3:
        senders = np.where(rng.random(count) < 0.1, rng.choice([-1, nodes, nodes + 3]), senders)
        receivers = np.where(rng.random(count) < 0.1, -2, receivers)
    return senders.astype(np.int32), receivers.astype(np.int32), weights


@functools.cache
def compiled(semiring, nodes, kind):
    op = PathSearch(semiring, nodes)
    return jax.jit(functools.partial(apply, op, runtimes=op.runtimes.only(kind)))


WAYS = {
    "eager": lambda semiring, nodes: functools.partial(apply, PathSearch(semiring, nodes)),
    "jit": lambda semiring, nodes: compiled(semiring, nodes, RouteKind.KERNEL),
    "sweeps": lambda semiring, nodes: compiled(semiring, nodes, RouteKind.LOWERING),
}


@pytest.mark.parametrize("count", [times(6), pytest.param(times(2000), marks=pytest.mark.slow)])
def test_values_and_trees_of_generated_graphs(count):
    """By the kernel outside and inside jit, and by sweeps: the same to the bit, the same edges."""
    rng = np.random.default_rng(count)
    for _ in range(count):
        nodes, edges = SIZES[rng.integers(len(SIZES))]
        dtype = (np.float32, np.float64, np.int32)[rng.integers(3)]
        semiring = (min_plus, min_max)[rng.integers(2)]
        graph = graph_of(rng, nodes, edges, dtype)
        sources = rng.integers(-1, nodes + 1, 2).astype(np.int32)
        targets = np.where(rng.random() < 0.5, -1, rng.integers(-1, nodes + 1, 2)).astype(np.int32)
        none, least = (min_plus.zero(dtype).item(), max_plus.zero(dtype).item())
        rows = list(zip(*(x.tolist() for x in graph), strict=True))
        found = [written_out(nodes, rows, s, semiring is min_max, none, least) for s in sources]
        values, last = (np.array(x, kind) for x, kind in zip(zip(*found), (dtype, np.int32)))
        near = [t for t in targets if 0 <= t < nodes]
        if near and not ((graph[2] != graph[2]) | ((graph[2] < 0) & (semiring is min_plus))).any():
            far = values[:, near].max(1, keepdims=True)
            is_far = (values > far) & (far != none)
            values, last = np.where(is_far, none, values), np.where(is_far, -1, last)
        for name, way in WAYS.items():
            if name == "jit" and native().problem:
                continue  # there is no other way
            got = way(semiring, nodes)(*map(jnp.asarray, (*graph, sources, targets)))
            np.testing.assert_array_equal(got[0], values, err_msg=f"{name} {graph}")
            np.testing.assert_array_equal(got[1], last, err_msg=f"{name} {graph}")


def random_graph(seed, nodes=30, edges=120, low=1, high=50):
    rng = np.random.default_rng(seed)
    ends = rng.integers(0, nodes, (2, edges))
    return EdgeGraph(*ends, nodes), rng.integers(low, high, edges).astype(np.float64)


def matrix_of(graph, weights, n=30):
    """For SciPy, which would add parallel edges."""
    least = np.full((n, n), INF)
    np.minimum.at(least, (np.asarray(graph.senders), np.asarray(graph.receivers)), weights)
    np.fill_diagonal(least, INF)
    at = np.isfinite(least)
    return scipy.sparse.csr_array((least[at], np.nonzero(at)), shape=least.shape)


@pytest.mark.few(6)
@pytest.mark.parametrize("low", [1, 0, -1])
@pytest.mark.parametrize("seed", range(times(5)))
def test_scipy(low, seed):
    graph, weights = random_graph(seed, edges=60, low=low)
    if low < 0:  # edges to later nodes alone: no cycle
        ends = np.sort([graph.senders, graph.receivers], 0)
        keep = ends[0] < ends[1]
        graph, weights = EdgeGraph(*ends[:, keep], 30), weights[keep]
    peers = [csgraph.johnson, csgraph.bellman_ford] + [csgraph.dijkstra] * (low >= 0)
    found = shortest_paths(graph, weights, np.arange(30))
    equal(*((found.distances, peer(matrix_of(graph, weights))) for peer in peers))
    reached = shortest_paths(graph, weights > 9, np.arange(30), semiring="or_and")
    edges = matrix_of(graph, np.where(weights > 9, 1, INF))
    np.testing.assert_array_equal(reached.distances, np.isfinite(csgraph.dijkstra(edges)))
    assert found.converged.all()
    least = shortest_paths(graph, weights, 3, semiring=max_plus).distances
    if low < 0:
        negated = csgraph.bellman_ford(matrix_of(graph, -weights), indices=3)
        np.testing.assert_array_equal(least, -negated)


def test_a_chain_of_zero_weights_is_not_slow():
    """Each edge of weight zero changes how many edges the paths behind it have."""
    n = 100_000
    first = np.arange(n - 1)
    graph = EdgeGraph(np.r_[first, first[:-1]], np.r_[first + 1, first[:-1] + 2], n)
    zeros, took = np.zeros(2 * n - 3, np.float32), []
    for weights in (zeros + 1, zeros):
        start = time.perf_counter()
        paths = shortest_paths(graph, weights, 0)
        jax.block_until_ready(paths.distances)
        took.append(time.perf_counter() - start)
    assert len(paths.edges(n - 1)) == n // 2
    assert took[1] < 100 * took[0] + 1  # where edges are counted in the heap it takes 55 s


def test_a_negative_weight_is_not_slow():
    """On a long narrow grid a queue alone takes hundreds of times as long as Dijkstra."""
    node = np.arange(4 * 12_500).reshape(4, -1)
    ends = np.stack([node[:, :-1], node[:, 1:]]).reshape(2, -1)
    ends = np.concatenate([ends, np.stack([node[:-1], node[1:]]).reshape(2, -1)], 1)
    graph = EdgeGraph(*np.concatenate([ends, ends[::-1]], 1), node.size)
    weights, took = np.random.default_rng(0).random(graph.senders.shape[0]) + 0.1, []
    for first in (weights[0], -1e-3):
        weights[0] = first
        runs = [time.perf_counter()]
        for _ in range(3):
            jax.block_until_ready(shortest_paths(graph, weights, 0).distances)
            runs.append(time.perf_counter())
        took.append(min(np.diff(runs)))
    assert took[1] < 30 * took[0]


# --- what users hold ------------------------------------------------------------------------------


@pytest.mark.slow
def test_one_result_from_every_origin_and_order_of_edges():
    graph, weights = random_graph(0, edges=90)
    pairs = np.stack([graph.senders, graph.receivers], 1)
    _, one = np.unique(pairs, axis=0, return_index=True)  # matrices have one edge for each pair
    pairs, weights = pairs[one], weights[one]
    want = shortest_paths(EdgeGraph(*pairs.T, 30), weights, 4)
    order = np.random.default_rng(1).permutation(len(pairs))
    dense = np.zeros((30, 30))
    dense[tuple(pairs.T)] = weights
    padded = sparse.BCOO.fromdense(jnp.asarray(dense), nse=len(pairs) + 7)
    for matrix in (
        scipy.sparse.csr_array(dense),
        scipy.sparse.coo_matrix(dense),
        padded,
        sparse.BCSR.from_bcoo(sparse.BCOO.fromdense(jnp.asarray(dense))),
    ):
        got = shortest_paths(*EdgeGraph.from_matrix(matrix), 4)
        equal((got.distances, want.distances), (got.path(7), want.path(7)))
    mixed = EdgeGraph(*pairs[order].T.tolist(), 30)
    mixed = dataclasses.replace(TWO, senders=mixed.senders, receivers=mixed.receivers, n=30)
    got = jax.jit(shortest_paths)(mixed, weights[order], jnp.int32(4))
    np.testing.assert_array_equal(got.distances, want.distances)
    last = np.asarray(got.last_edges)
    np.testing.assert_array_equal(np.where(last < 0, -1, order[last]), want.last_edges)


@pytest.mark.parametrize("kind", ["bsr", "coo", "csc", "csr", "dia", "dok", "lil"])
def test_stored_zeros_are_edges_in_every_format_of_scipy(kind):
    places = {(0, 1): 0.0, (1, 2): 1.0, (2, 3): 2.0, (3, 4): 0.0}
    if kind == "dia":  # whose column 0 holds no entry
        made = scipy.sparse.dia_array(([[7, 0, 1, 2, 0]], [1]), shape=(5, 5))
    else:
        rows, columns = zip(*places, strict=True)
        made = scipy.sparse.coo_array((list(places.values()), (rows, columns)), shape=(5, 5))
        made = made.asformat(kind)
    graph, weights = EdgeGraph.from_matrix(made)
    edges = zip(graph.senders.tolist(), graph.receivers.tolist(), strict=True)
    found = dict(zip(edges, weights.tolist(), strict=True))
    assert {place: found[place] for place in places} == places
    assert len(found) == len(places) or kind == "bsr"  # whose blocks store other zeros too


def test_diagonals_above_and_below_and_beyond_the_matrix():
    data = np.arange(1.0, 13).reshape(3, 4)
    for made in (
        scipy.sparse.dia_array((data, [2, 0, -1]), shape=(3, 3)),
        scipy.sparse.dia_matrix((data[:, :2], [2, 0, -1]), shape=(4, 4)),
    ):
        graph, weights = EdgeGraph.from_matrix(made)
        dense = np.zeros(made.shape)
        dense[np.asarray(graph.senders), np.asarray(graph.receivers)] = weights
        np.testing.assert_array_equal(dense, made.toarray())


def test_closed_over_mapped_and_scanned():
    graph, weights = random_graph(1)
    many = jnp.stack([weights, 2 * weights, weights[::-1]])
    one = [shortest_paths(graph, w, [[1], [2]]) for w in many]
    assert one[0].distances.shape == one[0].last_edges.shape == (2, 1, 30)
    mapped = jax.jit(jax.vmap(lambda w: shortest_paths(graph, w, [[1], [2]])))(many)
    _, scanned = jax.lax.scan(lambda _, w: (0, shortest_paths(graph, w, [[1], [2]])), 0, many)
    by_source = jax.vmap(lambda s: shortest_paths(graph, weights, s))(jnp.array([1, 2]))
    both = jax.vmap(jax.vmap(shortest_paths, (None, None, 0)), (None, 0, None))(
        graph, many, jnp.array([1, 2])
    )
    for name in ("distances", "last_edges"):
        want = np.stack([getattr(x, name) for x in one])
        equal(
            (getattr(mapped, name), want),
            (getattr(scanned, name), want),
            (getattr(by_source, name), want[0, :, 0]),
            (getattr(both, name), want[:, :, 0]),
        )
    assert mapped.path(5, (2, 1, 0)).tolist() == one[2].path(5, (1, 0)).tolist() != []
    assert jax.jit(lambda w: shortest_paths(EdgeGraph([0], [1], 2), w, 0).distances)([2.0])[1] == 2


def test_paths_are_what_their_edges_say():
    graph, weights = random_graph(2, low=0, high=4)
    paths = shortest_paths(graph, weights, [[3, 5]])
    senders, receivers = np.asarray(graph.senders), np.asarray(graph.receivers)
    for k, target in itertools.product(range(2), range(30)):
        edges, nodes = paths.edges(target, (0, k)), paths.path(target, (0, k))
        if not paths.feasible[0, k, target]:
            assert len(edges) == len(nodes) == 0
            continue
        assert (nodes[0], nodes[-1]) == ((3, 5)[k], target)
        equal((senders[edges], nodes[:-1]), (receivers[edges], nodes[1:]))
        assert weights[edges].sum() == paths.distances[0, k, target]


@pytest.mark.slow
def test_targets_end_the_search_and_keep_their_paths():
    """Also where nodes on the way are farther than the target, as weights are negative."""
    for seed, low in ((3, 1), (3, 0), (4, -2), (5, -2)):
        graph, weights = random_graph(seed, low=low, edges=150)
        ends = np.stack([graph.senders, graph.receivers])
        keep = ends[0] != ends[1] if low >= 0 else ends[0] < ends[1]
        graph, weights = EdgeGraph(*ends[:, keep], 30), weights[keep] * np.sign(low or 1)
        every = shortest_paths(graph, weights, [0, 9])
        some = jax.jit(shortest_paths)(graph, weights, [0, 9], [27, 12, 27])
        np.testing.assert_array_equal(some.distances, every.distances[:, jnp.array([27, 12, 27])])
        for k, target in itertools.product(range(2), (27, 12)):
            np.testing.assert_array_equal(some.path(target, k), every.path(target, k))
            uses = jax.grad(lambda w, g, s, t: shortest_paths(g, w, s, [t]).distances[0])
            used = np.zeros(len(weights))
            used[every.edges(target, k)] = 1
            np.testing.assert_array_equal(uses(weights, graph, (0, 9)[k], target), used)
        assert some.path(9, 1).tolist() == [9]
    graph, weights = random_graph(3)
    some = shortest_paths(graph, weights, [0, 9], [7, 2, 7])
    far = EdgeGraph([0], [299], np.int64(300))
    assert jax.jit(lambda g, s: shortest_paths(g, [2.0], s).distances[299])(far, jnp.int8(0)) == 2
    outside = jax.jit(lambda s, t: shortest_paths(graph, weights, s, t).distances)
    got = outside(jnp.array([-1, 30, 0]), jnp.array([30, -1, 7]))
    np.testing.assert_array_equal(got, [[INF] * 3, [INF] * 3, [INF, INF, some.distances[0, 0]]])


@pytest.mark.few(4)
@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.float16, jnp.bfloat16])
@pytest.mark.parametrize(("semiring", "sign"), [(min_plus, 1), (max_plus, -1)])
def test_other_dtypes(dtype, semiring, sign):
    graph, weights = random_graph(5, edges=60)
    want = shortest_paths(graph, weights, [0, 1])
    got = shortest_paths(graph, (sign * weights).astype(dtype), [0, 1], semiring=semiring)
    assert got.distances.dtype == dtype
    none = np.asarray(semiring.zero(np.dtype(dtype)))
    expected = np.where(want.feasible, sign * want.distances, none.astype(float))
    equal((np.asarray(got.distances, float), expected), (got.feasible, want.feasible))


@pytest.mark.parametrize(("semiring", "sign"), [(min_plus, 1.0), (max_plus, -1.0)])
def test_cycles_that_get_better_without_end(semiring, sign):
    graph = EdgeGraph([0, 1, 2, 0, 2], [1, 2, 1, 3, 4], 6)
    weights = np.array([5.0, 1.0, -2.0, 1.0, INF])
    paths = shortest_paths(graph, sign * weights, 0, semiring=semiring)
    want = sign * np.array([0, -INF, -INF, 1, INF, INF])
    np.testing.assert_array_equal(paths.distances, want)
    assert paths.converged.tolist() == [True, False, False, True, True, True]
    assert [paths.path(v).tolist() for v in (1, 3)] == [[], [0, 3]]
    total = jax.grad(lambda w, s=semiring: shortest_paths(graph, w, 0, semiring=s).distances.sum())(
        sign * weights
    )
    np.testing.assert_array_equal(total, [0, 0, 0, 1, 0])


@pytest.mark.parametrize("n", [0, 1, 3])
def test_graphs_without_edges(n):
    paths = jax.jit(shortest_paths)(EdgeGraph([], [], n), np.zeros(0), jnp.arange(n))
    np.testing.assert_array_equal(paths.distances, np.where(np.eye(n, dtype=bool), 0, INF))
    total = jax.grad(lambda w: shortest_paths(EdgeGraph([], [], n), w, [0] * n).distances.sum())
    assert total(np.zeros(0)).shape == (0,)


def test_one_call_outside_jit_compiles_nothing():
    if native().problem:
        pytest.skip("no native kernels")
    graph, weights = random_graph(4)
    weights = jnp.asarray(weights, jnp.float32)
    op, (senders, receivers, order) = PathSearch(min_plus, 30), graph.by_sender
    given = senders, receivers, weights[order], jnp.int32([0]), jnp.zeros(0, jnp.int32)
    jax.block_until_ready(given)
    with nothing_compiled():
        _, last = apply(op, *given)
        apply(TreeSums(), last, senders, weights)
    assert "native" in str(routes(lambda w: shortest_paths(graph, w, 0).distances, weights))


# --- derivatives ----------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", [min_plus, max_plus, min_max])
def test_derivatives(semiring):
    rng = np.random.default_rng(0)
    graph, _ = random_graph(0)
    weights, along = (-1 if semiring is max_plus else 1) * rng.random(120), rng.normal(size=120)
    scale = rng.normal(size=(2, 30))

    def loss(weights):
        found = shortest_paths(graph, weights, [0, 3], semiring=semiring).distances
        return jnp.sum(jnp.where(jnp.isfinite(found), jnp.sin(found) * scale, 0))

    step = 1e-6 * np.eye(120)
    slope = jax.jit(jax.grad(loss))
    differences = jax.vmap(lambda d: (loss(weights + d) - loss(weights - d)) / 2e-6)(step)
    np.testing.assert_allclose(slope(weights), differences, atol=1e-7)
    np.testing.assert_allclose(
        jax.jvp(loss, (weights,), (along,))[1], along @ differences, atol=1e-6
    )
    bends = jax.vmap(lambda d: (slope(weights + d) - slope(weights - d)) / 2e-6)(step)
    close((jax.hessian(loss)(weights), bends), (jax.jacrev(slope)(weights), bends), atol=1e-6)
    many = np.stack([weights, weights[::-1]])
    np.testing.assert_allclose(jax.vmap(slope)(many), [slope(w) for w in many], rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize(
    "op",
    [
        TreeSums(),
        pytest.param(PathSearch(min_plus, 4), marks=pytest.mark.slow),
        *(
            pytest.param(op, marks=pytest.mark.slow)
            for op in (PathSearch(min_max, 4), TreeSums(True))
        ),
    ],
)
def test_contract(op):
    passes(op, order=1, only=OWN)


def test_sums_along_trees_and_back():
    """Also where edges turn in a circle, or lead to themselves."""
    rng = np.random.default_rng(0)
    for _ in range(times(10)):
        nodes, edges = 6, 9
        last = rng.integers(-1, edges, (2, nodes)).astype(np.int32)
        senders = rng.integers(0, nodes, edges).astype(np.int32)
        uses = np.zeros((2, nodes, edges))
        for k, node in itertools.product(range(2), range(nodes)):
            way, at = [], node
            while last[k, at] >= 0 and len(way) <= nodes:
                way.append(last[k, at])
                at = senders[last[k, at]]
            np.add.at(uses[k, node], way if len(way) <= nodes else [], 1)
        x, y = rng.normal(size=edges), rng.normal(size=(2, nodes))
        for kind in (RouteKind.LOWERING, *[RouteKind.KERNEL] * (not native().problem)):
            for onto, given, want in ((False, x, uses @ x), (True, y, np.tensordot(y, uses, 2))):
                op = TreeSums(onto)
                (got,) = apply(op, last, senders, given, runtimes=op.runtimes.only(kind))
                np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_sources_are_split_over_devices(kind):
    graph, weights = random_graph(6)
    mesh = jax.make_mesh((8,), ("d",), axis_types=(kind,))
    sources = np.arange(24, dtype=np.int32)

    def both(weights, sources):
        def total(weights):
            found = shortest_paths(graph, weights, sources)
            return jnp.where(found.feasible, found.distances, 0).sum(), found

        return jax.value_and_grad(total, has_aux=True)(weights)

    (_, want), slope = both(weights, sources)
    with jax.set_mesh(mesh):
        placed = jax.device_put(sources, jax.NamedSharding(mesh, P("d")))
        (_, got), total = jax.jit(both)(weights, placed)
    assert got.distances.sharding.spec[0] == "d"
    equal((got.distances, want.distances), (got.last_edges, want.last_edges), (total, slope))


def test_an_exported_program():
    graph, weights = random_graph(7)
    ask = lambda w, s: shortest_paths(graph, w, s).distances
    got = tj.export(ask, weights, jnp.arange(2)).call(weights, jnp.arange(2))
    np.testing.assert_array_equal(got, ask(weights, np.arange(2)))


# --- segments -------------------------------------------------------------------------------------


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32])
def test_segments(dtype):
    rng = np.random.default_rng(0)
    for way, of in ((segment_max, np.max), (segment_min, np.min)):
        for _ in range(times(5)):
            data = rng.integers(0, 4, 40).astype(dtype)
            if dtype != np.int32 and rng.random() < 0.5:
                data[rng.random(40) < 0.1] = rng.choice([np.nan, -np.nan, INF, -INF])
            ids = rng.integers(-1, 12, 40)
            value, winner = jax.jit(way, static_argnums=2)(data, ids, 11)
            for k in range(11):
                own = np.flatnonzero(ids == k)
                if not len(own):
                    assert winner[k] == -1
                    continue
                best = of(data[own])
                hits = own[(data[own] == best) | np.isnan(data[own])]
                np.testing.assert_array_equal(value[k], best)
                assert winner[k] == (hits[np.isnan(data[hits])][:1].tolist() or hits.tolist())[0]
    slope = jax.grad(lambda x: segment_max(x, np.array([0, 0, 1, 1]), 3).value[:2].sum())
    np.testing.assert_array_equal(slope(np.array([2.0, 2.0, 1.0, 3.0])), [1, 0, 0, 1])
    given = np.array([2.0, 1.0, 0.0]), np.array([0, 0, 1])
    program = jax.export.export(jax.jit(lambda x, ids: segment_min(x, ids, 2).winner))(
        *jax.export.symbolic_args_specs(given, ["e", "e"])
    )
    assert program.call(*given).tolist() == [1, 2]
    assert segment_min(np.zeros(0), np.zeros(0, int), 2).winner.tolist() == [-1, -1]
    assert segment_max([1.0, 2.0, 3.0], np.int8([0, 1, -1]), 300).winner[:3].tolist() == [0, 1, -1]
    mesh = jax.make_mesh((8,), ("d",), axis_types=(AxisType.Explicit,))
    with jax.set_mesh(mesh):
        x = jax.device_put(np.arange(8.0), jax.NamedSharding(mesh, P("d")))
        assert segment_max(x, np.arange(8) % 3, 3).winner.tolist() == [6, 7, 5]


@pytest.mark.parametrize("semiring", ["max_plus", "min_plus", "max_mul", "min_max", "or_and"])
def test_products_with_vectors(semiring):
    graph, weights = random_graph(0, nodes=9, edges=20)
    pairs = np.stack([graph.senders, graph.receivers], 1)
    _, one = np.unique(pairs, axis=0, return_index=True)
    graph, weights = EdgeGraph(*pairs[one].T, 9), weights[one]
    x = np.random.default_rng(0).integers(0, 9, 9).astype(float)
    if semiring == "or_and":
        weights, x = weights > 20, x > 4
    dense = np.full((9, 9), ALGEBRAS[semiring].zero, weights.dtype)
    dense[np.asarray(graph.senders), np.asarray(graph.receivers)] = weights
    got = sparse_matvec(graph, weights, x, semiring=semiring)
    np.testing.assert_array_equal(got.value, object_einsum(semiring, "i,ij->j", x, dense))
    if semiring != "or_and":
        fn = lambda w, x: sparse_matvec(graph, w, x, semiring=semiring).value
        out = np.asarray(got.winner) >= 0
        slope = jax.grad(lambda w: jnp.where(out, fn(w, x), 0).sum())(weights)
        want = np.zeros_like(weights)
        at = np.asarray(got.winner)[out]
        used = {"max_mul": x[np.asarray(graph.senders)[at]]}.get(semiring, 1.0)
        if semiring == "min_max":
            used = (weights[at] > x[np.asarray(graph.senders)[at]]).astype(float)
        np.add.at(want, at, used)
        np.testing.assert_array_equal(slope, want)


TWO = EdgeGraph([0, 1], [1, 0], 2)
test_refusals = refusals(
    (
        InvalidConfig,
        r"EdgeGraph, receivers: given 2 at place 1",
        lambda: EdgeGraph([0, 1], [1, 2], 2),
    ),
    (InvalidConfig, r"EdgeGraph, senders: given -1", lambda: EdgeGraph([-1], [0], 2)),
    (DTypeError, "EdgeGraph, senders: given float64", lambda: EdgeGraph([0.5], [0], 2)),
    (ShapeError, "EdgeGraph: given senders", lambda: EdgeGraph([0, 1], [1], 2)),
    (InvalidConfig, "EdgeGraph, n", lambda: EdgeGraph([0], [0], 1.5)),
    (InvalidConfig, "EdgeGraph, n", lambda: EdgeGraph([0], [0], 2**31 - 1)),
    (InvalidConfig, "from_matrix: given ndarray", lambda: EdgeGraph.from_matrix(np.eye(2))),
    (ShapeError, "a square matrix", lambda: EdgeGraph.from_matrix(scipy.sparse.csr_array((2, 3)))),
    (ShapeError, "weights: given shape", lambda: shortest_paths(TWO, np.ones(3), 0)),
    (DTypeError, "shortest_paths", lambda: shortest_paths(TWO, np.ones(2, complex), 0)),
    (InvalidConfig, "sources: given 2", lambda: shortest_paths(TWO, np.ones(2), [0, 2])),
    (DTypeError, "sources: given float", lambda: shortest_paths(TWO, np.ones(2), 0.5)),
    (InvalidConfig, "targets: given -1", lambda: shortest_paths(TWO, np.ones(2), 0, [-1])),
    (ShapeError, "targets: given shape", lambda: shortest_paths(TWO, np.ones(2), 0, 1)),
    (
        InvalidConfig,
        "given max_mul.*-log",
        lambda: shortest_paths(TWO, np.ones(2), 0, semiring="max_mul"),
    ),
    (
        InvalidConfig,
        "needed an EdgeGraph.*from_matrix",
        lambda: shortest_paths(scipy.sparse.csr_array((2, 2)), np.ones(2), 0),
    ),
    (InvalidConfig, "at: given", lambda: shortest_paths(TWO, np.ones(2), [0]).path(1)),
    (InvalidConfig, r"the shape \(1,\)", lambda: shortest_paths(TWO, np.ones(2), [0]).path(1, 1)),
    (InvalidConfig, "target: given 5", lambda: shortest_paths(TWO, np.ones(2), 0).path(5)),
    (InvalidConfig, "payload", lambda: PathSearch(max_plus, 3)),
    (InvalidConfig, "payload", lambda: PathSearch(min_plus, -1)),
    (ShapeError, "segment_max", lambda: segment_max(np.ones(2), np.arange(3), 2)),
    (InvalidConfig, "segment_max, num_seg", lambda: segment_max(np.ones(2), np.arange(2), -1)),
    (DTypeError, "segment_ids", lambda: segment_min(np.ones(2), np.ones(2), 2)),
    (ShapeError, "x of shape", lambda: sparse_matvec(TWO, np.ones(2), np.ones(3))),
)
