"""The sum of a step's candidates in memory of operands and result.

A candidate has three indices beside the batch: contracted k, row r, column c. Each array has two of
them, and so does the result, which is summed over the third. If that one is called s, the arrays
are `first` (batch, s, i), `second` (batch, s, j) and `whole` (batch, i, j), whichever of k, r and c
these are, so one loop computes all three sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ...semirings.semiring import Semiring
from .selection import is_size, tree

Term = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""A function (first, second, whole) -> the terms of the sum, for arrays that broadcast against each
other.
"""


def summed(
    term: Term,
    sides: Sequence[Sequence[jax.Array]],
    sizes: Sequence[int],
    zero: np.ndarray,
    plus: Callable[..., jax.Array],
    width: int,
) -> jax.Array:
    """The sum over s of term(first at s, second at s, whole), in lax.

    Args:
      term: elementwise.
      sides: first, second and whole, any number of arrays each.
      sizes: of batch, s, i, j; they may be symbolic.
      zero: neutral for plus, in the dtype of the terms.
      plus: of two terms.
      width: terms in each turn, which are added as a tree.

    Returns:
      (batch, i, j).

    Cost: time of all terms; memory of the arrays and the result.
    """
    first, second, whole = sides
    batch, count, *cells = sizes
    nothing = jnp.full((batch, *cells), zero)
    if is_size(count, 0):
        return nothing
    if any(
        is_size(size, 1) for size in sizes[1:]
    ):  # there are no more terms than entries of some array
        terms = term(
            [x[..., None] for x in first],
            [x[:, :, None, :] for x in second],
            [x[:, None] for x in whole],
        )
        return lax.reduce(terms, zero, plus, (1,))
    width = min(count, width) if isinstance(count, int) else width
    is_ragged = count % width != 0

    def turn(i: jax.Array, total: jax.Array) -> jax.Array:
        start = jnp.asarray(i, jnp.int32) * width
        at = jnp.minimum(start + lax.iota(jnp.int32, width), jnp.asarray(count - 1, jnp.int32))
        rows, columns = (
            [jnp.take(x, at, axis=1, mode="clip") for x in side] for side in (first, second)
        )
        terms = [
            term([x[:, t, :, None] for x in rows], [x[:, t, None, :] for x in columns], whole)
            for t in range(width)
        ]
        if is_ragged:  # at the end the last entry was fetched again
            terms = [jnp.where(start + t < count, x, zero) for t, x in enumerate(terms)]
        return plus(total, tree(plus, terms))

    return lax.fori_loop(0, -(-count // width), turn, nothing)


TURN_ENTRIES = 16
"""Contracted entries in each turn, as in `selection`: with 8 the fetch is not vectorised."""


def contract(semiring: Semiring, operands: Sequence[jax.Array], sizes: Sequence[int]) -> jax.Array:
    """plus over k of times of two operands, or of the entries of one.

    Args:
      semiring: the algebra.
      operands: (batch, k, rows), and with two operands (batch, k, columns) of the same dtype.
      sizes: of batch, k, rows, columns; they may be symbolic.

    Returns:
      (batch, rows, columns). One operand has one column.

    Cost: time b m n k; memory O(b (m n + k (m + n))).
    """
    first, *second = operands
    batch, count, *cells = sizes
    if not is_size(count, 0):
        rows = (  # of one operand the entries are multiplied by ones
            jnp.swapaxes(first, 1, 2)
            if second
            else jnp.full((batch, 1, count), semiring.one(first.dtype), first.dtype)
        )
        found = semiring.matmul(rows, operands[-1])
        if found is not None:
            return found.reshape(batch, *cells)

    def term(*sides: Sequence[jax.Array]) -> jax.Array:
        (x,), y, _ = sides
        return semiring.times(x, *y) if y else x

    zero = np.asarray(semiring.zero(first.dtype), first.dtype)
    return summed(term, ([first], second, []), sizes, zero, semiring.plus, TURN_ENTRIES)
