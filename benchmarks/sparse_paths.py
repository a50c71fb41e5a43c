"""Hypothesis: shortest paths along the edges of a sparse graph take less time than SciPy's
Dijkstra, and with the gradient to all weights no more than SciPy's values alone.

From one node to all others; from 64 nodes at once, beside 64 times one; all pairs of a small graph;
and from one node to another one. Weights are integers from 1 in float32. SciPy takes float64 and
one core. `sweeps` is what XLA computes where there is no native kernel. Distances are compared with
SciPy's, exactly. The ratio is SciPy's time over ours.

    python -m benchmarks.sparse_paths [--graphs grid road] [--large] [--seconds 0.5]
"""

from __future__ import annotations

import argparse
import functools
import resource
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.sparse
import scipy.spatial
from scipy.sparse import csgraph

from ext_tropical.graphs.path_op import PathSearch
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import header, load, lowest

SOURCES = 64


class Edges(NamedTuple):
    """A graph whose edges have one direction each."""

    senders: np.ndarray
    receivers: np.ndarray
    weights: np.ndarray
    n: int


def both_ways(a: np.ndarray, b: np.ndarray, weights: np.ndarray, n: int) -> Edges:
    """Each edge and its reverse, sorted by sender."""
    senders, receivers = np.concatenate([a, b]), np.concatenate([b, a])
    order = np.lexsort((receivers, senders))
    both = np.concatenate([weights, weights]).astype(np.float32)
    return Edges(*(x[order].astype(np.int32) for x in (senders, receivers)), both[order], n)


def grid(side: int) -> Edges:
    """A square grid, weights from 1 to 99."""
    rng = np.random.default_rng(0)
    node = np.arange(side * side).reshape(side, side)
    a = np.concatenate([node[:, :-1].ravel(), node[:-1].ravel()])
    b = np.concatenate([node[:, 1:].ravel(), node[1:].ravel()])
    return both_ways(a, b, rng.integers(1, 100, len(a)), side * side)


def random(n: int, edges: int) -> Edges:
    """Edges between any two nodes."""
    rng = np.random.default_rng(0)
    found = np.unique(rng.integers(0, n * n, edges))
    a, b = found // n, found % n
    weights = rng.integers(1, 1000, len(found)).astype(np.float32)
    return Edges(a.astype(np.int32), b.astype(np.int32), weights, n)


def preferred(n: int, each: int) -> Edges:
    """New nodes are tied to ends of earlier edges: few nodes have many."""
    rng = np.random.default_rng(0)
    ends = [*range(each + 1)]
    a, b = [], []
    for node in range(each + 1, n):
        others = {ends[i] for i in rng.integers(0, len(ends), each)}
        a += [node] * len(others)
        b += others
        ends += [*others, *[node] * len(others)]
    return both_ways(np.array(a), np.array(b), rng.integers(1, 1000, len(a)), n)


def road(n: int) -> Edges:
    """Points of a square, each tied to its three nearest; lengths."""
    rng = np.random.default_rng(0)
    points = rng.random((n, 2))
    rows = (points[:, 1] * np.sqrt(n) / 8).astype(int)
    points = points[np.lexsort((points[:, 0], rows))]
    near = scipy.spatial.cKDTree(points).query(points, 4)[1][:, 1:]
    a, b = np.repeat(np.arange(n), 3), near.ravel()
    pairs = np.unique(np.minimum(a, b) * n + np.maximum(a, b))
    a, b = pairs // n, pairs % n
    length = np.hypot(*(points[a] - points[b]).T) * 1000 * np.sqrt(n)
    return both_ways(a, b, np.maximum(1, length.astype(np.int64)), n)


def streets(side: int) -> Edges:
    """A square grid of which six of ten edges, each way for itself, are left; in little memory."""
    rng = np.random.default_rng(0)
    node = np.arange(side * side, dtype=np.int32).reshape(side, side)
    there = rng.random((side, side, 4), np.float32) < 0.6
    there[0, :, 0] = there[:, 0, 1] = there[:, -1, 2] = there[-1, :, 3] = False
    steps = np.array([-side, -1, 1, side], np.int32)
    receivers = (node[..., None] + steps)[there]
    senders = np.broadcast_to(node[..., None], there.shape)[there]
    weights = rng.integers(1, 100, len(senders), np.int32).astype(np.float32)
    return Edges(senders, receivers, weights, side * side)


