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
    with_sums: bool = False,
) -> tuple[jax.Array, Found]:
    """The value under log_sum_exp; and in the dtype of the computation the results of all steps,
    one after another: float32 for operands of 16 bits, which each step rounds for the next one.
    With sums two such arrays follow, after as many entries as the operands have: for each cell
    the largest candidate m, and the inverse of the sum of exp((candidate - m) / T), or 1.

    Args: as `search`; `large` gets operands in the dtype of the computation, and returns one value
      of this dtype; without sums.
    """
    dtype, places = operands[0].dtype, layout(plan)

    def fold(x: Found, y: Found) -> Found:
        largest = max_plus.plus(x[0], y[0])
        totals = (
            jnp.where(m == largest, s, s * jnp.exp((m - largest) / temperature)) for m, s in (x, y)
        )
        return largest, functools.reduce(jnp.add, totals)

    def turn(lanes: Lanes, state: State) -> State:
        (buffer, *sums), before = state

        def candidate(which: int) -> Found:
            _, exists, at = lanes.at(which)
            found = jnp.where(exists, _sums(lanes, buffer, at, dtype), -jnp.inf)
            return found, (found != -jnp.inf).astype(buffer.dtype)

        found, (m, total) = lanes.folded(fold, candidate, before)
        known = jnp.isfinite(m)
        value = jnp.where(known, m + temperature * jnp.log(total), m)
        new = (value, m, 1 / jnp.where(known, total, 1))
        pairs = zip((buffer, *sums), new, strict=False)
        return tuple(lanes.write(array, 0, x) for array, x in pairs), found

    work = widened(jnp.zeros((), dtype)).dtype
    first = places.values[len(operands)]
    buffer = buffer_of(operands, jnp.zeros(places.values[-1] - first, work))
    before = (jnp.zeros((SEGMENTS, SEGMENT), work),) * 2
    alone = large and by_caller(large, plan, functools.partial(_rounded, dtype=dtype))
    sums = (jnp.zeros_like(buffer), jnp.ones_like(buffer)) if with_sums else ()
    found, _ = sweep(plan_rows.forward(plan), turn, ((buffer, *sums), before), alone)
    return result_of(plan, found[0]).astype(dtype), (found[0][first:], *found[1:])


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
    results: Found,
    tangents: Mapping[int, jax.Array],
) -> jax.Array:
    """The tangent of the value of `log_search`: in each step the mean of the candidates' tangents
    by their shares.

    Args:
      results: the second result of `log_search`, with sums.
      tangents: of some operands, by their numbers.
    """
    first, moving = len(plan.terms), plan_rows.moving(plan, list(tangents))
    rows = [row for row in plan_rows.forward(plan) if first + row.number in moving]

    def weigh(lanes: Lanes, at: Sequence[jax.Array], tops: jax.Array, tangent: jax.Array) -> Pair:
        left, right = (at_places(tangent, x) for x in at)
        return lanes.own(tops), jnp.where(lanes.single, left, left + right)

    full = [
        part
        for moves, group in itertools.groupby(range(first), tangents.__contains__)
        for part in _moved(plan, list(group), tangents if moves else {}, operands[0].dtype)
    ]
    start = buffer_of(full, jnp.zeros_like(results[0]))
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
    results: Found,
    cotangent: jax.Array,
    wanted: Sequence[int],
) -> list[jax.Array]:
    """The cotangents of the operands with the numbers `wanted`, from that of the value: the
    transpose of `log_tangent`, without any scatter.
    """

    def weigh(lanes: Lanes, at: Sequence[jax.Array], tops: jax.Array, array: jax.Array) -> Pair:
        return at_places(tops, at[2]), at_places(array, at[2])

    sizes, places, labels = dict(plan.sizes), layout(plan), plan.steps[-1].result
    last = jnp.transpose(cotangent, [plan.equation.output.index(label) for label in labels])
    start = widened(jnp.concatenate([jnp.zeros(places.values[-2], last.dtype), last.reshape(-1)]))
    start = start * results[2]
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
    results: Found,
    rows: Sequence[Row],
    weigh: Callable[[Lanes, Sequence[jax.Array], jax.Array, jax.Array], Pair],
    array: jax.Array,
) -> jax.Array:
    """An array with the sums over candidates of their share of the value times a factor. The
    inverse of a cell's sum is multiplied where its entry of the array is written, once for all
    candidates.
    """
    dtype = operands[0].dtype
    values, tops, inverses = results
    buffer = buffer_of(operands, values)

    def turn(lanes: Lanes, state: State) -> State:
        (array,), before = state

        def candidate(which: int) -> Found:
            _, exists, at = lanes.at(which)
            found = _sums(lanes, buffer, at, dtype)
            top, factor = weigh(lanes, at, tops, array)
            share = jnp.where(lanes.plain, 1, jnp.exp((found - top) / temperature))
            counts = exists & (lanes.plain | (found != -jnp.inf))
            return (jnp.where(counts & (share != 0), factor * share, 0),)  # whatever the factor is

        found, (total,) = lanes.folded(added, candidate, before)
        return (lanes.write(array, 0, total * lanes.own(inverses)),), found

    before = (jnp.zeros((SEGMENTS, SEGMENT), buffer.dtype),)
    return sweep(rows, turn, ((array,), before))[0][0]
