"""A plan as rows of integers, for loops whose program does not grow with the plan.

A program with an operation for every step takes XLA time that grows with the plan: seconds for some
hundred steps. So `loops` interprets these rows. All operands and the results of all steps are in
one flat buffer. A row says where the operands of a step and its result begin, and for each axis its
extent and its strides.
"""

from __future__ import annotations

import bisect
import collections
import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

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

Axis = tuple[int, ...]


@functools.lru_cache(maxsize=64)
def layout(plan: Plan) -> tuple[int, ...]:
    """The place of each operand and then of each step's result in the buffer; its length.

    Raises:
      Unsupported: a buffer whose entries int32 cannot count.
    """
    sizes = dict(plan.sizes)
    terms = (*plan.terms, *(step.result for step in plan.steps))
    counts = (math.prod(sizes[label] for label in term) for term in terms)
    places = tuple(itertools.accumulate(counts, initial=0))
    if places[-1] > MOST_ENTRIES:
        raise Unsupported(
            where="tropical network in standard ops",
            given=f"{places[-1]} entries of tables and results",
            needed=f"at most {MOST_ENTRIES}, because they are counted in int32",
            fix="Pass a memory_limit, which contracts in slices.",
        )
    return places


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


class Row(NamedTuple):
    """A step, or the sum that gives the cotangent of one of its operands.

    Attributes:
      number: of the step.
      level: rows of one level do not depend on each other.
      single: whether the step has one operand, which is read twice.
      plain: whether the step contracts nothing, so that its candidates are its result.
      bases: where the arrays begin that are read.
      write: where the results begin in every array that is written.
      cells: (extent, stride in each array read) of the axes of the result.
      candidates: the same for the axes that are summed.
    """

    number: int
    level: int
    single: bool
    plain: bool
    bases: tuple[int, ...]
    write: int
    cells: list[Axis]
    candidates: list[Axis]

    @property
    def counts(self) -> tuple[int, int]:
        """How many cells, and how many candidates each of them has."""
        return math.prod(x[0] for x in self.cells), math.prod(x[0] for x in self.candidates)

    @property
    def lanes(self) -> int:
        """How many lanes share the candidates of a cell, a power of two: several, if there are few
        cells with many candidates. More would have less than eight candidates each, and what they
        find is then folded in one more round for each doubling.
        """
        cells, count = self.counts
        return next(
            n for n in map((1).__lshift__, range(32)) if n * cells >= LANES or 8 * n >= count
        )


def _axes(labels: str, sizes: Mapping[str, int], terms: Sequence[str]) -> list[Axis]:
    """(extent, stride in each term) of labels; neighbours that are one axis everywhere as one,
    since each axis costs a division for every candidate.
    """
    every = [strides(term, sizes) for term in terms]
    found: list[Axis] = []
    for label in labels:
        axis = (sizes[label], *(each.get(label, 0) for each in every))
        if axis[0] == 1:
            continue
        if found and all(x == axis[0] * y for x, y in zip(found[-1][1:], axis[1:], strict=True)):
            axis = (found.pop()[0] * axis[0], *axis[1:])
        found.append(axis)
    return found


@functools.lru_cache(maxsize=16)
def forward(plan: Plan) -> tuple[Row, ...]:
    """A row for each step: it reads its operands, and writes its result."""
    sizes, places = dict(plan.sizes), layout(plan)
    levels, rows = [0] * len(plan.terms), []
    for i, step in enumerate(plan.steps):
        levels.append(1 + max(levels[j] for j in step.operands))
        terms, rest = (step.terms * 2)[:2], contracted(step)
        rows.append(
            Row(
                i,
                levels[-1],
                len(step.operands) == 1,
                not rest,
                tuple(places[j] for j in (step.operands * 2)[:2]),
                places[len(plan.terms) + i],
                _axes(step.result, sizes, terms),
                _axes(rest, sizes, terms),
            )
        )
    return tuple(rows)


def moving(plan: Plan, operands: Sequence[int]) -> set[int]:
    """The numbers of these operands and of all results that depend on them."""
    found = set(operands)
    for i, step in enumerate(plan.steps, len(plan.terms)):
        if found.intersection(step.operands):
            found.add(i)
    return found


