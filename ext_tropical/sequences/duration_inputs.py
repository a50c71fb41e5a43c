"""What functions about chains with durations take: the arrays of one chain by name, and what they
read of the op that asks.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.shipped import LogSumExp
from .chain_messages import log_sum_exp_of


class DurationsOpLike(Protocol):
    """What functions about durations read of their op, which is one of `duration_op`: a protocol,
    because that module imports this one.
    """

    @property
    def algebra(self) -> Any:
        """The semiring."""

    @property
    def censored(self) -> bool:
        """Whether the last segment may go on after the last time."""

    @property
    def k(self) -> int:
        """How many best sequences; 0 for one, without an axis."""

    @property
    def detailed(self) -> bool:
        """Whether the states, or the derivatives, are wanted beside the score."""

    @property
    def curved(self) -> bool:
        """Whether derivatives are differentiated again."""


class Segmented(NamedTuple):
    """The arrays of one chain of S states, T times and durations up to D.

    Attributes:
      initial: (S,), of the first state.
      moves: (R, S, S); R is 1, for all steps, or T - 1. The diagonal has no influence.
      durations: (S, D), of a segment of each state that lasts 1 to D times.
      seen: (T, S), of each state at each time.
      length: how many times count, int32; None if all do.
      uniforms: (N, T, 2), by which samples are drawn; None where none are.
    """

    initial: jax.Array
    moves: jax.Array
    durations: jax.Array
    seen: jax.Array
    length: jax.Array | None = None
    uniforms: jax.Array | None = None

    @property
    def given(self) -> list[jax.Array]:
        """The arrays that are there, as an op takes them."""
        return [x for x in self if x is not None]

    @property
    def size(self) -> jax.Array | int:
        """How many times count."""
        return self.seen.shape[0] if self.length is None else self.length

    @property
    def own_moves(self) -> jax.Array | None:
        """The moves of each step; None if all steps share them."""
        return None if self.moves.shape[0] == 1 else self.moves

    def where(self, live: jax.Array, x: Any, behind: Any) -> Any:
        """x where a time counts, and something else behind the length; x alone if all times count.
        Arrays, or each of a pytree.
        """
        if self.length is None:
            return x
        return jax.tree.map(lambda new, old: jnp.where(live, new, old), x, behind)


def cleaned(op: DurationsOpLike, chain: Segmented) -> Segmented:
    """With the length 0 for one that is out of range, and the semiring's one or zero where entries
    do not count: NaN would get into derivatives. Moves of a state into itself are impossible.
    """
    _, moves, durations, seen, length, _ = chain
    zero, one = (jnp.asarray(x(seen.dtype)) for x in (op.algebra.zero, op.algebra.one))
    if length is not None:
        length = jnp.where(length <= seen.shape[0], length, 0)
        time = lax.broadcasted_iota(jnp.int32, seen.shape, 0)
        seen = jnp.where(time < length, seen, one)
        step = lax.broadcasted_iota(jnp.int32, moves.shape, 0)
        moves = jnp.where(step < jnp.maximum(length, 2) - 1, moves, one)
    chain = chain._replace(length=length)
    if chain.seen.shape[0] == 1:
        moves = jnp.full_like(moves, one)
    if not op.censored:
        number = lax.broadcasted_iota(jnp.int32, durations.shape, 1)
        durations = jnp.where(number < chain.size, durations, zero)
    row, column = (lax.broadcasted_iota(jnp.int32, moves.shape, axis) for axis in (1, 2))
    moves = jnp.where(row == column, zero, moves)
    return chain._replace(moves=moves, durations=durations, seen=seen)


def tails(op: DurationsOpLike, durations: jax.Array) -> jax.Array:
    """(S, D), the scores of a segment whose last time seen is its d-th: of all durations of at
    least d, the best one or the sum, if the op is censored; else the durations.
    """
    if not op.censored:
        return durations
    is_log = isinstance(op.algebra, LogSumExp)

    def plus(x: jax.Array, y: jax.Array) -> jax.Array:
        # The derivative of jnp.logaddexp is NaN where both are -inf.
        return log_sum_exp_of(jnp.stack([x, y])) if is_log else op.algebra.plus(x, y)

    return lax.associative_scan(plus, durations, reverse=True, axis=1)
