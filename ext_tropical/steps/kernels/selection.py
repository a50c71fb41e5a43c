"""Value and winner of a step, lowered to lax: one reduction of all candidates, or a loop in memory
of a few results.

The value of a cell is the best candidate, or NaN if there is one; the winner, int32, is the number
of the first candidate that has it, or of the first NaN, and -1 if nothing is contracted.

If one side is a vector, there are no more candidates than entries of the operands, and one
reduction is enough; a loop would have many turns with little work in each. The same holds if there
are few candidates, as in the steps of a network of small tables: a loop of one turn is not faster,
and compiles five times as long.

A loop runs over blocks of the contracted axis. The columns are cut into tiles, and a block of a
tile is contiguous: rows that are a power of two apart would fall into one set of the first-level
cache and take three times as long. The last block begins earlier if needed, so that every size
works: a candidate seen twice changes neither value nor first winner.

Comparisons that skip NaN are twice as fast as ones that keep it, so NaN operands are found
separately, from the operands. Only if times of two numbers could be NaN (inf - inf, 0 * inf), a
slower loop tests each candidate.

Values come first, then winners: the second loop searches the first candidate that equals the value.
If one loop carried value and index, XLA would compute it once for each of them, which is slower
than two loops.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import DTypeLike

from ...semirings.semiring import SelectiveSemiring
from ...semirings.shipped import are_finite

T = TypeVar("T")

UNROLLED_ENTRIES = 4
"""Up to this number, contracted entries are taken one by one. XLA makes this one elementwise loop,
up to ten times as fast as a reduction over such a short axis.
"""

REDUCED_CANDIDATES = 1 << 13
"""The most candidates for one reduction: 64 KiB at most."""

BLOCK_ENTRIES = 16
"""Contracted entries in each turn of the loop. XLA CPU keeps the fetched block as a separate array
from 16 uses on; with fewer uses it folds the fetch into the loop, which then is not vectorised
(ten times slower).
"""

TILE_COLUMNS = 128
"""The most columns of a tile: 16 rows of them are a quarter of a first-level cache of 32 KiB."""

UNCUT_ROWS = 8
"""Up to this number of rows columns are not cut, because a cut copies them and they are read only a
few times.
"""

PARTED_CELLS = 1 << 15
"""The contracted axis is cut into parts up to this number of cells times parts."""

PART_ENTRIES = 1024
"""The least number of contracted entries in a part."""


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
    if is_size(count, 0):
        cells = (batch, rows, columns)
        value = jnp.full(cells, semiring.zero(operands[0].dtype))
        return (value, jnp.full(cells, -1, jnp.int32)) if with_winner else (value,)
    if len(operands) == 1 or fits_one_reduction(batch, count, rows, columns):
        laid = [
            jnp.swapaxes(x, 1, 2) if last else x
            for x, last in zip(operands, contracted_last, strict=False)
        ]
        return one_reduction(
            semiring, laid, with_winner=with_winner, contracted_last=contracted_last
        )
    return in_blocks(semiring, *operands, with_winner=with_winner)


def fits_one_reduction(batch: int, count: int, rows: int, columns: int) -> bool:
    """Whether one reduction of all candidates is as good as a loop; symbolic sizes count
    as large.
    """
    few = isinstance(count, int) and count <= UNROLLED_ENTRIES
    sizes = (batch, count, rows, columns)
    small = all(isinstance(n, int) for n in sizes) and math.prod(sizes) <= REDUCED_CANDIDATES
    return few or small or is_size(rows, 1) or is_size(columns, 1)


def is_size(size: int, number: int) -> bool:
    """Whether a size is this number; a symbolic size is not."""
    return isinstance(size, int) and size == number


# --- one reduction -------------------------------------------------------------------------------


def one_reduction(
    semiring: SelectiveSemiring,
    operands: Sequence[jax.Array],
    *,
    with_winner: bool,
    contracted_last: Sequence[bool] = (False, False),
) -> tuple[jax.Array, ...]:
    """Best candidate of each cell, and which it is; at least one entry is contracted.

    XLA reads the wide operand in its memory order; across its rows it would take up to 40 times as
    long.

    Args, Returns: as `contract`, except that an operand is (batch, own, contracted) if
    `contracted_last`.

    Cost: time and memory b m n k; XLA fuses the candidates into the reduction if it can.
    """
    own = [x.shape[1 if last else 2] for x, last in zip(operands, contracted_last, strict=False)]
    # A symbolic size counts as wide; of equal sides the columns do, so that nothing is transposed.
    is_narrower = isinstance(own[-1], int) and (not isinstance(own[0], int) or own[-1] < own[0])
    wide = 0 if len(own) == 1 or is_narrower else 1
    axis = 3 if contracted_last[wide] else 2

    def side(i: int, x: jax.Array) -> jax.Array:
        if i == wide:
            return x[:, None]
        return jnp.expand_dims(x if contracted_last[i] else jnp.swapaxes(x, 1, 2), 5 - axis)

    sides = [side(*each) for each in enumerate(operands)]
    candidates = semiring.times(*sides) if len(sides) == 2 else sides[0]
    count = candidates.shape[axis]
    if isinstance(count, int) and count <= UNROLLED_ENTRIES:
        each = [lax.index_in_dim(candidates, t, axis, keepdims=False) for t in range(count)]
        value, winner = one_by_one(semiring, each)
        found: tuple[jax.Array, ...] = (value, winner) if with_winner else (value,)
    elif (
        with_winner
        and len(sides) == 1
        and semiring.reduction
        and jnp.issubdtype(candidates.dtype, jnp.floating)
    ):
        found = value_then_winner(semiring, candidates, axis)
    elif with_winner:
        found = together(semiring, candidates, axis)
    else:
        found = (semiring.best(candidates, axis),)
    # They are (batch, narrow, wide).
    return found if wide == 1 else tuple(jnp.swapaxes(x, 1, 2) for x in found)


def one_by_one(
    semiring: SelectiveSemiring,
    candidates: Sequence[jax.Array],
    number: DTypeLike = jnp.int32,
) -> tuple[jax.Array, jax.Array]:
    """Value and winner, a number of this type, among arrays of candidates, each taken once."""
    value, *rest = candidates
    winner = jnp.zeros(value.shape, number)
    for t, candidate in enumerate(rest, 1):
        keeps = semiring.better(value, candidate) | (value == candidate) | (value != value)
        value = jnp.where(keeps, value, candidate)
        winner = jnp.where(keeps, winner, jnp.asarray(t, number))
    return value, winner


def together(
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
        first = semiring.better(x[0], y[0]) | (x[0] != x[0])
        first |= (x[0] == y[0]) & (x[1] < y[1])
        return jnp.where(first, x[0], y[0]), jnp.where(first, x[1], y[1])

    start = jnp.asarray(semiring.identity(candidates.dtype)), jnp.int32(2**31 - 1)
    index = lax.broadcasted_iota(jnp.int32, candidates.shape, axis)
    return lax.reduce((candidates, index), start, first_best, (axis,))


def value_then_winner(
    semiring: SelectiveSemiring, candidates: jax.Array, axis: int
) -> tuple[jax.Array, jax.Array]:
    """As `together`, of entries that are not computed: for XLA CPU two reductions of floats take a
    fifth of the time of one of pairs.
    """
    value = semiring.best(candidates, axis)
    wins = (candidates == jnp.expand_dims(value, axis)) | (candidates != candidates)
    index = lax.broadcasted_iota(jnp.int32, candidates.shape, axis)
    return value, jnp.min(jnp.where(wins, index, jnp.int32(2**31 - 1)), axis)


# --- a loop over blocks --------------------------------------------------------------------------


def in_blocks(
    semiring: SelectiveSemiring,
    lhs: jax.Array,
    rhs: jax.Array,
    *,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    """Best candidate of each cell, and which it is; at least one entry is contracted.

    Args, Returns: as `contract`, of two operands.

    Cost: time b m n k, once for values and once more for winners; memory O(b (m n + k (m + n))).
    """
    parts = _parts(lhs, rhs)
    if parts > 1:
        return _by_parts(semiring, lhs, rhs, parts, with_winner)
    batch, count, columns = rhs.shape
    is_flat = isinstance(lhs.shape[2], int) and lhs.shape[2] <= UNCUT_ROWS
    tiles = max(1, -(-columns // TILE_COLUMNS)) if isinstance(columns, int) and not is_flat else 1
    width = -(-columns // tiles)
    padded = (
        rhs
        if tiles == 1
        else jnp.pad(rhs, ((0, 0), (0, 0), (0, tiles * width - columns)), mode="edge")
    )
    cut = jnp.swapaxes(padded.reshape(batch, count, tiles, width), 1, 2)
    found = _searched(semiring, _Operands(jnp.swapaxes(lhs, 1, 2)[:, None], cut), with_winner)
    whole = (jnp.swapaxes(x, 1, 2).reshape(batch, lhs.shape[2], tiles * width) for x in found)
    return tuple(x[..., :columns] for x in whole)


def _parts(lhs: jax.Array, rhs: jax.Array) -> int:
    """The number of equal parts of the contracted axis, because a turn over few cells uses only one
    thread, and only briefly.
    """
    sizes = (*rhs.shape, lhs.shape[2])
    if not all(isinstance(size, int) for size in sizes):
        return 1
    batch, count, columns, rows = sizes
    return next(
        (
            p
            for p in (8, 4, 2)
            if p * batch * rows * columns <= PARTED_CELLS
            and count % p == 0
            and count // p >= PART_ENTRIES
        ),
        1,
    )


def _by_parts(
    semiring: SelectiveSemiring,
    lhs: jax.Array,
    rhs: jax.Array,
    parts: int,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    """Each part as one more entry of the batch; then the best of the parts' values, from the first
    part among equal ones.
    """
    batch, count, columns = rhs.shape
    length, rows = count // parts, lhs.shape[2]
    value, *winner = in_blocks(
        semiring,
        *(x.reshape(batch * parts, length, x.shape[2]) for x in (lhs, rhs)),
        with_winner=with_winner,
    )
    best, *part = one_reduction(
        semiring, [value.reshape(batch, parts, rows * columns)], with_winner=with_winner
    )
    found = [best]
    for x in winner:
        inside = jnp.take_along_axis(
            x.reshape(batch, parts, rows * columns),
            part[0][:, None, :, 0],
            1,
            mode="promise_in_bounds",
        )[:, 0]
        found.append(part[0] * length + inside[..., None])
    return tuple(x.reshape(batch, rows, columns) for x in found)


class _Operands(NamedTuple):
    """Rows (batch, 1, rows, contracted) and tiles of columns (batch, tiles, contracted, columns of
    a tile).
    """

    rows: jax.Array
    columns: jax.Array

    @property
    def cells(self) -> tuple[int, ...]:
        """(batch, tiles, rows, columns of a tile)."""
        batch, tiles, _, columns = self.columns.shape
        return batch, tiles, self.rows.shape[2], columns


def _searched(
    semiring: SelectiveSemiring,
    operands: _Operands,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    """Value and winner of all cells, NaN where a candidate is."""
    if not jnp.issubdtype(operands.rows.dtype, jnp.floating):
        return _fast(semiring, operands, with_winner)

    def careful(*operands: jax.Array) -> tuple[jax.Array, ...]:
        return _careful(semiring, _Operands(*operands), with_winner)

    finite = are_finite(*operands)

    def fast(*operands: jax.Array) -> tuple[jax.Array, ...]:
        found = _fast(semiring, _Operands(*operands), with_winner)
        return lax.cond(
            finite, lambda _, found: found, _with_operand_nans, _Operands(*operands), found
        )

    may = semiring.may_make_nan(operands.rows, operands.columns)
    if isinstance(may, np.bool_):
        return (careful if may else fast)(*operands)
    return lax.cond(may, careful, fast, *operands)


def _fast(
    semiring: SelectiveSemiring,
    operands: _Operands,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    """Value and winner among the candidates that are not NaN."""
    blocks, width = _steps(operands)
    if (
        with_winner and isinstance(blocks, int) and blocks == 1
    ):  # XLA makes no loop of one turn: see `_together`
        return one_by_one(semiring, _candidates(semiring, operands, jnp.int32(0), width)[1])
    value = _values(semiring, operands)
    return (value, _first_equal(semiring, operands, value)) if with_winner else (value,)


def _steps(operands: _Operands) -> tuple[int, int]:
    """(number of blocks, block width); a short static contraction is one block."""
    count = operands.columns.shape[2]
    width = min(count, BLOCK_ENTRIES) if isinstance(count, int) else BLOCK_ENTRIES
    return -(-count // width), width


def _candidates(
    semiring: SelectiveSemiring,
    operands: _Operands,
    start: jax.Array,
    width: int,
) -> tuple[jax.Array, list[jax.Array]]:
    """The index of the first of `width` candidates, and the candidates; at the end these are the
    last ones.
    """
    count = operands.columns.shape[2]
    if isinstance(count, int):
        start = jnp.minimum(start, count - width)
        rows, columns = (
            lax.dynamic_slice_in_dim(operands.rows, start, width, 3),
            lax.dynamic_slice_in_dim(operands.columns, start, width, 2),
        )
    else:  # if there are fewer than a block, the last one is repeated
        at = jnp.minimum(start + lax.iota(jnp.int32, width), jnp.asarray(count - 1, jnp.int32))
        rows, columns = (
            jnp.take(operands.rows, at, axis=3, mode="clip"),
            jnp.take(operands.columns, at, axis=2, mode="clip"),
        )
    return start, [
        semiring.times(rows[:, :, :, t, None], columns[:, :, t, None, :]) for t in range(width)
    ]


def _looped(count: int, step: Callable[..., Any], operands: _Operands, start: Any) -> Any:
    """A loop whose operands are in its state: jax2onnx takes no loop that closes over arrays of the
    branch around it.
    """

    def on(i: jax.Array, state: Any) -> Any:
        return state[0], step(i, *state)

    return lax.fori_loop(0, count, on, (operands, start))[1]


def tree(op: Callable[[T, T], T], entries: Sequence[T]) -> T:
    """op of all entries: as a tree the operations of a level run in parallel, and sums have less
    rounding than in a sequence.
    """
    while len(entries) > 1:
        pairs, odd = zip(entries[0::2], entries[1::2], strict=False), entries[len(entries) & ~1 :]
        entries = [*itertools.starmap(op, pairs), *odd]
    return entries[0]


def _values(semiring: SelectiveSemiring, operands: _Operands) -> jax.Array:
    blocks, width = _steps(operands)

    def better(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(semiring.better(y, x), y, x)

    def step(i: jax.Array, operands: _Operands, value: jax.Array) -> jax.Array:
        _, found = _candidates(semiring, operands, jnp.asarray(i, jnp.int32) * width, width)
        return better(value, tree(better, found))

    return _looped(
        blocks, step, operands, jnp.full(operands.cells, semiring.identity(operands.rows.dtype))
    )


def _first_equal(semiring: SelectiveSemiring, operands: _Operands, value: jax.Array) -> jax.Array:
    """The first contracted index whose candidate equals the value; the search starts at the last
    block, so that the first index stays.
    """
    blocks, width = _steps(operands)

    def step(i: jax.Array, operands: _Operands, state: tuple[jax.Array, ...]) -> Any:
        value, winner = state
        start, candidates = _candidates(
            semiring,
            operands,
            (jnp.asarray(blocks - 1, jnp.int32) - jnp.asarray(i, jnp.int32)) * width,
            width,
        )
        found = jnp.full(value.shape, width, jnp.int32)
        for t, candidate in reversed(list(enumerate(candidates))):
            found = jnp.where(candidate == value, jnp.int32(t), found)
        return value, jnp.where(found < width, start + found, winner)

    return _looped(blocks, step, operands, (value, jnp.zeros(value.shape, jnp.int32)))[1]


def _with_operand_nans(operands: _Operands, result: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """Cells with a NaN operand become NaN, their winner the first NaN candidate."""
    count = jnp.asarray(operands.columns.shape[2], jnp.int32)

    def first_nan(x: jax.Array, axis: int) -> jax.Array:
        index = lax.broadcasted_iota(jnp.int32, x.shape, axis)
        return jnp.min(jnp.where(jnp.isnan(x), index, count), axis=axis, keepdims=True)

    first = jnp.minimum(first_nan(operands.rows, 3), first_nan(operands.columns, 2))
    value = jnp.where(first < count, jnp.asarray(jnp.nan, operands.rows.dtype), result[0])
    return (value, *(jnp.where(first < count, first, winner) for winner in result[1:]))


def _careful(
    semiring: SelectiveSemiring,
    operands: _Operands,
    with_winner: bool,
) -> tuple[jax.Array, ...]:
    """Value and winner, with a test for NaN in every candidate."""

    def step(k: jax.Array, operands: _Operands, state: tuple[jax.Array, ...]) -> Any:
        value, winner = state
        k, (candidate,) = _candidates(semiring, operands, jnp.asarray(k, jnp.int32), 1)
        wins = (semiring.better(candidate, value) | jnp.isnan(candidate)) & ~jnp.isnan(value)
        return jnp.where(wins, candidate, value), jnp.where(wins, k, winner)

    start = (
        jnp.full(operands.cells, semiring.identity(operands.rows.dtype)),
        jnp.zeros(operands.cells, jnp.int32),
    )
    found = _looped(operands.columns.shape[2], step, operands, start)
    return found if with_winner else found[:1]