GRAPHS: dict[str, Callable[[], Edges]] = {
    "random 2,000": functools.partial(random, 2000, 8000),
    "random 100,000": functools.partial(random, 100_000, 400_000),
    "grid 100 x 100": functools.partial(grid, 100),
    "grid 700 x 700": functools.partial(grid, 700),
    "preferred 100,000": functools.partial(preferred, 100_000, 4),
    "road 1,000,000": functools.partial(road, 1_000_000),
}


class Row(NamedTuple):
    """Lowest seconds by way."""

    graph: str
    nodes: int
    edges: int
    seconds: dict[str, float]

    def ratio(self, way: str) -> float:
        """SciPy's time over ours."""
        return self.seconds["scipy"] / self.seconds[way]

    def __str__(self) -> str:
        cells = "  ".join(f"{name} {took * 1e3:,.2f}" for name, took in self.seconds.items())
        return (
            f"{self.graph:18} {self.nodes:>9,} {self.edges:>9,}  ms: {cells}  "
            f"({self.ratio('value'):.2f}, {self.ratio('gradient'):.2f})"
        )


def functions(edges: Edges) -> tuple[EdgeGraph, jax.Array, dict[str, Callable[..., Any]]]:
    """The graph, its weights, and functions of both and of sources."""
    graph = EdgeGraph(edges.senders, edges.receivers, edges.n)

    def distances(weights: jax.Array, graph: EdgeGraph, sources: Any) -> jax.Array:
        return shortest_paths(graph, weights, sources).distances

    def total(*given: Any) -> jax.Array:
        found = distances(*given)
        return jnp.sum(jnp.where(jnp.isfinite(found), found, 0))

    ways = {"value": jax.jit(distances), "gradient": jax.jit(jax.value_and_grad(total))}
    return graph, jnp.asarray(edges.weights), ways


def measured(name: str, edges: Edges, seconds: float) -> Row:
    """From one node."""
    graph, weights, ways = functions(edges)
    matrix = scipy.sparse.csr_array(
        (edges.weights.astype(np.float64), (edges.senders, edges.receivers)), (edges.n,) * 2
    )
    given = weights, graph, jnp.int32(0)
    runs = {way: functools.partial(run, *given) for way, run in ways.items()}
    runs["scipy"] = functools.partial(csgraph.dijkstra, matrix, indices=0)
    runs["and predecessors"] = functools.partial(
        csgraph.dijkstra, matrix, indices=0, return_predecessors=True
    )
    if edges.n <= 20_000:
        op = PathSearch("min_plus", edges.n)
        swept = jax.jit(functools.partial(apply, op, runtimes=op.runtimes.only(RouteKind.LOWERING)))
        none = jnp.zeros(0, jnp.int32)
        runs["sweeps"] = functools.partial(
            swept, *graph.by_sender[:2], weights, jnp.zeros(1, jnp.int32), none
        )
    want = runs["scipy"]()
    assert np.array_equal(np.asarray(runs["value"](), np.float64), want), name
    jax.block_until_ready([run() for run in runs.values()])
    found = dict(zip(runs, lowest([*runs.values()], seconds), strict=True))
    return Row(name, edges.n, len(edges.senders), found)


def several(name: str, edges: Edges, count: int, seconds: float) -> str:
    """From several nodes at once, beside as many times one."""
    graph, weights, ways = functions(edges)
    many = np.random.default_rng(0).integers(0, edges.n, count).astype(np.int32)
    cells = []
    for way, run in ways.items():
        runs = [functools.partial(run, weights, graph, x) for x in (many[0], many)]
        jax.block_until_ready([run() for run in runs])
        one, all_ = lowest(runs, seconds)
        cells.append(f"{way} {all_ * 1e3:,.1f} ms ({count * one / all_:.2f} x one after another)")
    return f"{name}, {count} sources: " + ", ".join(cells)


