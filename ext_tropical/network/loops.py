"""A whole plan in standard ops, as a program whose size does not grow with the plan.

A loop takes the steps by depth, see `rows`. Each turn of it computes two candidates in each of its
lanes, whose addresses follow from the rows; cells of many small steps share a turn. Where cells are
few, several lanes share a cell.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum import Plan
from tenferro_jax.einsum.einsum_plan import Step

from ..algebra.semiring import SelectiveSemiring
from ..algebra.shipped import max_plus
from ..step.einsum_op import widened
from . import rows as plan_rows
from .rows import AT_ONCE, LANES, SEGMENT, SEGMENTS, Row, layout

LARGE = 1 << 18
"""The most candidates of a step in the loop, where the caller can run larger ones."""

Large = Callable[[Step, Sequence[jax.Array]], Sequence[jax.Array | None]]
_Found = tuple[jax.Array, ...]


class Lanes:
    """The cells of one turn, and their candidates, in arrays of LANES entries."""

    def __init__(self, table: plan_rows.Table, turn: jax.Array) -> None:
        self.table = table
        start, end, row, self.chunk = jnp.asarray(table.turns)[turn]
        segment = start + lax.broadcasted_iota(jnp.int32, (SEGMENTS, 1), 0)
        window = lax.dynamic_slice(jnp.asarray(table.starts), (row,), (SEGMENTS,))
        at = (window <= segment).astype(jnp.int32).sum(1, dtype=jnp.int32) - 1
        first = window[at]
        rows = lax.optimization_barrier(jnp.asarray(table.columns)[row + at])
        cells, self.count, self.share, kind, *rest = (
            rows[:, i, None] for i in range(rows.shape[1])
        )
        reads, writes = table.reads
        bases, self.writes = rest[:reads], rest[reads : reads + writes]
        self.single, self.plain = kind & 1 > 0, kind > 1
        rest, width = rest[reads + writes :], 1 + reads
        axes = [rest[i * width : (i + 1) * width] for i in range(sum(table.ranks))]
        self.axes = axes[table.ranks[0] :]
        lane = lax.broadcasted_iota(jnp.int32, (SEGMENTS, SEGMENT), 1)
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
            other = tuple(at_places(x.reshape(-1), index ^ (jnp.int32(1) << i)) for x in found)
            both = fold(found, other)
            return tuple(jnp.where(i < self.share, y, x) for x, y in zip(found, both, strict=True))

        return found, lax.fori_loop(np.int32(0), jnp.max(self.share), shared, found)

    def own(self, array: jax.Array) -> jax.Array:
        """The entries of an array at the cells of the first result."""
        return at_places(array, self.writes[0] + self.cell)

    def write(self, array: jax.Array, which: int, new: jax.Array) -> jax.Array:
        """An array with the cells of a result."""
        base = self.writes[which]
        place = jnp.where(self.valid & (base >= 0), base + self.cell, array.shape[0])
        return array.at[place.reshape(-1)].set(new.reshape(-1), mode="drop")


def _sweep(
    rows: Sequence[Row],
    turn: Callable[[Lanes, Any], Any],
    state: Any,
    alone: Callable[[Row, Any], Any] | None = None,
) -> Any:
    """The state after all turns, by level; `alone` runs a large row, between two loops."""
    large = [row for row in rows if alone and math.prod(row.counts) > LARGE]
    done = 0
    for last in sorted({row.level for row in large} | {1 << 31}):
        mine = [row for row in rows if done < row.level <= last and row not in large]
        if mine:
            table = plan_rows.table(mine)
            state = lax.fori_loop(
                np.int32(0),
                np.int32(len(table.turns)),
                lambda i, state, table=table: turn(Lanes(table, i), state),
                state,
            )
        for row in large:
            if alone and row.level == last:
                state = alone(row, state)
        done = last
    return state


def cut(flat: jax.Array, start: int, shape: Sequence[int]) -> jax.Array:
    """The part of a flat array that begins there."""
    return lax.reshape(lax.slice(flat, (start,), (start + math.prod(shape),)), shape)


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
    """The value, and the winners of all steps that contract, one after another.

    Args:
      plan: of three or more operands, without sizes of 0.
      semiring: the algebra.
      operands: with the shapes of the plan's terms, of one dtype.
      with_winners: whether winners are wanted.
      large: (step, its operands) -> (value, winner or None) with the axes of the step's result, of
        the operands' dtype and int32: runs the steps of more than LARGE candidates.

    Returns:
      (value with the axes of the output, int32 of layout(plan).winners[-1] entries or None).
    """
    dtype, places = operands[0].dtype, layout(plan)

    def fold(x: _Found, y: _Found) -> _Found:
        takes = semiring.better(y[0], x[0]) | (y[0] != y[0])
        if with_winners:
            equal = (y[0] == x[0]) | ((x[0] != x[0]) & (y[0] != y[0]))
            takes = jnp.where(equal, y[1] < x[1], takes)
        return tuple(jnp.where(takes, b, a) for a, b in zip(x, y, strict=True))

    def turn(lanes: Lanes, state: Any) -> Any:
        arrays, before = state

        def candidate(which: int) -> _Found:
            number, _, at = lanes.at(which)
            left, right = (at_places(arrays[0], x).astype(work) for x in at)
            found = jnp.where(lanes.single, left, semiring.times(left, right))
            return (found, number)[: 1 + with_winners]

        found, (value, *winner) = lanes.folded(fold, candidate, before)
        return _written(lanes, arrays, (value.astype(dtype), *winner)), found

    def alone(row: Row, state: Any) -> Any:
        assert large
        new = large(plan.steps[row.number], _inputs(plan, row.number, state[0][0]))
        pairs = zip(state[0], new, row.writes, strict=False)
        return tuple(_put(array, x, start) for array, x, start in pairs), state[1]

    work = widened(jnp.zeros((), dtype)).dtype
    count = places.values[-1] - places.values[len(operands)]
    buffer = _buffer(operands, jnp.zeros(count, dtype))
    arrays = (buffer, jnp.zeros(places.winners[-1], jnp.int32))
    before = tuple(jnp.zeros((SEGMENTS, SEGMENT), x) for x in (work, jnp.int32))
    state = arrays[: 1 + with_winners], before[: 1 + with_winners]
    (buffer, *winners), _ = _sweep(plan_rows.forward(plan), turn, state, large and alone)
    return _result(plan, buffer), winners[0] if winners else None


def log_search(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    large: Large | None = None,
) -> tuple[jax.Array, jax.Array]:
    """The value under log_sum_exp, and the results of all steps in the dtype of the computation,
    one after another: float32 for operands of 16 bits, which each step rounds for the next one.

    Args: as `search`; `large` gets operands in the dtype of the computation, and returns one value
      of this dtype.
    """
    dtype, places = operands[0].dtype, layout(plan)

    def fold(x: _Found, y: _Found) -> _Found:
        largest = max_plus.plus(x[0], y[0])
        totals = (
            jnp.where(m == largest, s, s * jnp.exp((m - largest) / temperature)) for m, s in (x, y)
        )
        return largest, functools.reduce(jnp.add, totals)

    def turn(lanes: Lanes, state: Any) -> Any:
        buffer, before = state

        def candidate(which: int) -> _Found:
            _, exists, at = lanes.at(which)
            found = jnp.where(exists, _sums(lanes, buffer, at, dtype), -jnp.inf)
            return found, (found != -jnp.inf).astype(buffer.dtype)

        found, (m, total) = lanes.folded(fold, candidate, before)
        value = jnp.where(jnp.isfinite(m), m + temperature * jnp.log(total), m)
        return lanes.write(buffer, 0, value), found

    def alone(row: Row, state: Any) -> Any:
        assert large
        inputs = [_rounded(x, dtype) for x in _inputs(plan, row.number, state[0])]
        return _put(state[0], large(plan.steps[row.number], inputs)[0], row.writes[0]), state[1]

    work = widened(jnp.zeros((), dtype)).dtype
    first = places.values[len(operands)]
    buffer = _buffer(operands, jnp.zeros(places.values[-1] - first, work))
    before = (jnp.zeros((SEGMENTS, SEGMENT), work),) * 2
    buffer, _ = _sweep(plan_rows.forward(plan), turn, (buffer, before), large and alone)
    return _result(plan, buffer).astype(dtype), buffer[first:]


def _rounded(x: jax.Array, dtype: np.dtype) -> jax.Array:
    """Rounded to 16 bits; XLA would leave out two conversions."""
    if dtype == x.dtype:
        return x
    bits = jnp.finfo(dtype)
    return lax.reduce_precision(x, bits.nexp, bits.nmant)


def _sums(lanes: Lanes, buffer: jax.Array, at: Sequence[jax.Array], dtype: np.dtype) -> jax.Array:
    """The candidates of a step of log_sum_exp."""
    left, right = (_rounded(at_places(buffer, x), dtype) for x in at[:2])
    return jnp.where(lanes.single, left, left + right)


def log_tangent(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    results: jax.Array,
    tangents: Mapping[int, jax.Array],
) -> jax.Array:
    """The tangent of the value of `log_search`: in each step the mean of the candidates' tangents
    by their shares.

    Args:
      results: the second result of `log_search`.
      tangents: of some operands, by their numbers.
    """
    first, moving = len(plan.terms), plan_rows.moving(plan, list(tangents))
    rows = [row for row in plan_rows.forward(plan) if first + row.number in moving]

    def weigh(lanes: Lanes, at: Sequence[jax.Array], buffer: jax.Array, tangent: jax.Array) -> Any:
        left, right = (at_places(tangent, x) for x in at)
        return lanes.own(buffer), jnp.where(lanes.single, left, left + right)

    full = [
        part
        for moves, group in itertools.groupby(range(first), tangents.__contains__)
        for part in _moved(plan, list(group), tangents if moves else {}, operands[0].dtype)
    ]
    start = _buffer(full, jnp.zeros_like(results))
    tangent = _weighted(plan, temperature, operands, results, rows, weigh, start)
    return _result(plan, tangent).astype(operands[0].dtype)


def _moved(
    plan: Plan, group: Sequence[int], tangents: Mapping[int, jax.Array], dtype: np.dtype
) -> list[jax.Array]:
    """The tangents of neighbouring operands; zeros in one piece, if they have none."""
    places = layout(plan).values
    if tangents:
        return [tangents[i] for i in group]
    return [jnp.zeros(places[group[-1] + 1] - places[group[0]], dtype)]


def log_cotangent(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    results: jax.Array,
    cotangent: jax.Array,
    wanted: Sequence[int],
) -> list[jax.Array]:
    """The cotangents of the operands with the numbers `wanted`, from that of the value: the
    transpose of `log_tangent`, without any scatter.
    """

    def weigh(lanes: Lanes, at: Sequence[jax.Array], buffer: jax.Array, array: jax.Array) -> Any:
        return at_places(buffer, at[2]), at_places(array, at[2])

    sizes, places, labels = dict(plan.sizes), layout(plan), plan.steps[-1].result
    last = jnp.transpose(cotangent, [plan.equation.output.index(label) for label in labels])
    start = widened(jnp.concatenate([jnp.zeros(places.values[-2], last.dtype), last.reshape(-1)]))
    rows = plan_rows.backward(plan, tuple(wanted))
    whole = _weighted(plan, temperature, operands, results, rows, weigh, start)
    found = []
    for i in wanted:
        term = "".join(dict.fromkeys(plan.terms[i]))
        shape = [sizes[label] for label in term]
        part = cut(whole, places.values[i], shape)
        if len(term) < len(plan.terms[i]):
            index = [lax.broadcasted_iota(jnp.int32, shape, term.index(x)) for x in plan.terms[i]]
            part = jnp.zeros(operands[i].shape, part.dtype).at[tuple(index)].set(part)
        found.append(part.astype(operands[i].dtype))
    return found


def _weighted(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    results: jax.Array,
    rows: Sequence[Row],
    weigh: Callable[[Lanes, Sequence[jax.Array], jax.Array, jax.Array], Any],
    array: jax.Array,
) -> jax.Array:
    """An array with the sums over candidates of their share of the value times a factor."""
    dtype = operands[0].dtype
    buffer = _buffer(operands, results)

    def turn(lanes: Lanes, state: Any) -> Any:
        array, before = state

        def candidate(which: int) -> _Found:
            _, exists, at = lanes.at(which)
            found = _sums(lanes, buffer, at, dtype)
            value, factor = weigh(lanes, at, buffer, array)
            share = jnp.where(lanes.plain, 1, jnp.exp((found - value) / temperature))
            counts = exists & (lanes.plain | (found != -jnp.inf))
            return (jnp.where(counts, factor * share, 0),)

        found, (total,) = lanes.folded(lambda x, y: (x[0] + y[0],), candidate, before)
        return lanes.write(array, 0, total), found

    before = (jnp.zeros((SEGMENTS, SEGMENT), buffer.dtype),)
    return _sweep(rows, turn, (array, before))[0]


def _written(lanes: Lanes, arrays: Sequence[jax.Array], new: Sequence[jax.Array]) -> _Found:
    return tuple(
        lanes.write(array, i, x) for i, (array, x) in enumerate(zip(arrays, new, strict=True))
    )


def _inputs(plan: Plan, number: int, buffer: jax.Array) -> list[jax.Array]:
    """The operands of a step."""
    sizes, places, step = dict(plan.sizes), layout(plan).values, plan.steps[number]
    return [
        cut(buffer, places[j], [sizes[label] for label in term])
        for j, term in zip(step.operands, step.terms, strict=True)
    ]


def _put(array: jax.Array, new: jax.Array | None, start: int) -> jax.Array:
    """An array with new entries; unchanged if there are none."""
    if new is None or start < 0:
        return array
    return lax.dynamic_update_slice(array, new.reshape(-1), (np.int32(start),))


def _buffer(operands: Sequence[jax.Array], results: jax.Array) -> jax.Array:
    """The operands and the results of the steps, in the dtype of the latter."""
    return jnp.concatenate([joined(operands).astype(results.dtype), results])


def joined(arrays: Sequence[jax.Array]) -> jax.Array:
    """All entries of all arrays; in two stages, which compile in half the time of one."""
    flat = [lax.reshape(x, (x.size,)) for x in arrays]
    parts = [lax.concatenate(flat[i : i + 64], 0) for i in range(0, len(flat), 64)]
    return lax.optimization_barrier(lax.concatenate(lax.optimization_barrier(parts), 0))


def _result(plan: Plan, buffer: jax.Array) -> jax.Array:
    sizes, start = dict(plan.sizes), layout(plan).values[-2]
    labels, wanted = plan.steps[-1].result, plan.equation.output
    value = cut(buffer, start, [sizes[label] for label in labels])
    return jnp.transpose(value, [labels.index(label) for label in wanted])
