"""Sums over one of the three groups of labels of a contraction step, in memory of operands and
result.

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

Term = Callable[[Sequence[Any], Sequence[Any], Sequence[Any]], Any]
"""A function (first, second, whole) -> the terms of the sum, for arrays that broadcast against each
other.
"""

BLOCK = 8
"""Terms in each turn. More arrays are fetched than in `blocked`: with 16 terms XLA CPU runs out of
registers and takes twice as long.
"""


def blocked(
    term: Term,
    first: Sequence[jax.Array],
    second: Sequence[jax.Array],
    whole: Sequence[jax.Array],
    sizes: Sequence[int],
    dtype: np.dtype,
) -> jax.Array:
    """The sum over s of term(first at s, second at s, whole), in lax.

    Args:
      term: elementwise.
      first, second, whole: any number of arrays each.
      sizes: of batch, s, i, j; they may be symbolic.
      dtype: of the terms.

    Returns:
      (batch, i, j).

    Cost: time of all terms; memory of the arrays and the result.
    """
    batch, count, *cells = sizes
    if _is(count, 0):
        return jnp.zeros((batch, *cells), dtype)
    if any(
        _is(size, 1) for size in sizes[1:]
    ):  # there are no more terms than entries of some array
        terms = term(
            [x[..., None] for x in first],
            [x[:, :, None, :] for x in second],
            [x[:, None] for x in whole],
        )
        return jnp.sum(terms, axis=1)
    width = min(count, BLOCK) if isinstance(count, int) else BLOCK
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
            terms = [
                jnp.where(start + t < count, x, jnp.zeros_like(x)) for t, x in enumerate(terms)
            ]
        while len(terms) > 1:  # a tree has less rounding than a sequence
            odd = terms[len(terms) & ~1 :]
            terms = [x + y for x, y in zip(terms[0::2], terms[1::2], strict=False)] + odd
        return total + terms[0]

    return lax.fori_loop(0, -(-count // width), turn, jnp.zeros((batch, *cells), dtype))


def _is(size: int, number: int) -> bool:
    """Whether a size is this number; a symbolic size is not."""
    return isinstance(size, int) and size == number


def reference(
    term: Term,
    first: Sequence[np.ndarray],
    second: Sequence[np.ndarray],
    whole: Sequence[np.ndarray],
    sizes: Sequence[int],
    dtype: np.dtype,
) -> np.ndarray:
    """The definition: the same sum in NumPy, one s after another."""
    batch, count, *cells = sizes
    total = np.zeros((batch, *cells), dtype)
    with np.errstate(all="ignore"):
        for s in range(count):
            total += term(
                [x[:, s, :, None] for x in first], [x[:, s, None, :] for x in second], whole
            )
    return total
