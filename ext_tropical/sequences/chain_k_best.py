"""The k best sequences of a chain: each state has a sorted list of its k best beginnings (Seshadri
and Sundberg, 1994).
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.semiring import SelectiveSemiring
from .chain_inputs import ChainOpLike, Inputs, State
from .chain_messages import over_times


class Heads(NamedTuple):
    """The best products of list entries with weights, in order: (k, N) each.

    Attributes:
      values: the products.
      rows: whose list each is from.
      ranks: which entry of that list.
    """

    values: jax.Array
    rows: jax.Array
    ranks: jax.Array


def heads_of(
    count: int, semiring: SelectiveSemiring, lists: jax.Array, weights: jax.Array, band: int = 0
) -> Heads:
    """The best products of entries of sorted lists (S, k) with weights (S, N). With a band of K
    list i counts for column j from i to i + K - 1.
    """
    zero = jnp.asarray(semiring.zero(lists.dtype))
    rows = jnp.arange(len(lists), dtype=jnp.int32)[:, None]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)
    lists = jnp.append(lists, jnp.full((len(lists), 1), zero), axis=1)

    def head(x: jax.Array, y: jax.Array, apart: jax.Array) -> jax.Array:
        """A list may have ended, or a state be impossible, or outside the band."""
        outside = (apart < 0) | (apart >= band) if band else False
        return jnp.where((x == zero) | outside, zero, semiring.times(x, y))

    def next_one(state: State, _: None) -> tuple[State, Heads]:
        heads, places = state
        value = semiring.best(heads, 0)
        is_best = (heads == value[None]) | (heads != heads)
        row = jnp.min(jnp.where(is_best, rows, len(lists) - 1), 0)  # XLA's argmax is slow on CPU
        rank = places[row, columns]
        after = jnp.minimum(rank + 1, lists.shape[1] - 1)
        new = head(lists[row, after], weights[row, columns], columns - row)
        is_taken = rows == row[None]
        heads = jnp.where(is_taken, new[None], heads)
        return (heads, jnp.where(is_taken, after[None], places)), Heads(value, row, rank)

    heads = head(jnp.broadcast_to(lists[:, :1], weights.shape), weights, columns[None] - rows)
    _, found = lax.scan(next_one, (heads, jnp.zeros(weights.shape, jnp.int32)), length=count)
    return found


def dense(band: int, moves: jax.Array) -> jax.Array:
    """The moves between all pairs of states; entries outside the band are not used."""
    if not band:
        return moves
    square = moves.shape[-1], moves.shape[-1]
    row, column = (lax.broadcasted_iota(jnp.int32, square, axis) for axis in (0, 1))
    return moves[:, jnp.clip(column - row, 0, band - 1), column]


def listed(op: ChainOpLike, chain: Inputs) -> tuple[jax.Array, jax.Array]:
    """The scores and the states of the k best sequences, as `ChainScore` has them."""
    k, semiring, band = op.k, op.algebra, op.band
    chain = chain._replace(moves=dense(band, chain.moves))
    states = len(chain.initial)
    zero = jnp.asarray(semiring.zero(chain.seen.dtype))
    one = jnp.asarray(semiring.one(chain.seen.dtype))
    stay_row = lax.broadcasted_iota(jnp.int32, (k, states), 1)
    stay_rank = lax.broadcasted_iota(jnp.int32, (k, states), 0)

    def forward(lists: jax.Array, given: State) -> tuple[jax.Array, State]:
        t, own, seen = given
        found = heads_of(k, semiring, lists, chain.moves[0] if own is None else own, band)
        new = semiring.times(found.values.T, jnp.broadcast_to(seen[:, None], lists.shape))
        moved, stays = (new, found.rows, found.ranks), (lists, stay_row, stay_rank)
        new, row, rank = chain.where(t < chain.size, moved, stays)
        return new, (row, rank)

    first = semiring.times(chain.initial, chain.seen[0])[:, None]
    lists = jnp.append(first, jnp.full((states, k - 1), zero), axis=1)
    lists, before, taken = over_times(op.algebra, chain, forward, lists)
    ends = heads_of(k, semiring, lists, jnp.full((states, 1), one))

    def back(at: State, before: State) -> tuple[State, jax.Array]:
        row, rank = at
        rows, ranks = (x[rank, row] for x in before)
        return (rows, ranks), rows

    backwards = tuple(x[::-1] for x in before)
    _, earlier = lax.scan(back, (ends.rows[:, 0], ends.ranks[:, 0]), backwards)
    found = jnp.append(earlier[::-1], ends.rows.T, axis=0).T
    score = jnp.where(chain.size >= 1, semiring.times(ends.values[:, 0], taken), zero)
    is_there = (score != zero)[:, None] & chain.live()[None]
    return score, jnp.where(is_there, found, -1)
