"""The lowering of a step: the choice between one reduction and a loop over blocks.

If one side is a vector, there are no more candidates than entries of the operands, and one
reduction is enough; a loop would have many turns with little work in each. The same holds if there
are few candidates, as in the steps of a network of small tables: a loop of one turn is not faster,
and compiles five times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from ...algebra.semiring import SelectiveSemiring
from . import blocked, direct

SMALL = 1 << 13
"""The most candidates for one reduction: 64 KiB at most."""


def contract(
    semiring: SelectiveSemiring,
    operands: Sequence[jax.Array],
    *,
    with_winner: bool,
    contracted_last: Sequence[bool] = (False, False),
) -> tuple[jax.Array, ...]:
    """Best candidate of each cell, and which it is.

    Args:
      semiring: the algebra.
      operands: (batch, contracted, rows), and with two operands (batch, contracted, columns) of the
        same dtype; sizes may be symbolic.
      with_winner: whether winners are wanted.
      contracted_last: for each operand, whether contracted entries were adjacent in memory before
        it was transposed.

    Returns:
      (value,) or (value, winner): (batch, rows, columns) in the operands' dtype and int32. The
      winner is the first best candidate, the first NaN if there is one, -1 if nothing is
      contracted. One operand has one column.

    Cost: time b m n k, once for values and once more for winners; memory O(b (m n + k (m + n))).
    """
    batch, count, rows = operands[0].shape
    columns = operands[1].shape[2] if len(operands) == 2 else 1
    if _is_known(count) and count == 0:
        cells = (batch, rows, columns)
        return (jnp.full(cells, semiring.zero(operands[0].dtype)), jnp.full(cells, -1, jnp.int32))[
            : 1 + with_winner
        ]
    if len(operands) == 1 or fits_one_reduction(batch, count, rows, columns):
        laid = [
            jnp.swapaxes(x, 1, 2) if last else x
            for x, last in zip(operands, contracted_last, strict=False)
        ]
        return direct.contract(
            semiring, laid, with_winner=with_winner, contracted_last=contracted_last
        )
    return blocked.contract(semiring, *operands, with_winner=with_winner)


def fits_one_reduction(batch: int, count: int, rows: int, columns: int) -> bool:
    """Whether one reduction of all candidates is as good as a loop; symbolic sizes count
    as large.
    """
    few = _is_known(count) and count <= direct.FEW
    small = (
        _is_known(batch, count, rows, columns) and math.prod((batch, count, rows, columns)) <= SMALL
    )
    vector = any(_is_known(size) and size == 1 for size in (rows, columns))
    return few or small or vector


def _is_known(*sizes: object) -> bool:
    return all(isinstance(size, int) for size in sizes)
