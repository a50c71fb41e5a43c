"""The lowering: value and winner in lax, in memory of a few results, never the array of all candidates.

A loop runs over blocks of the contracted axis. A block's entries are fetched at indices clamped to the last one, so
that every size works, symbolic sizes too: a candidate seen twice changes neither value nor first winner. Comparisons
that skip NaN are twice as fast as ones that keep it, so NaN operands are found apart, from the operands alone; only
when a product of numbers could be NaN (inf - inf, 0 * inf) does a slower loop run that looks at each candidate.

Values first, then winners: the second loop looks for the first candidate that equals the value. XLA computes a loop
that carries value and index together once for each of the two, which is slower than two loops of one.

Where one side is a vector all candidates are no more than the operands hold, and one reduction does it; a loop would
have as many turns with next to nothing in each. So it is where few entries are contracted, as in every step of a network
of small tables: a loop of one turn is no faster, and compiles five times as long.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ..semiring import SelectiveSemiring

BLOCK = 16
"""Contracted entries a step. XLA CPU keeps the fetched block as an array of its own from 16 uses on; with fewer it
folds the fetch into the loop, which then no longer vectorises (ten times slower)."""

FEW = 4
"""Contracted entries up to which one reduction does it: all candidates are no more than four results, and XLA fuses them away."""

SMALL = 1 << 13
"""Candidates in all up to which one reduction does it: 64 KiB at most."""


def contract(semiring: SelectiveSemiring, operands: Sequence[Any], *, with_winner: bool) -> tuple[Any, ...]:
    """Best candidate of each cell, and which it is.

    Args:
      semiring: the algebra.
      operands: (batch, contracted, rows), and with two operands (batch, contracted, columns) of the same dtype; sizes
        may be symbolic.
      with_winner: whether winners are wanted.

    Returns:
      (value,) or (value, winner): (batch, rows, columns) in the operands' dtype and int32. The winner is the first best
      candidate, the first NaN if there is one, -1 if nothing is contracted. One operand has one column.

    Cost: time b m n k, once for values and once more for winners; memory O(b (m n + k (m + n))).
    """
    dtype, count = operands[0].dtype, operands[0].shape[1]
    shape = _cells(operands)
    if _is(count, 0):
        return (jnp.full(shape, semiring.zero(dtype)), jnp.full(shape, -1, jnp.int32))[: 1 + with_winner]
    sizes = (count, *shape)
    few = isinstance(count, int) and count <= FEW
    few = few or (all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= SMALL)
    if few or len(operands) == 1 or any(_is(size, 1) for size in shape[1:]):
        return _direct(semiring, _products(semiring, [x[:, :, None] for x in operands]), with_winner)
    if not jnp.issubdtype(dtype, jnp.floating):
        return _fast(semiring, operands, with_winner)

    def careful(*operands: Any) -> tuple[Any, ...]:
        return _careful(semiring, operands)[: 1 + with_winner]

    def fast(*operands: Any) -> tuple[Any, ...]:
        return _with_operand_nans(operands[0], operands[1], _fast(semiring, operands, with_winner))

    may = semiring.may_make_nan(*operands)
    if isinstance(may, np.bool_):
        return (careful if may else fast)(*operands)
    return lax.cond(may, careful, fast, *operands)


def _is(size: Any, number: int) -> bool:
    """Whether a size is this number; a symbolic size is none."""
    return isinstance(size, int) and size == number


def _cells(operands: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(batch, rows, columns)."""
    batch, _, rows = operands[0].shape
    return batch, rows, operands[1].shape[2] if len(operands) == 2 else 1


def _products(semiring: SelectiveSemiring, entries: Sequence[Any]) -> Any:
    """(..., rows, columns) candidates of entries (..., 1, rows) and (..., 1, columns)."""
    left = jnp.swapaxes(entries[0], -1, -2)
    return left if len(entries) == 1 else semiring.times(left, entries[1])


def _direct(semiring: SelectiveSemiring, candidates: Any, with_winner: bool) -> tuple[Any, ...]:
    """The reduction of an array of candidates (batch, contracted, rows, columns)."""
    count = candidates.shape[1]
    if _is(count, 1):
        return (candidates[:, 0], jnp.zeros(candidates[:, 0].shape, jnp.int32))[: 1 + with_winner]
    value = lax.reduce(candidates, jnp.asarray(semiring.identity(candidates.dtype)), semiring.plus, (1,))
    if not with_winner:
        return (value,)
    index = lax.broadcasted_iota(jnp.int32, candidates.shape, 1)
    wins = (candidates == value[:, None]) | ((candidates != candidates) & (value != value)[:, None])
    return value, jnp.min(jnp.where(wins, index, jnp.asarray(count, jnp.int32)), axis=1)