def all_pairs(edges: Edges, seconds: float) -> str:
    """Between all pairs of a small graph."""
    graph, weights, ways = functions(edges)
    matrix = scipy.sparse.csr_array(
        (edges.weights.astype(np.float64), (edges.senders, edges.receivers)), (edges.n,) * 2
    )
    sources = jnp.arange(edges.n, dtype=jnp.int32)
    runs = [
        functools.partial(ways["value"], weights, graph, sources),
        functools.partial(csgraph.dijkstra, matrix),
    ]
    ours, theirs = (run() for run in runs)
    assert np.array_equal(np.asarray(ours, np.float64), theirs)
    own, peer = lowest(runs, seconds)
    return (
        f"all pairs of {edges.n:,}: {own * 1e3:,.1f} ms, SciPy {peer * 1e3:,.1f} ({peer / own:.2f})"
    )


def near(name: str, edges: Edges, seconds: float) -> str:
    """From a node to one that is near, and to all."""
    graph, weights, ways = functions(edges)
    one = jax.jit(lambda w, g, s, t: shortest_paths(g, w, s, t).distances)
    runs = [
        functools.partial(one, weights, graph, jnp.int32(0), jnp.asarray([5], jnp.int32)),
        functools.partial(ways["value"], weights, graph, jnp.int32(0)),
    ]
    jax.block_until_ready([run() for run in runs])
    target, every = lowest(runs, seconds)
    return f"{name}, one target near: {target * 1e3:,.2f} ms, all {every * 1e3:,.2f}"


def first(edges: Edges) -> str:
    """First calls: the graph made; outside jit; under jit with compiling."""
    jax.clear_caches()
    took = []
    for run in (
        lambda: EdgeGraph(edges.senders, edges.receivers, edges.n),
        lambda: shortest_paths(functions(edges)[0], edges.weights, 0).distances,
        lambda: functions(edges)[2]["gradient"](
            jnp.asarray(edges.weights), functions(edges)[0], jnp.int32(0)
        ),
    ):
        start = time.perf_counter()
        jax.block_until_ready(jax.tree.leaves(run()))
        took.append(f"{(time.perf_counter() - start) * 1e3:,.0f}")
    return "first calls, ms: graph {}, outside jit {}, gradient under jit {}".format(*took)


def main(
    graphs: Sequence[str] = tuple(GRAPHS), large: bool = False, seconds: float = 0.5
) -> list[Row]:
    """Print the figures, and return the rows of one source."""
    print(header(__doc__))
    made = {name: GRAPHS[name]() for name in graphs}
    rows = []
    for name, edges in made.items():
        rows.append(measured(name, edges, seconds))
        print(rows[-1], flush=True)
    for name, edges in made.items():
        if edges.n >= 10_000:
            count = SOURCES if edges.n <= 500_000 else 4
            print(several(name, edges, count, seconds), flush=True)
            print(near(name, edges, seconds), flush=True)
        elif edges.n <= 2000:
            print(all_pairs(edges, seconds), flush=True)
    print(first(next(iter(made.values()))))
    if large:
        edges = streets(4900)
        graph, weights, ways = functions(edges)
        start = time.perf_counter()
        jax.block_until_ready(ways["gradient"](weights, graph, jnp.int32(0)))
        took = time.perf_counter() - start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        print(
            f"streets of {edges.n:,} nodes, {len(edges.senders):,} edges: {took:.1f} s, "
            f"{peak:.1f} GiB"
        )
    for way, goal in (("value", 1.4), ("gradient", 1 / 1.1)):
        worst = min(rows, key=lambda row: row.ratio(way))
        print(f"{way}: at least {goal:.2f}; least {worst.ratio(way):.2f}, {worst.graph}")
    print(load())
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--graphs", nargs="*", default=[*GRAPHS], choices=[*GRAPHS])
    parser.add_argument("--large", action="store_true", help="24 million nodes; takes minutes")
    parser.add_argument("--seconds", type=float, default=0.5)
    given = parser.parse_args()
    main(given.graphs, given.large, given.seconds)
