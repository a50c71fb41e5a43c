"""Computations on operands as they were rounded.

Where XLA fuses what made the operands with what uses them, LLVM contracts a product and a sum into one operation with one
rounding: candidates are then not those of the operands as they are. `rounded` keeps the two apart, at the price of a register
operation. Where the same candidate is made in two places that must agree, what made the operands may also be rounded
differently in each: `on_stored` has XLA compute and store them before. An optimization barrier does neither on CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

_MANY = 99
"""More turns than there are."""


def rounded(*operands: Any) -> tuple[Any, ...]:
    """The operands, bit for bit, such that no operation before takes part in the rounding of one behind.

    Args:
      operands: arrays of 32 or 64 bits; those that are not floating have nothing to round.

    Example:
      >>> [x.tolist() for x in rounded(jnp.ones(2), jnp.zeros(1))]
      [[1.0, 1.0], [0.0]]
    """
    return tuple(_rounded(x) for x in operands)


def _rounded(x: Any) -> Any:
    if not _can_round(x):
        return x
    bits = lax.bitcast_convert_type(x, jnp.dtype(f"uint{8 * x.dtype.itemsize}"))
    return lax.bitcast_convert_type(bits ^ _zero(x).astype(bits.dtype), x.dtype)


def on_stored(fn: Callable[..., Any], *operands: Any) -> Any:
    """fn(*operands), in a loop that XLA cannot know to have one turn: the operands of a loop are stored.

    Args:
      fn: of arrays, to a pytree of arrays.
      operands: arrays; floating ones, or there is nothing to round.

    Example:
      >>> on_stored(lambda a, b: a + b, jnp.ones(2), jnp.ones(2)).tolist()
      [2.0, 2.0]
    """
    if not _can_round(operands[0]):
        return fn(*operands)
    turns = 1 + _zero(operands[0]).astype(jnp.int32)
    start = jax.tree.map(lambda out: jnp.zeros(out.shape, out.dtype), jax.eval_shape(fn, *operands))

    def turn(state: Any) -> Any:
        i, _ = state
        return i + 1, fn(*(jnp.where(i < _MANY, x, -x) for x in operands))  # as they are; else XLA would move fn out of the loop

    return lax.while_loop(lambda state: state[0] < turns, turn, (jnp.int32(0), start))[1]


def _can_round(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jnp.floating) and not any(isinstance(n, int) and n == 0 for n in x.shape)


def _zero(x: Any) -> Any:
    """The number 0, which no compiler can know: no square leaves 2 when it is divided by 3."""
    corner = lax.slice(x, [0] * x.ndim, [1] * x.ndim).reshape(())
    low = lax.bitcast_convert_type(corner, jnp.uint32).reshape(-1)[0] & jnp.uint32(0x7FFF)  # its square has 30 bits
    return (low * low % jnp.uint32(3) == 2).astype(jnp.uint32)
