"""Sums along the trees of shortest paths in standard ops: steps of twice as many nodes until every
way has come to its beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .path_search import INT32


class Doubling(NamedTuple):
    """What a step of twice as many nodes leaves.

    Attributes:
      held: what is kept for each node.
      before: the node so far before each; the first one of its way if there are not so many.
      left: how many steps there may be, since ways in a circle do not end.
      goes_on: whether there is a way that has not come to its beginning.
    """

    held: Any
    before: jax.Array
    left: jax.Array
    goes_on: jax.Array


def sums_along(senders: jax.Array, x: jax.Array, last: jax.Array) -> jax.Array:
    """For each node the sum of x over the edges of its path."""
    node, before = _before(senders, last)

    def step(sums: jax.Array, before: jax.Array) -> jax.Array:
        return sums + jnp.where(before == node, 0, sums[before])

    own = jnp.where(last >= 0, x[jnp.maximum(last, 0)], 0)
    sums, begin = _doubled(step, own, before)
    return jnp.where(last[begin] < 0, sums, 0)  # else they turn in a circle


def sums_onto(senders: jax.Array, x: jax.Array, last: jax.Array) -> jax.Array:
    """The transpose: for each edge the sum of x over the nodes whose path takes it."""
    node, before = _before(senders, last)
    begin = _begin(before)

    def step(sums: jax.Array, before: jax.Array) -> jax.Array:
        return sums.at[jnp.where(before == node, node.shape[0], before)].add(sums, mode="drop")

    sums, _ = _doubled(step, jnp.where(last[begin] < 0, x, 0), before)
    edges = jnp.where(last >= 0, last, senders.shape[0])
    return jnp.zeros(senders.shape, x.dtype).at[edges].add(sums, mode="drop")


def greatest(senders: jax.Array, last: jax.Array, values: jax.Array) -> jax.Array:
    """The first edge of the greatest weight on each path."""
    node, before = _before(senders, last)
    is_new = (last < 0) | (values[before] != values)
    edge_of = _begin(jnp.where(is_new, node, before))
    return last[edge_of]


def _before(senders: jax.Array, last: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The numbers of nodes, and the node before each; itself where a tree begins."""
    node = jnp.arange(last.shape[0], dtype=INT32)
    return node, jnp.where(last >= 0, senders[jnp.maximum(last, 0)], node)


def _doubled(
    step: Callable[[Any, jax.Array], Any], held: Any, before: jax.Array
) -> tuple[Any, jax.Array]:
    """What is held after all steps, and the node where each way begins. A way in a circle is given
    up.
    """

    def turn(at: Doubling) -> Doubling:
        after = at.before[at.before]
        held = step(at.held, at.before)
        return Doubling(held, after, at.left - 1, jnp.any(after[after] != after))

    state = Doubling(held, before, jnp.int32(32), jnp.any(before[before] != before))
    state = lax.while_loop(lambda at: at.goes_on & (at.left > 0), turn, state)
    return state.held, state.before


def _begin(before: jax.Array) -> jax.Array:
    """The node where each way begins."""
    return _doubled(lambda held, _: held, (), before)[1]
