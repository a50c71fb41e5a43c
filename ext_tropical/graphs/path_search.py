"""Shortest paths in standard ops: sweeps over all edges until nothing changes.

First the values, then which edges are on best paths, of which those of the fewest edges are a tree.
Of floats under min_plus values are sums along these trees, where rounding has not made a cycle
better; else `_settled` searches again, by sums of twice the digits.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..arguments import inside, work_dtype
from ..semirings.semiring import SelectiveSemiring, lowest
from ..semirings.shipped import min_plus
from .path_inputs import PathInputs, PathOutputs

INT32 = np.dtype("int32")
MOST = np.int32(2**31 - 1)
"""More than the number of any edge or node."""


class Edges(NamedTuple):
    """The edges of a graph.

    Attributes:
      senders: (E,), nodes.
      heads: (E,), nodes; `nodes` for edges that lead nowhere.
      weights: (E,); none is NaN.
      nodes: their number.
    """

    senders: jax.Array
    heads: jax.Array
    weights: jax.Array
    nodes: int

    def least_into(self, x: jax.Array, none: jax.typing.ArrayLike) -> jax.Array:
        """The least entry of the edges into each node."""
        return jnp.full(self.nodes, none, x.dtype).at[self.heads].min(x, mode="drop")

    def any_into(self, x: jax.Array) -> jax.Array:
        """Whether x is true of an edge into each node."""
        return ~self.least_into(~x, True)

    def reached(self, begin: jax.Array, is_edge: jax.Array) -> jax.Array:
        """Whether each node can be reached from one of these, along some of the edges."""

        def flood(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            marked, _ = state
            new = marked | self.any_into(marked[self.senders] & is_edge)
            return new, jnp.any(new != marked)

        return lax.while_loop(lambda state: state[1], flood, (begin, jnp.any(begin)))[0]


class Ring(NamedTuple):
    """The nodes that are so many edges away, and all that are nearer.

    Attributes:
      last: the last edge of the way to each node; -1 where there is none so far.
      hops: its number of edges; -1 where there is none so far.
      turn: how many edges.
      is_new: whether any node is that far away.
    """

    last: jax.Array
    hops: jax.Array
    turn: jax.Array
    is_new: jax.Array


class Sweep(NamedTuple):
    """What a sweep over all edges leaves.

    Attributes:
      sums: the values of nodes.
      turn: how many sweeps there were.
      is_new: whether the last one changed a value.
    """

    sums: Any
    turn: jax.Array
    is_new: jax.Array


class WideSums(NamedTuple):
    """Sums of twice the digits.

    Attributes:
      whole: the sum.
      rest: what it lost by rounding.
    """

    whole: jax.Array
    rest: jax.Array


def searched(semiring: SelectiveSemiring, nodes: int, given: PathInputs) -> PathOutputs:
    """The best paths from one source."""
    weights, dtype = given.weights, given.weights.dtype
    is_float = jnp.issubdtype(dtype, jnp.floating)
    zero = jnp.asarray(semiring.zero(dtype))
    start = inside(given.sources, nodes, nodes)
    tails = inside(given.senders, nodes, nodes)
    heads = jnp.where(tails < nodes, inside(given.receivers, nodes, nodes), nodes)
    is_nan = weights != weights
    edges = Edges(jnp.minimum(tails, nodes - 1), heads, jnp.where(is_nan, zero, weights), nodes)

    values = _values(semiring, edges, start)
    ring = _tree(edges, _is_best(semiring, edges, values), start)
    found = PathOutputs(values, ring.last)
    if semiring == min_plus and is_float:
        found = _settled(edges, start, found, ring.hops)
    if given.targets.shape[0] != 0:
        found = _as_near(semiring, given, found)
    if not is_float:
        return found
    first = edges.any_into(is_nan & (found.values[edges.senders] != zero))
    is_wrong = edges.reached(first, is_nan | (edges.weights != zero))
    return _without(found, is_wrong, jnp.asarray(jnp.nan, dtype))


def _without(found: PathOutputs, gone: jax.Array, value: jax.Array) -> PathOutputs:
    """No path to some nodes, and another value."""
    return PathOutputs(jnp.where(gone, value, found.values), jnp.where(gone, -1, found.last))


def _joined(semiring: SelectiveSemiring, values: jax.Array, weights: jax.Array) -> jax.Array:
    """The value of a path and one more edge; integers beyond the type stop at its ends."""
    none, least = jnp.asarray(semiring.zero(values.dtype)), jnp.asarray(lowest(values.dtype))
    total = semiring.times(values, weights)
    if semiring == min_plus and not jnp.issubdtype(values.dtype, jnp.floating):
        total = jnp.where((weights > 0) & (total < values), none, total)
        is_below = (weights < 0) & (total > values)
        total = jnp.where((values == least) | is_below, least, total)
    return jnp.where((values == none) | (weights == none), none, total)


def _values(semiring: SelectiveSemiring, edges: Edges, start: jax.Array) -> jax.Array:
    """The values of best paths."""
    dtype = edges.weights.dtype
    zero, one = jnp.asarray(semiring.zero(dtype)), jnp.asarray(semiring.one(dtype))

    def sweep(state: Sweep) -> Sweep:
        values = state.sums
        arriving = _joined(semiring, values[edges.senders], edges.weights)
        new = jnp.minimum(values, edges.least_into(arriving, zero))
        if semiring == min_plus:
            # Paths of more edges than there are nodes have a cycle, which makes them better.
            is_endless = (state.turn >= edges.nodes) & (new < values)
            new = jnp.where(is_endless, jnp.asarray(lowest(dtype)), new)
        return Sweep(new, state.turn + 1, jnp.any(new != values))

    begin = jnp.full(edges.nodes, zero).at[start].set(one, mode="drop")
    state = Sweep(begin, jnp.int32(0), jnp.asarray(True))
    return lax.while_loop(lambda state: state.is_new, sweep, state).sums


def _is_best(semiring: SelectiveSemiring, edges: Edges, values: jax.Array) -> jax.Array:
    """Whether each edge is on a best path, between nodes whose values are those of paths."""
    is_known = values != jnp.asarray(semiring.zero(values.dtype))
    if semiring == min_plus:
        is_known &= values != jnp.asarray(lowest(values.dtype))
    arriving = _joined(semiring, values[edges.senders], edges.weights)
    is_best = arriving == values[edges.heads]
    return is_best & is_known[edges.senders] & is_known[edges.heads]


def _tree(edges: Edges, is_tight: jax.Array, start: jax.Array) -> Ring:
    """The shortest way to each node along tight edges: that of the fewest ones, then of the least
    sender of the last, then of the first last edge.
    """
    senders, heads, _, nodes = edges
    number = jnp.arange(heads.shape[0], dtype=INT32)
    is_tight = is_tight & (heads < nodes)

    def next_ring(ring: Ring) -> Ring:
        is_next = is_tight & (ring.hops[senders] == ring.turn) & (ring.hops[heads] < 0)
        sender = edges.least_into(jnp.where(is_next, senders, MOST), MOST)
        is_next &= senders == sender[heads]
        first = edges.least_into(jnp.where(is_next, number, MOST), MOST)
        is_found = first < MOST
        last = jnp.where(is_found, first, ring.last)
        hops = jnp.where(is_found, ring.turn + 1, ring.hops)
        return Ring(last, hops, ring.turn + 1, jnp.any(is_found))

    unknown = jnp.full(nodes, -1, INT32)
    hops = unknown.at[start].set(0, mode="drop")
    ring = Ring(unknown, hops, jnp.int32(0), jnp.asarray(True))
    return lax.while_loop(lambda ring: ring.is_new, next_ring, ring)


def _as_near(semiring: SelectiveSemiring, given: PathInputs, found: PathOutputs) -> PathOutputs:
    """Without the paths to what is farther than all targets, if no weight is NaN or, under
    min_plus, negative.
    """
    nodes, dtype = found.values.shape[0], found.values.dtype
    zero = jnp.asarray(semiring.zero(dtype))
    places = inside(given.targets, nodes, nodes)
    at_targets = found.values.at[places].get(mode="fill", fill_value=lowest(dtype).item())
    farthest = jnp.max(at_targets)
    is_odd = given.weights != given.weights
    if semiring == min_plus:
        is_odd |= given.weights < 0
    is_far = jnp.any(places < nodes) & (farthest != zero) & ~jnp.any(is_odd)
    return _without(found, is_far & (found.values > farthest), zero)


# --- sums along paths, where rounding makes cycles better -----------------------------------------


def _settled(edges: Edges, start: jax.Array, found: PathOutputs, hops: jax.Array) -> PathOutputs:
    """Paths whose values are all sums along them. Where rounding alone made a cycle better, the
    value of its nodes and of what they lead to is that of no path yet: these are searched again.
    """
    values = found.values
    is_start = jnp.arange(edges.nodes, dtype=INT32) == start
    is_odd = jnp.where(is_start, values != 0, (values != jnp.inf) & (hops < 0))
    is_wanted = jnp.any(is_odd)
    searched = edges.reached(is_odd, edges.weights != jnp.inf)
    sums, is_tight = _wide_sums(edges, start, is_wanted)
    own = _tree(edges, is_tight & is_wanted, start).last
    last = jnp.where(searched, own, found.last)
    begin = jnp.where(searched & (sums < jnp.inf), -jnp.inf, values).astype(values.dtype)
    begin = jnp.where(searched & is_start & (sums > -jnp.inf), 0, begin)
    edge, follows = jnp.maximum(last, 0), searched & (last >= 0)

    def follow(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        held, _ = state
        after = _joined(min_plus, held[edges.senders[edge]], edges.weights[edge])
        new = jnp.where(follows, after, held)
        return new, jnp.any(new != held)

    values, _ = lax.while_loop(lambda state: state[1], follow, (begin, is_wanted))
    return PathOutputs(values, last)


def _wide_sums(edges: Edges, start: jax.Array, is_wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The least sums from a node, -inf where there is none, and which edges are on best paths.
    Sums have twice the digits, and an allowance for each weight, for the rounding of whoever
    computed it: cycles of weight 0 up to rounding are positive then.
    """
    eps = float(jnp.finfo(edges.weights.dtype).eps)
    wide = edges._replace(weights=edges.weights.astype(work_dtype(edges.weights.dtype)))
    is_edge = jnp.isfinite(wide.weights) & (wide.heads < wide.nodes)
    size = jnp.where(is_edge, jnp.abs(wide.weights), 0)
    floor = jnp.minimum(jnp.max(size), 1)  # 1 is the size of errors of logarithms
    allowance = 2 * eps * jnp.maximum(size, floor)

    def sweep(state: Sweep) -> Sweep:
        value, rest = state.sums
        whole, small = _arriving(wide, allowance, state.sums)
        top = wide.least_into(whole, jnp.inf)
        is_top = whole == top[wide.heads]
        least = wide.least_into(jnp.where(is_top, small, jnp.inf), jnp.inf)
        is_less = (top < value) | ((top == value) & (least < rest))
        is_endless = is_less & (state.turn >= wide.nodes)  # as in the search
        top, least = jnp.where(is_endless, -jnp.inf, top), jnp.where(is_endless, 0, least)
        sums = WideSums(jnp.where(is_less, top, value), jnp.where(is_less, least, rest))
        return Sweep(sums, state.turn + 1, jnp.any(is_less))

    begin = jnp.full(wide.nodes, jnp.inf, wide.weights.dtype).at[start].set(0, mode="drop")
    state = Sweep(WideSums(begin, jnp.zeros_like(begin)), jnp.int32(0), is_wanted)
    sums = lax.while_loop(lambda state: state.is_new, sweep, state).sums
    arriving = _arriving(wide, allowance, sums)
    is_tight = (arriving.whole == sums.whole[wide.heads]) & (arriving.rest == sums.rest[wide.heads])
    is_sum = jnp.isfinite(arriving.whole) & jnp.isfinite(sums.whole[wide.senders])
    return sums.whole, is_tight & is_sum


def _arriving(edges: Edges, allowance: jax.Array, sums: WideSums) -> WideSums:
    """The sums of the edges, of those of their senders."""
    weights = edges.weights
    value, rest = sums.whole[edges.senders], sums.rest[edges.senders]
    total = value + weights
    part = total - value
    lost = (value - (total - part)) + (weights - part)  # by rounding, exactly
    small = (rest + lost) + allowance
    whole = total + small
    is_none, is_sum = (value == jnp.inf) | (weights == jnp.inf), jnp.isfinite(whole)
    rest = jnp.where(is_sum & ~is_none, small - (whole - total), 0)
    return WideSums(jnp.where(is_none, jnp.inf, jnp.where(is_sum, whole, total)), rest)
