"""Ordinary sums of products along a plan in standard ops, with their derivatives.

Every number is x 2**e: x, an entry of an array of floats, is 0 or has a magnitude in [1/2, 1), and
e is an int32. Beside it are its changes along the sets of tangents, alone and together: the last
axis of all arrays here is over the subsets of these sets, bit j for set j. The part of a product
for a subset is the sum, over its own subsets, of left[part] right[rest].
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.plans import Plan, Step

from ..steps.cut import cut
from . import plan_rows
from .loops import (
    Found,
    Lanes,
    Rule,
    at_places,
    buffer_of,
    by_table,
    in_last_order,
    result_of,
    sweep,
)
from .plan_rows import Row, layout

ZERO = -(1 << 28)
"""The exponent of 0, below that of every number; the sum of two is an int32."""


class Numbers(NamedTuple):
    """x 2**e.

    Attributes:
      x: 0 or of a magnitude in [1/2, 1); infinite and NaN as they are.
      e: int32.
    """

    x: jax.Array
    e: jax.Array


class Sums(NamedTuple):
    """The values of all steps.

    Attributes:
      plan: the plan.
      numbers: (entries of the buffer, subsets).
    """

    plan: Plan
    numbers: Numbers

    def _last(self) -> Numbers:
        """The value's change along all sets, with the axes of the output."""
        return Numbers(*(result_of(self.plan, array[:, -1]) for array in self.numbers))

    def value(self, exponents: jax.Array | int = 0) -> jax.Array:
        """This change divided by powers of two."""
        last = self._last()
        return _times_power(last.x, last.e - exponents)

    def scaled_value(self) -> tuple[jax.Array, jax.Array]:
        """The value as x and e; e is 0 where x is no number or 0."""
        last = self._last()
        return last.x, jnp.where(last.e == ZERO, 0, last.e)


def sums_of(
    plan: Plan, tables: Sequence[jax.Array], tangents: Sequence[Mapping[int, jax.Array]]
) -> Sums:
    """The values of all steps.

    Args:
      plan: with sizes that are numbers, none 0.
      tables: of the plan's shapes.
      tangents: for each set those of some tables, by their numbers.
    """
    planes, still = [_buffer(plan, tables)], [jnp.zeros(x.shape, x.dtype) for x in tables]
    for subset in range(1, 1 << len(tangents)):
        sets = [j for j in range(len(tangents)) if subset >> j & 1]
        moved = tangents[sets[0]] if len(sets) == 1 else {}
        planes.append(_buffer(plan, [moved.get(i, x) for i, x in enumerate(still)]))
    numbers = _scaled_numbers(jnp.stack(planes, -1))

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        own = lanes.at(which)
        left, right = (_numbers_at(Numbers(*arrays), place) for place in own.places)
        found = _chosen(lanes.is_single, left, _product_by_subset(left, right))
        return _existing(own.exists, found)

    def alone(row: Row, arrays: Found) -> Found:
        new = _large(plan, row, Numbers(*arrays))
        start = (np.int32(row.write), np.int32(0))
        pairs = zip(arrays, new, strict=True)
        return tuple(lax.dynamic_update_slice(array, x, start) for array, x in pairs)

    rule = Rule(candidate, _added, lambda lanes, found: _normal(Numbers(*found)))
    return Sums(plan, Numbers(*sweep(plan_rows.forward(plan), rule, tuple(numbers), alone)))


def backward(
    sums: Sums, cotangent: jax.Array, exponents: jax.Array, wanted: Sequence[int]
) -> list[jax.Array]:
    """The derivatives by some tables of the product of a cotangent with the value's change along
    all sets.

    Args:
      cotangent: of the value, by its shape.
      exponents: of the powers of two by which it is divided.
      wanted: the numbers of the tables.
    """
    plan, known = sums.plan, sums.numbers
    first = layout(plan)[-2]
    given = _scaled_numbers(in_last_order(plan, cotangent))
    shifted = jnp.maximum(given.e - in_last_order(plan, exponents), ZERO)
    bars = Numbers(
        jnp.zeros_like(known.x).at[first:, -1].set(given.x),
        jnp.full_like(known.e, ZERO).at[first:, -1].set(shifted),
    )

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        own = lanes.at(which)
        _, other, result = own.places
        bar = _numbers_at(Numbers(*arrays), result)
        found = _chosen(lanes.is_single, bar, _cotangent(bar, _numbers_at(known, other)))
        return _existing(own.exists, found)

    rule = Rule(candidate, _added, lambda lanes, found: _normal(Numbers(*found)))
    whole = Numbers(*sweep(plan_rows.backward(plan, tuple(wanted)), rule, tuple(bars)))
    return by_table(plan, _times_power(whole.x[:, 0], whole.e[:, 0]), wanted)


# --- numbers --------------------------------------------------------------------------------------


def _scaled_numbers(x: jax.Array) -> Numbers:
    """An array as x 2**e."""
    return _normal(Numbers(x, jnp.zeros(x.shape, jnp.int32)))


def _normal(of: Numbers) -> Numbers:
    """The same numbers, x of a magnitude in [1/2, 1)."""
    x, own = jnp.frexp(of.x)
    is_number = (of.x != 0) & jnp.isfinite(of.x)
    e = jnp.where(is_number, of.e + own, jnp.where(of.x == 0, ZERO, 0))
    return Numbers(jnp.where(is_number, x, of.x), e)


