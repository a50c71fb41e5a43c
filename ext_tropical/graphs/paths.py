"""Graphs as lists of edges: shortest paths from some nodes, products with vectors."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig, ShapeError, typed_call, typed_calls
from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, as_index, shown

from ..arguments import nodes_of, one_dtype, require_concrete, require_size
from ..semirings.registered import SemiringKey, as_selective
from ..semirings.semiring import SelectiveSemiring, highest, lowest
from ..semirings.shipped import max_plus, min_max, min_plus, or_and
from .path_op import PathSearch
from .segments import Segments, best_of


@typed_calls
@dataclasses.dataclass(frozen=True, eq=False)
class EdgeGraph:
    """A directed graph of n nodes: edge e leads from senders[e] to receivers[e]. Edges are sorted
    and checked once, when the graph is made; their weights are an argument of each search.

    There may be parallel edges, and edges from a node to itself. A pytree: make it outside `jit`,
    and hand it in as an argument.

    Args:
      senders: integers (E,), nodes from 0 to n - 1; no tracers.
      receivers: the same.
      n: the number of nodes, below 2**31 - 1 as E is.

    Attributes:
      by_sender: senders and receivers in the order of the senders, those of one sender in their
        order; and the number of each edge. Made from the others.

    Raises:
      ShapeError, DTypeError, InvalidConfig: other arrays, a node out of range.
      Unsupported: tracers; make the graph outside the transform.

    Cost: a stable sort if senders are not sorted.

    Example:
      >>> graph = EdgeGraph([0, 0, 1], [1, 2, 2], n=3)
      >>> graph
      EdgeGraph(3 nodes, 3 edges)
      >>> print(shortest_paths(graph, jnp.array([4.0, 9.0, 3.0]), 0).distances)
      [0. 4. 7.]
    """

    senders: Any
    receivers: Any
    n: int
    by_sender: Any = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        require_concrete("EdgeGraph", (self.senders, self.receivers), OUTSIDE)
        n = require_size("EdgeGraph, n", self.n)
        if n >= 2**31 - 1:
            raise InvalidConfig(where="EdgeGraph, n", given=str(n), needed="less than 2**31 - 1")
        senders, receivers = ends = [
            nodes_of(getattr(self, name), n, f"EdgeGraph, {name}")
            for name in ("senders", "receivers")
        ]
        if senders.shape != receivers.shape or senders.ndim != 1:
            raise ShapeError(
                where="EdgeGraph",
                given=f"senders {senders.shape}, receivers {receivers.shape}",
                needed="two arrays (E,)",
                fix="Of pairs (E, 2) pass edges[:, 0] and edges[:, 1].",
            )
        order, ends = np.arange(senders.size, dtype=np.int32), [*map(jnp.asarray, ends)]
        made = {"senders": ends[0], "receivers": ends[1], "n": n}
        if np.any(senders[1:] < senders[:-1]):
            order = np.argsort(senders, kind="stable").astype(np.int32)
            ends = [jnp.asarray(x[order]) for x in (senders, receivers)]
        vars(self).update(made, by_sender=(*ends, jnp.asarray(order)))

    def __repr__(self) -> str:
        return f"EdgeGraph({self.n} nodes, {np.size(self.senders)} edges)"

    @classmethod
    def from_matrix(cls, matrix: Any) -> tuple[EdgeGraph, jax.Array]:
        """The graph of a square sparse matrix whose entry [i, j] is the weight of an edge from i to
        j, and the weights. Entries that are stored are edges, also zeros; two of one place are
        parallel edges.

        Args:
          matrix: (n, n), a `jax.experimental.sparse` BCOO or BCSR, whose data may be traced, or a
            sparse array of SciPy in any format.

        Returns:
          (graph, weights), weights (E,).

        Raises:
          InvalidConfig, ShapeError: not such a matrix.
          Unsupported: indices that are traced.

        Example:
          >>> import scipy.sparse
          >>> matrix = scipy.sparse.csr_array(([5.0, 2.0], ([0, 1], [1, 2])), shape=(3, 3))
          >>> graph, weights = EdgeGraph.from_matrix(matrix)
          >>> print(graph, weights, shortest_paths(graph, weights, 0).distances)
          EdgeGraph(3 nodes, 2 edges) [5. 2.] [0. 5. 7.]
        """
        where = "EdgeGraph.from_matrix"
        is_of_scipy = hasattr(matrix, "tocoo")
        if not is_of_scipy and not hasattr(matrix, "indices"):
            raise InvalidConfig(
                where=where,
                given=type(matrix).__name__,
                needed="a BCOO, a BCSR, or a sparse array of SciPy",
                fix="For a dense array use jax.experimental.sparse.BCOO.fromdense, or closure.",
            )
        if is_of_scipy:
            matrix = _stored(matrix)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or matrix.data.ndim != 1:
            raise ShapeError(
                where=where,
                given=f"shape {matrix.shape}, data {matrix.data.shape}",
                needed="a square matrix and data (E,): no batch, no blocks",
            )
        n, weights = matrix.shape[0], matrix.data
        if is_of_scipy:
            return cls(matrix.row, matrix.col, n), jnp.asarray(weights)
        require_concrete(where, (matrix.indices, getattr(matrix, "indptr", ())), OUTSIDE)
        ends = np.asarray(nodes_of(matrix.indices, 2**31 - 2, where))
        if hasattr(matrix, "indptr"):
            counts = np.diff(np.asarray(matrix.indptr))
            ends = np.stack([np.repeat(np.arange(n), counts), ends[: counts.sum()]], 1)
        # JAX fills matrices up with entries that are outside.
        live = np.flatnonzero((ends < n).all(1))
        weights = weights if len(live) == len(weights) else weights[live]
        return cls(ends[live, 0], ends[live, 1], n), weights


OUTSIDE = "Make the graph outside of it, and pass it in as an argument: it is a pytree."


def _stored(matrix: Any) -> Any:
    """A sparse array of SciPy as COO, also the zeros that it stores, which SciPy leaves out of
    diagonals.
    """
    if matrix.format != "dia":
        return matrix.tocoo()
    height, width = matrix.shape
    columns = np.arange(min(matrix.data.shape[1], width))
    rows = columns - matrix.offsets[:, None]
    diagonal, column = np.nonzero((rows >= 0) & (rows < height))
    row = rows[diagonal, column]
    order = np.lexsort((column, row))
    entries = matrix.data[diagonal, column][order]
    made = matrix.tocoo()
    return type(made)((entries, (row[order], column[order])), shape=matrix.shape)


_PARTS = ("senders", "receivers", "by_sender")


def _of_parts(n: int, parts: Iterable[Any]) -> EdgeGraph:
    """As JAX makes it of the parts of another, neither sorted nor checked again."""
    graph = object.__new__(EdgeGraph)
    vars(graph).update(zip(_PARTS, parts, strict=True), n=n)
    return graph


jax.tree_util.register_pytree_with_keys(
    EdgeGraph,
    lambda graph: ([(jax.tree_util.GetAttrKey(x), getattr(graph, x)) for x in _PARTS], graph.n),
    _of_parts,
)


@jax.tree_util.register_dataclass
@typed_calls
@dataclasses.dataclass(frozen=True, eq=False)
class ShortestPaths:
    """The best paths from some nodes, as a pytree. Leading axes are those of sources.

    Attributes:
      distances: (..., n), or with targets (..., K); the semiring's zero, under min_plus inf, if
        there is no path; NaN if an edge of weight NaN leads there.
      last_edges: int32 (..., n), the number of the last edge of each path, which form a tree; -1 at
        the source, if there is no path or no best one, if the distance is NaN, and, with targets,
        at nodes that are farther than all of them.
      sources: int32 (...).
      senders: int32 (E,), of the graph.
      semiring: of the distances.
    """

    distances: jax.Array
    last_edges: jax.Array
    sources: jax.Array
    senders: jax.Array
    semiring: SelectiveSemiring = dataclasses.field(metadata={"static": True})

    @property
    def feasible(self) -> jax.Array:
        """Boolean, of the shape of distances: whether there is a path."""
        return self.distances != jnp.asarray(self.semiring.zero(self.distances.dtype))

    @property
    def converged(self) -> jax.Array:
        """Boolean, of the shape of distances: False where paths get better without end, because
        one passes a cycle of negative weight (positive under max_plus), or an infinite weight.

        Example:
          >>> graph = EdgeGraph([0, 1, 2, 0], [1, 2, 1, 3], n=4)
          >>> paths = shortest_paths(graph, jnp.array([5.0, 1.0, -2.0, 1.0]), 0)
          >>> paths.distances.tolist(), paths.converged.tolist()
          ([0.0, -inf, -inf, 1.0], [True, False, False, True])
        """
        if self.semiring not in (min_plus, max_plus):
            return jnp.ones(self.distances.shape, bool)
        limit = lowest if self.semiring == min_plus else highest
        return self.distances != jnp.asarray(limit(self.distances.dtype))

    def edges(self, target: int, at: tuple[int, ...] | int = ()) -> np.ndarray:
        """The numbers of the edges of the path to a node, from first to last.

        Args:
          target: a node.
          at: which source, an index of the leading axes: needed if there are any.

        Returns:
          int32 (length,); empty if there is no path.

        Raises:
          DTypeError, ShapeError, InvalidConfig: target is no node, or at no index of one source.
          Unsupported: inside a transform, where the length is not known.

        Cost: that of copying a source's last edges, and its length.
        """
        return self._way("ShortestPaths.edges", target, at)[1]

    def path(self, target: int, at: tuple[int, ...] | int = ()) -> np.ndarray:
        """The nodes of the path to a node, source and target included; empty if there is none,
        also because of a better and better cycle, and with targets if the node is farther than all
        of them. From a source to itself it is the source alone, on such a cycle too.

        Args:
          target: as in `edges`.
          at: as in `edges`.

        Raises:
          DTypeError, ShapeError, InvalidConfig, Unsupported: as `edges`.

        Example:
          >>> graph = EdgeGraph([0, 0, 1], [1, 2, 2], n=3)
          >>> paths = shortest_paths(graph, jnp.array([4.0, 9.0, 3.0]), [0, 1])
          >>> paths.path(2, at=0).tolist(), paths.edges(2, at=0).tolist(), paths.path(0, at=1).size
          ([0, 1, 2], [0, 2], 0)
        """
        return self._way("ShortestPaths.path", target, at)[0]

    def _way(self, where: str, target: int, at: object) -> tuple[np.ndarray, np.ndarray]:
        """The nodes and the edges of a path."""
        fix = "Use distances and last_edges inside of it, paths outside."
        require_concrete(where, (self, target, at), fix)
        index = _index_of(where, at, self.sources.shape)
        # vmap repeats the senders
        tree, senders = (
            np.asarray(x)[index[: x.ndim - 1]] for x in (self.last_edges, self.senders)
        )
        end = int(one_node(target, len(tree), f"{where}, target"))
        node, found = end, []
        while tree[node] >= 0:
            found.append(tree[node])
            node = senders[tree[node]]
        edges = np.asarray(found[::-1], np.int32)
        nodes = [*senders[edges], end]
        is_there = len(edges) > 0 or int(self.sources[index]) == end
        return np.asarray(nodes if is_there else [], np.int32), edges


def _index_of(where: str, at: object, shape: Sequence[int]) -> tuple[int, ...]:
    """The index of one source."""
    index = [as_index(i) for i in (at if isinstance(at, tuple) else (at,))]
    known = tuple(i for i in index if i is not None)
    fits = len(known) == len(index) == len(shape)
    if fits and all(-n <= i < n for i, n in zip(known, shape, strict=True)):
        return known
    first = 0 if len(shape) == 1 else (0,) * len(shape)
    raise InvalidConfig(
        where=f"{where}, at",
        given="nothing" if at == () else shown(at),
        needed=f"an index of one of the sources, which have the shape {tuple(shape)}"
        if shape
        else "nothing, because there is one source",
        fix=f"Pass at={first} for the first source." if shape else "",
    )


def _require_graph(where: str, graph: object) -> None:
    if not isinstance(graph, EdgeGraph):
        raise InvalidConfig(
            where=f"{where}, graph",
            given=shown(graph),
            needed="an EdgeGraph",
            fix="Make it by EdgeGraph(senders, receivers, n). EdgeGraph.from_matrix makes one of a "
            "sparse matrix, and returns the weights, too.",
        )


def weights_of(
    where: str, algebra: SelectiveSemiring, graph: EdgeGraph, weights: ArrayLike
) -> jax.Array:
    """The weights of the edges of a graph, of a dtype of the semiring."""
    _require_graph(where, graph)
    given = jnp.asarray(as_array(weights, f"{where}, weights"))
    one_dtype(where, algebra, [given.dtype], [weights])
    if given.shape != jnp.shape(graph.senders):
        raise ShapeError(
            where=f"{where}, weights",
            given=f"shape {given.shape}",
            needed=f"{jnp.shape(graph.senders)}, a weight for each edge",
            fix="For many weights use jax.vmap.",
        )
    return given


def one_node(given: ArrayLike, count: int, where: str) -> Any:
    """The number of a node, as `nodes_of` gives it."""
    node = nodes_of(given, count, where)
    if np.ndim(node):
        raise ShapeError(where=where, given=f"shape {np.shape(node)}", needed="one node")
    return node


def targets_of(given: ArrayLike, count: int, where: str, needed: str) -> Any:
    """The numbers of some nodes, as `nodes_of` gives them."""
    goals = nodes_of(given, count, where)
    if np.ndim(goals) != 1:
        raise ShapeError(
            where=where, given=f"shape {np.shape(goals)}", needed=needed, fix="Write [3] for 3."
        )
    return goals


@typed_call
def shortest_paths(
    graph: EdgeGraph,
    weights: ArrayLike,
    sources: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    semiring: SelectiveSemiring | str = min_plus,
) -> ShortestPaths:
    """The best paths from some nodes to all others, along edges.

    min_plus finds the shortest paths and max_plus the longest. min_max finds those whose greatest
    weight is least; for the widest paths pass -weights under min_max and take -distances. or_and,
    of weights of bool, finds what can be reached. For the most reliable paths, whose product of
    probabilities p is greatest, pass -log(p) under min_plus and take exp(-distances).

    At a tie every platform takes the path with the fewest edges; among these the one whose last
    edge has the least sender, and then the one whose last edge is listed first. A tie is looked at
    among paths whose parts are best paths too.

    Args:
      graph: an EdgeGraph.
      weights: (E,); `jax.vmap` takes many. inf is no edge (under max_plus -inf), nor is the
        greatest number of an integer type (under max_plus the least). NaN: what the edge leads
        to is NaN.
      sources: integers of any shape, nodes; inside a transform, where they are not known, numbers
        that are no nodes have no path.
      targets: integers (K,), to which distances are wanted: the search ends when all are reached.
        None: to all nodes.
      semiring: min_plus, max_plus, min_max or or_and, or a name.

    Returns:
      ShortestPaths. Where a cycle makes paths better without end, the distance is -inf, under
      max_plus inf (of an integer type the end of its range), and `converged` False. Of floats a
      cycle counts as better where its weight is below 0 by more than two roundings of each of its
      weights w: 2 eps max(|w|, 1), or for graphs of smaller weights the greatest |w| in place of 1.
      So every finite distance is the sum of a path. Sums beyond the type become its end: no path,
      or at the other end one that gets better without end.

    Raises:
      ShapeError, DTypeError: weights, sources or targets do not fit.
      InvalidConfig: another semiring, or a node out of range.

    Gradient: of distances to weights: 1 for each edge of the path (under min_max for the first edge
      of greatest weight); of any order and mode. 0 if the distance is inf, -inf or NaN.

    Cost: on CPU, in float32, float64 and int32: Dijkstra's algorithm with a radix heap, E + n log
      of the range. A few negative weights double that; for many there is a queue, at most E n, on
      long narrow graphs a hundred times as long. n and E numbers of memory for each source.
      Sources, and a batch of weights, use all cores; the gradient takes n for each source.
      Elsewhere as many sweeps over all edges as the longest path has, for all sources at once.

    Example:
      >>> import jax
      >>> graph = EdgeGraph([0, 0, 1, 2], [1, 2, 2, 3], n=4)
      >>> weights = jnp.array([1.0, 5.0, 2.0, 1.0])
      >>> paths = shortest_paths(graph, weights, 0)
      >>> print(paths.distances, paths.path(3))
      [0. 1. 3. 4.] [0 1 2 3]
      >>> print(jax.grad(lambda w: shortest_paths(graph, w, 0, [3]).distances.sum())(weights))
      [1. 0. 1. 1.]
    """
    where, algebra = "shortest_paths", as_selective(semiring, "shortest_paths")
    if algebra not in (min_plus, max_plus, min_max, or_and):
        raise InvalidConfig(
            where=f"{where}, semiring",
            given=repr(algebra),
            needed="min_plus, max_plus, min_max or or_and",
            fix="For products of probabilities pass -log of them, under min_plus.",
        )
    given = weights_of(where, algebra, graph, weights)
    start = jnp.asarray(nodes_of(sources, graph.n, f"{where}, sources"))
    asked = np.zeros(0) if targets is None else targets
    goals = targets_of(asked, graph.n, f"{where}, targets", "(K,), or None")
    run = on_automatic_axes(_found, lambda start, *_: jax.P(*jax.typeof(start).sharding.spec, None))
    values, last = run(
        start, given, graph, jnp.asarray(goals), algebra=algebra, to_goals=targets is not None
    )
    return ShortestPaths(values, last, sources=start, senders=graph.senders, semiring=algebra)


def _found(
    start: jax.Array,
    given: jax.Array,
    graph: EdgeGraph,
    goals: jax.Array,
    *,
    algebra: SelectiveSemiring,
    to_goals: bool,
) -> tuple[jax.Array, jax.Array]:
    """Distances and last edges, by the op that has min_plus and min_max."""
    *ends, order = graph.by_sender
    if algebra == or_and:
        given = jnp.where(given, 0, jnp.inf).astype(jnp.float32)
    if algebra == max_plus:
        given = negated(given)
    given = given.at[order].get(mode="promise_in_bounds", unique_indices=True)
    kind = SemiringKey.of(min_plus if algebra in (min_plus, max_plus) else min_max)
    values, last = apply(PathSearch(kind, graph.n), *ends, given, start.reshape(-1), goals)
    if order.shape[0]:  # else no path has an edge
        last = jnp.where(last < 0, -1, order[jnp.maximum(last, 0)])
    if to_goals:
        places = jnp.where(goals < 0, graph.n, goals)
        values = values.at[:, places].get(mode="fill", fill_value=highest(values.dtype).item())
    if algebra == or_and:
        values = values < jnp.inf
    if algebra == max_plus:
        values = negated(values)
    return values.reshape(*start.shape, *values.shape[1:]), last.reshape(*start.shape, graph.n)


def negated(x: jax.Array) -> jax.Array:
    """-x; of integers the ends of their range, which are infinite, change places."""
    low, high = (jnp.asarray(f(x.dtype)) for f in (lowest, highest))
    return jnp.where(x == low, high, jnp.where(x == high, low, 0 - x))  # no -0


@typed_call
def sparse_matvec(
    graph: EdgeGraph,
    weights: ArrayLike,
    x: ArrayLike,
    *,
    semiring: SelectiveSemiring | str = max_plus,
) -> Segments:
    """The product of a vector and a sparse matrix in a semiring, with winners: y[j] is the best
    over edges from i to j of times(x[i], weight).

    Args:
      graph: an EdgeGraph.
      weights: (E,).
      x: (n,), of the dtype of weights; for many `jax.vmap`.
      semiring: a selective semiring that has a `reduction`, or a name.

    Returns:
      Segments: value (n,), and winner (n,), the number of an edge. A node without edges has the
      semiring's zero.

    Raises:
      ShapeError, DTypeError: arrays that do not fit; InvalidConfig: another semiring.

    Gradient: that of times at the winners.

    Cost: two scatters of E entries.

    Example:
      Walks of two edges: twice the product.

      >>> graph, weights = EdgeGraph([0, 0, 1], [1, 2, 2], n=3), jnp.array([4.0, 9.0, 3.0])
      >>> walks = jnp.array([0.0, jnp.inf, jnp.inf])
      >>> for _ in range(2):
      ...     walks = sparse_matvec(graph, weights, walks, semiring="min_plus").value
      >>> print(walks)
      [inf inf  7.]
    """
    where, algebra = "sparse_matvec", as_selective(semiring, "sparse_matvec")
    _require_graph(where, graph)
    given = jnp.asarray(as_array(weights, f"{where}, weights"))
    vector = jnp.asarray(as_array(x, f"{where}, x"))
    one_dtype(where, algebra, [given.dtype, vector.dtype], [weights, x])
    if (given.shape, vector.shape) != (graph.senders.shape, (graph.n,)):
        raise ShapeError(
            where=where,
            given=f"weights of shape {given.shape}, x of shape {vector.shape}",
            needed=f"{graph.senders.shape} and ({graph.n},)",
            fix="For many of them use jax.vmap.",
        )
    if not algebra.reduction:
        raise InvalidConfig(
            where=f"{where}, semiring",
            given=repr(algebra),
            needed="a semiring whose reduction is max or min",
        )
    return on_automatic_axes(
        lambda w, x, g: best_of(algebra.times(x[g.senders], w), g.receivers, g.n, algebra)
    )(given, vector, graph)
