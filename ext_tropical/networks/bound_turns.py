"""The sweeps of an upper bound as arrays of integers: which variables a turn of the loop takes, and
where their tables and messages are.

The pass of a variable reads and writes only what its tables hold. So variables that share no table
may pass together: each level has those whose earlier neighbours are in lower levels. A turn takes
some variables of one level, and the turns in reverse order are a pass back.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from tenferro_jax.errors import Unsupported

from .plan_rows import MOST_ENTRIES, Integers, strides

CANDIDATES = 64
"""The most of a value that a turn reads at once. The others are read in a loop inside it."""

WORTH_A_TURN = 1 << 12
"""Entries that are read in the time that a turn takes beside them."""


class Incidence(NamedTuple):
    """A variable in a table of two variables and more.

    Attributes:
      start: the place of the table among the entries of all tables.
      scope: the numbers of its variables.
      sizes, strides: of its axes.
      axis: that of the variable.
    """

    start: int
    scope: tuple[int, ...]
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    axis: int

    @property
    def candidates(self) -> int:
        """How many entries there are for each value of the variable."""
        return math.prod(self.sizes) // self.sizes[self.axis]


class Lanes(NamedTuple):
    """What turns need of their W variables, of the D slots of each, and of the K other variables of
    a slot. What is missing has size 0, no candidates, and axes of one entry. Each array has an axis
    of turns before.

    Attributes:
      sizes: (W,), the number of values.
      counts: (W, D), how many candidates each value has.
      starts: (W, D), where the table begins.
      strides: (W, D), of the variable's own axis.
      is_first: (W, D), whether this axis is the first one of the table.
      gives: (W, D, 2), whether the table has variables still to come, on the way there and back.
      extents: (W, D, K), of the axes of the other variables.
      divisors: (W, D, K), for each of these axes the product of the later ones' extents.
      others: (W, D, K), the strides of these axes.
      messages: (W, D, K), where the messages to the other variables begin.
    """

    sizes: Integers
    counts: Integers
    starts: Integers
    strides: Integers
    is_first: Integers
    gives: Integers
    extents: Integers
    divisors: Integers
    others: Integers
    messages: Integers


class Turns(NamedTuple):
    """A network as turns.

    Attributes:
      shape: (turns, W, D, A), that of all messages, A for the values of a variable.
      lanes: of all turns.
      candidates: the most that a value has.
      starts: of each table among the entries; their number.
      singles: the places of the entries of all tables of one variable.
      values: for each of these entries its value, as a place in (turns, W, A).
      scalars: the places of the tables of no variable.
    """

    shape: tuple[int, int, int, int]
    lanes: Lanes
    candidates: int
    starts: tuple[int, ...]
    singles: np.ndarray
    values: np.ndarray
    scalars: np.ndarray


@functools.lru_cache(maxsize=16)
def turns_of(terms: tuple[str, ...], sizes: tuple[tuple[str, int], ...]) -> Turns:
    """The turns of tables, by their labels and the size of each label in the order of sweeps.

    Raises:
      Unsupported: more entries or messages than int32 counts.
    """
    extent = dict(sizes)
    counts = [math.prod(map(extent.__getitem__, term)) for term in terms]
    starts = tuple(itertools.accumulate(counts, initial=0))
    slots = _slots(terms, starts, extent)
    candidates = max((slot.candidates for slot in itertools.chain(*slots)), default=1)
    depth = max([1, *map(len, slots)])
    widest = max([1, *extent.values()])
    levels = _levels(slots)
    width = _width(levels, depth * widest * min(candidates, CANDIDATES))
    rows, count = _rows(levels, width)
    shape = count, width, depth, widest
    if max(starts[-1], math.prod(shape)) >= MOST_ENTRIES:
        raise Unsupported(
            where="upper bound of a network in standard ops",
            given=f"{starts[-1]} entries of tables and {math.prod(shape)} messages",
            needed=f"fewer than {MOST_ENTRIES}, because they are counted in int32",
        )
    number = dict(zip(extent, rows, strict=True))
    singles: list[int] = []
    values: list[int] = []
    scalars: list[int] = []
    for term, (start, end) in zip(terms, itertools.pairwise(starts), strict=True):
        if not term:
            scalars.append(start)
        if len(term) == 1:
            singles += range(start, end)
            first = number[term] * widest
            values += range(first, first + end - start)
    lanes = _lanes(slots, list(extent.values()), rows, shape)
    return Turns(shape, lanes, candidates, starts, *map(_int32, (singles, values, scalars)))


def _int32(numbers: Sequence[int]) -> np.ndarray:
    return np.array(numbers, np.int32)


def _slots(
    terms: Sequence[str], starts: Sequence[int], extent: Mapping[str, int]
) -> list[list[Incidence]]:
    """Those of each variable."""
    number = {label: i for i, label in enumerate(extent)}
    slots: list[list[Incidence]] = [[] for _ in extent]
    for term, start in zip(terms, starts, strict=False):
        if len(term) < 2:
            continue
        own = strides(term, extent)
        scope = tuple(map(number.__getitem__, term))
        shape = tuple(map(extent.__getitem__, term))
        for axis, variable in enumerate(scope):
            moved = tuple(map(own.__getitem__, term))
            slots[variable].append(Incidence(start, scope, sizes=shape, strides=moved, axis=axis))
    return slots


def _levels(slots: Sequence[Sequence[Incidence]]) -> list[list[int]]:
    """The variables of each level, in their order."""
    levels: list[list[int]] = []
    lowest: dict[int, int] = {}  # for each table the first level that is above its variables so far
    for variable, own in enumerate(slots):
        level = max((lowest.get(slot.start, 0) for slot in own), default=0)
        lowest.update((slot.start, level + 1) for slot in own)
        if level == len(levels):
            levels.append([])
        levels[level].append(variable)
    return levels


def _width(levels: Sequence[Sequence[int]], entries: int) -> int:
    """The number of variables of a turn that takes least time, of so many entries each."""
    widest = max([1, *map(len, levels)])

    def time(width: int) -> int:
        turns = sum(-(-len(level) // width) for level in levels)
        return turns * (WORTH_A_TURN + width * entries)

    return min({widest, *(1 << i for i in range(widest.bit_length()))}, key=time)


def _rows(levels: Sequence[Sequence[int]], width: int) -> tuple[list[int], int]:
    """For each variable its place among those of all turns, and the number of turns, at least 1."""
    rows: dict[int, int] = {}
    turn = 0
    for level in levels:
        rows |= {variable: turn * width + i for i, variable in enumerate(level)}
        turn += -(-len(level) // width)
    return [rows[variable] for variable in range(len(rows))], max(turn, 1)


def _lanes(
    slots: Sequence[Sequence[Incidence]],
    sizes: Sequence[int],
    rows: Sequence[int],
    shape: tuple[int, int, int, int],
) -> Lanes:
    """The lanes of all turns."""
    turns, width, depth, widest = shape
    rest = max((len(slot.scope) for slot in itertools.chain(*slots)), default=1) - 1
    of_slots = turns * width, depth
    of_others = *of_slots, rest
    shapes = Lanes(
        sizes=(turns * width,),
        counts=of_slots,
        starts=of_slots,
        strides=of_slots,
        is_first=of_slots,
        gives=(*of_slots, 2),
        extents=of_others,
        divisors=of_others,
        others=of_others,
        messages=of_others,
    )
    lanes = Lanes(*(np.zeros(x, np.int32) for x in shapes))
    lanes.extents[:] = 1
    lanes.divisors[:] = 1
    lanes.messages[:] = math.prod(shape)  # behind all of them there is a 0
    lanes.sizes[list(rows)] = sizes
    at: dict[tuple[int, int], int] = {}  # where the messages to each axis of each table begin
    for row, own in zip(rows, slots, strict=True):
        for j, slot in enumerate(own):
            at[slot.start, slot.axis] = (row * depth + j) * widest
    for row, own in zip(rows, slots, strict=True):
        for j, slot in enumerate(own):
            _fill(lanes, (row, j), slot, at)
    return Lanes(*(x.reshape(turns, width, *x.shape[1:]) for x in lanes))


def _fill(
    lanes: Lanes, lane: tuple[int, int], slot: Incidence, at: Mapping[tuple[int, int], int]
) -> None:
    """Write a slot into a lane."""
    variable, divisor = slot.scope[slot.axis], slot.candidates
    lanes.counts[lane] = divisor
    lanes.starts[lane] = slot.start
    lanes.strides[lane] = slot.strides[slot.axis]
    lanes.is_first[lane] = slot.axis == 0
    lanes.gives[lane] = max(slot.scope) != variable, min(slot.scope) != variable
    others = [k for k in range(len(slot.scope)) if k != slot.axis]
    for column, k in enumerate(others):
        divisor //= slot.sizes[k]
        cell = *lane, column
        lanes.extents[cell] = slot.sizes[k]
        lanes.divisors[cell] = divisor
        lanes.others[cell] = slot.strides[k]
        lanes.messages[cell] = at[slot.start, k]
