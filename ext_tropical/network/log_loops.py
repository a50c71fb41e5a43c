"""A whole plan under log_sum_exp, and its derivatives, as loops: see `loops`."""

from __future__ import annotations

import functools
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
    Rule,
    added,
    at_places,
    buffer_of,
    by_caller,
    cut_all,
    result_of,
    sweep,
)
from .plan_rows import Row, layout

Pair = tuple[jax.Array, jax.Array]


def log_search(
    plan: Plan,
    temperature: float,
    operands: Sequence[jax.Array],
    large: Large | None = None,
    with_sums: bool = False,
) -> tuple[jax.Array, Found]:
    """The value under log_sum_exp; and in the dtype of the computation the buffer of operands and
    results: float32 for operands of 16 bits, which each step rounds for the next one.
    With sums two such arrays follow: for each cell the largest candidate m, and the inverse of the
    sum of exp((candidate - m) / T), or 1. Shares are taken from these and not from the value, which
    was rounded, by more the larger it is.

    Args: as `search`; `large` gets operands in the dtype of the computation, and returns one value
      of this dtype; without sums.
    """
    dtype = operands[0].dtype

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        _, exists, at = lanes.at(which)
        found = jnp.where(exists, _sums(lanes, arrays[0], at, dtype), -jnp.inf)
        return found, (found != -jnp.inf).astype(arrays[0].dtype)

    def fold(x: Found, y: Found) -> Found:
        """(m, the sum of exp((candidate - m) / T)); of equals 1, also where they are infinite."""
        largest = max_plus.plus(x[0], y[0])
        totals = (
            jnp.where(m == largest, s, s * jnp.exp((m - largest) / temperature)) for m, s in (x, y)
        )
        return largest, functools.reduce(jnp.add, totals)

    def cells(lanes: Lanes, found: Found) -> Found:
        m, total = found
        known = jnp.isfinite(m)
        value = jnp.where(known, m + temperature * jnp.log(total), m)
        return (value, m, 1 / jnp.where(known, total, 1))[: 1 + 2 * with_sums]

    buffer = buffer_of(plan, operands, widened(jnp.zeros((), dtype)).dtype)
    arrays = (buffer, jnp.zeros_like(buffer), jnp.ones_like(buffer))[: 1 + 2 * with_sums]
    alone = large and by_caller(large, plan, functools.partial(_rounded, dtype=dtype))
    found = sweep(plan_rows.forward(plan), Rule(candidate, fold, cells), arrays, alone)
    return result_of(plan, found[0]).astype(dtype), found


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
    results: Found,
    tangents: Mapping[int, jax.Array],
    dtype: np.dtype,
) -> jax.Array:
    """The tangent of the value of `log_search`: in each step the mean of the candidates' tangents
    by their shares.

    Args:
      results: the second result of `log_search`, with sums.
      tangents: of some operands, by their numbers.
      dtype: of the operands.
    """
    first, moving, places = len(plan.terms), plan_rows.moving(plan, list(tangents)), layout(plan)
    rows = [row for row in plan_rows.forward(plan) if first + row.number in moving]

    def weigh(lanes: Lanes, at: Sequence[jax.Array], tops: jax.Array, tangent: jax.Array) -> Pair:
        left, right = (at_places(tangent, x) for x in at)
        return lanes.own(tops), jnp.where(lanes.single, left, left + right)

    still = [jnp.zeros(places[i + 1] - places[i], dtype) for i in range(first)]
    start = buffer_of(plan, [tangents.get(i, x) for i, x in enumerate(still)], results[0].dtype)
    tangent = _weighted(temperature, dtype, results, rows, weigh, start)
    return result_of(plan, tangent).astype(dtype)


def log_cotangent(
    plan: Plan,
    temperature: float,
    results: Found,
    cotangent: jax.Array,
    wanted: Sequence[int],
) -> list[jax.Array]:
    """The cotangents of the operands with the numbers `wanted`, from that of the value: the
    transpose of `log_tangent`, without any scatter but that into diagonals.
    """

    def weigh(lanes: Lanes, at: Sequence[jax.Array], tops: jax.Array, array: jax.Array) -> Pair:
        return at_places(tops, at[2]), at_places(array, at[2])

    sizes, places, labels = dict(plan.sizes), layout(plan), plan.steps[-1].result
    dtype = cotangent.dtype
    last = jnp.transpose(cotangent, [plan.equation.output.index(label) for label in labels])
    start = widened(jnp.concatenate([jnp.zeros(places[-2], dtype), last.reshape(-1)]))
    rows = plan_rows.backward(plan, tuple(wanted))
    whole = _weighted(temperature, dtype, results, rows, weigh, start * results[2])
    terms = ["".join(dict.fromkeys(plan.terms[i])) for i in wanted]
    shapes = [[sizes[label] for label in term] for term in terms]
    found = cut_all(whole.astype(dtype), [places[i] for i in wanted], shapes)
    for n, (i, term, shape) in enumerate(zip(wanted, terms, shapes, strict=True)):
        if len(term) < len(plan.terms[i]):  # a diagonal, and zeros around it
            index = [lax.broadcasted_iota(jnp.int32, shape, term.index(x)) for x in plan.terms[i]]
            zeros = jnp.zeros([sizes[label] for label in plan.terms[i]], dtype)
            found[n] = zeros.at[tuple(index)].set(found[n])
    return found


def _weighted(
    temperature: float,
    dtype: np.dtype,
    results: Found,
    rows: Sequence[Row],
    weigh: Callable[[Lanes, Sequence[jax.Array], jax.Array, jax.Array], Pair],
    array: jax.Array,
) -> jax.Array:
    """An array with the sums over candidates of their share of the value times a factor. The
    inverse of a cell's sum is multiplied where its entry of the array is written, once for all
    candidates.
    """
    buffer, tops, inverses = results

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        _, exists, at = lanes.at(which)
        found = _sums(lanes, buffer, at, dtype)
        top, factor = weigh(lanes, at, tops, arrays[0])
        share = jnp.where(lanes.plain, 1, jnp.exp((found - top) / temperature))
        counts = exists & (lanes.plain | (found != -jnp.inf))
        return (jnp.where(counts & (share != 0), factor * share, 0),)  # whatever the factor is

    def cells(lanes: Lanes, found: Found) -> Found:
        return (found[0] * lanes.own(inverses),)

    return sweep(rows, Rule(candidate, added, cells), (array,))[0]
