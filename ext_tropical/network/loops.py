"""A whole plan in standard ops, as a program whose size does not grow with the plan.

All operands and the results of all steps are in one flat buffer. A step is a row of integers: where
its operands and its result begin, and for each label its size and its strides. A loop takes the
steps by depth; each turn of it computes a block of cells, whose addresses follow from the rows.
There are three kinds of blocks, so that a turn has enough to do: cells of many small steps, cells
of one large step, and a few cells with many candidates.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum import Plan
from tenferro_jax.einsum.einsum_plan import Step

from ..algebra.semiring import SelectiveSemiring
from ..step.einsum_op import widened

LARGE = 1 << 18
"""The most candidates of a step in the loop, where the caller can run larger ones."""


SEGMENT = 32
"""Lanes that work on one step."""

PART = 64
"""Segments of a turn."""

LANES = PART * SEGMENT

AT_ONCE = 2
"""Candidates that a lane takes in one turn."""


class Row(NamedTuple):
    """A step as strides, or the sum that gives the cotangent of one of its operands.

    Attributes:
      level: rows of one level do not depend on each other.
      bases: where the arrays begin that are read.
      single: whether the step has one operand.
      writes: where the results begin in the arrays that are written; -1 where there is none.
      cells: (extent, stride in each array read) of the axes of the result.
      candidates: the same for the axes that are contracted.
    """

    level: int
    bases: tuple[int, ...]
    single: bool
    writes: tuple[int, ...]
    cells: list[tuple[int, ...]]
    candidates: list[tuple[int, ...]]

    @property
    def counts(self) -> tuple[int, int]:
        """How many cells, and how many candidates each of them has."""
        return math.prod(x[0] for x in self.cells), math.prod(x[0] for x in self.candidates)

    @property
    def lanes(self) -> int:
        """How many lanes share the candidates of a cell, a power of two: several, if there are few
        cells with many candidates.
        """
        cells, count = self.counts
        lanes = 1
        while lanes * cells < LANES and 8 * lanes < count:
            lanes *= 2
        return lanes


class Layout(NamedTuple):
    """Where everything is.

    Attributes:
      values: the place of each operand and each step's result in the buffer, and its length.
      winners: the place of each step's winners, -1 if it contracts nothing; and their number.
    """

    values: tuple[int, ...]
    winners: tuple[int, ...]


@functools.lru_cache(maxsize=64)
def layout(plan: Plan) -> Layout:
    """The places of values and winners, in the order of the plan.

    Raises:
      ValueError: the buffer has more than 2**31 - 1 entries.
    """
    sizes = dict(plan.sizes)
    values, winners = [0], [0]
    for term in (*plan.terms, *(step.result for step in plan.steps)):
        values.append(values[-1] + math.prod(sizes[label] for label in term))
    places = []
    for i, step in enumerate(plan.steps, len(plan.terms)):
        contracts = any(sizes[label] > 1 for label in contracted(step)) or bool(contracted(step))
        places.append(winners[-1] if contracts else -1)
        winners.append(winners[-1] + contracts * (values[i + 1] - values[i]))
    if values[-1] >= 2**31:
        raise ValueError(f"{values[-1]} entries of operands and results")
    return Layout(tuple(values), (*places, winners[-1]))


def contracted(step: Step) -> str:
    """The labels that a step contracts, in order of first appearance."""
    return "".join(label for label in dict.fromkeys("".join(step.terms)) if label not in step.result)


def _strides(term: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The distance of neighbours along each label, in a row-major array; a diagonal adds them."""
    found: dict[str, int] = collections.defaultdict(int)
    stride = 1
    for label in reversed(term):
        found[label] += stride
        stride *= sizes[label]
    return found


def _axes(
    labels: str, sizes: Mapping[str, int], terms: Sequence[str]
) -> list[tuple[int, ...]]:
    """(extent, stride in each term), neighbours that are one axis in every term as one."""
    strides = [_strides(term, sizes) for term in terms]
    found: list[tuple[int, ...]] = []
    for label in labels:
        axis = (sizes[label], *(each.get(label, 0) for each in strides))
        if axis[0] == 1:
            continue
        if found and all(x == axis[0] * y for x, y in zip(found[-1][1:], axis[1:], strict=True)):
            axis = (found.pop()[0] * axis[0], *axis[1:])
        found.append(axis)
    return found


