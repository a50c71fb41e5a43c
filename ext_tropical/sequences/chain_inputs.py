"""What functions about chains take: the arrays of one chain by name, and the op that asks."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.semiring import Semiring

State = Any
"""A pytree of arrays, which a loop hands from one time to the next."""


class ChainOpLike(Protocol):
    """What functions about chains read of their op, which is one of `chain_op`: a protocol, because
    that module imports this one.
    """

    @property
    def algebra(self) -> Any:
        """The semiring."""

    @property
    def band(self) -> int:
        """K of moves to the next K states; 0 for moves between all states."""

    @property
    def k(self) -> int:
        """How many best sequences; 0 for one, without an axis."""

    @property
    def detailed(self) -> bool:
        """Whether the states, or the derivatives, are wanted beside the score."""

    @property
    def curved(self) -> bool:
        """Whether derivatives are differentiated again."""

    @property
    def moving(self) -> tuple[int, ...]:
        """The inputs by which there are derivatives: of initial, moves and seen the numbers."""


class Timed(Protocol):
    """What a loop over times reads of the arrays of a chain."""

    @property
    def seen(self) -> jax.Array:
        """(T, ...), of each time."""

    @property
    def size(self) -> jax.Array | int:
        """How many times count."""

    @property
    def own_moves(self) -> jax.Array | None:
        """The moves of each step; None if all steps share them."""


class Inputs(NamedTuple):
    """The arrays of one chain of S states and T times.

    Attributes:
      initial: (S,), of the first state.
      moves: (R, S, S), or (R, K, S) with a band; R is 1, for all steps, or T - 1.
      seen: (T, S), of each state at each time; with columns (T, C).
      length: how many times count, int32; None if all do.
      columns: the column of `seen` that each state has, int32 (S,); None: each its own.
      uniforms: (N, T), by which samples are drawn; None where none are.
    """

    initial: jax.Array
    moves: jax.Array
    seen: jax.Array
    length: jax.Array | None = None
    columns: jax.Array | None = None
    uniforms: Any = None

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
        return None if self.is_shared else self.moves

    @property
    def is_shared(self) -> bool:
        """Whether all steps have the same moves."""
        return self.moves.shape[0] == 1

    def live(self, first: int = 0) -> jax.Array:
        """Whether each time counts, from this one on: (T - first,)."""
        return first + jnp.arange(self.seen.shape[0] - first, dtype=jnp.int32) < self.size

    def where(self, live: jax.Array, x: Any, behind: Any) -> Any:
        """x where a time counts, and something else behind the length; x alone if all times count.
        Arrays, or each of a pytree.
        """
        if self.length is None:
            return x
        return jax.tree.map(functools.partial(jnp.where, live), x, behind)

    def of_states(self, algebra: Semiring) -> Inputs:
        """Without columns; with the length 0 for one that is out of range; and with the semiring's
        one where what is seen does not count: NaN would get into derivatives.
        """
        seen, length = self.seen, self.length
        if self.columns is not None:
            seen = each_state(seen, self.columns)
        if length is None:
            return self._replace(seen=seen, columns=None)
        length = jnp.where(length <= seen.shape[0], length, 0)
        chain = self._replace(seen=seen, length=length, columns=None)
        one = jnp.asarray(algebra.one(seen.dtype))
        return chain._replace(seen=jnp.where(chain.live()[:, None], seen, one))


def each_state(seen: jax.Array, columns: jax.Array) -> jax.Array:
    """(T, S) of (T, C) and columns (S,); NaN where there is no such column."""
    places = jnp.where(columns < 0, seen.shape[1], columns)
    return jnp.asarray(seen).at[:, places].get(mode="fill", fill_value=jnp.nan)


def each_column(found: jax.Array, columns: jax.Array, seen: jax.Array) -> jax.Array:
    """The sums of the states (T, S) of each column of `seen` (T, C)."""
    count = seen.shape[1]
    if not isinstance(count, int) or count > 128:
        return jax.linear_transpose(lambda x: each_state(x, columns), seen)(found)[0]
    # For XLA CPU a matmul takes a quarter of the time.
    is_of = jax.nn.one_hot(columns, count, dtype=found.dtype)
    return jnp.matmul(found, is_of, precision=lax.Precision.HIGHEST)


def finite_max(
    x: jax.Array, axis: int | tuple[int, ...] | None = None, still: bool = True
) -> jax.Array:
    """The maximum where that is finite, else 0; a constant for derivatives if it is still."""
    greatest = jnp.max(lax.stop_gradient(x) if still else x, axis, keepdims=True)
    return jnp.where(abs(greatest) < jnp.inf, greatest, 0)


def relative(seen: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Scores less the greatest of each time, and the sum of these: a large number that the scores
    of a time share would cost their digits.
    """
    tops = finite_max(seen, 1)
    return seen - tops, jnp.sum(tops)
