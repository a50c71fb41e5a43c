"""Closures: the best walks of any length, by Floyd and Warshall: nodes are allowed one after
another as inner nodes of walks. Blocks of nodes are allowed at once, so that nearly all work is
products of matrices by the step op. The node before the last of each walk is found afterwards,
by one product of the closure with the edges, where values get strictly worse along these nodes.
Where they do not, as along edges of weight zero and below, it is kept while nodes are allowed,
which takes three times as long.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig, ShapeError, typed_call, typed_calls
from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array

from ..arguments import nodes_of, one_dtype, require_numbers
from ..einsums.call import tropical_einsum, tropical_einsum_with_argmax
from ..semirings.registered import as_selective
from ..semirings.semiring import SelectiveSemiring, highest, lowest
from ..semirings.shipped import max_mul, max_plus, min_plus, or_and
from ..steps.at_winner import entries_at
from ..steps.weighted_sum import Place
from .path_op import TreeSums

_LIMITS = {max_plus: highest, min_plus: lowest, max_mul: highest}
"""The limit, by dtype, of values of walks that get better without end; it is not known for other
semirings.
"""

BLOCK = 64
"""Nodes that are allowed at once. A product over fewer takes longer for each candidate; more cost
more inside of the block, where they are allowed one by one.
"""


@jax.tree_util.register_dataclass
@typed_calls
@dataclasses.dataclass(frozen=True)
class ClosureResult:
    """The best walks of any length between n nodes, as a pytree.

    Attributes:
      value: (n, n); [i, j] is the best over walks from i to j, the empty walk from i to i included;
        the semiring's zero if there is no walk.
      converged: boolean (n, n); False where walks get better without end: some walk from i to j
        passes a cycle that is better than the empty walk (under min_plus a cycle of negative
        weight). There the value is the limit, -inf under min_plus and inf under max_plus and
        max_mul (for integers the type's extreme value); under another semiring it is the best over
        some of the walks.
      weights: (n, n); the edges, from which `predecessors` and `walk` find the walks.
      semiring: the algebra.
    """

    value: jax.Array
    converged: jax.Array
    weights: jax.Array
    semiring: SelectiveSemiring = dataclasses.field(metadata={"static": True})

    @property
    def feasible(self) -> jax.Array:
        """Boolean (n, n): whether there is a walk."""
        return self.value != self.semiring.zero(self.value.dtype)

    @property
    def on_cycle(self) -> jax.Array:
        """Boolean (n,): whether a closed walk through the node is better than the empty one, as one
        of negative weight under min_plus.

        Example:
          >>> import jax.numpy as jnp
          >>> inf = jnp.inf
          >>> result = closure(jnp.array([[inf, 5.0, inf], [inf, inf, 1.0], [inf, -2.0, inf]]))
          >>> result.on_cycle.tolist(), result.value[0].tolist()
          ([False, True, True], [0.0, -inf, -inf])
        """
        diagonal = functools.partial(jnp.diagonal, axis1=-2, axis2=-1)
        return ~on_automatic_axes(diagonal)(self.converged)

    def walk(self, source: ArrayLike, target: ArrayLike) -> jax.Array | np.ndarray:
        """The nodes of a best walk.

        Args:
          source: an integer scalar from 0 to n - 1; may be traced. `jax.vmap` gives many walks.
          target: the same.

        Returns:
          The nodes from source to target as an int32 NumPy array, empty if there is no walk. Inside
          a transform, where lengths cannot depend on values, an int32 array (n,): the nodes, then
          -1. If `converged` is False, the result is a walk, but no walk is best.

        Raises:
          DTypeError, ShapeError, InvalidConfig: source or target is not an integer scalar, or not a
            node. (If traced, the result is only -1.)

        Example:
          >>> import jax.numpy as jnp
          >>> inf = jnp.inf
          >>> result = closure(jnp.array([[inf, 1.0, 9.0], [inf, inf, 2.0], [inf, inf, inf]]))
          >>> result.walk(0, 2).tolist(), float(result.value[0, 2])
          ([0, 1, 2], 3.0)
        """
        count = self.value.shape[-1]
        ends = [
            jnp.asarray(nodes_of(x, count, f"ClosureResult.walk, {name}"))
            for name, x in (("source", source), ("target", target))
        ]
        if any(x.ndim for x in ends):
            raise ShapeError(
                where="ClosureResult.walk",
                given=f"source of shape {ends[0].shape}, target of shape {ends[1].shape}",
                needed="an integer scalar each",
                fix="Pass one node; for many use jax.vmap.",
            )
        if count == 0:
            return jnp.zeros(0, jnp.int32)
        nodes = on_automatic_axes(_walked)(self.predecessors(), *ends)
        if isinstance(nodes, jax.core.Tracer):
            return nodes
        known = np.asarray(nodes)
        return np.extract(known >= 0, known)

    def predecessors(self) -> jax.Array:
        """For every pair the node before the last on `walk(i, j)`: int32 (n, n); -1 on the diagonal
        and if there is no walk. Each row is a tree: following row i back from any node that i
        reaches ends at i.

        Cost: some two products of n x n matrices; ten if an edge has weight zero or a negative one,
          twenty if some walk gets better without end. Once for a result of concrete arrays.

        Example:
          >>> import jax.numpy as jnp
          >>> inf = jnp.inf
          >>> closure(jnp.array([[inf, 1.0, 9.0], [inf, inf, 2.0], [inf, inf,
          ...     inf]])).predecessors().tolist()
          [[-1, 0, 1], [-1, -1, 1], [-1, -1, -1]]
        """
        found: jax.Array | None = vars(self).get("_before")
        if found is None:
            find = on_automatic_axes(functools.partial(_before, self.semiring))
            found = find(self.weights, self.value, self.converged)
            if not isinstance(found, jax.core.Tracer):
                object.__setattr__(self, "_before", found)
        return found


@typed_call
def closure(a: ArrayLike, *, semiring: SelectiveSemiring | str = min_plus) -> ClosureResult:
    """The best walks of any length between all pairs: I + a + a (x) a + ..., by Floyd and Warshall
    in blocks.

    Under min_plus these are the lengths of shortest paths, -inf for pairs whose walks can pass a
    cycle of negative weight; under max_plus of longest walks, inf through a cycle of positive
    weight; under or_and reachability, under min_max the bottlenecks. Weights of a cycle are added
    in the operand's dtype: for floats a cycle of weight zero that rounds below zero counts as
    negative. max_mul is for non-negative entries.

    Args:
      a: (n, n), the weight of the edge from the row's node to the column's; the semiring's zero if
        there is no edge. Under min_plus and max_plus the infinity of the other sign is not a valid
        weight: together with a missing edge it gives NaN.
      semiring: a selective semiring, or its name.

    Returns:
      A ClosureResult: value, converged, `walk(source, target)` and `predecessors()`.

    Raises:
      ShapeError: a is not a square matrix.
      DTypeError: a is not an operand for `tropical_einsum`.
      InvalidConfig: not a selective semiring.
      Unsupported: a symbolic size.

    Gradient: that of value[i, j] is one at each edge of walk(i, j) (under min_plus and max_plus);
    zero if the value is infinite because walks get better without end.

    Cost: less than two products of n x n matrices and a few matrices of memory, whatever the
    lengths of best walks; three times that if some walk gets better without end. Walks cost what
    `predecessors` does. A gradient takes that too, and under min_plus and max_plus on CPU less than
    half a product; elsewhere it gathers n x n entries log2(n) times.

    Example:
      >>> import jax.numpy as jnp
      >>> inf = jnp.inf
      >>> result = closure(jnp.array([[inf, 4.0, 1.0], [inf, inf, inf], [inf, 2.0, inf]]))
      >>> print(result.value)
      [[ 0.  3.  1.]
       [inf  0. inf]
       [inf  2.  0.]]
      >>> result.walk(0, 1).tolist()
      [0, 2, 1]
    """
    algebra = as_selective(semiring, "closure")
    if hasattr(a, "tocoo") or hasattr(a, "senders") or hasattr(a, "todense"):
        raise InvalidConfig(
            where="closure",
            given=type(a).__name__,
            needed="a dense matrix, with the semiring's zero where there is no edge",
            fix="For sparse graphs use ext_tropical.shortest_paths.",
        )
    weights = jnp.asarray(as_array(a, "closure"))
    if weights.ndim != 2 or weights.shape[0] != weights.shape[1]:
        raise ShapeError(
            where="closure",
            given=f"shape {weights.shape}",
            needed="a square matrix",
            fix="Correct the array; for many use jax.vmap.",
        )
    one_dtype("closure", algebra, [weights.dtype], [a])
    require_numbers(
        "closure", weights.shape, "a number of nodes, which says how many blocks there are"
    )
    run = on_automatic_axes(_closed, lambda a, _: jax.typeof(a).sharding.spec)
    value, converged = run(weights, algebra)
    return ClosureResult(value, converged, weights, algebra)


@functools.partial(jax.jit, static_argnums=1)
def _closed(a: jax.Array, semiring: SelectiveSemiring) -> tuple[jax.Array, jax.Array]:
    """Value, and whether it converged."""
    run = functools.partial(_values, semiring)
    if not jnp.issubdtype(a.dtype, jnp.inexact):
        return run(a)
    derived = jax.custom_jvp(run)

    @derived.defjvp
    def _jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> Any:
        value, converged = derived(*primals)
        before = _before(semiring, *primals, value, converged)
        if semiring in (min_plus, max_plus):
            moved = _sums(before, *tangents)
        else:
            _, moved = jax.jvp(functools.partial(_along, semiring, before), primals, tangents)
        nothing = np.zeros(value.shape, jax.dtypes.float0)
        return (value, converged), (jnp.where(converged, moved, 0), nothing)

    return derived(a)


def _values(semiring: SelectiveSemiring, a: jax.Array) -> tuple[jax.Array, jax.Array]:
    one, zero = (jnp.asarray(f(a.dtype)) for f in (semiring.one, semiring.zero))
    diagonal = jnp.eye(a.shape[0], dtype=bool)
    start = jnp.where(diagonal, semiring.plus(one, a), a)
    (value, _), improving = _floyd_warshall(semiring, start)
    # Nodes of a strongly connected part with a cycle that gets better are all on such cycles. Walks
    # between other pairs do not pass them. What is not needed takes next to no time.
    again = jnp.any(improving)
    some = _floyd_warshall(or_and, start != zero, wanted=again).walks.value
    cyclic = jnp.any(some & some.T & improving[None], 1)

    def through(some: jax.Array) -> jax.Array:
        return (some * cyclic[None]).astype(jnp.float32) @ some.astype(jnp.float32) > 0

    endless = lax.cond(again, through, jnp.zeros_like, some)
    rest = _without(semiring, a, cyclic)
    other = _floyd_warshall(semiring, rest, wanted=again).walks.value
    limit = _LIMITS[semiring](a.dtype) if semiring in _LIMITS else value
    return jnp.where(again, jnp.where(endless, limit, other), value), ~(again & endless)


def _without(semiring: SelectiveSemiring, a: jax.Array, cyclic: jax.Array) -> jax.Array:
    """The edges between all nodes but these, and empty walks."""
    one, zero = (jnp.asarray(f(a.dtype)) for f in (semiring.one, semiring.zero))
    apart = jnp.where(cyclic[:, None] | cyclic[None], zero, a)
    return jnp.where(jnp.eye(a.shape[0], dtype=bool), one, apart)


@functools.partial(jax.jit, static_argnums=0)
def _before(
    semiring: SelectiveSemiring, a: jax.Array, value: jax.Array, converged: jax.Array
) -> jax.Array:
    """The node before the last of each walk."""
    none, diagonal = semiring.zero(a.dtype), jnp.eye(a.shape[0], dtype=bool)
    edges = jnp.where(diagonal, none, a)
    found = tropical_einsum_with_argmax("ij,jk->ik", value, edges, semiring=semiring).winner
    found = jnp.where((value == none) | diagonal, -1, found)
    there = jnp.take_along_axis(value, jnp.maximum(found, 0), axis=1)
    all_converged = jnp.all(converged)
    falls = jnp.all((found < 0) | semiring.better(there, value)) & all_converged
    finite = _without(semiring, a, ~jnp.diagonal(converged))
    kept = _before_last(semiring, finite, ~falls)
    reached = (a != none) | diagonal
    some = _before_last(or_and, reached, ~all_converged)
    return jnp.where(falls, found, jnp.where(converged, kept, some))


class Walks(NamedTuple):
    """The best walks by the nodes that are allowed so far: all, or those of some rows.

    Attributes:
      value: (rows, n).
      before: int32 (rows, n), the node before the last of each, -1 where there is none; None where
        only values are wanted.
    """

    value: jax.Array
    before: jax.Array | None


class Allowed(NamedTuple):
    """What a step of a closure leaves.

    Attributes:
      walks: the best ones.
      improving: boolean (n,), the nodes that were found on a cycle that is better than the empty
        walk.
    """

    walks: Walks
    improving: jax.Array


class Closing(NamedTuple):
    """What all steps of a closure share.

    Attributes:
      semiring: of the closure.
      width: how many nodes a block has.
      limit: the value of walks that get better without end; the zero if it is not known.
      overflows: whether a value that is the limit is a sum beyond the type.
    """

    semiring: SelectiveSemiring
    width: int
    limit: ArrayLike
    overflows: jax.Array

    def finite(self, new: jax.Array) -> jax.Array:
        """Rounds of a cycle that overflow as the greatest number: with no edge inf makes NaN."""
        is_beyond = (new == self.limit) & self.overflows
        return jnp.where(is_beyond, jnp.nan_to_num(self.limit), new)

    def on_cycles(self, value: jax.Array) -> jax.Array:
        """The nodes from which a walk to themselves is better than the empty one."""
        one = jnp.asarray(self.semiring.one(value.dtype), value.dtype)
        return self.semiring.better(jnp.diagonal(value), one)

    def by_node(self, first: jax.Array | int, k: jax.Array, state: Allowed) -> Allowed:
        """Allow one node of a block, whose own columns begin at `first`."""
        (value, before), improving = state
        new = self.finite(self.semiring.times(value[:, first + k, None], value[k][None]))
        if before is not None:
            before = jnp.where(self.semiring.better(new, value), before[k][None], before)
        value = self.semiring.plus(value, new)
        own = lax.dynamic_slice(value, (0, first), (self.width, self.width))
        return Allowed(Walks(value, before), improving | self.on_cycles(own))

    def by_nodes(self, first: jax.Array | int, walks: Walks) -> Allowed:
        """Allow the nodes of a block one by one."""
        step = functools.partial(self.by_node, first)
        begin = Allowed(walks, jnp.zeros(self.width, bool))
        return lax.fori_loop(0, self.width, step, begin)

    def by_product(self, old: Walks, left: jax.Array, right: Walks) -> Walks:
        """The better of the old walks and those of which the first part is in `left`."""
        if old.before is None or right.before is None:
            new = tropical_einsum("ij,jk->ik", left, right.value, semiring=self.semiring)
            return Walks(self.semiring.plus(old.value, self.finite(new)), None)
        found = tropical_einsum_with_argmax("ij,jk->ik", left, right.value, semiring=self.semiring)
        last = jnp.take_along_axis(right.before, jnp.maximum(found.winner, 0), axis=0)
        new = self.finite(found.value)
        before = jnp.where(self.semiring.better(new, old.value), last, old.before)
        return Walks(self.semiring.plus(old.value, new), before)

    def in_block(self, at: jax.Array, rows: Walks) -> Allowed:
        """Allow the nodes of a block, which begins at `at`, in the walks that begin in it. Where
        only values are wanted this needs no loop over whole rows: the walks within the block, then
        a product.
        """
        if rows.before is not None:
            return self.by_nodes(at, rows)
        core = lax.dynamic_slice(rows.value, (0, at), (self.width, self.width))
        (core, _), improving = self.by_nodes(0, Walks(core, None))
        return Allowed(self.by_product(rows, core, rows), improving)

    def by_block(self, i: jax.Array, state: Allowed) -> Allowed:
        """Allow the nodes of a block in walks that begin in it, then everywhere."""
        walks, improving = state
        at, size = i * self.width, walks.value.shape[0]
        cut = functools.partial(
            lax.dynamic_slice, start_indices=(at, 0), slice_sizes=(self.width, size)
        )
        rows, found = self.in_block(at, jax.tree.map(cut, walks))
        written = functools.partial(lax.dynamic_update_slice, start_indices=(at, 0))
        walks = jax.tree.map(written, walks, rows)
        left = lax.dynamic_slice(walks.value, (0, at), (size, self.width))
        walks = self.by_product(walks, left, rows)
        improving |= lax.dynamic_update_slice(improving, found, (at,))
        return Allowed(walks, improving | self.on_cycles(walks.value))


def _before_last(semiring: SelectiveSemiring, start: jax.Array, wanted: jax.Array) -> Any:
    """The node before the last of each walk, kept while nodes are allowed."""
    return _floyd_warshall(semiring, start, tracked=True, wanted=wanted).walks.before


def _floyd_warshall(
    semiring: SelectiveSemiring,
    start: jax.Array,
    *,
    tracked: bool = False,
    wanted: ArrayLike = True,
) -> Allowed:
    """The best walks by edges of `start`; if tracked, with the node before the last of each. If
    there are cycles that are better than the empty walk, the walks mean nothing.

    In a tracked closure a walk takes the place of another one only if it is better, and of equal
    ones the first winner does. So the nodes before the last are a tree for each row, also where
    cycles leave a walk as good as it was: where walks to a node and to the one before it become
    best at one time, both are continued by the same row of the block, which is a tree.

    Where it is not wanted the loop has no turn, also under vmap, and the results are no walks.
    """
    count = start.shape[0]
    width = min(BLOCK, max(count, 1))
    size = max(-(-count // width), 1) * width
    one, zero = semiring.one(start.dtype), semiring.zero(start.dtype)
    diagonal = jnp.eye(size, dtype=bool)
    value = jnp.where(diagonal, one, zero).astype(start.dtype).at[:count, :count].set(start)
    before = None
    if tracked:
        row = lax.broadcasted_iota(jnp.int32, value.shape, 0)
        before = jnp.where((value == zero) | diagonal, -1, row)
    is_limited = semiring in _LIMITS and jnp.issubdtype(value.dtype, jnp.floating)
    limit = _LIMITS[semiring](value.dtype) if is_limited else zero
    overflows = (limit != zero) & ~jnp.any(start == limit)
    closing = Closing(semiring, width, limit, overflows)

    state = Allowed(Walks(value, before), closing.on_cycles(value))
    turns = jnp.where(wanted, size // width, 0)
    walks, improving = lax.fori_loop(0, turns, closing.by_block, state)
    walks = jax.tree.map(lambda x: x[:count, :count], walks)
    return Allowed(walks, improving[:count])


def _sums(before: jax.Array, x: jax.Array) -> jax.Array:
    """The sum of x over the edges of each walk. Each row is a tree, whose edges are numbered as the
    nodes that they lead to.
    """
    known = jnp.maximum(before, 0)
    last = jnp.where(before < 0, -1, lax.broadcasted_iota(jnp.int32, before.shape, 1))
    own = entries_at("ij,jk->ik", Place.RHS, x, known)
    return jax.vmap(lambda *row: apply(TreeSums(), *row)[0])(last[:, None], known, own)[:, 0]


def _along(semiring: SelectiveSemiring, before: jax.Array, a: jax.Array) -> jax.Array:
    """The value of each walk as the product of its edges, for derivatives: parts of walks are
    joined to parts of twice as many edges until each begins at the row's node.
    """
    row, column = (lax.broadcasted_iota(jnp.int32, a.shape, axis) for axis in (0, 1))
    entries = functools.partial(entries_at, "ij,jk->ik")
    edge = entries(Place.RHS, a, jnp.maximum(before, 0))
    part = jnp.where(before < 0, jnp.asarray(semiring.one(a.dtype)), edge)

    def joined(state: Any, _: None) -> Any:
        """No cond for walks that are complete: under vmap JAX has no transpose of it."""
        part, begin = state
        complete = begin == row
        at = jnp.where(complete, column, begin)  # apart, or a transpose would add to one place
        longer = semiring.times(entries(Place.LHS, part, at), part)
        begin = jnp.where(complete, row, jnp.take_along_axis(begin, at, axis=1))
        return (jnp.where(complete, part, longer), begin), None

    state = part, jnp.where(before < 0, row, before)
    return lax.scan(joined, state, None, length=(a.shape[0] - 1).bit_length())[0][0]


@jax.jit
def _walked(before: jax.Array, source: jax.Array, target: jax.Array) -> jax.Array:
    """The nodes of a walk, found from its end, then -1."""
    row, size = before[source], before.shape[0]

    def step(node: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
        return jnp.where(node < 0, -1, row[node]), node

    _, back = lax.scan(step, target, None, length=size)
    known = (source >= 0) & (target >= 0) & ((source == target) | (row[target] >= 0))
    nodes = jnp.roll(back[::-1], jnp.sum(back >= 0) - size)
    return jnp.where(known, nodes, -1)
