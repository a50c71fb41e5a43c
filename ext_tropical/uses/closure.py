"""Powers of a matrix in a semiring; and closures: the best walks of any length."""

from __future__ import annotations

import dataclasses
import functools
import operator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.einsum.spread import on_automatic_axes
from tenferro_jax.errors import InvalidConfig, ShapeError, Unsupported
from tenferro_jax.shapes import as_array

from ..algebra.semiring import (
    SelectiveSemiring,
    Semiring,
    as_selective,
    as_semiring,
    filled,
    highest,
    lowest,
)
from ..algebra.shipped import max_mul, max_plus, min_plus
from ..network.tropical_einsum import tropical_einsum, tropical_einsum_with_argmax
from ..step.einsum_op import one_dtype

_LIMITS = {max_plus: highest, min_plus: lowest, max_mul: highest}
"""The limit, by dtype, of values of walks that get better without end; it is not known for other
semirings.
"""


def matrix_power(a: ArrayLike, n: int, *, semiring: Semiring | str = max_plus) -> jax.Array:
    """a (x) a (x) ... (x) a, n times: entry [i, j] is the semiring's plus, under max_plus the best,
    over walks of exactly n edges from i to j.

    Under max_mul this holds for entries that are not negative.

    Args:
      a: (..., m, m); leading dimensions are batches.
      n: a Python integer from 0; 0 gives the identity: the semiring's one on the diagonal, its zero
        elsewhere.
      semiring: a semiring or its name.

    Returns:
      An array of a's shape and dtype.

    Raises:
      ShapeError: the last two sizes differ, or there are none.
      InvalidConfig: n is negative or not an integer.
      DTypeError: a is not an operand for `tropical_einsum`.

    Cost: at most 2 log2(n) products of `tropical_einsum`.

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.array([[0.0, 3.0], [1.0, 0.0]])
      >>> print(matrix_power(a, 4))
      [[8. 7.]
       [5. 8.]]
    """
    algebra = as_semiring(semiring)
    a = _square_matrix(a, algebra, "matrix_power")
    try:
        left = -1 if isinstance(n, bool) else operator.index(n)
    except TypeError:
        left = -1
    if left < 0:
        raise InvalidConfig(
            where="matrix_power, n",
            given=repr(n),
            needed="a non-negative integer",
            fix="Pass the number of factors.",
        )
    if left == 0:
        one, zero = (filled(f(a.dtype), a.shape) for f in (algebra.one, algebra.zero))
        return jnp.where(jnp.eye(a.shape[-1], dtype=bool), one, zero)
    power: Any = None
    square = a
    while True:
        if left & 1:
            power = (
                square
                if power is None
                else tropical_einsum("...ij,...jk->...ik", power, square, semiring=algebra)
            )
        left >>= 1
        if not left:
            return power
        square = tropical_einsum("...ij,...jk->...ik", square, square, semiring=algebra)


def _square_matrix(
    given: ArrayLike,
    semiring: Semiring,
    where: str,
    rank: int | None = None,
) -> jax.Array:
    a = jnp.asarray(as_array(given, where))
    if a.ndim < 2 or a.ndim != (rank or a.ndim) or a.shape[-1] != a.shape[-2]:
        raise ShapeError(
            where=where,
            given=f"shape {a.shape}",
            needed="a square matrix" if rank else "square matrices along the last two axes",
            fix="Correct the array; for many use jax.vmap." if rank else "",
        )
    one_dtype(where, semiring, [a.dtype], [given])
    return a


