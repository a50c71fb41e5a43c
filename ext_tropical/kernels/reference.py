"""The definition, in NumPy, as plain as it can be said."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..semiring import Semiring


def contract(semiring: Semiring, lhs: np.ndarray, rhs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Value and first winner of each cell, one contracted entry after the other.

    Args:
      semiring: the algebra.
      lhs: (batch, contracted, rows).
      rhs: (batch, contracted, columns), same dtype.

    Returns:
      value (batch, rows, columns) in the operands' dtype, winner int32 of the same shape: the first best candidate, the
      first NaN if there is one, -1 if nothing is contracted.
    """
    batch, count, rows = lhs.shape
    shape = (batch, rows, rhs.shape[2])
    if count == 0:
        return np.full(shape, semiring.zero(lhs.dtype)), np.full(shape, -1, np.int32)
    value, winner = np.full(shape, semiring.identity(lhs.dtype)), np.zeros(shape, np.int32)
    with np.errstate(all="ignore"):
        for k in range(count):
            candidate: Any = np.asarray(semiring.times(lhs[:, k, :, None], rhs[:, k, None, :]))
            wins = np.asarray(semiring.better(candidate, value)) | (candidate != candidate)
            wins &= value == value
            value, winner = np.where(wins, candidate, value), np.where(wins, np.int32(k), winner)
    return value, winner
