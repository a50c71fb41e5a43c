"""The sum of a step's candidates in any semiring, in memory of operands and result.

The order of the sum depends on the number of contracted entries alone. They are in groups of at
most GROUP_ENTRIES; of G groups each has every G-th entry. In a group each block of BLOCK_ENTRIES is
added as a tree, and blocks one after another; then groups one after another. Where there are few
cells the groups run side by side, because each turn would be short.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig

from ...algebra.semiring import Semiring, filled, whole_plus, whole_times
from .selection import tree

Parts: TypeAlias = tuple[jax.Array, ...]
"""Each component of an array of entries."""

BLOCK_ENTRIES = 16
"""Contracted entries in each turn, as in `selection`: with 8 the fetch is not vectorised."""

GROUP_ENTRIES = 1024
"""The most entries of a group."""

BESIDE_CELLS = 1 << 16
"""Up to this number of cells of all groups, groups run side by side."""


def contract(semiring: Semiring, operands: Sequence[jax.Array]) -> jax.Array:
    """plus over k of times of two operands, or of the entries of one.

    Args:
      semiring: the algebra.
      operands: (batch, k, rows), and with two operands (batch, k, columns) of the same dtype, after
        the axis of components if there is one; sizes may be symbolic.

    Returns:
      (batch, rows, columns), after the components. One operand has one column.

    Cost: time b m n k; memory O(b (m n + k (m + n))).
    """
    sides = [_parts(semiring, x) for x in operands]
    batch, count, rows = sides[0][0].shape
    cells = batch, rows, sides[1][0].shape[2] if len(sides) == 2 else 1
    if is_size(count, 0):
        found = _zero(semiring, operands[0].dtype, cells)
    elif (product := _by_matmul(semiring, sides)) is not None:
        found = product
    elif len(sides) == 2 and not any(is_size(size, 1) for size in cells[1:]):
        found = _summed(semiring, sides)
    else:  # no more candidates than entries
        found = _summed(semiring, [_product(semiring, sides)])
    whole = tuple(x.reshape(cells) for x in found)
    return jnp.stack(whole) if semiring.components else whole[0]


def is_size(size: int, number: int) -> bool:
    """Whether a size is this number; a symbolic size is not."""
    return isinstance(size, int) and size == number


def _by_matmul(semiring: Semiring, sides: Sequence[Parts]) -> Parts | None:
    """The semiring's own product; of one operand with a row of ones."""
    if len(sides) == 2:
        left = tuple(jnp.swapaxes(x, 1, 2) for x in sides[0])
    else:
        batch, count, _ = sides[0][0].shape
        left = _filled(semiring, semiring.one(sides[0][0].dtype), (batch, 1, count))
    try:
        found = _applied(semiring, semiring.matmul, left, sides[-1])
    except Exception as error:  # any exception of the author's code
        raise InvalidConfig(
            where=f"semiring {semiring.id}",
            given=f"matmul raises {type(error).__name__}: {error}",
            needed="the product of the matrices, or None where there is none",
        ) from error
    if found[0] is None:
        return None
    shape, dtype = (*left[0].shape[:2], sides[-1][0].shape[2]), left[0].dtype
    have = [(jnp.shape(x), getattr(x, "dtype", type(x))) for x in found]
    if len(found) != len(left) or any(x != (shape, dtype) for x in have):
        given = ", ".join(f"{jnp.dtype(kind).name}{list(size)}" for size, kind in have)
        raise InvalidConfig(
            where=f"semiring {semiring.id}",
            given=f"matmul returns {given}",
            needed=f"{dtype.name}{list(shape)}" + " for each component" * (len(left) > 1),
        )
    return found


