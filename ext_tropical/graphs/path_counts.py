"""How many best paths lead from one node to others, as exact integers."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig, typed_call

from ..arguments import require_concrete, work_dtype
from ..semirings.semiring import SelectiveSemiring, highest, lowest
from ..semirings.shipped import min_plus
from .k_paths import as_sum
from .paths import EdgeGraph, one_node, shortest_paths, targets_of, weights_of


@typed_call
def count_shortest_paths(
    graph: EdgeGraph,
    weights: ArrayLike,
    source: ArrayLike,
    targets: ArrayLike,
    *,
    semiring: SelectiveSemiring | str = min_plus,
) -> list[int]:
    """The number of best paths from one node to each of some others, exactly.

    Paths along parallel edges are several. Lengths are compared as the search computes them, in
    the dtype of the weights: 0.1 + 0.2 is not 0.3 in float64, so count with integers where ties
    matter.

    Args:
      graph: an EdgeGraph.
      weights: (E,), as for `shortest_paths`.
      source: an integer, a node.
      targets: integers (K,), nodes.
      semiring: min_plus for the shortest paths or max_plus for the longest, or a name.

    Returns:
      K integers of Python, which may be of any size; 0 where there is no path, and from a node to
      itself 1.

    Raises:
      ShapeError, DTypeError: arguments that do not fit.
      InvalidConfig: an endless number: cycles on the way that cost nothing, or make paths better;
        a distance of NaN; another semiring.
      Unsupported: inside a transform.

    Cost: one search, then each edge on a best path once, in Python.

    Example:
      Two ways around each of 100 blocks.

      >>> step = np.arange(100)
      >>> senders = np.concatenate([2 * step, 2 * step, 2 * step + 1])
      >>> receivers = np.concatenate([2 * step + 1, 2 * step + 2, 2 * step + 2])
      >>> lengths = np.repeat(np.int32([1, 2, 1]), 100)
      >>> count_shortest_paths(EdgeGraph(senders, receivers, n=201), lengths, 0, [200])
      [1267650600228229401496703205376]
    """
    where = "count_shortest_paths"
    require_concrete(where, (graph, weights, source, targets), "Count outside of it.")
    algebra = as_sum(where, semiring)
    given = weights_of(where, algebra, graph, weights)
    start = int(one_node(source, graph.n, f"{where}, source"))
    goals = targets_of(targets, graph.n, f"{where}, targets", "(K,)").tolist()
    wide = given.astype(work_dtype(given.dtype))
    found = shortest_paths(graph, wide, start, semiring=algebra)
    distances, lengths = np.asarray(found.distances), np.asarray(wide)
    _require_distances(where, goals, distances, np.asarray(found.feasible))
    edges = _best_edges(graph, distances, lengths)
    senders, receivers = np.asarray(graph.senders)[edges], np.asarray(graph.receivers)[edges]
    order = np.argsort(receivers, kind="stable")
    rows = np.searchsorted(receivers[order], np.arange(graph.n + 1))
    tails = senders[order]

    def before(node: int) -> list[int]:
        return tails[rows[node] : rows[node + 1]].tolist()

    counts = _counted(where, start, goals, before)
    return [counts[goal] for goal in goals]


def _is_number(x: np.ndarray) -> np.ndarray:
    """Whether each is neither NaN nor at an end of the dtype."""
    return (x > lowest(x.dtype)) & (x < highest(x.dtype))


def _require_distances(
    where: str, goals: list[int], distances: np.ndarray, feasible: np.ndarray
) -> None:
    """Refuse targets to which no best path leads, though a path does."""
    for goal in goals:
        if feasible[goal] and not _is_number(distances[goal]):
            raise InvalidConfig(
                where=where,
                given=f"the distance {distances[goal]} to node {goal}",
                needed="weights that are numbers, and no cycles that make paths better",
            )


def _best_edges(graph: EdgeGraph, distances: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """The numbers of edges on best paths from the source."""
    begin = distances[np.asarray(graph.senders)]
    end = distances[np.asarray(graph.receivers)]
    with np.errstate(all="ignore"):
        is_best = begin + lengths == end
    return np.flatnonzero(is_best & _is_number(begin) & _is_number(end) & _is_number(lengths))


def _counted(
    where: str, source: int, goals: list[int], before: Callable[[int], list[int]]
) -> dict[int, int]:
    """The number of paths from the source to each node on the way to a goal; `before` has a node
    for each edge that leads to one.
    """
    counts: dict[int, int] = {}
    is_waiting: set[int] = set()
    stack = [*goals]
    while stack:
        node = stack[-1]
        nearer = before(node)
        unknown = [other for other in nearer if other not in counts]
        if not unknown or node in counts:
            counts[node] = int(node == source) + sum(map(counts.__getitem__, nearer))
            stack.pop()
        elif node in is_waiting:
            raise InvalidConfig(
                where=where,
                given=f"a cycle of weight 0 on best paths, through node {node}",
                needed="cycles of other weights, since paths may go around without end",
                fix="k_shortest_paths has paths that pass no node twice.",
            )
        else:
            is_waiting.add(node)
            stack += unknown
    return counts
