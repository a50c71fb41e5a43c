"""The definition in NumPy, as simple as possible."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ...algebra.semiring import SelectiveSemiring


def contract(
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
