"""The lowering: value and winner in lax, in memory of a few results, never the array of all candidates.

A loop runs over blocks of the contracted axis. A block's entries are fetched at indices clamped to the last one, so
that every size works, symbolic sizes too: a candidate seen twice changes neither value nor first winner. Comparisons
that skip NaN are twice as fast as ones that keep it, so NaN operands are found apart, from the operands alone; only
when a product of numbers could be NaN (inf - inf, 0 * inf) does a slower loop run that looks at each candidate.

Values first, then winners: the second loop looks for the first candidate that equals the value. XLA computes a loop
that carries value and index together once for each of the two, which is slower than two loops of one.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jax import lax

from ..semiring import Semiring

BLOCK = 16
"""Contracted entries a step. XLA CPU keeps the fetched block as an array of its own from 16 uses on; with fewer it
folds the fetch into the loop, which then no longer vectorises (ten times slower)."""


def contract(semiring: Semiring, lhs: Any, rhs: Any, *, with_winner: bool) -> tuple[Any, ...]:
    """Best candidate of each cell, and which it is.

    Args:
      semiring: the algebra.
      lhs: (batch, contracted, rows).
      rhs: (batch, contracted, columns), same dtype; sizes may be symbolic.
      with_winner: whether winners are wanted.

    Returns:
      (value,) or (value, winner): (batch, rows, columns) in the operands' dtype and int32. The winner is the first best
      candidate, the first NaN if there is one, -1 if nothing is contracted.

    Cost: time b m n k, once for values and once more for winners; memory O(b (m n + k (m + n))).
    """
    batch, count, rows = lhs.shape
    shape = (batch, rows, rhs.shape[2])
    if isinstance(count, int) and count == 0:
        return (jnp.full(shape, semiring.zero(lhs.dtype)), jnp.full(shape, -1, jnp.int32))[: 1 + with_winner]
    if not jnp.issubdtype(lhs.dtype, jnp.floating):
        return _fast(semiring, lhs, rhs, with_winner)

    def careful(lhs: Any, rhs: Any) -> tuple[Any, ...]:
        return _careful(semiring, lhs, rhs)[: 1 + with_winner]

    def fast(lhs: Any, rhs: Any) -> tuple[Any, ...]:
        return _with_operand_nans(lhs, rhs, _fast(semiring, lhs, rhs, with_winner))

    return lax.cond(semiring.may_make_nan(lhs, rhs), careful, fast, lhs, rhs)


def _fast(semiring: Semiring, lhs: Any, rhs: Any, with_winner: bool) -> tuple[Any, ...]:
    """Value and winner among the candidates that are no NaN."""
    value = _values(semiring, lhs, rhs)
    return (value, _first_equal(semiring, lhs, rhs, value)) if with_winner else (value,)


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


def _candidates(semiring: Semiring, lhs: Any, rhs: Any, start: Any, width: int) -> list[Any]:
    pairs = zip(_block(lhs, start, width), _block(rhs, start, width), strict=True)
    return [semiring.times(a[:, :, None], b[:, None, :]) for a, b in pairs]


def _values(semiring: Semiring, lhs: Any, rhs: Any) -> Any:
    blocks, width = _steps(lhs.shape[1])

    def step(i: Any, value: Any) -> Any:
        best = _candidates(semiring, lhs, rhs, jnp.asarray(i, jnp.int32) * width, width)
        while len(best) > 1:  # a tree, so that its levels run side by side
            odd = best[len(best) & ~1 :]
            best = [jnp.where(semiring.better(y, x), y, x) for x, y in zip(best[0::2], best[1::2], strict=False)] + odd
        return jnp.where(semiring.better(best[0], value), best[0], value)

    start = jnp.full((lhs.shape[0], lhs.shape[2], rhs.shape[2]), semiring.identity(lhs.dtype))
    return lax.fori_loop(0, blocks, step, start)


def _first_equal(semiring: Semiring, lhs: Any, rhs: Any, value: Any) -> Any:
    """The first contracted index whose candidate equals the value; from the last block down, so that the first stays."""
    blocks, width = _steps(lhs.shape[1])

    def step(i: Any, winner: Any) -> Any:
        start = (jnp.asarray(blocks - 1, jnp.int32) - jnp.asarray(i, jnp.int32)) * width
        found = jnp.full(value.shape, width, jnp.int32)
        for t, candidate in reversed(list(enumerate(_candidates(semiring, lhs, rhs, start, width)))):
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


def _careful(semiring: Semiring, lhs: Any, rhs: Any) -> tuple[Any, Any]:
    """Value and winner, looking for NaN in every candidate."""

    def step(k: Any, state: tuple[Any, Any]) -> tuple[Any, Any]:
        value, winner = state
        k = jnp.asarray(k, jnp.int32)
        (candidate,) = _candidates(semiring, lhs, rhs, k, 1)
        wins = (semiring.better(candidate, value) | jnp.isnan(candidate)) & ~jnp.isnan(value)
        return jnp.where(wins, candidate, value), jnp.where(wins, k, winner)

    shape = (lhs.shape[0], lhs.shape[2], rhs.shape[2])
    start = (jnp.full(shape, semiring.identity(lhs.dtype)), jnp.zeros(shape, jnp.int32))
    return lax.fori_loop(0, lhs.shape[1], step, start)
