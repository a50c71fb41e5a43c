"""A computation on operands that XLA has computed and stored before it begins.

Where XLA fuses what made the operands with what uses them, LLVM contracts a product and a sum into one operation with one
rounding: candidates are then not those of the operands as they are, and differ from one use to the next, so that no
candidate may equal the value. The operands of a loop are stored; an optimization barrier is not enough on CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_UNLIKELY = 3.0517e-5
"""A number of every floating dtype. An operand that begins with it is computed twice, to the same result."""

_MANY = 99
"""More turns than there are."""


def on_stored(fn: Callable[..., Any], *operands: Any) -> Any:
    """fn(*operands), in a loop that XLA cannot know to have one turn.

    Args:
      fn: of arrays, to a pytree of arrays.
      operands: arrays; floating ones, or there is nothing to round.

    Example:
      >>> on_stored(lambda a, b: a + b, jnp.ones(2), jnp.ones(2)).tolist()
      [2.0, 2.0]
    """
    first = operands[0]
    if not jnp.issubdtype(first.dtype, jnp.floating) or any(isinstance(n, int) and n == 0 for n in first.shape):
        return fn(*operands)
    corner = lax.slice(first, [0] * first.ndim, [1] * first.ndim).reshape(())
    turns = jnp.where(corner == jnp.asarray(_UNLIKELY, first.dtype), jnp.int32(2), jnp.int32(1))
    start = jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), jax.eval_shape(fn, *operands))

    def turn(state: Any) -> Any:
        i, _ = state
        return i + 1, fn(*(jnp.where(i < _MANY, x, -x) for x in operands))  # as they are; else XLA would move fn out of the loop

    return lax.while_loop(lambda state: state[0] < turns, turn, (jnp.int32(0), start))[1]