@jax.tree_util.register_dataclass
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
      winners: int32 (s, n, n); the middle nodes of the s squarings; those of [i, j] are i after a
        squaring that found no longer walk.
      semiring: the algebra.
    """

    value: jax.Array
    converged: jax.Array
    winners: jax.Array
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
          a transform, where lengths cannot depend on values, an int32 array (2**s + 1,): the nodes,
          then -1. If `converged` is False, the result is a walk, but no walk is best.

        Raises:
          DTypeError, InvalidConfig: source or target is not an integer scalar, or not a node. (If
            traced, the result is only -1.)

        Example:
          >>> import jax.numpy as jnp
          >>> inf = jnp.inf
          >>> result = closure(jnp.array([[inf, 1.0, 9.0], [inf, inf, 2.0], [inf, inf, inf]]))
          >>> result.walk(0, 2).tolist(), float(result.value[0, 2])
          ([0, 1, 2], 3.0)
        """
        ends = self._node(source, "source"), self._node(target, "target")
        if self.value.shape[-1] == 0:
            return jnp.full(2 ** len(self.winners) + 1, -1, jnp.int32)
        nodes = on_automatic_axes(_walked)(self.winners, self.feasible, *ends)
        if isinstance(nodes, jax.core.Tracer):
            return nodes
        known = np.asarray(nodes)
        return known[known >= 0]

    def predecessors(self) -> jax.Array:
        """For every pair the last node but one on a best walk: int32 (n, n); -1 on the diagonal and
        if there is no walk.

        If every cycle makes a walk worse (under min_plus: has a positive weight), following row i
        back from j ends at i. If a cycle leaves a walk equally good, use `walk`, which always ends.

        Raises:
          Unsupported: another semiring than max_plus, min_plus and max_mul. Under min_max, for
            example, the beginning of a best walk need not be best, and rows of predecessors may be
            cyclic.

        Example:
          >>> import jax.numpy as jnp
          >>> inf = jnp.inf
          >>> closure(jnp.array([[inf, 1.0, 9.0], [inf, inf, 2.0], [inf, inf,
          ...     inf]])).predecessors().tolist()
          [[-1, 0, 1], [-1, -1, 1], [-1, -1, -1]]
        """
        if self.semiring not in (max_plus, min_plus, max_mul):
            raise Unsupported(
                where="predecessors",
                given=f"a closure under {self.semiring!r}",
                needed="max_plus, min_plus or max_mul, under which the beginning of a best walk "
                "is a best walk",
                fix="Take walk(source, target).",
            )
        return on_automatic_axes(_before_last)(self.winners, self.feasible)

    def _node(self, node: ArrayLike, name: str) -> jax.Array:
        count = self.value.shape[-1]
        if isinstance(node, np.integer):
            node = int(node)
        given = jnp.asarray(as_array(node, f"walk, {name}"))
        known = not isinstance(given, jax.core.Tracer)
        if (
            given.ndim
            or not jnp.issubdtype(given.dtype, jnp.integer)
            or (known and not 0 <= int(given) < count)
        ):
            raise InvalidConfig(
                where=f"walk, {name}",
                given=f"{node!r}" if known else f"{given.dtype.name}{list(given.shape)}",
                needed=f"an integer scalar from 0 to {count - 1}",
                fix="Pass one node; for many use jax.vmap.",
            )
        return jnp.where((given >= 0) & (given < count), given, -1).astype(jnp.int32)