def _fast(semiring: SelectiveSemiring, operands: Sequence[Any], with_winner: bool) -> tuple[Any, ...]:
    """Value and winner among the candidates that are no NaN."""
    value = _values(semiring, operands)
    return (value, _first_equal(semiring, operands, value)) if with_winner else (value,)


def _block(x: Any, start: Any, width: int) -> list[Any]:
    """`width` entries of axis 1 from `start`, the last one repeated past the end."""
    last = jnp.asarray(x.shape[1] - 1, jnp.int32)
    at = jnp.minimum(start + lax.iota(jnp.int32, width), last)
    fetched = jnp.take(x, at, axis=1, mode="clip")
    return [fetched[:, t, None] for t in range(width)]


def _steps(count: Any) -> tuple[Any, int]:
    """(number of blocks, block width); a short static contraction is one block."""
    width = min(count, BLOCK) if isinstance(count, int) else BLOCK
    return -(-count // width), width


def _candidates(semiring: SelectiveSemiring, operands: Sequence[Any], start: Any, width: int) -> list[Any]:
    return [_products(semiring, entries) for entries in zip(*(_block(x, start, width) for x in operands), strict=True)]


def _values(semiring: SelectiveSemiring, operands: Sequence[Any]) -> Any:
    blocks, width = _steps(operands[0].shape[1])

    def step(i: Any, value: Any) -> Any:
        best = _candidates(semiring, operands, jnp.asarray(i, jnp.int32) * width, width)
        while len(best) > 1:  # a tree, so that its levels run side by side
            odd = best[len(best) & ~1 :]
            best = [jnp.where(semiring.better(y, x), y, x) for x, y in zip(best[0::2], best[1::2], strict=False)] + odd
        return jnp.where(semiring.better(best[0], value), best[0], value)

    return lax.fori_loop(0, blocks, step, jnp.full(_cells(operands), semiring.identity(operands[0].dtype)))


def _first_equal(semiring: SelectiveSemiring, operands: Sequence[Any], value: Any) -> Any:
    """The first contracted index whose candidate equals the value; from the last block down, so that the first stays."""
    blocks, width = _steps(operands[0].shape[1])

    def step(i: Any, winner: Any) -> Any:
        start = (jnp.asarray(blocks - 1, jnp.int32) - jnp.asarray(i, jnp.int32)) * width
        found = jnp.full(value.shape, width, jnp.int32)
        for t, candidate in reversed(list(enumerate(_candidates(semiring, operands, start, width)))):
            found = jnp.where(candidate == value, jnp.int32(t), found)
        return jnp.where(found < width, start + found, winner)

    return lax.fori_loop(0, blocks, step, jnp.zeros(value.shape, jnp.int32))


def _with_operand_nans(lhs: Any, rhs: Any, result: tuple[Any, ...]) -> tuple[Any, ...]:
    """Cells with a NaN operand become NaN, their winner the first NaN candidate."""
    count = jnp.asarray(lhs.shape[1], jnp.int32)

    def first_nan(x: Any) -> Any:
        index = lax.broadcasted_iota(jnp.int32, x.shape, 1)
        return jnp.min(jnp.where(jnp.isnan(x), index, count), axis=1)

    first = jnp.minimum(first_nan(lhs)[:, :, None], first_nan(rhs)[:, None, :])
    value = jnp.where(first < count, jnp.asarray(jnp.nan, lhs.dtype), result[0])
    return (value, *(jnp.where(first < count, first, winner) for winner in result[1:]))


def _careful(semiring: SelectiveSemiring, operands: Sequence[Any]) -> tuple[Any, Any]:
    """Value and winner, looking for NaN in every candidate."""

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        value, winner = state
        k = jnp.asarray(k, jnp.int32)
        (candidate,) = _candidates(semiring, operands, k, 1)
        wins = (semiring.better(candidate, value) | jnp.isnan(candidate)) & ~jnp.isnan(value)
        return jnp.where(wins, candidate, value), jnp.where(wins, k, winner)

    shape = _cells(operands)
    start = (jnp.full(shape, semiring.identity(operands[0].dtype)), jnp.zeros(shape, jnp.int32))
    return lax.fori_loop(0, operands[0].shape[1], step, start)
