"""Value and winner in lax, in memory of a few results, never the array of all candidates.

A loop runs over blocks of the contracted axis. A block's entries are fetched at indices clamped to the last one, so
that every size works, symbolic sizes too: a candidate seen twice changes neither value nor first winner. Comparisons
that skip NaN are twice as fast as ones that keep it, so NaN operands are found apart, from the operands alone; only
when a product of numbers could be NaN (inf - inf, 0 * inf) does a slower loop run that looks at each candidate.

Values first, then winners: the second loop looks for the first candidate that equals the value. XLA computes a loop
that carries value and index together once for each of the two, which is slower than two loops of one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from ...algebra.semiring import SelectiveSemiring

BLOCK = 16
"""Contracted entries a step. XLA CPU keeps the fetched block as an array of its own from 16 uses on; with fewer it
folds the fetch into the loop, which then no longer vectorises (ten times slower)."""


def contract(semiring: SelectiveSemiring, lhs: Any, rhs: Any, *, with_winner: bool) -> tuple[Any, ...]:
    """Best candidate of each cell, and which it is; at least one entry is contracted.

    Args, Returns: as `choose.contract`, of two operands.

    Cost: time b m n k, once for values and once more for winners; memory O(b (m n + k (m + n))).
    """
    operands = (lhs, rhs)
    if not jnp.issubdtype(lhs.dtype, jnp.floating):
        return _fast(semiring, operands, with_winner)

    def careful(*operands: Any) -> tuple[Any, ...]:
        return _careful(semiring, operands)[: 1 + with_winner]

    def fast(lhs: Any, rhs: Any) -> tuple[Any, ...]:
        return _with_operand_nans(lhs, rhs, _fast(semiring, (lhs, rhs), with_winner))

    may = semiring.may_make_nan(lhs, rhs)
    if isinstance(may, np.bool_):
        return (careful if may else fast)(lhs, rhs)
    return lax.cond(may, careful, fast, lhs, rhs)


def _cells(operands: Sequence[Any]) -> tuple[Any, Any, Any]:
    """(batch, rows, columns)."""
    return operands[0].shape[0], operands[0].shape[2], operands[1].shape[2]


def _fast(semiring: SelectiveSemiring, operands: Sequence[Any], with_winner: bool) -> tuple[Any, ...]:
    """Value and winner among the candidates that are no NaN."""
    value = _values(semiring, operands)
    return (value, _first_equal(semiring, operands, value)) if with_winner else (value,)


def _block(x: Any, start: Any, width: int) -> list[Any]:
    """`width` entries of axis 1 from `start`, the last one repeated past the end."""
    last = jnp.asarray(x.shape[1] - 1, jnp.int32)
    at = jnp.minimum(start + lax.iota(jnp.int32, width), last)
    fetched = jnp.take(x, at, axis=1, mode="clip")
    return [fetched[:, t] for t in range(width)]


def _steps(count: Any) -> tuple[Any, int]:
    """(number of blocks, block width); a short static contraction is one block."""
    width = min(count, BLOCK) if isinstance(count, int) else BLOCK
    return -(-count // width), width


def _candidates(semiring: SelectiveSemiring, operands: Sequence[Any], start: Any, width: int) -> list[Any]:
    pairs = zip(*(_block(x, start, width) for x in operands), strict=True)
    return [semiring.times(a[:, :, None], b[:, None, :]) for a, b in pairs]


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
