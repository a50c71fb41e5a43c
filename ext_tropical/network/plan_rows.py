"""A plan as rows of integers, for loops whose program does not grow with the plan.

All operands and the results of all steps are in one flat buffer. A row says where the operands of a
step and its result begin, and for each axis its extent and its strides.
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

from tenferro_jax.einsum import Plan, Step

SEGMENT = 32
"""Lanes next to each other, which work on one step."""

SEGMENTS = 64
"""Segments of a turn."""

LANES = SEGMENT * SEGMENTS
"""Lanes of a turn, a power of two."""

AT_ONCE = 2
"""Candidates that a lane takes in one turn."""

EXACT = 1 << 21
"""Numbers below have an exact quotient when they are divided in float32, see `Lanes`."""

Axis = tuple[int, ...]


class Layout(NamedTuple):
    """Where everything is.

    Attributes:
      values: the place of each operand and then of each step's result in the buffer; its length.
      winners: the place of each step's winners, -1 if it contracts nothing; their number.
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
    terms = (*plan.terms, *(step.result for step in plan.steps))
    counts = [math.prod(sizes[label] for label in term) for term in terms]
    values = tuple(itertools.accumulate(counts, initial=0))
    if values[-1] >= 2**31:
        raise ValueError(f"{values[-1]} entries of operands and results")
    winners, total = [], 0
    for step, count in zip(plan.steps, counts[len(plan.terms) :], strict=True):
        winners.append(total if contracted(step) else -1)
        total += count if contracted(step) else 0
    return Layout(values, (*winners, total))


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
      writes: where the results begin in the arrays that are written; -1 where there is none.
      cells: (extent, stride in each array read) of the axes of the result.
      candidates: the same for the axes that are summed.
    """

    number: int
    level: int
    single: bool
    plain: bool
    bases: tuple[int, ...]
    writes: tuple[int, ...]
    cells: list[Axis]
    candidates: list[Axis]

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
        return next(
            n for n in map((1).__lshift__, range(32)) if n * cells >= LANES or 8 * n >= count
        )


def _axes(labels: str, sizes: Mapping[str, int], terms: Sequence[str]) -> list[Axis]:
    """(extent, stride in each term) of labels; neighbours that are one axis everywhere as one."""
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
    """A row for each step: it reads its operands, and writes value and winner."""
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
                tuple(places.values[j] for j in (step.operands * 2)[:2]),
                (places.values[len(plan.terms) + i], places.winners[i]),
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
    other one and the step's result, and writes the entries of a cotangent for distinct labels.
    """
    sizes, places, first = dict(plan.sizes), layout(plan).values, len(plan.terms)
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
                    (places[j],),
                    _axes("".join(dict.fromkeys(term)), sizes, terms),
                    _axes(summed, sizes, terms),
                )
            )
    return tuple(rows)


class Table(NamedTuple):
    """Rows as arrays of integers.

    The distance that index i over some axes has moved is the sum over the axes of i // (product of
    the later extents) * coefficient. The coefficient is the axis's stride less the distance that
    the next axis moved before it began again.

    Attributes:
      columns: for each row number of cells, number of candidates, logarithm of its lanes, whether
        single + 2 * whether plain; bases, writes; for axes of cells and of candidates the divisor
        (if exact, the bits of its inverse) and the coefficients.
      starts: the first segment of each row.
      reads: the number of arrays read; and of those written.
      ranks: the number of axes of cells; and of candidates.
      exact: whether all numbers are below EXACT.
      turns: for each turn its first segment, the end of its level, its first row, and how many
        turns took candidates of the same segments before.
    """

    columns: np.ndarray
    starts: np.ndarray
    reads: tuple[int, int]
    ranks: tuple[int, int]
    exact: bool
    turns: np.ndarray


def table(rows: Sequence[Row]) -> Table:
    """At least one row as arrays."""
    rows = sorted(rows, key=lambda row: (row.level, -row.lanes, row.counts[1]))
    reads = (len(rows[0].bases), len(rows[0].writes))
    ranks = (max(len(row.cells) for row in rows), max(len(row.candidates) for row in rows))
    exact = max(max(row.counts) for row in rows) < EXACT
    columns, starts, repeats = [], [0], []
    spans: dict[int, tuple[int, int]] = {}
    for row in rows:
        axes = [
            *_coefficients(row.cells, ranks[0], reads[0], exact),
            *_coefficients(row.candidates, ranks[1], reads[0], exact),
        ]
        head = (*row.counts, row.lanes.bit_length() - 1, row.single + 2 * row.plain)
        columns.append([*head, *row.bases, *row.writes, *itertools.chain(*axes)])
        first, _ = spans.get(row.level, (starts[-1], 0))
        starts.append(starts[-1] - (-row.counts[0] * row.lanes // SEGMENT))
        spans[row.level] = (first, starts[-1])
        repeats.append(-(-row.counts[1] // (row.lanes * AT_ONCE)))
    turns = []
    for start, end in spans.values():
        for turn in range(start, end, SEGMENTS):
            low = bisect.bisect_right(starts, turn) - 1
            high = bisect.bisect_left(starts, min(end, turn + SEGMENTS))
            turns += [(turn, end, low, i) for i in range(max(repeats[low:high]))]
    starts[-1:] = [2**31 - 1] * SEGMENTS
    integers = (np.array(x, np.int32) for x in (columns, starts, turns))
    return Table(next(integers), next(integers), reads, ranks, exact, next(integers))


def _coefficients(axes: Sequence[Axis], rank: int, reads: int, exact: bool) -> list[Axis]:
    found, divisor, moved = [], 1, (0,) * reads
    for extent, *own in reversed(axes):
        scale = int(np.float32(1 / divisor).view(np.int32)) if exact else divisor
        found.append((scale, *(x - y for x, y in zip(own, moved, strict=True))))
        divisor, moved = divisor * extent, tuple(extent * x for x in own)
    return found + [(1,) + (0,) * reads] * (rank - len(found))