@functools.lru_cache(maxsize=16)
def _forward(plan: Plan) -> tuple[Row, ...]:
    """A row for each step: it reads its operands (a single one twice), and writes value and
    winner.
    """
    sizes, places = dict(plan.sizes), layout(plan)
    levels = [0] * len(plan.terms)
    rows = []
    for i, step in enumerate(plan.steps):
        levels.append(1 + max(levels[j] for j in step.operands))
        reads, terms = (step.operands * 2)[:2], (step.terms * 2)[:2]
        rows.append(
            Row(
                levels[-1],
                tuple(places.values[j] for j in reads),
                len(step.operands) == 1,
                (places.values[len(plan.terms) + i], places.winners[i]),
                _axes(step.result, sizes, terms),
                _axes(contracted(step), sizes, terms),
            )
        )
    return tuple(rows)


class _Table(NamedTuple):
    """Rows as arrays of integers.

    The address of index i over some axes is the sum over them of i // (entries of all later axes) *
    coefficient, where the coefficient is the axis's stride less what the next one has moved.

    Attributes:
      columns: for each row number of cells, number of candidates, logarithm of its lanes, whether
        single; bases, writes; for axes of cells and of candidates divisor and coefficients.
      starts: the first segment of each row.
      reads: the number of arrays read; and of those written.
      ranks: the number of axes of cells; and of candidates.
      exact: whether the quotients of all indices are exact in float32.
      turns: for each turn its first segment, the end of its level, its first row, and which of its
        candidates it takes.
    """

    columns: np.ndarray
    starts: np.ndarray
    reads: tuple[int, int]
    ranks: tuple[int, int]
    exact: bool
    turns: np.ndarray