def closure(a: ArrayLike, *, semiring: SelectiveSemiring | str = min_plus) -> ClosureResult:
    """The best walks of any length between all pairs: I + a + a (x) a + ..., by repeated squaring
    of I + a.

    Under min_plus these are the lengths of shortest paths, -inf for pairs whose walks can pass a
    cycle of negative weight; under max_plus of longest paths, inf through a cycle of positive
    weight; under or_and reachability, under min_max the bottlenecks. Weights of a cycle are added
    in the operand's dtype: for floats a cycle of weight zero that rounds below zero counts as
    negative. max_mul is for non-negative entries.

    Args:
      a: (n, n), the weight of the edge from the row's node to the column's; the semiring's zero if
        there is no edge. The infinity of the other sign is not a valid weight: together with a
        missing edge it gives NaN.
      semiring: a selective semiring, or its name.

    Returns:
      A ClosureResult: value, converged, and from the winners `walk(source, target)` and
        `predecessors()`.

    Raises:
      ShapeError: a is not a square matrix.
      DTypeError: a is not an operand for `tropical_einsum`.
      InvalidConfig: not a selective semiring.
      Unsupported: a symbolic size.

    Gradient: that of value[i, j] is one at each edge of walk(i, j) (under min_plus and max_plus);
    zero if the value is infinite because walks get better without end.

    Cost: ceil(log2(n - 1)) products of n x n matrices, or ceil(log2(h)) + 1 if that is less and
    best walks have at most h edges; memory for ceil(log2(n - 1)) matrices of winners. Under vmap
    and through cycles that get better all products are made.

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
    a = _square_matrix(a, algebra, "closure", rank=2)
    if not isinstance(a.shape[0], int):
        raise Unsupported(
            where="closure",
            given=f"a symbolic size, {a.shape[0]}",
            needed="a known number of nodes, which determines the number of squarings",
            fix="Export with a concrete shape.",
        )
    run = on_automatic_axes(_closed, lambda a, _: jax.typeof(a).sharding.spec)
    value, converged, winners = run(a, algebra)
    return ClosureResult(value, converged, winners, algebra)


@functools.partial(jax.jit, static_argnums=1)
def _closed(a: jax.Array, semiring: SelectiveSemiring) -> tuple[jax.Array, jax.Array, jax.Array]:
    count = a.shape[0]
    one = jnp.asarray(semiring.one(a.dtype))
    start = jnp.where(jnp.eye(count, dtype=bool), semiring.plus(one, a), a)

    limit = _LIMITS[semiring](a.dtype) if semiring in _LIMITS else None

    def squared(best: jax.Array) -> tuple[jax.Array, jax.Array]:
        result = tropical_einsum_with_argmax("ij,jk->ik", best, best, semiring=semiring)
        value = result.value
        if limit is not None and jnp.issubdtype(
            a.dtype, jnp.floating
        ):  # rounds of a cycle that overflow; NaN would follow
            value = jnp.where((value == limit) & ~jnp.any(a == limit), jnp.nan_to_num(limit), value)
        return value, result.winner

    zero, length = semiring.zero(a.dtype), max(count - 2, 0).bit_length()
    row, column = (lax.broadcasted_iota(jnp.int32, a.shape, axis) for axis in (0, 1))

    def step(state: Any, most: jax.Array) -> tuple[Any, jax.Array]:
        """Squares, until no best walk has more than `most` edges, which walks had before, or no
        value changes; after that walks go from i to i, then on to j. Without the edges sums that
        are rounded another way would look like better walks.
        """

        best, edges, done = state
        value, winner = lax.cond(done, lambda x: (x, row), squared, best)
        edges = jnp.where(value == zero, 0, edges[row, winner] + edges[winner, column])
        same = jnp.all(value == best) | (jnp.all(value == value) & jnp.all(edges <= most))
        return (value, edges, done | (same & jnp.all(jnp.diagonal(value) == one))), winner

    state = start, ((start != zero) & (row != column)).astype(jnp.int32), jnp.asarray(False)
    (value, *_), winners = lax.scan(step, state, 2 ** jnp.arange(length, dtype=jnp.int32))
    around = tropical_einsum(
        "ij,ji->i", value, value, semiring=semiring
    )  # the best closed walks, of twice as many edges
    some, improving = value != zero, semiring.better(around, one)

    def through(some: jax.Array, improving: jax.Array) -> jax.Array:
        return (some * improving[None]).astype(jnp.float32) @ some.astype(jnp.float32) > 0

    endless = lax.cond(jnp.any(improving), through, lambda some, _: some & False, some, improving)
    return (value if limit is None else jnp.where(endless, limit, value)), ~endless, winners


@jax.jit
def _walked(
    winners: jax.Array,
    feasible: jax.Array,
    source: jax.Array,
    target: jax.Array,
) -> jax.Array:
    """The nodes of a walk: between its ends the middle node of the last squaring, between these the
    nodes of the one before, and so on.
    """
    nodes = jnp.stack([source, target])
    for middle in winners[::-1]:
        between = middle[nodes[:-1], nodes[1:]]
        nodes = jnp.append(jnp.stack([nodes[:-1], between], axis=1).ravel(), target)
    moves = jnp.append(
        True, nodes[1:] != nodes[:-1]
    )  # the empty walk from a node to itself is no edge
    places = jnp.where(moves, jnp.cumsum(moves, dtype=jnp.int32) - 1, nodes.size)
    known = (source >= 0) & (target >= 0) & feasible[source, target]
    return (
        jnp.full(nodes.shape, -1, jnp.int32)
        .at[places]
        .set(jnp.where(known, nodes, -1), mode="drop")
    )


@jax.jit
def _before_last(winners: jax.Array, feasible: jax.Array) -> jax.Array:
    """The last edge of a walk is that of its second half, unless the second half is empty."""
    source, target = (lax.broadcasted_iota(jnp.int32, feasible.shape, axis) for axis in (0, 1))
    before = source
    for middle in winners:
        before = jnp.where(middle == target, before, jnp.take_along_axis(before, middle, axis=0))
    return jnp.where(feasible & (source != target), before, -1)
