"""A whole plan in standard ops, as a program whose size does not grow with the plan.

A loop takes the steps by depth, see `plan_rows`. Each turn of it computes two candidates in each of
its lanes, whose addresses follow from the rows; cells of many small steps share a turn. Where cells
are few, several lanes share a cell. What a candidate is, how two become one and what is written is
a `Rule`: every question is one on this loop.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.plans import Plan, Step

from ..arguments import widened, work_dtype
from ..semirings.semiring import SelectiveSemiring
from ..semirings.shipped import max_plus
from ..steps.cut import cut, cut_all
from ..steps.shared_number import shared_number
from . import plan_rows
from .plan_rows import AT_ONCE, LANES, SEGMENT, SEGMENTS, Row, layout

WORTH_A_STEP = 1 << 18
"""Candidates of a step above which it runs alone, where the caller can run it: XLA's own kernels of
one step are faster than the loop from there on.
"""


Large = Callable[[Step, Sequence[jax.Array]], Sequence[jax.Array]]
Found = tuple[jax.Array, ...]


class Candidate(NamedTuple):
    """A candidate of each lane.

    Attributes:
      number: among those of its cell.
      exists: whether there is one; if not, it stands for the last one.
      places: in each array read.
    """

    number: jax.Array
    exists: jax.Array
    places: list[jax.Array]


class Rule(NamedTuple):
    """How the cells of a step follow from their candidates.

    Attributes:
      candidate: (lanes, which of a turn's, the arrays so far) -> a candidate of each lane.
      fold: two candidates -> one; any order gives the same.
      cells: (lanes, what the fold made of each cell's candidates) -> the arrays to write.
    """

    candidate: Callable[[Lanes, int, Found], Found]
    fold: Callable[[Found, Found], Found]
    cells: Callable[[Lanes, Found], Sequence[jax.Array]]


class Lanes:
    """The cells of one turn, and their candidates, in arrays of LANES entries: (SEGMENTS, SEGMENT).

    Attributes:
      exact: as of the table.
      has_shared: whether several lanes share a cell anywhere in the table.
      chunk: how many turns took candidates of the same cells before.
      columns: those of each segment's row.
      is_single, is_plain: as of a row, (SEGMENTS, 1).
      lane: which of the lanes of its cell each lane is.
      cell: which cell of its row.
      writes: whether a lane writes its cell.
      origin: the address in each array read, of a cell's first candidate.
    """

    def __init__(self, table: plan_rows.Table, turn: jax.Array) -> None:
        self.exact, self.has_shared = table.exact, table.has_shared
        start, end, row, self.chunk = plan_rows.Turn(*jnp.asarray(table.turns)[turn])
        segment = start + lax.broadcasted_iota(jnp.int32, (SEGMENTS, 1), 0)
        # A segment's row is the last one that begins at or before it. A turn has at most SEGMENTS
        # rows, so a window of so many starts holds it, and counting is one comparison of all pairs.
        window = lax.dynamic_slice(jnp.asarray(table.starts), (row,), (SEGMENTS,))
        at = (jnp.expand_dims(window, 0) <= segment).astype(jnp.int32).sum(1, dtype=jnp.int32) - 1
        # Without the barrier XLA would gather each column again for every lane that reads it.
        self.columns = table.unpacked(lax.optimization_barrier(jnp.asarray(table.packed)[row + at]))
        self.is_single = self.columns.is_single > 0
        self.is_plain = self.columns.is_plain > 0
        lane = lax.broadcasted_iota(jnp.int32, (SEGMENTS, SEGMENT), 1)
        lane += (segment - window[at][:, None]) * SEGMENT
        cell, last = lane >> self.columns.share, self.columns.cells - 1
        self.lane = lane - (cell << self.columns.share)
        self.writes = (cell <= last) & (self.lane == 0) & (segment < end)
        self.cell = jnp.minimum(cell, last)  # lanes beyond the last cell repeat it
        bases = [base[:, None] for base in self.columns.bases.T]
        self.origin = self._moved(bases, self.columns.of_cell, self.cell)

    def _moved(
        self, start: Sequence[jax.Array], by: plan_rows.Divisions, number: jax.Array
    ) -> list[jax.Array]:
        """The address in each array read, of the cell or the candidate with a number."""
        found = [jnp.broadcast_to(x, number.shape) for x in start]
        for axis in range(by.divisors.shape[1]):
            divisor = by.divisors[:, axis, None]
            if self.exact:  # vectorised, which a division of integers is not; the half
                # keeps the product clear of the next integer, whichever way it is rounded
                scale = lax.bitcast_convert_type(divisor, jnp.float32)
                index = ((number.astype(jnp.float32) + 0.5) * scale).astype(jnp.int32)
            else:
                index = lax.div(number, jnp.broadcast_to(divisor, number.shape))
            coefficients = by.coefficients[:, axis, :, None]
            found = [x + index * coefficients[:, read] for read, x in enumerate(found)]
        return found

    def at(self, which: int) -> Candidate:
        """One candidate for each lane."""
        number = ((self.chunk * AT_ONCE + which) << self.columns.share) + self.lane
        exists = number < self.columns.candidates
        number = jnp.minimum(number, self.columns.candidates - 1)
        places = self._moved(self.origin, self.columns.of_candidate, number)
        return Candidate(number, exists, places)

    def folded(
        self,
        fold: Callable[[Found, Found], Found],
        candidate: Callable[[int], Found],
        before: Found,
    ) -> tuple[Found, Found]:
        """The candidates of each lane so far, folded; and those of all lanes that share a cell: in
        each round a lane meets the one whose number differs in one bit.
        """
        found = functools.reduce(fold, map(candidate, range(AT_ONCE)))
        both = fold(before, found)
        found = tuple(jnp.where(self.chunk == 0, x, y) for x, y in zip(found, both, strict=True))
        if not self.has_shared:
            return found, found
        share = self.columns.share
        wide = share.reshape(share.shape + (1,) * (found[0].ndim - 2))
        index = lax.iota(jnp.int32, LANES).reshape(self.lane.shape)

        def shared(i: jax.Array, found: Found) -> Found:
            place = index ^ (jnp.int32(1) << i)
            other = tuple(at_places(x.reshape(LANES, *x.shape[2:]), place) for x in found)
            both = fold(found, other)
            return tuple(jnp.where(i < wide, y, x) for x, y in zip(found, both, strict=True))

        return found, lax.fori_loop(np.int32(0), jnp.max(share), shared, found)

    def own(self, array: jax.Array) -> jax.Array:
        """The entries of an array at the cells."""
        return at_places(array, self.columns.write + self.cell)

    def write(self, array: jax.Array, new: jax.Array) -> jax.Array:
        """An array with the cells of a result."""
        place = jnp.where(self.writes, self.columns.write + self.cell, array.shape[0])
        return array.at[place.reshape(-1)].set(new.reshape(LANES, *new.shape[2:]), mode="drop")


def sweep(
    rows: Sequence[Row],
    rule: Rule,
    arrays: Found,
    alone: Callable[[Row, Found], Found] | None = None,
) -> Found:
    """The arrays after all turns, by level; `alone` runs a large row, between two loops."""
    large = [row for row in rows if alone and math.prod(row.counts) > WORTH_A_STEP]
    done = 0
    for last in sorted({row.level for row in large} | {1 << 31}):
        mine = [row for row in rows if done < row.level <= last and row not in large]
        if mine:
            arrays = _turns(plan_rows.table(mine), rule, arrays)
        for row in large:
            if alone and row.level == last:
                arrays = alone(row, arrays)
        done = last
    return arrays


def _turns(table: plan_rows.Table, rule: Rule, arrays: Found) -> Found:
    """One loop. It carries what each lane found in the turn before, for cells whose candidates take
    several turns.
    """

    def turn(i: jax.Array, state: tuple[Found, Found]) -> tuple[Found, Found]:
        arrays, before = state
        lanes = Lanes(table, i)
        found, cells = lanes.folded(rule.fold, lambda n: rule.candidate(lanes, n, arrays), before)
        pairs = zip(arrays, rule.cells(lanes, cells), strict=True)
        return tuple(lanes.write(array, new) for array, new in pairs), found

    zero = jnp.int32(0)
    first = jax.eval_shape(lambda arrays: rule.candidate(Lanes(table, zero), 0, arrays), arrays)
    before = tuple(jnp.zeros(x.shape, x.dtype) for x in first)
    return lax.fori_loop(np.int32(0), np.int32(len(table.turns)), turn, (arrays, before))[0]


def added(x: Found, y: Found) -> Found:
    """The sums of pairs."""
    return tuple(a + b for a, b in zip(x, y, strict=True))


def at_places(array: jax.Array, place: jax.Array) -> jax.Array:
    """The entries of a flat array at places in it, or of a larger one along its first axis."""
    return array.at[place].get(mode="promise_in_bounds")


def search(
    plan: Plan,
    semiring: SelectiveSemiring,
    operands: Sequence[jax.Array],
    with_winners: bool,
    large: Large | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """The value, and the winners of all steps.

    Args:
      plan: of three or more operands, without sizes of 0.
      semiring: the algebra.
      operands: with the shapes of the plan's terms, of one dtype.
      with_winners: whether winners are wanted.
      large: (step, its operands) -> value, and winner if it contracts, with the axes of the step's
        result, of the operands' dtype and int32: runs the steps of more than WORTH_A_STEP
        candidates.

    Returns:
      (value with the axes of the output, int32 at the places of the results' cells or None).
    """
    dtype = operands[0].dtype
    work = work_dtype(dtype)

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        own = lanes.at(which)
        left, right = (at_places(arrays[0], x).astype(work) for x in own.places)
        value = jnp.where(lanes.is_single, left, semiring.times(left, right))
        return (value, own.number) if with_winners else (value,)

    def fold(x: Found, y: Found) -> Found:
        takes = semiring.better(y[0], x[0]) | (y[0] != y[0])
        if with_winners:  # the first of equals, whichever lane it was found in
            equal = (y[0] == x[0]) | ((x[0] != x[0]) & (y[0] != y[0]))
            takes = jnp.where(equal, y[1] < x[1], takes)
        return tuple(jnp.where(takes, b, a) for a, b in zip(x, y, strict=True))

    def cells(lanes: Lanes, found: Found) -> Found:
        return found[0].astype(dtype), *found[1:]

    buffer, rule = buffer_of(plan, operands, dtype), Rule(candidate, fold, cells)
    rows, alone = plan_rows.forward(plan), large and by_caller(large, plan)
    if not with_winners:
        (values,) = sweep(rows, rule, (buffer,), alone)
        return result_of(plan, values), None
    winners = jnp.zeros(buffer.shape, jnp.int32)
    values, winners = sweep(rows, rule, (buffer, winners), alone)
    return result_of(plan, values), winners


def by_caller(
    large: Large, plan: Plan, rounded: Callable[[jax.Array], jax.Array] = lambda x: x
) -> Callable[[Row, Found], Found]:
    """The run of a large row by the caller of `search`, on rounded operands."""
    sizes, places = dict(plan.sizes), layout(plan)

    def alone(row: Row, arrays: Found) -> Found:
        step = plan.steps[row.number]
        inputs = []
        for j, term in zip(step.operands, step.terms, strict=True):
            shape = [sizes[label] for label in term]
            inputs.append(rounded(cut(arrays[0], places[j], shape)))
        new = large(step, inputs)  # no winner of a step that contracts nothing
        start = (np.int32(row.write),)
        changed = [
            lax.dynamic_update_slice(array, x.reshape(-1), start)
            for array, x in zip(arrays, new, strict=False)
        ]
        return *changed, *arrays[len(changed) :]

    return alone


def buffer_of(plan: Plan, operands: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
    """The operands in this dtype, and zeros for the results of the steps."""
    places = layout(plan)
    results = jnp.zeros(places[-1] - places[len(operands)], dtype)
    return jnp.concatenate([joined(operands).astype(dtype), results])


def joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """All entries of all arrays."""
    flat = [lax.reshape(x, (x.size,)) for x in arrays]
    return lax.optimization_barrier(lax.concatenate(flat, 0))


def result_of(plan: Plan, buffer: jax.Array) -> jax.Array:
    """The value, whose axes may stand in another order than those of the last step."""
    sizes, start = dict(plan.sizes), layout(plan)[-2]
    labels, wanted = plan.steps[-1].result, plan.equation.output
    value = cut(buffer, start, [sizes[label] for label in labels])
    return jnp.transpose(value, [labels.index(label) for label in wanted])


# --- under log_sum_exp, and its derivatives -------------------------------------------------------


class LogSums(NamedTuple):
    """What all steps of a plan find under log_sum_exp, of which derivatives consist.

    Shares of candidates are taken from the largest ones and not from the values, which were
    rounded, by more the larger they are.

    Attributes:
      plan: the plan.
      temperature: T.
      dtype: of the operands.
      values: the buffer of operands and results.
      tops: for each cell the largest candidate m.
      inverses: for each cell that of the sum of exp((candidate - m) / T), or 1.
    """

    plan: Plan
    temperature: float
    dtype: np.dtype
    values: jax.Array
    tops: jax.Array
    inverses: jax.Array


def log_search(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    large: Large | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The value under log_sum_exp; and in the dtype of the computation the buffer of operands and
    results: float32 for operands of 16 bits, which each step rounds for the next one.

    Args: as `search`; `large` gets operands in the dtype of the computation, and returns one value
      of this dtype.
    """
    dtype = operands[0].dtype

    def cells(lanes: Lanes, found: Found) -> Found:
        return (_log_value(temperature, *found),)

    own, shared = operands_without_shared(plan, operands)
    buffer, rule = buffer_of(plan, own, work_dtype(dtype)), _log_rule(temperature, dtype, cells)
    alone = large and by_caller(large, plan, functools.partial(_rounded, dtype=dtype))
    (values,) = sweep(plan_rows.forward(plan), rule, (buffer,), alone)
    return (result_of(plan, values) + shared).astype(dtype), values


def log_sums(plan: Plan, temperature: float, operands: Sequence[jax.Array]) -> LogSums:
    """What `log_search` finds, with the sums of candidates."""
    dtype = operands[0].dtype

    def cells(lanes: Lanes, found: Found) -> Found:
        top, total = found
        inverse = 1 / jnp.where(jnp.isfinite(top), total, 1)
        return _log_value(temperature, top, total), top, inverse

    own, _ = operands_without_shared(plan, operands)
    buffer, rule = buffer_of(plan, own, work_dtype(dtype)), _log_rule(temperature, dtype, cells)
    arrays = buffer, jnp.zeros_like(buffer), jnp.ones_like(buffer)
    return LogSums(plan, temperature, dtype, *sweep(plan_rows.forward(plan), rule, arrays))


def _log_rule(
    temperature: float, dtype: np.dtype, cells: Callable[[Lanes, Found], Sequence[jax.Array]]
) -> Rule:
    """A candidate is (itself, whether it counts); the fold of some is (the largest m, the sum of
    exp((candidate - m) / T)), where equal ones count 1, also infinite ones.
    """

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        own = lanes.at(which)
        value = jnp.where(own.exists, _sums(lanes, arrays[0], own.places, dtype), -jnp.inf)
        return value, (value != -jnp.inf).astype(arrays[0].dtype)

    def fold(x: Found, y: Found) -> Found:
        top = max_plus.plus(x[0], y[0])
        left, right = (
            jnp.where(m == top, s, s * jnp.exp((m - top) / temperature)) for m, s in (x, y)
        )
        return top, left + right

    return Rule(candidate, fold, cells)


def _log_value(temperature: float, top: jax.Array, total: jax.Array) -> jax.Array:
    """m + T log(sum); an infinite m as it is."""
    return jnp.where(jnp.isfinite(top), top + temperature * jnp.log(total), top)


def operands_without_shared(
    plan: Plan, operands: Sequence[jax.Array]
) -> tuple[Sequence[jax.Array], jax.Array | float]:
    """Operands less what the finite entries of each have in common, for each cell of the output;
    and the sum of what was taken away, with the axes of the output. Beside a large number that all
    entries share, sums of scores would lose their digits.
    """
    if operands[0].dtype.itemsize < 4:  # differences are rounded
        return operands, 0.0
    output, sizes = plan.equation.output, dict(plan.sizes)
    shape = [sizes[label] for label in output]
    own, shared = [], jnp.zeros(shape, operands[0].dtype)
    for x, term in zip(operands, plan.terms, strict=True):
        if len(set(term)) < len(term):  # a diagonal
            own.append(x)
            continue
        kept = [label for label in output if label in term]
        inner = [i for i, label in enumerate(term) if label not in output]
        number = shared_number(jnp, x, inner)
        own.append(x - number)
        # Its axes in the order of the output; those that the output lacks have one entry.
        ordered = lax.transpose(number, [*map(term.index, kept), *inner])
        each = lax.reshape(ordered, [sizes[label] for label in kept])
        shared += lax.broadcast_in_dim(each, shape, [output.index(label) for label in kept])
    return own, shared


def _rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Rounded to 16 bits; XLA would leave out two conversions."""
    if dtype == x.dtype:
        return x
    bits = jnp.finfo(dtype)
    return lax.reduce_precision(x, bits.nexp, bits.nmant)


def _sums(
    lanes: Lanes, buffer: jax.Array, places: Sequence[jax.Array], dtype: np.dtype
) -> jax.Array:
    """The candidates of a step of log_sum_exp."""
    left, right = (_rounded(at_places(buffer, place), dtype) for place in places[:2])
    return jnp.where(lanes.is_single, left, left + right)


Weigh = Callable[[Lanes, Sequence[jax.Array], jax.Array], tuple[jax.Array, jax.Array]]
"""(lanes, the places of a candidate, the array that is swept) -> the largest candidate beside this
one, and the factor of its share.
"""


def log_tangent(sums: LogSums, tangents: Mapping[int, jax.Array]) -> jax.Array:
    """The tangent of the value of `log_search`: in each step the mean of the candidates' tangents
    by their shares.

    Args:
      sums: of the plan.
      tangents: of some operands, by their numbers.
    """
    plan = sums.plan
    first, moving, starts = len(plan.terms), plan_rows.moving(plan, list(tangents)), layout(plan)
    rows = [row for row in plan_rows.forward(plan) if first + row.number in moving]

    def weigh(
        lanes: Lanes, places: Sequence[jax.Array], tangent: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        left, right = (at_places(tangent, place) for place in places)
        return lanes.own(sums.tops), jnp.where(lanes.is_single, left, left + right)

    still = [jnp.zeros(starts[i + 1] - starts[i], sums.dtype) for i in range(first)]
    moved = [tangents.get(i, x) for i, x in enumerate(still)]
    tangent = _weighted(sums, rows, weigh, buffer_of(plan, moved, sums.values.dtype))
    return result_of(plan, tangent).astype(sums.dtype)


def log_cotangent(sums: LogSums, cotangent: jax.Array, wanted: Sequence[int]) -> list[jax.Array]:
    """The cotangents of the operands with the numbers `wanted`, from that of the value: the
    transpose of `log_tangent`, without any scatter but that into diagonals.
    """
    plan = sums.plan

    def weigh(
        lanes: Lanes, places: Sequence[jax.Array], array: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        _, _, result = places
        return at_places(sums.tops, result), at_places(array, result)

    zeros = jnp.zeros(layout(plan)[-2], cotangent.dtype)
    start = widened(jnp.concatenate([zeros, in_last_order(plan, cotangent)]))
    rows = plan_rows.backward(plan, tuple(wanted))
    whole = _weighted(sums, rows, weigh, start * sums.inverses)
    return by_table(plan, whole.astype(cotangent.dtype), wanted)


def in_last_order(plan: Plan, value: jax.Array) -> jax.Array:
    """An array with the axes of the output, flat, in the order of the last step's result."""
    order = [plan.equation.output.index(label) for label in plan.steps[-1].result]
    return jnp.transpose(value, order).reshape(-1)


def by_table(plan: Plan, buffer: jax.Array, wanted: Sequence[int]) -> list[jax.Array]:
    """The cotangents of some operands, which `plan_rows.backward` writes for distinct labels."""
    sizes, starts = dict(plan.sizes), layout(plan)
    terms = ["".join(dict.fromkeys(plan.terms[i])) for i in wanted]
    shapes = [tuple(map(sizes.__getitem__, term)) for term in terms]
    found = cut_all(buffer, [starts[i] for i in wanted], shapes)
    return [
        _on_diagonal(x, term, plan.terms[i], sizes)
        for x, term, i in zip(found, terms, wanted, strict=True)
    ]


def _on_diagonal(x: jax.Array, labels: str, term: str, sizes: Mapping[str, int]) -> jax.Array:
    """An array of distinct labels as one of a term, in which it is a diagonal among zeros."""
    if len(labels) == len(term):
        return x
    index = [lax.broadcasted_iota(jnp.int32, x.shape, labels.index(label)) for label in term]
    zeros = jnp.zeros([sizes[label] for label in term], x.dtype)
    return zeros.at[tuple(index)].set(x)


def _weighted(sums: LogSums, rows: Sequence[Row], weigh: Weigh, array: jax.Array) -> jax.Array:
    """An array with the sums over candidates of their share of the value times a factor. The
    inverse of a cell's sum is multiplied where its entry of the array is written, once for all
    candidates.
    """

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        own = lanes.at(which)
        value = _sums(lanes, sums.values, own.places, sums.dtype)
        top, factor = weigh(lanes, own.places, arrays[0])
        share = jnp.where(lanes.is_plain, 1, jnp.exp((value - top) / sums.temperature))
        counts = own.exists & (value != -jnp.inf)
        return (jnp.where(counts & (share != 0), factor * share, 0),)  # whatever the factor is

    def cells(lanes: Lanes, found: Found) -> Found:
        return (found[0] * lanes.own(sums.inverses),)

    return sweep(rows, Rule(candidate, added, cells), (array,))[0]