def _table(rows: Sequence[Row]) -> _Table:
    rows = sorted(rows, key=lambda row: (row.level, -row.lanes, row.counts[1]))
    reads, writes = len(rows[0].bases), len(rows[0].writes)
    ranks = (max(len(row.cells) for row in rows), max(len(row.candidates) for row in rows))
    exact = max(max(row.counts) for row in rows) < 1 << 21
    columns, starts, spans, steps = [], [0], {}, []
    for row in rows:
        head = (*row.counts, row.lanes.bit_length() - 1, row.single)
        axes = [
            x
            for axes, rank in zip((row.cells, row.candidates), ranks, strict=True)
            for axis in _coefficients(axes, rank, reads, exact)
            for x in axis
        ]
        columns.append([*head, *row.bases, *row.writes, *axes])
        first, _ = spans.get(row.level, (starts[-1], 0))
        starts.append(starts[-1] - (-row.counts[0] * row.lanes // SEGMENT))
        spans[row.level] = (first, starts[-1])
        steps.append(-(-row.counts[1] // (row.lanes * AT_ONCE)))
    turns = []
    for start, end in spans.values():
        for turn in range(start, end, PART):
            low = bisect.bisect_right(starts, turn) - 1
            high = bisect.bisect_left(starts, min(end, turn + PART))
            turns += [(turn, end, low, i) for i in range(max(steps[low:high]))]
    table, padded = np.array(columns, np.int32), [*starts[:-1], *[2**31 - 1] * PART]
    return _Table(
        table, np.array(padded, np.int32), (reads, writes), ranks, exact, np.array(turns, np.int32)
    )


def _coefficients(
    axes: Sequence[tuple[int, ...]], rank: int, reads: int, exact: bool
) -> list[tuple[int, ...]]:
    divisor, moved, found = 1, (0,) * reads, []
    for extent, *strides in reversed(axes):
        scale = int(np.float32(1 / divisor).view(np.int32)) if exact else divisor
        found.append((scale, *(x - y for x, y in zip(strides, moved, strict=True))))
        moved = tuple(extent * x for x in strides)
        divisor *= extent
    return found + [(1,) + (0,) * reads] * (rank - len(found))


class Lanes:
    """The cells of one turn, and their candidates, in arrays of LANES entries."""

    def __init__(self, table: _Table, turn: jax.Array) -> None:
        self.table = table
        start, end, row, self.chunk = jnp.asarray(table.turns)[turn]
        segment = start + lax.broadcasted_iota(jnp.int32, (PART, 1), 0)
        window = lax.dynamic_slice(jnp.asarray(table.starts), (row,), (PART,))
        at = (window <= segment).astype(jnp.int32).sum(1, dtype=jnp.int32) - 1
        first = window[at]
        rows = lax.optimization_barrier(jnp.asarray(table.columns)[row + at])
        cells, self.count, self.share, single, *rest = (rows[:, i, None] for i in range(rows.shape[1]))
        reads, writes = table.reads
        bases, self.writes = rest[:reads], rest[reads : reads + writes]
        self.single = single == 1
        rest, width = rest[reads + writes :], 1 + reads
        axes = [rest[i * width : (i + 1) * width] for i in range(sum(table.ranks))]
        self.axes = axes[table.ranks[0] :]
        lane = lax.broadcasted_iota(jnp.int32, (PART, SEGMENT), 1)
        lane += (segment - first[:, None]) * SEGMENT
        cell = lane >> self.share
        self.lane = lane - (cell << self.share)
        self.valid = (cell < cells) & (self.lane == 0) & (segment < end)
        self.cell = jnp.minimum(cell, cells - 1)
        self.origin = self._address(axes[: table.ranks[0]], self.cell, bases)

    def _address(
        self, axes: Sequence[Sequence[jax.Array]], index: jax.Array, start: Sequence[jax.Array]
    ) -> list[jax.Array]:
        """The address in each array read, of an index over some axes."""
        found = [jnp.broadcast_to(x, index.shape) for x in start]
        for divisor, *coefficients in axes:
            if self.table.exact:  # vectorised; a division is not
                scale = lax.bitcast_convert_type(divisor, jnp.float32)
                rest = ((index.astype(jnp.float32) + 0.5) * scale).astype(jnp.int32)
            else:
                rest = lax.div(index, jnp.broadcast_to(divisor, index.shape))
            found = [x + rest * y for x, y in zip(found, coefficients, strict=True)]
        return found

    def at(self, which: int) -> tuple[jax.Array, jax.Array, list[jax.Array]]:
        """(number, whether there is one, addresses) of one candidate for each lane."""
        number = ((self.chunk * AT_ONCE + which) << self.share) + self.lane
        exists = number < self.count
        number = jnp.minimum(number, self.count - 1)
        return number, exists, self._address(self.axes, number, self.origin)

    def folded(
        self,
        fold: Callable[[_Found, _Found], _Found],
        candidate: Callable[[int], _Found],
        before: _Found,
    ) -> tuple[_Found, _Found]:
        """The candidates of each lane so far, folded; and those of all lanes that share a cell."""
        found = functools.reduce(fold, map(candidate, range(AT_ONCE)))
        both = fold(before, found)
        found = tuple(jnp.where(self.chunk == 0, x, y) for x, y in zip(found, both, strict=True))
        if not self.table.columns[:, 2].any():
            return found, found
        index = lax.iota(jnp.int32, LANES).reshape(self.lane.shape)

        def shared(i: jax.Array, found: _Found) -> _Found:
            other = tuple(_at(x.reshape(-1), index ^ (jnp.int32(1) << i)) for x in found)
            both = fold(found, other)
            return tuple(jnp.where(i < self.share, y, x) for x, y in zip(found, both, strict=True))

        return found, lax.fori_loop(np.int32(0), jnp.max(self.share), shared, found)

    def write(self, array: jax.Array, which: int, new: jax.Array) -> jax.Array:
        """An array with the cells of a result."""
        base = self.writes[which]
        place = jnp.where(self.valid & (base >= 0), base + self.cell, array.shape[0])
        return array.at[place.reshape(-1)].set(new.reshape(-1), mode="drop")


def _sweep(
    rows: Sequence[Row],
    turn: Callable[[Lanes, Any], Any],
    state: Any,
) -> Any:
    """The state after all turns, by level."""
    table = _table(rows)
    return lax.fori_loop(
        np.int32(0), np.int32(len(table.turns)), lambda i, state: turn(Lanes(table, i), state), state
    )


_Found = tuple[jax.Array, ...]


def _at(array: jax.Array, place: jax.Array) -> jax.Array:
    return array.at[place].get(mode="promise_in_bounds")


def search(
    plan: Plan,
    semiring: SelectiveSemiring,
    operands: Sequence[jax.Array],
    with_winners: bool,
) -> tuple[jax.Array, jax.Array | None]:
    dtype = operands[0].dtype
    places = layout(plan)

    def fold(x: tuple[jax.Array, ...], y: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        takes = semiring.better(y[0], x[0]) | (y[0] != y[0])
        if with_winners:
            equal = (y[0] == x[0]) | ((x[0] != x[0]) & (y[0] != y[0]))
            takes = jnp.where(equal, y[1] < x[1], takes)
        return tuple(jnp.where(takes, b, a) for a, b in zip(x, y, strict=True))

    def turn(lanes: Lanes, state: Any) -> Any:
        arrays, before = state

        def candidate(which: int) -> _Found:
            number, _, at = lanes.at(which)
            left, right = (_at(arrays[0], x).astype(work) for x in at)
            found = jnp.where(lanes.single, left, semiring.times(left, right))
            return (found, number)[: 1 + with_winners]

        lane, (value, *winner) = lanes.folded(fold, candidate, before)
        new = (value.astype(dtype), *winner)
        return tuple(lanes.write(x, i, y) for i, (x, y) in enumerate(zip(arrays, new))), lane

    work = widened(jnp.zeros((), dtype)).dtype
    rest = places.values[-1] - places.values[len(operands)]
    arrays = (_joined([*operands, jnp.zeros(rest, dtype)]), jnp.zeros(places.winners[-1], jnp.int32))
    before = tuple(jnp.zeros((PART, SEGMENT), x) for x in (work, jnp.int32))
    used = slice(1 + with_winners)
    (buffer, *winners), _ = _sweep(_forward(plan), turn, (arrays[used], before[used]))
    return _result(plan, buffer), winners[0] if winners else None


def _joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """All entries of all arrays; in two stages, which compile in half the time of one."""
    flat = [lax.reshape(x, (x.size,)) for x in arrays]
    parts = [lax.concatenate(flat[i : i + 64], 0) for i in range(0, len(flat), 64)]
    return lax.optimization_barrier(lax.concatenate(lax.optimization_barrier(parts), 0))


def _result(plan: Plan, buffer: jax.Array) -> jax.Array:
    sizes, (*_, start, end) = dict(plan.sizes), layout(plan).values
    labels, wanted = plan.steps[-1].result, plan.equation.output
    value = buffer[start:end].reshape([sizes[label] for label in labels])
    return jnp.transpose(value, [labels.index(label) for label in wanted])


def coordinates(plan: Plan, winners: jax.Array) -> jax.Array:
    """The assignments that follow from winners, read backwards from the last step.

    Returns:
      int32 (contracted labels, *shape of the value): the labels in alphabetical order.
    """
    sizes, places, output = dict(plan.sizes), layout(plan), plan.equation.output
    shape = [sizes[label] for label in output]
    ids = {label: i for i, label in enumerate(output)}
    found = []
    depths = [0] * (len(plan.terms) + len(plan.steps))
    for i, step in reversed(list(enumerate(plan.steps))):
        own = _strides(step.result, sizes)
        for label, divisor in _strides(contracted(step), sizes).items():
            found.append((depths[len(plan.terms) + i], label, places.winners[i], divisor, own))
        for j in step.operands:
            depths[j] = depths[len(plan.terms) + i] + 1
    found.sort(key=lambda each: each[0])
    ids |= {each[1]: i for i, each in enumerate(found, len(output))}
    rank = max((len(each[-1]) for each in found), default=0)
    rows = []
    for _, label, base, divisor, own in found:
        axes = [(ids[x], stride) for x, stride in own.items()] + [(0, 0)] * (rank - len(own))
        rows.append([base, divisor, sizes[label], *(x for axis in axes for x in axis)])
    count = max(1, min(16, LANES // math.prod(shape)))  # rows of a turn
    levels = [each[0] for each in found]
    bounds = [0, *(i for i in range(1, len(levels)) if levels[i] != levels[i - 1]), len(levels)]
    turns = [i for low, high in itertools.pairwise(bounds) for i in range(low, high, count)]
    table = np.array(rows, np.int32).reshape(len(rows), 3 + 2 * rank)
    table = np.pad(table, ((0, count), (0, 0)), mode="edge")
    starts = np.array(turns, np.int32)

    def turn(i: jax.Array, known: jax.Array) -> jax.Array:
        start = jnp.asarray(starts)[i]
        rows = lax.dynamic_slice_in_dim(jnp.asarray(table), start, count)
        base, divisor, size = (rows[:, j, None] for j in range(3))
        axes = rows[:, 3:].reshape(count, rank, 2)
        place = base + (_at(known, axes[..., 0]) * axes[..., 1, None]).sum(1, dtype=jnp.int32)
        winner = _at(winners, place)
        new = lax.rem(lax.div(winner, jnp.broadcast_to(divisor, winner.shape)),
                      jnp.broadcast_to(size, winner.shape))
        return lax.dynamic_update_slice_in_dim(known, new, start + len(output), 0)

    cells = math.prod(shape)
    known = [lax.broadcasted_iota(jnp.int32, shape, i).reshape(1, cells) for i in range(len(output))]
    known = jnp.concatenate([*known, jnp.zeros((len(rows) + count, cells), jnp.int32)])
    if turns:
        known = lax.fori_loop(np.int32(0), np.int32(len(turns)), turn, known)
    order = np.array([ids[label] for label in sorted(each[1] for each in found)], np.int32)
    return _at(known, order).reshape(len(rows), *shape)
