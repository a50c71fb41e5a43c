"""What a way of summing over sequences gives: the expected uses of a chain's entries."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax import lax

from .chain_inputs import ChainOpLike, Inputs


class Uses(NamedTuple):
    """How often each entry is used in the mean: the derivative of the score by the entry.

    Attributes:
      initial: (S,).
      moves: as the moves of the chain.
      states: (T, S).
    """

    initial: jax.Array
    moves: jax.Array
    states: jax.Array


class Found(NamedTuple):
    """What a way of summing over sequences finds.

    Attributes:
      is_known: whether it is known to be right.
      score: of all sequences.
      uses: None where they are not asked for.
    """

    is_known: jax.Array
    score: jax.Array
    uses: Uses | None = None


Way: TypeAlias = Callable[[ChainOpLike, Inputs], Found]


def cleaned(score: jax.Array, count: jax.Array | int, moves: jax.Array, states: jax.Array) -> Uses:
    """Uses: 0 if no sequence is possible and behind the length, else NaN if the score is NaN or
    inf.

    Args:
      score: of all sequences.
      count: how many times count.
      moves: the uses of moves; an axis of steps that is 1 is one for all steps.
      states: (T, S), those of states.
    """
    wrong = jnp.where(score == -jnp.inf, 0, jnp.nan).astype(score.dtype)

    def clean(x: jax.Array, first: int) -> jax.Array:
        times = lax.expand_dims(first + jnp.arange(x.shape[0], dtype=jnp.int32), range(1, x.ndim))
        return jnp.where(times < count, jnp.where(abs(score) < jnp.inf, x, wrong), 0)

    states = clean(states, 0)
    return Uses(states[0], clean(moves, 1), states)