@functools.lru_cache(maxsize=16)
def backward(plan: Plan, wanted: tuple[int, ...]) -> tuple[Row, ...]:
    """A row for each operand of a step that depends on a wanted one: it reads this operand, the
    other one and the step's result, and writes the entries of a cotangent for distinct labels. Each
    value is read by one step, so that every cotangent is one sum and nothing is scattered.
    """
    sizes, places, first = dict(plan.sizes), layout(plan), len(plan.terms)
    levels, rows, needed = [1] * (first + len(plan.steps)), [], moving(plan, wanted)
    for i, step in reversed(list(enumerate(plan.steps))):
        for j, term, other, rest in zip(
            step.operands, step.terms, step.operands[::-1], step.terms[::-1], strict=True
        ):
            levels[j] = levels[first + i] + 1
            if j not in needed:
                continue
            terms = (term, rest, step.result)
            summed = "".join(x for x in dict.fromkeys("".join(terms)) if x not in term)
            rows.append(
                Row(
                    i,
                    levels[first + i],
                    len(step.operands) == 1,
                    not contracted(step),
                    (places[j], places[other], places[first + i]),
                    places[j],
                    _axes("".join(dict.fromkeys(term)), sizes, terms),
                    _axes(summed, sizes, terms),
                )
            )
    return tuple(rows)


class Table(NamedTuple):
    """Rows as arrays of integers.

    The distance that index i over some axes has moved is the sum over the axes of i // (product of
    the later extents) * coefficient. The coefficient is the axis's stride less the distance that
    the next axis moved before it began again: one division and one multiplication an axis, and no
    remainder.

    Attributes:
      columns: for each row number of cells, number of candidates, logarithm of its lanes, whether
        single + 2 * whether plain; bases, the place that is written; for axes of cells and of
        candidates the divisor (if exact, the bits of its inverse) and the coefficients.
      starts: the first segment of each row.
      reads: the number of arrays read.
      ranks: the number of axes of cells; and of candidates.
      exact: whether all numbers are below EXACT_BELOW.
      turns: for each turn its first segment, the end of its level, its first row, and how many
        turns took candidates of the same segments before.
    """

    columns: np.ndarray
    starts: np.ndarray
    reads: int
    ranks: tuple[int, int]
    exact: bool
    turns: np.ndarray


def table(rows: Sequence[Row]) -> Table:
    """At least one row as arrays.

    Rows of a level stand together, those with as many lanes a cell and as many candidates next to
    each other: a turn lasts as long as the row with most candidates among its segments.
    """
    rows = sorted(rows, key=lambda row: (row.level, -row.lanes, row.counts[1]))
    reads = len(rows[0].bases)
    ranks = (max(len(row.cells) for row in rows), max(len(row.candidates) for row in rows))
    exact = max(max(row.counts) for row in rows) < EXACT_BELOW
    columns = [
        [
            *(*row.counts, row.lanes.bit_length() - 1, row.single + 2 * row.plain),
            *(*row.bases, row.write),
            *itertools.chain(*_coefficients(row.cells, ranks[0], reads, exact)),
            *itertools.chain(*_coefficients(row.candidates, ranks[1], reads, exact)),
        ]
        for row in rows
    ]
    repeats = [-(-row.counts[1] // (row.lanes * AT_ONCE)) for row in rows]
    segments = (-(-row.counts[0] * row.lanes // SEGMENT) for row in rows)  # rounded up
    starts = [*itertools.accumulate(segments, initial=0)]
    spans: dict[int, tuple[int, int]] = {}  # of each level: its first segment, and the end
    for row, start, end in zip(rows, starts, starts[1:], strict=False):
        spans[row.level] = (spans.get(row.level, (start, end))[0], end)
    turns = []
    for start, end in spans.values():
        for turn in range(start, end, SEGMENTS):
            low = bisect.bisect_right(starts, turn) - 1
            high = bisect.bisect_left(starts, min(end, turn + SEGMENTS))
            turns += [(turn, end, low, i) for i in range(max(repeats[low:high]))]
    starts[-1:] = [2**31 - 1] * SEGMENTS  # the window of a turn may begin at the last row
    return Table(
        np.array(columns, np.int32),
        np.array(starts, np.int32),
        reads,
        ranks,
        exact,
        np.array(turns, np.int32),
    )


def _coefficients(axes: Sequence[Axis], rank: int, reads: int, exact: bool) -> list[Axis]:
    found, divisor, moved = [], 1, (0,) * reads
    for extent, *own in reversed(axes):
        scale = int(np.float32(1 / divisor).view(np.int32)) if exact else divisor
        found.append((scale, *(x - y for x, y in zip(own, moved, strict=True))))
        divisor, moved = divisor * extent, tuple(extent * x for x in own)
    return found + [(1,) + (0,) * reads] * (rank - len(found))
