"""Value and winner in lax as one reduction of all candidates: of one operand, or where they are few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from ...algebra.semiring import SelectiveSemiring


def contract(semiring: SelectiveSemiring, operands: Sequence[Any], *, with_winner: bool) -> tuple[Any, ...]:
    """Best candidate of each cell, and which it is; at least one entry is contracted.

    Args, Returns: as `choose.contract`.

    Cost: time and memory b m n k; XLA fuses the candidates into the reduction where it can.
    """
    left, *right = operands
    candidates = left[..., None]
    if right:
        candidates = semiring.times(candidates, right[0][:, :, None, :])
    count = candidates.shape[1]
    if isinstance(count, int) and count == 1:
        return (candidates[:, 0], jnp.zeros(candidates[:, 0].shape, jnp.int32))[: 1 + with_winner]
    index = lax.broadcasted_iota(jnp.int32, candidates.shape, 1)
    if with_winner and type(semiring).best is SelectiveSemiring.best:
        return _together(semiring, candidates, index)
    value = semiring.best(candidates, 1)
    if not with_winner:
        return (value,)
    wins = (candidates == value[:, None]) | ((candidates != candidates) & (value != value)[:, None])
    return value, jnp.min(jnp.where(wins, index, jnp.asarray(count, jnp.int32)), axis=1)


def _together(semiring: SelectiveSemiring, candidates: Any, index: Any) -> tuple[Any, Any]:
    """Value and winner in one reduction: a candidate that is made twice may be rounded twice, where times has several operations."""

    def better_one(x: Any, y: Any) -> Any:
        takes = semiring.better(y[0], x[0]) | (y[0] != y[0])
        equal = (y[0] == x[0]) | ((x[0] != x[0]) & (y[0] != y[0]))
        takes = jnp.where(equal, y[1] < x[1], takes & (x[0] == x[0]))
        return jnp.where(takes, y[0], x[0]), jnp.where(takes, y[1], x[1])

    start = jnp.asarray(semiring.identity(candidates.dtype)), jnp.int32(2**31 - 1)
    value, winner = lax.reduce((candidates, index), start, better_one, (1,))
    return value, winner
