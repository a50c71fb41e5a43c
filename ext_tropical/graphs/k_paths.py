"""The k best paths between two nodes that pass no node twice: a host op with a gradient, by Yen's
algorithm in the native library.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported, typed_call
from tenferro_jax.extension import ExtensionOp, apply, extension_op, require_equal
from tenferro_jax.shapes import is_traced

from ..arguments import one_dtype, require_size
from ..native.library import TYPES, native, now
from ..semirings.registered import as_selective
from ..semirings.semiring import SelectiveSemiring, highest, lowest
from ..semirings.shipped import max_plus, min_plus
from .path_op import require_arrays
from .path_search import INT32
from .paths import EdgeGraph, negated, one_node, weights_of


class KShortestPaths(NamedTuple):
    """The k best paths between two nodes, from the best on.

    Attributes:
      lengths: (k,), of the dtype of the weights; where there are fewer paths the semiring's zero,
        under min_plus inf.
      paths: int32 (k, most), the nodes of each path from source to target, then -1.
      edges: int32 (k, most - 1), the numbers of the edges of each path, then -1.
      counts: int32 (k,), the number of nodes of each path; 0 where there is none.
    """

    lengths: jax.Array
    paths: jax.Array
    edges: jax.Array
    counts: jax.Array


@typed_call
def k_shortest_paths(
    graph: EdgeGraph,
    weights: ArrayLike,
    source: ArrayLike,
    target: ArrayLike,
    k: int,
    *,
    semiring: SelectiveSemiring | str = min_plus,
) -> KShortestPaths:
    """The k best paths from one node to another that pass no node twice, along edges.

    Paths along parallel edges are several. Of equally long ones those of fewer edges come first,
    then those of smaller edge numbers; which of them are among the k, if there are more, is the
    same on every platform. From a node to itself there is the path without edges.

    Args:
      graph: an EdgeGraph.
      weights: (E,), as for `shortest_paths`; `jax.vmap` takes many.
      source: an integer, a node.
      target: the same.
      k: how many paths, at least 1.
      semiring: min_plus for the shortest paths or max_plus for the longest, or a name.

    Returns:
      KShortestPaths. Arrays have as many columns as the longest of the paths needs, and inside
      transforms, where this is not known, as many as there are nodes. Where `shortest_paths` says
      that paths from source to target get better without end, or that the distance is NaN, all
      lengths are this distance, and there are no paths. Sums are made in float64, and rounded once.

    Raises:
      ShapeError, DTypeError, InvalidConfig: arguments that do not fit; another semiring; integers
        whose sums float64 may round.
      Unsupported: no native library.

    Gradient: of lengths to weights: 1 for each edge of the path; of any order and mode.

    Cost: Yen's algorithm with Lawler's classes, on one core of the host: a search from the target,
      and for each path a few searches that pass by what is better, at most one for each node of
      it. Under `jax.vmap` one after another.

    Example:
      >>> graph = EdgeGraph([0, 0, 1, 2], [1, 2, 2, 3], n=4)
      >>> found = k_shortest_paths(graph, jnp.array([1.0, 5.0, 2.0, 1.0]), 0, 3, k=3)
      >>> print(found.lengths, found.counts)
      [ 4.  6. inf] [4 3 0]
      >>> print(found.paths)
      [[ 0  1  2  3]
       [ 0  2  3 -1]
       [-1 -1 -1 -1]]
    """
    where = "k_shortest_paths"
    algebra = as_sum(where, semiring)
    given = weights_of(where, algebra, graph, weights)
    start = one_node(source, graph.n, f"{where}, source")
    goal = one_node(target, graph.n, f"{where}, target")
    op = PathRanking(graph.n, require_size(f"{where}, k", k, 1))
    if algebra == max_plus:
        given = negated(given)
    inputs = RankingInputs(
        senders=graph.senders,
        receivers=graph.receivers,
        weights=given,
        source=start,
        target=goal,
    )
    if any(map(is_traced, inputs)):
        found = RankingOutputs(*apply(op, *map(jnp.asarray, inputs)))
        paths = _passed(start, graph.receivers, found)
    else:
        known = RankingInputs(*map(np.asarray, inputs))
        found = op.ranked(known)
        paths = _passed(known.source, known.receivers, found)
    lengths = jax.device_put(found.lengths)
    return KShortestPaths(
        negated(lengths) if algebra == max_plus else lengths,
        *jax.device_put((paths, found.edges, found.counts)),
    )


def as_sum(where: str, semiring: SelectiveSemiring | str) -> SelectiveSemiring:
    """min_plus or max_plus, in which a path is as long as the sum of its weights."""
    algebra = as_selective(semiring, where)
    if algebra not in (min_plus, max_plus):
        raise InvalidConfig(
            where=f"{where}, semiring",
            given=repr(algebra),
            needed="min_plus or max_plus",
            fix="For products of probabilities pass -log of them, under min_plus.",
        )
    return algebra


def _passed(source: Any, receivers: Any, found: RankingOutputs) -> Any:
    """The nodes of paths, -1 after the last; in NumPy for NumPy arrays."""
    xp = np if isinstance(found.edges, np.ndarray) else jnp
    first = xp.where(found.counts > 0, source, -1).astype(INT32)
    after = xp.append(receivers, INT32.type(-1))[found.edges]  # the edge -1 leads to -1
    return xp.concatenate([first[:, None], after], 1)


class RankingInputs(NamedTuple):
    """The arrays of a ranking in a graph of E edges.

    Attributes:
      senders: int32 (E,).
      receivers: int32 (E,).
      weights: (E,).
      source: int32, a scalar.
      target: the same.
    """

    senders: Any
    receivers: Any
    weights: Any
    source: Any
    target: Any


class RankingOutputs(NamedTuple):
    """What a ranking finds.

    Attributes:
      lengths: (k,), of the dtype of weights.
      edges: int32 (k, n - 1), or fewer columns if no path needs more; -1 after the last edge.
      counts: int32 (k,), of the nodes of each path; 0 where there is none.
    """

    lengths: Any
    edges: Any
    counts: Any


@extension_op(package="tenferro-ext-tropical", name="k_shortest_paths", version=1)
class PathRanking(ExtensionOp):
    """The k shortest paths between two nodes that pass no node twice, on the host.

    Inputs are senders (E,), receivers (E,), weights (E,), and source and target, scalars; all but
    weights are int32. Outputs are lengths (k,), edges (k, nodes - 1) and counts (k,) of nodes.
    Edges from or to what is no node lead nowhere, and there is no path between such nodes.

    Attributes:
      nodes: n.
      k: how many paths.
    """

    nodes: int
    k: int

    input_count = 5
    output_count = 3

    def __post_init__(self) -> None:
        for size in (self.nodes, self.k):
            if type(size) is not int or not 0 <= size < 2**31 - 1:
                raise InvalidConfig(
                    where=f"{self.family_id}, payload",
                    given=repr(self),
                    needed="integers from 0 and below 2**31 - 1",
                )

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where, given = f"extension {self.family_id}", RankingInputs(*inputs)
        integers = [given.senders, given.receivers, given.source, given.target]
        require_arrays(where, inputs, [1, 1, 1, 0, 0], integers)
        one_dtype(where, min_plus, [given.weights.dtype])
        for other in (given.receivers, given.weights):
            require_equal(given.senders.shape[0], other.shape[0])
        lengths = TensorMeta(given.weights.dtype, (self.k,))
        return [lengths, TensorMeta(INT32, (self.k, self.most_edges)), TensorMeta(INT32, (self.k,))]

    @property
    def most_edges(self) -> int:
        """Of a path."""
        return max(self.nodes - 1, 0)

    def eager_execute(self, *inputs: np.ndarray) -> Sequence[np.ndarray]:
        found = self.ranked(RankingInputs(*inputs))
        edges = np.full((self.k, self.most_edges), -1, INT32)
        edges[:, : found.edges.shape[1]] = found.edges
        return found._replace(edges=edges)

    def ranked(self, given: RankingInputs) -> RankingOutputs:
        """What is found, with as many columns as the longest path has edges."""
        if native().problem:
            raise Unsupported(
                where="k_shortest_paths", given=str(native()), needed="the native library"
            )
        dtype = given.weights.dtype
        weights = _as_floats(self, given.weights)
        lengths, counts = np.empty(self.k), np.empty(self.k, INT32)
        # Most of it is never written, and takes no memory.
        numbers = np.empty((self.k, self.most_edges), INT32)
        arrays = [np.ascontiguousarray(x) for x in (given.senders, given.receivers, weights)]
        asked = self.nodes, weights.size, int(given.source), int(given.target), self.k
        results = [lengths, numbers, counts]
        now("ranked_paths", TYPES[weights.dtype.name], *asked, arrays, results)
        rounded = _in_dtype(lengths, dtype)
        # Sums beyond the dtype are no paths, as in the search of one.
        is_path = (rounded > lowest(dtype)) & (rounded < highest(dtype))
        counts = np.where(is_path, counts, 0)
        columns = np.arange(max(counts.max(initial=1) - 1, 0))
        edges = np.where(columns < counts[:, None] - 1, numbers[:, : columns.size], -1)
        return RankingOutputs(rounded, edges.astype(INT32), counts)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of tangents along each path."""
        moved = jnp.append(RankingInputs(*tangents).weights, 0)  # of the edge -1
        return jnp.sum(moved[RankingOutputs(*outputs).edges], 1), None, None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Six edges of the first four nodes."""
        edges = np.asarray([[0, 1, 3, 0, 2, 1], [1, 2, 0, 2, 1, 2]], np.int32)
        weights = np.random.default_rng(0).uniform(1, 2, 6)
        return [[*edges, weights, np.int32(0), np.int32(2)]]


MOST_EXACT = 2.0**50
"""Below it sums of integers are exact in float64, and so far from each other that no rounding is
allowed for.
"""


def _as_floats(op: PathRanking, weights: np.ndarray) -> np.ndarray:
    """Weights as the native library takes them. Negative ones of float32 stay in it, because
    cycles are allowed for its rounding.
    """
    is_integer = weights.dtype.kind == "i"
    stays = weights.dtype == np.float32 and (weights < 0).any()
    floats = weights.astype(np.float32 if stays else np.float64)
    if not is_integer:
        return floats
    floats = np.where(weights == highest(weights.dtype), np.inf, floats)
    floats = np.where(weights == lowest(weights.dtype), -np.inf, floats)
    largest = np.abs(floats).max(initial=0, where=np.isfinite(floats))
    longest = min(op.most_edges, weights.size)
    if largest * longest >= MOST_EXACT:
        raise DTypeError(
            where="k_shortest_paths, weights",
            given=f"integers whose sums may reach {int(largest) * longest}",
            needed="sums below 2**50, which are exact",
            fix="Divide the weights by a common factor, or pass floats.",
        )
    return floats


def _in_dtype(lengths: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Lengths in the dtype of the weights; integers beyond it become its ends."""
    if dtype.kind != "i":
        with np.errstate(over="ignore"):
            return lengths.astype(dtype)
    low, high = lowest(dtype), highest(dtype)
    is_inside = (lengths > low) & (lengths < high)
    whole = np.where(is_inside, lengths, 0).astype(dtype)
    return np.where(is_inside, whole, np.where(lengths > 0, high, low))
