"""A plan as rows of integers, for loops whose program does not grow with the plan.

A program with an operation for every step takes XLA time that grows with the plan: seconds for some
hundred steps. So `loops` and `walk` interpret rows. All operands and the results of all steps are
in one flat buffer. A row says where the operands of a step and its result begin, and for each axis
its extent and its strides.

There are rows in three directions: `forward` to values, `backward` to cotangents, and `choices`,
along which a walk goes from the last step to the first. Each loop makes of its rows a record of
arrays with named columns, and passes it as one array, see `packed`. These records differ, because
the loops find addresses differently: `LaneColumns` for lanes, which divide the number of a cell and
join axes to divide less; `walk.WalkColumns` for walks, which know an index for each label.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import Unsupported
from tenferro_jax.plans import Plan, Step

SEGMENT = 32
"""Lanes next to each other, which work on one step. A row of the table is read once for all of
them; steps of fewer cells leave some of them idle.
"""

SEGMENTS = 64
"""Segments of a turn. Together they are as many lanes as keep vector units busy, and few enough
for the small steps of one level.
"""

LANES = SEGMENT * SEGMENTS
"""Lanes of a turn, a power of two, so that lanes which share a cell find each other by one bit."""

AT_ONCE = 2
"""Candidates that a lane takes in one turn: half as many turns, in a body of twice the size."""

EXACT_BELOW = 1 << 21
"""Numbers below have an exact quotient when they are divided in float32, see `Lanes`."""

MOST_ENTRIES = 2**31 - 1
"""Addresses in the buffer are int32."""

Integers: TypeAlias = Any
"""A number or an int32 array of a row; in a loop an array of JAX, with an axis of rows before."""

Record = TypeVar("Record")
Item = TypeVar("Item")


@functools.lru_cache(maxsize=64)
def layout(plan: Plan) -> tuple[int, ...]:
    """The place of each operand and then of each step's result in the buffer; its length.

    Raises:
      Unsupported: a buffer whose entries int32 cannot count.
    """
    sizes = dict(plan.sizes)
    terms = (*plan.terms, *(step.result for step in plan.steps))
    counts = (_product(term, sizes) for term in terms)
    places = tuple(itertools.accumulate(counts, initial=0))
    if places[-1] > MOST_ENTRIES:
        raise Unsupported(
            where="tropical network in standard ops",
            given=f"{places[-1]} entries of tables and results",
            needed=f"at most {MOST_ENTRIES}, because they are counted in int32",
            fix="Pass a memory_limit, which contracts in slices.",
        )
    return places


def _product(labels: str, sizes: Mapping[str, int]) -> int:
    """The number of entries of an array with these labels."""
    return math.prod(map(sizes.__getitem__, labels))


def contracted(step: Step) -> str:
    """The labels that a step contracts, in order of first appearance."""
    labels = dict.fromkeys("".join(step.terms))
    return "".join(label for label in labels if label not in step.result)


def strides(term: str, sizes: Mapping[str, int]) -> dict[str, int]:
    """The distance of neighbours along each label in a row-major array; a diagonal adds those of
    its axes.
    """
    found: dict[str, int] = collections.defaultdict(int)
    stride = 1
    for label in reversed(term):
        found[label] += stride
        stride *= sizes[label]
    return found


def both(of: Sequence[Item]) -> tuple[Item, Item]:
    """What belongs to both operands of a step: of an only operand, which is read twice, the same
    for both.
    """
    return of[0], of[-1]


# --- rows -----------------------------------------------------------------------------------------


class Axis(NamedTuple):
    """An axis over which a loop goes.

    Attributes:
      label: of the plan.
      extent: how many entries there are along it.
      strides: the distance of neighbours in each array that is read.
    """

    label: str
    extent: int
    strides: tuple[int, ...]


class Row(NamedTuple):
    """A step, or the sum that gives the cotangent of one of its operands.

    Attributes:
      number: of the step.
      level: rows of one level do not depend on each other.
      is_plain: whether the step contracts nothing, so that its candidates are its result.
      bases: where the arrays begin that are read.
      write: where the results begin in every array that is written.
      cells: the axes of the result, row-major.
      candidates: the axes that are summed.
    """

    number: int
    level: int
    is_plain: bool
    bases: tuple[int, ...]
    write: int
    cells: list[Axis]
    candidates: list[Axis]

    @property
    def is_single(self) -> bool:
        """Whether the step has one operand, which is read twice."""
        return self.bases[0] == self.bases[1]

    @property
    def counts(self) -> tuple[int, int]:
        """How many cells, and how many candidates each of them has."""
        return _extent(self.cells), _extent(self.candidates)

    @property
    def lanes(self) -> int:
        """How many lanes share the candidates of a cell, a power of two: several, if there are few
        cells with many candidates. More would have less than eight candidates each, and what they
        find is then folded in one more round for each doubling.
        """
        cells, candidates = self.counts
        lanes = 1
        while lanes * cells < LANES and 8 * lanes < candidates:
            lanes *= 2
        return lanes


def _extent(axes: Iterable[Axis]) -> int:
    """The number of indices over some axes."""
    return math.prod(axis.extent for axis in axes)


def axes_of(labels: Iterable[str], sizes: Mapping[str, int], terms: Sequence[str]) -> list[Axis]:
    """An axis for each label, with its stride in each term; 0 where a term lacks it."""
    every, axes = [strides(term, sizes) for term in terms], []
    for label in labels:
        moved = tuple([own.get(label, 0) for own in every])
        axes.append(Axis(label, sizes[label], moved))
    return axes


@functools.lru_cache(maxsize=16)
def forward(plan: Plan) -> tuple[Row, ...]:
    """A row for each step: it reads its operands, and writes its result."""
    sizes, places, first = dict(plan.sizes), layout(plan), len(plan.terms)
    levels, rows = [0] * first, []
    for i, step in enumerate(plan.steps):
        levels.append(1 + max(levels[j] for j in step.operands))
        bases = tuple([places[j] for j in both(step.operands)])
        terms, candidates = both(step.terms), contracted(step)
        row = Row(
            number=i,
            level=levels[-1],
            is_plain=not candidates,
            bases=bases,
            write=places[first + i],
            cells=axes_of(step.result, sizes, terms),
            candidates=axes_of(candidates, sizes, terms),
        )
        rows.append(row)
    return tuple(rows)


def moving(plan: Plan, operands: Sequence[int]) -> set[int]:
    """The numbers of these operands and of all results that depend on them."""
    found = set(operands)
    for i, step in enumerate(plan.steps, len(plan.terms)):
        if found.intersection(step.operands):
            found.add(i)
    return found


def _depths(plan: Plan) -> list[int]:
    """How many steps are between each value and the last result, which counts as 1."""
    first = len(plan.terms)
    depths = [1] * (first + len(plan.steps))
    for i, step in reversed(list(enumerate(plan.steps, first))):
        for j in step.operands:
            depths[j] = depths[i] + 1
    return depths


@functools.lru_cache(maxsize=16)
def backward(plan: Plan, wanted: tuple[int, ...]) -> tuple[Row, ...]:
    """A row for each operand of a step that depends on a wanted one: it reads this operand, the
    other one and the step's result, and writes the entries of a cotangent for distinct labels. Each
    value is read by one step, so that every cotangent is one sum and nothing is scattered.
    """
    sizes, places, first = dict(plan.sizes), layout(plan), len(plan.terms)
    depths, needed, rows = _depths(plan), moving(plan, wanted), []
    for i, step in reversed(list(enumerate(plan.steps))):
        others = zip(step.operands[::-1], step.terms[::-1], strict=True)
        for j, term, (other, rest) in zip(step.operands, step.terms, others, strict=True):
            if j not in needed:
                continue
            terms, values = (term, rest, step.result), (j, other, first + i)
            axes = axes_of(dict.fromkeys("".join(terms)), sizes, terms)
            row = Row(
                number=i,
                level=depths[first + i],
                is_plain=not contracted(step),
                bases=tuple([places[value] for value in values]),
                write=places[j],
                cells=[axis for axis in axes if axis.label in term],
                candidates=[axis for axis in axes if axis.label not in term],
            )
            rows.append(row)
    return tuple(rows)


def choices(plan: Plan) -> list[Row]:
    """The rows of `forward` by their distance from the last step, with which a walk begins."""
    depths, first = _depths(plan), len(plan.terms)
    rows = [row._replace(level=depths[first + row.number]) for row in reversed(forward(plan))]
    return sorted(rows, key=lambda row: row.level)


# --- tables ---------------------------------------------------------------------------------------


def packed(rows: Sequence[Record]) -> tuple[np.ndarray, Callable[[jax.Array], Record]]:
    """Records as one array, a row for each; and what gives a record of columns of some of its rows:
    `jax.flatten_util.ravel_pytree`, row by row. So a turn of a loop reads its rows at once.

    Args:
      rows: with numbers and int32 arrays, alike in all. Their columns are (rows, 1), or (rows, ...)
        with the axes of the arrays.
    """
    leaves, form = jax.tree.flatten(rows[0])
    shapes = [np.shape(x) or (1,) for x in leaves]
    ends = np.cumsum([math.prod(shape) for shape in shapes])

    def unpacked(table: jax.Array) -> Record:
        parts = jnp.split(table, ends[:-1], 1)
        columns = [x.reshape(len(table), *shape) for x, shape in zip(parts, shapes, strict=True)]
        return jax.tree.unflatten(form, columns)

    flat = []
    for row in rows:
        parts = [np.asarray(x, np.int32).reshape(-1) for x in jax.tree.leaves(row)]
        flat.append(np.concatenate(parts))
    return np.array(flat), unpacked


class Divisions(NamedTuple):
    """How the number of a cell or of a candidate becomes the distance moved in each array read.

    It is the sum over the axes of number // (product of the later extents) * coefficient. The
    coefficient is the axis's stride less the distance that the next axis moved before it began
    again: one division and one multiplication an axis, and no remainder.

    Attributes:
      divisors: (axes,), the product of the later extents; if the table is exact, the bits of its
        inverse.
      coefficients: (axes, arrays read).
    """

    divisors: Integers
    coefficients: Integers


class LaneColumns(NamedTuple):
    """What lanes need of a row.

    Attributes:
      cells: the number of cells.
      candidates: the number of candidates of each.
      share: the logarithm of the number of lanes of a cell.
      is_single, is_plain: of the row.
      bases: (arrays read,), where these begin.
      write: where the result begins.
      of_cell: from the number of a cell to addresses.
      of_candidate: from the number of a candidate.
    """

    cells: Integers
    candidates: Integers
    share: Integers
    is_single: Integers
    is_plain: Integers
    bases: Integers
    write: Integers
    of_cell: Divisions
    of_candidate: Divisions


class Turn(NamedTuple):
    """A turn of the loop.

    Attributes:
      segment: the first one.
      end: the end of its level, as a segment.
      row: the row of the first segment.
      chunk: how many turns took candidates of the same segments before.
    """

    segment: int
    end: int
    row: int
    chunk: int


class Table(NamedTuple):
    """Rows as arrays of integers.

    Attributes:
      packed: the rows' `LaneColumns` in one array, in the order of their segments.
      unpacked: rows of this array -> LaneColumns.
      starts: the first segment of each row.
      exact: whether all numbers are below EXACT_BELOW.
      has_shared: whether several lanes share a cell of some row.
      turns: (turns, 4), a `Turn` each.
    """

    packed: np.ndarray
    unpacked: Callable[[jax.Array], LaneColumns]
    starts: np.ndarray
    exact: bool
    has_shared: bool
    turns: np.ndarray


def table(rows: Sequence[Row]) -> Table:
    """At least one row as arrays.

    Rows of a level stand together, those with as many lanes a cell and as many candidates next to
    each other: a turn lasts as long as the row with most candidates among its segments.
    """
    rows = [x._replace(cells=_joined(x.cells), candidates=_joined(x.candidates)) for x in rows]
    rows.sort(key=lambda row: (row.level, -row.lanes, row.counts[1]))
    exact = max(max(row.counts) for row in rows) < EXACT_BELOW
    most = ranks(rows)
    flat, unpacked = packed([_lane_columns(row, most, exact) for row in rows])
    segments = [_rounded_up(row.counts[0] * row.lanes, SEGMENT) for row in rows]
    starts = [*itertools.accumulate(segments, initial=0)]
    turns = np.array(_turns(rows, starts), np.int32)
    starts[-1:] = [2**31 - 1] * SEGMENTS  # the window of a turn may begin at the last row
    return Table(
        packed=flat,
        unpacked=unpacked,
        starts=np.array(starts, np.int32),
        exact=exact,
        has_shared=any(row.lanes > 1 for row in rows),
        turns=turns,
    )


def _joined(axes: Iterable[Axis]) -> list[Axis]:
    """Axes, of which neighbours that are one axis in every array are joined, since each axis costs
    a division for every candidate; without those of one entry.
    """
    found: list[Axis] = []
    for axis in axes:
        if axis.extent == 1:
            continue
        if found and found[-1].strides == tuple(axis.extent * x for x in axis.strides):
            last = found.pop()
            axis = Axis(last.label + axis.label, last.extent * axis.extent, axis.strides)
        found.append(axis)
    return found


def _lane_columns(row: Row, ranks: tuple[int, int], exact: bool) -> LaneColumns:
    """The columns of a row of joined axes, with so many axes of cells and of candidates."""
    (cells, candidates), reads = row.counts, len(row.bases)
    cell_axes = padded(row.cells, ranks[0], reads)
    candidate_axes = padded(row.candidates, ranks[1], reads)
    return LaneColumns(
        cells=cells,
        candidates=candidates,
        share=row.lanes.bit_length() - 1,
        is_single=row.is_single,
        is_plain=row.is_plain,
        bases=np.array(row.bases),
        write=row.write,
        of_cell=_divisions(cell_axes, exact),
        of_candidate=_divisions(candidate_axes, exact),
    )


def ranks(rows: Sequence[Row]) -> tuple[int, int]:
    """The most axes of cells and of candidates that a row has."""
    return max(len(row.cells) for row in rows), max(len(row.candidates) for row in rows)


def padded(axes: Sequence[Axis], rank: int, reads: int) -> list[Axis]:
    """So many axes: those that are added have no label and one entry, and move in no array."""
    return [*axes, *[Axis("", 1, (0,) * reads)] * (rank - len(axes))]


def row_major(axes: Sequence[Axis]) -> np.ndarray:
    """The strides of an array of some axes: for each the product of the later extents."""
    return np.array([_extent(axes[i + 1 :]) for i in range(len(axes))], np.int32)


def _divisions(axes: Sequence[Axis], exact: bool) -> Divisions:
    """Those of padded axes."""
    divisors, coefficients = row_major(axes), [np.array(axis.strides) for axis in axes]
    for i, following in enumerate(axes[1:]):
        coefficients[i] -= following.extent * np.array(following.strides)
    if exact:
        divisors = (1 / divisors).astype(np.float32).view(np.int32)
    return Divisions(divisors, np.array(coefficients))


def _turns(rows: Sequence[Row], starts: Sequence[int]) -> list[Turn]:
    """The turns of sorted rows, of which each begins at a segment; the last of these is the end."""
    repeats = [_rounded_up(row.counts[1], row.lanes * AT_ONCE) for row in rows]
    spans: dict[int, tuple[int, int]] = {}  # of each level: its first segment, and the end
    for row, start, end in zip(rows, starts, starts[1:], strict=False):
        spans[row.level] = (spans.get(row.level, (start, end))[0], end)
    turns = []
    for start, end in spans.values():
        for segment in range(start, end, SEGMENTS):
            low = bisect.bisect_right(starts, segment) - 1
            high = bisect.bisect_left(starts, min(end, segment + SEGMENTS))
            chunks = max(repeats[low:high])
            turns += [Turn(segment, end, low, chunk) for chunk in range(chunks)]
    return turns


def _rounded_up(count: int, by: int) -> int:
    """How many times `by` is needed for a count."""
    return -(-count // by)
