"""Value and winner in lax as one reduction of all candidates: for one operand, for a vector, or for
few candidates. And the definition of value and winner in NumPy, `reference`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...algebra.semiring import SelectiveSemiring

FEW = 4
"""Up to this number, contracted entries are taken one by one. XLA makes this one elementwise loop,
up to ten times as fast as a reduction over such a short axis."""


def contract(
    semiring: SelectiveSemiring,
    operands: Sequence[jax.Array],
    *,
    with_winner: bool,
    contracted_last: Sequence[bool] = (False, False),
) -> tuple[jax.Array, ...]:
    """Best candidate of each cell, and which it is; at least one entry is contracted.

    XLA reads the wide operand in its memory order; across its rows it would take up to 40 times as
    long.

    Args, Returns: as `blocked.contract`, except that an operand is (batch, own, contracted) if
    `contracted_last`.

    Cost: time and memory b m n k; XLA fuses the candidates into the reduction if it can.
    """
    own = [x.shape[1 if last else 2] for x, last in zip(operands, contracted_last, strict=False)]
    wide = 0 if len(own) == 1 or _is_narrower(own[1], own[0]) else 1
    axis = 3 if contracted_last[wide] else 2

    def side(i: int, x: jax.Array) -> jax.Array:
        if i == wide:
            return x[:, None]
        return jnp.expand_dims(x if contracted_last[i] else jnp.swapaxes(x, 1, 2), 5 - axis)

    sides = [side(*each) for each in enumerate(operands)]
    candidates = semiring.times(*sides) if len(sides) == 2 else sides[0]
    found = _reduced(semiring, candidates, axis, with_winner)  # (batch, narrow, wide)
    return found if wide == 1 else tuple(jnp.swapaxes(x, 1, 2) for x in found)


def _is_narrower(columns: int, rows: int) -> bool:
    """A symbolic size counts as wide. If both sides are equal, the columns are the wide one, so
    that nothing is transposed.
    """
    return isinstance(columns, int) and (not isinstance(rows, int) or columns < rows)


def _reduced(
    semiring: SelectiveSemiring,
    candidates: jax.Array,
    axis: int,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    count = candidates.shape[axis]
    if isinstance(count, int) and count <= FEW:
        return one_by_one(
            semiring, [lax.index_in_dim(candidates, t, axis, keepdims=False) for t in range(count)]
        )[: 1 + with_winner]
    if with_winner:
        return _together(semiring, candidates, axis)
    return (semiring.best(candidates, axis),)


def one_by_one(
    semiring: SelectiveSemiring,
    candidates: Sequence[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    """Value and winner among arrays of candidates, each taken once."""
    value, *rest = candidates
    winner = jnp.zeros(value.shape, jnp.int32)
    for t, candidate in enumerate(rest, 1):
        takes = (semiring.better(candidate, value) | (candidate != candidate)) & (value == value)
        value, winner = jnp.where(takes, candidate, value), jnp.where(takes, jnp.int32(t), winner)
    return value, winner


def _together(
    semiring: SelectiveSemiring,
    candidates: jax.Array,
    axis: int,
) -> tuple[jax.Array, jax.Array]:
    """Value and winner in one reduction, because XLA may round a candidate differently if it is
    computed twice.
    """

    def first_best(
        x: tuple[jax.Array, jax.Array],
        y: tuple[jax.Array, jax.Array],
    ) -> tuple[jax.Array, jax.Array]:
        equal = (y[0] == x[0]) | ((x[0] != x[0]) & (y[0] != y[0]))
        takes = jnp.where(equal, y[1] < x[1], semiring.better(y[0], x[0]) | (y[0] != y[0]))
        return jnp.where(takes, y[0], x[0]), jnp.where(takes, y[1], x[1])

    start = jnp.asarray(semiring.identity(candidates.dtype)), jnp.int32(2**31 - 1)
    index = lax.broadcasted_iota(jnp.int32, candidates.shape, axis)
    value, winner = lax.reduce((candidates, index), start, first_best, (axis,))
    return value, winner


def reference(
    semiring: SelectiveSemiring, operands: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Value and first winner of each cell, one contracted entry after the other.

    Args:
      semiring: the algebra.
      operands: (batch, contracted, rows), and with two operands (batch, contracted, columns) of the
        same dtype.

    Returns:
      value (batch, rows, columns) in the operands' dtype, winner int32 of the same shape: the first
      best candidate, the first NaN if there is one, -1 if nothing is contracted. One operand has
      one column.
    """
    lhs = operands[0]
    batch, count, rows = lhs.shape
    shape = (batch, rows, operands[1].shape[2] if len(operands) == 2 else 1)
    if count == 0:
        return np.full(shape, semiring.zero(lhs.dtype)), np.full(shape, -1, np.int32)
    winner = np.zeros(shape, np.int32)
    value: Any = np.full(shape, semiring.identity(lhs.dtype))
    with np.errstate(all="ignore"):
        for k in range(count):
            entries: list[Any] = [lhs[:, k, :, None], *(rhs[:, k, None, :] for rhs in operands[1:])]
            candidate: Any = (
                np.asarray(semiring.times(*entries)) if len(entries) == 2 else entries[0]
            )
            wins = np.asarray(semiring.better(candidate, value)) | (candidate != candidate)
            wins &= value == value
            value, winner = np.where(wins, candidate, value), np.where(wins, np.int32(k), winner)
    return value, winner
