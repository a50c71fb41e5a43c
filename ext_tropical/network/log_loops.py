"""A whole plan under log_sum_exp, and its derivatives, as loops: see `loops`."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum import Plan

from ..algebra.shipped import max_plus
from ..step.einsum_op import widened
from . import plan_rows
from .loops import (
    Found,
    Lanes,
    Large,
    State,
    added,
    at_places,
    buffer_of,
    by_caller,
    cut_all,
    result_of,
    sweep,
)
from .plan_rows import SEGMENT, SEGMENTS, Row, layout

Pair = tuple[jax.Array, jax.Array]


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

    def fold(x: Found, y: Found) -> Found:
        largest = max_plus.plus(x[0], y[0])
        totals = (
            jnp.where(m == largest, s, s * jnp.exp((m - largest) / temperature)) for m, s in (x, y)
        )
        return largest, functools.reduce(jnp.add, totals)

    def turn(lanes: Lanes, state: State) -> State:
        (buffer,), before = state

        def candidate(which: int) -> Found:
            _, exists, at = lanes.at(which)
            found = jnp.where(exists, _sums(lanes, buffer, at, dtype), -jnp.inf)
            return found, (found != -jnp.inf).astype(buffer.dtype)

        found, (m, total) = lanes.folded(fold, candidate, before)
        value = jnp.where(jnp.isfinite(m), m + temperature * jnp.log(total), m)
        return (lanes.write(buffer, 0, value),), found

    work = widened(jnp.zeros((), dtype)).dtype
    first = places.values[len(operands)]
    buffer = buffer_of(operands, jnp.zeros(places.values[-1] - first, work))
    before = (jnp.zeros((SEGMENTS, SEGMENT), work),) * 2
    alone = large and by_caller(large, plan, functools.partial(_rounded, dtype=dtype))
    ((buffer,), _) = sweep(plan_rows.forward(plan), turn, ((buffer,), before), alone)
    return result_of(plan, buffer).astype(dtype), buffer[first:]


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

    def weigh(lanes: Lanes, at: Sequence[jax.Array], buffer: jax.Array, tangent: jax.Array) -> Pair:
        left, right = (at_places(tangent, x) for x in at)
        return lanes.own(buffer), jnp.where(lanes.single, left, left + right)

    full = [
        part
        for moves, group in itertools.groupby(range(first), tangents.__contains__)
        for part in _moved(plan, list(group), tangents if moves else {}, operands[0].dtype)
    ]
    start = buffer_of(full, jnp.zeros_like(results))
    tangent = _weighted(plan, temperature, operands, results, rows, weigh, start)
    return result_of(plan, tangent).astype(operands[0].dtype)


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

    def weigh(lanes: Lanes, at: Sequence[jax.Array], buffer: jax.Array, array: jax.Array) -> Pair:
        return at_places(buffer, at[2]), at_places(array, at[2])

    sizes, places, labels = dict(plan.sizes), layout(plan), plan.steps[-1].result
    last = jnp.transpose(cotangent, [plan.equation.output.index(label) for label in labels])
    start = widened(jnp.concatenate([jnp.zeros(places.values[-2], last.dtype), last.reshape(-1)]))
    rows = plan_rows.backward(plan, tuple(wanted))
    whole = _weighted(plan, temperature, operands, results, rows, weigh, start)
    terms = ["".join(dict.fromkeys(plan.terms[i])) for i in wanted]
    shapes = [[sizes[label] for label in term] for term in terms]
    found = cut_all(whole.astype(operands[0].dtype), [places.values[i] for i in wanted], shapes)
    for n, (i, term, shape) in enumerate(zip(wanted, terms, shapes, strict=True)):
        if len(term) < len(plan.terms[i]):
            index = [lax.broadcasted_iota(jnp.int32, shape, term.index(x)) for x in plan.terms[i]]
            found[n] = jnp.zeros(operands[i].shape, found[n].dtype).at[tuple(index)].set(found[n])
    return found


def _weighted(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    results: jax.Array,
    rows: Sequence[Row],
    weigh: Callable[[Lanes, Sequence[jax.Array], jax.Array, jax.Array], Pair],
    array: jax.Array,
) -> jax.Array:
    """An array with the sums over candidates of their share of the value times a factor."""
    dtype = operands[0].dtype
    buffer = buffer_of(operands, results)

    def turn(lanes: Lanes, state: State) -> State:
        (array,), before = state

        def candidate(which: int) -> Found:
            _, exists, at = lanes.at(which)
            found = _sums(lanes, buffer, at, dtype)
            value, factor = weigh(lanes, at, buffer, array)
            share = jnp.where(lanes.plain, 1, jnp.exp((found - value) / temperature))
            counts = exists & (lanes.plain | (found != -jnp.inf))
            return (jnp.where(counts & (share != 0), factor * share, 0),)  # whatever the factor is

        found, (total,) = lanes.folded(added, candidate, before)
        return (lanes.write(array, 0, total),), found

    before = (jnp.zeros((SEGMENTS, SEGMENT), buffer.dtype),)
    return sweep(rows, turn, ((array,), before))[0][0]