def _summed(semiring: Semiring, sides: Sequence[Parts]) -> Parts:
    """The sum over k of two sides, or of one (batch, k, columns), which has one row."""
    batch, count, _ = sides[0][0].shape
    own = [side[0].shape[2] for side in sides]
    groups = -(-count // GROUP_ENTRIES)
    if is_size(groups, 1):
        return _group(semiring, sides, jnp.int32(0), 1)
    are_known = all(isinstance(size, int) for size in (batch, count, *own))
    cells = (batch, *([1] * (2 - len(own))), *own)
    zero = _zero(semiring, sides[0][0].dtype, cells)
    if not are_known or (len(sides) == 2 and groups * batch * own[0] * own[1] > BESIDE_CELLS):

        def added(i: jax.Array, total: Parts) -> Parts:
            part = _group(semiring, sides, jnp.asarray(i, jnp.int32), groups)
            return _applied(semiring, semiring.plus, total, part)

        return lax.fori_loop(0, groups, added, zero)
    length = -(-count // groups)
    cut = [_cut(semiring, side, length, groups) for side in sides]
    as_batches = len(sides) == 2  # groups of one side are as columns
    if as_batches:
        cut = [tuple(jnp.moveaxis(x, 2, 1) for x in side) for side in cut]
    lead = (batch * groups if as_batches else batch), length
    cut = [tuple(x.reshape(*lead, -1) for x in side) for side in cut]
    found = _group(semiring, cut, jnp.int32(0), 1)
    parts = tuple(x.reshape(batch, groups, *cells[1:]) for x in found)

    def turn(i: jax.Array, total: Parts) -> Parts:
        return _applied(semiring, semiring.plus, total, tuple(x[:, i] for x in parts))

    return lax.fori_loop(0, groups, turn, zero)


def _cut(semiring: Semiring, side: Parts, length: int, groups: int) -> Parts:
    """(batch, length, groups, own), with zero behind the last entry."""
    batch, count, own = side[0].shape
    more = _zero(semiring, side[0].dtype, (batch, length * groups - count, own))
    whole = (jnp.concatenate(pair, 1) for pair in zip(side, more, strict=True))
    return tuple(x.reshape(batch, length, groups, own) for x in whole)


def _group(semiring: Semiring, sides: Sequence[Parts], number: jax.Array, groups: int) -> Parts:
    """The sum of the group of a number."""
    batch, count, _ = sides[0][0].shape
    if is_size(groups, 1) and isinstance(count, int) and count <= BLOCK_ENTRIES:
        return _tree(semiring, sides, count)
    own = [side[0].shape[2] for side in sides]
    cells = (batch, *([1] * (2 - len(own))), *own)
    last = (jnp.asarray(count - 1, jnp.int32) - number) // jnp.asarray(groups, jnp.int32)
    is_whole = isinstance(count, int) and count % (groups * BLOCK_ENTRIES) == 0

    def fetched(side: Parts, inner: jax.Array) -> Parts:
        at = jnp.minimum(inner, last) * jnp.asarray(groups, jnp.int32) + number
        block = tuple(jnp.take(x, at, axis=1, mode="clip") for x in side)
        if is_whole:
            return block
        pairs = zip(block, _zero(semiring, side[0].dtype, (1, 1, 1)), strict=True)
        return tuple(jnp.where((inner <= last)[:, None], x, zero) for x, zero in pairs)

    def turn(i: jax.Array, total: Parts) -> Parts:
        inner = jnp.asarray(i, jnp.int32) * BLOCK_ENTRIES + lax.iota(jnp.int32, BLOCK_ENTRIES)
        part = _tree(semiring, [fetched(side, inner) for side in sides], BLOCK_ENTRIES)
        return _applied(semiring, semiring.plus, total, part)

    length = -(-count // groups)
    return lax.fori_loop(
        0, -(-length // BLOCK_ENTRIES), turn, _zero(semiring, sides[0][0].dtype, cells)
    )


def _tree(semiring: Semiring, sides: Sequence[Parts], width: int) -> Parts:
    """The sum of the candidates of a block."""
    terms = []
    for t in range(width):
        entries = [tuple(x[:, t, None] for x in side) for side in sides]
        if len(sides) == 2:
            entries[0] = tuple(jnp.swapaxes(x, 1, 2) for x in entries[0])
        terms.append(_product(semiring, entries))
    return tree(functools.partial(_applied, semiring, semiring.plus), terms)


def _product(semiring: Semiring, entries: Sequence[Parts]) -> Parts:
    """times of two entries, or the only one."""
    return _applied(semiring, semiring.times, *entries) if len(entries) == 2 else entries[0]


def _zero(semiring: Semiring, dtype: np.dtype, shape: tuple[int, ...]) -> Parts:
    return _filled(semiring, semiring.zero(dtype), shape)


def _filled(semiring: Semiring, value: ArrayLike, shape: tuple[int, ...]) -> Parts:
    lead = (semiring.components,) if semiring.components else ()
    return _parts(semiring, filled(value, (*lead, *shape)))


def _parts(semiring: Semiring, x: jax.Array) -> Parts:
    # The size of the axis of components may be a symbol.
    return tuple(x[i] for i in range(semiring.components)) if semiring.components else (x,)


def _applied(semiring: Semiring, method: Callable[..., object], *entries: Parts) -> Any:
    """A method of the semiring on entries; of several components it takes and returns tuples."""
    if semiring.components:
        return method(*entries) or (None,)
    return (method(*(x for (x,) in entries)),)


def reference(semiring: Semiring, operands: Sequence[np.ndarray]) -> np.ndarray:
    """The definition: the same sum in NumPy, one entry after another.

    Args, Returns: as `contract`.
    """
    operands, start = list(map(np.asarray, operands)), 1 if semiring.components else 0
    lead, (batch, count, rows) = operands[0].shape[:start], operands[0].shape[start:]
    cells = batch, rows, operands[1].shape[-1] if len(operands) == 2 else 1
    zero = np.asarray(semiring.zero(operands[0].dtype))
    total: Any = np.broadcast_to(zero.reshape(*lead, 1, 1, 1), (*lead, *cells))
    with np.errstate(all="ignore"):
        for k in range(count):
            entries = [
                np.expand_dims(x[..., k, :], axis)
                for x, axis in zip(operands, (-1, -2), strict=False)
            ]
            product = whole_times(semiring, *entries) if len(entries) == 2 else entries[0]
            total = np.asarray(whole_plus(semiring, total, product))
    return total