def _times_power(x: jax.Array, e: jax.Array) -> jax.Array:
    """x 2**e, of which either may be beyond the range alone; exact, but for results below the least
    normal number.
    """
    most = 4 * jnp.finfo(x.dtype).maxexp  # beyond it every number is 0 or infinite
    e = jnp.clip(e, -most, most)
    for part in (e // 4, e // 4, e // 4, e - 3 * (e // 4)):
        x = x * _power(part, x.dtype)
    return x


def _power(e: jax.Array, dtype: np.dtype) -> jax.Array:
    """2**e by its bits, exact; 0 for what is below the least normal number. e is at most the
    greatest exponent of the dtype.
    """
    info = jnp.finfo(dtype)
    integer = jnp.dtype(f"int{info.bits}")
    bias = info.maxexp - 1
    return lax.bitcast_convert_type(
        lax.shift_left(jnp.maximum(e + bias, 0).astype(integer), jnp.asarray(info.nmant, integer)),
        dtype,
    )


def _added(one: Found, other: Found) -> Found:
    """The sum of two numbers, not normal."""
    top = jnp.maximum(one[1], other[1])
    least = 1 - jnp.finfo(one[0].dtype).maxexp
    parts = [x * _power(jnp.maximum(e - top, least), x.dtype) for x, e in (one, other)]
    return parts[0] + parts[1], top


def _parts_of(subset: int) -> Iterator[tuple[int, int]]:
    """Every part of a set, with the rest."""
    part = subset
    while True:
        yield part, subset ^ part
        if part == 0:
            return
        part = (part - 1) & subset


def _numbers_at(of: Numbers, place: jax.Array) -> Numbers:
    """The numbers at places of a buffer."""
    return Numbers(at_places(of.x, place), at_places(of.e, place))


def _chosen(where: jax.Array, one: Numbers, other: Numbers) -> Numbers:
    """One or other numbers, with all their subsets."""
    where = jnp.expand_dims(where, -1)
    return Numbers(jnp.where(where, one.x, other.x), jnp.where(where, one.e, other.e))


def _existing(exists: jax.Array, found: Numbers) -> Numbers:
    """Numbers, and 0 where there is none."""
    exists = jnp.expand_dims(exists, -1)
    return Numbers(jnp.where(exists, found.x, 0), jnp.where(exists, found.e, ZERO))


def _at(of: Numbers, subset: int) -> Numbers:
    return Numbers(of.x[..., subset], of.e[..., subset])


def _times(one: Numbers, other: Numbers) -> Numbers:
    return Numbers(one.x * other.x, jnp.maximum(one.e + other.e, ZERO))


def _sum(terms: Iterable[Numbers]) -> Numbers:
    first, *others = terms
    return Numbers(*functools.reduce(_added, others, tuple(first)))


def _stacked(planes: Sequence[Numbers]) -> Numbers:
    return Numbers(jnp.stack([p.x for p in planes], -1), jnp.stack([p.e for p in planes], -1))


def _product_by_subset(left: Numbers, right: Numbers) -> Numbers:
    """For each subset the sum over its parts of left[part] right[rest]."""
    planes = []
    for subset in range(left.x.shape[-1]):
        pairs = _parts_of(subset)
        planes.append(_sum(_times(_at(left, part), _at(right, rest)) for part, rest in pairs))
    return _stacked(planes)


def _cotangent(bar: Numbers, factor: Numbers) -> Numbers:
    """For each part the sum over the sets that have it of bar[set] factor[rest]: the transpose of
    `_product`.
    """
    count, planes = bar.x.shape[-1], []
    for part in range(count):
        sets = [subset for subset in range(count) if subset & part == part]
        planes.append(_sum(_times(_at(bar, s), _at(factor, s ^ part)) for s in sets))
    return _stacked(planes)


# --- large steps ----------------------------------------------------------------------------------


def _large(plan: Plan, row: Row, arrays: Numbers) -> Numbers:
    """The result of a step by XLA's own products, in which all entries of an operand share the
    largest exponent: (entries of the result, subsets).
    """
    step, sizes, places = plan.steps[row.number], dict(plan.sizes), layout(plan)
    subsets, operands = range(arrays.x.shape[-1]), []
    for j, term in zip(step.operands, step.terms, strict=True):
        shape = [sizes[label] for label in term]
        operands.append([_cut(arrays, places[j], shape, subset) for subset in subsets])
    planes = []
    for subset in subsets:
        if len(operands) == 1:
            terms = [[operands[0][subset]]]
        else:
            terms = [[operands[0][part], operands[1][rest]] for part, rest in _parts_of(subset)]
        planes.append(_normal(_sum(_contracted(step, factors) for factors in terms)))
    return _stacked(planes)


def _contracted(step: Step, factors: Sequence[Numbers]) -> Numbers:
    """A step of factors of one exponent each: flat, with an exponent for each entry."""
    number = {label: i for i, label in enumerate(dict.fromkeys("".join(step.terms)))}
    inputs: list[Any] = []
    for factor, term in zip(factors, step.terms, strict=True):
        inputs += [factor.x, [number[label] for label in term]]
    result = [number[label] for label in step.result]
    x = jnp.einsum(*inputs, result, precision=lax.Precision.HIGHEST).reshape(-1)
    e = functools.reduce(jnp.add, [factor.e for factor in factors])
    return Numbers(x, jnp.broadcast_to(jnp.maximum(e, ZERO), x.shape))


def _cut(arrays: Numbers, start: int, shape: Sequence[int], subset: int) -> Numbers:
    """One operand of a step, whose entries share an exponent, a scalar."""
    x, e = (cut(array[:, subset], start, shape) for array in arrays)
    top = jnp.max(e)
    return Numbers(_times_power(x, e - top), top)


def _buffer(plan: Plan, tables: Sequence[jax.Array]) -> jax.Array:
    return buffer_of(plan, tables, tables[0].dtype)
