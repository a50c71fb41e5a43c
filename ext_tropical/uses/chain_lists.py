"""The k best sequences of chains. Each state has a sorted list of its k best beginnings (Seshadri
and Sundberg, 1994).
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.einsum.spread import State

from ..algebra.semiring import SelectiveSemiring
from .chain_recurrence import Op, length_of


def _heads(
    count: int, semiring: SelectiveSemiring, lists: jax.Array, weights: jax.Array, band: int = 0
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best products of entries of sorted lists (S, k) with weights (S, N), in order. With a
    band of K list i counts for column j from i to i + K - 1.

    Returns:
      (values, rows, ranks) of shape (count, N).
    """
    zero = jnp.asarray(semiring.zero(lists.dtype))
    rows = jnp.arange(len(lists), dtype=jnp.int32)[:, None]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)
    lists = jnp.append(lists, jnp.full((len(lists), 1), zero), axis=1)

    def head(x: jax.Array, y: jax.Array, apart: jax.Array) -> jax.Array:
        """A list may have ended, or a state be impossible, or outside the band."""
        outside = (apart < 0) | (apart >= band) if band else False
        return jnp.where((x == zero) | outside, zero, semiring.times(x, y))

    def next_one(
        state: tuple[jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
        heads, places = state
        value = semiring.best(heads, 0)
        first = (heads == value[None]) | (heads != heads)
        row = jnp.min(jnp.where(first, rows, len(lists) - 1), 0)  # XLA's argmax is slow on CPU
        rank = places[row, columns]
        after = jnp.minimum(rank + 1, lists.shape[1] - 1)
        new = head(lists[row, after], weights[row, columns], columns - row)
        taken = rows == row[None]
        heads = jnp.where(taken, new[None], heads)
        return (heads, jnp.where(taken, after[None], places)), (value, row, rank)

    heads = head(jnp.broadcast_to(lists[:, :1], weights.shape), weights, columns[None] - rows)
    _, found = lax.scan(next_one, (heads, jnp.zeros(weights.shape, jnp.int32)), length=count)
    return found


def _dense(band: int, transition: jax.Array) -> jax.Array:
    """The transition between all pairs of states; entries outside the band are not used."""
    if not band:
        return transition
    states = transition.shape[-1]
    row, column = (lax.broadcasted_iota(jnp.int32, (states, states), axis) for axis in (0, 1))
    return transition[:, jnp.clip(column - row, 0, band - 1), column]


def listed(
    op: Op, initial: jax.Array, transition: jax.Array, emission: jax.Array, *others: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The scores and the states of the k best sequences, as `ChainScore` has them."""
    count, semiring, length = op.k, op.algebra, length_of(op, emission, others)
    matrices, total = _dense(op.band, transition), emission.shape[0]
    zero, one = (jnp.asarray(f(emission.dtype)) for f in (semiring.zero, semiring.one))
    stay = [lax.broadcasted_iota(jnp.int32, (count, len(initial)), axis) for axis in (1, 0)]

    def forward(lists: jax.Array, given: State) -> tuple[jax.Array, State]:
        t, seen, own = given
        matrix = matrices[0] if own is None else own
        values, *before = _heads(count, semiring, lists, matrix, op.band)
        new = semiring.times(values.T, jnp.broadcast_to(seen[:, None], lists.shape))
        if not isinstance(length, int):
            pairs = zip((new, *before), (lists, *stay), strict=True)
            new, *before = (jnp.where(t < length, x, y) for x, y in pairs)
        return new, tuple(before)

    first = semiring.times(initial, emission[0])[:, None]
    lists = jnp.append(first, jnp.full((len(initial), count - 1), zero), axis=1)
    times = 1 + jnp.arange(total - 1, dtype=jnp.int32)
    lists, before = lax.scan(
        forward, lists, (times, emission[1:], None if transition.shape[0] == 1 else matrices)
    )
    values, states, ranks = _heads(count, semiring, lists, jnp.full((len(initial), 1), one))

    def back(state: State, winners: State) -> State:
        rows, places = (x[state[1], state[0]] for x in winners)
        return (rows, places), rows

    _, earlier = lax.scan(back, (states[:, 0], ranks[:, 0]), tuple(x[::-1] for x in before))
    found = jnp.append(earlier[::-1], states.T, axis=0).T
    score = jnp.where((length >= 1) & (length <= total), values[:, 0], zero)
    there = (score != zero)[:, None] & (jnp.arange(total, dtype=jnp.int32) < length)[None]
    return score, jnp.where(there, found, -1)
