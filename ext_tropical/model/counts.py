"""Exact numbers of assignments, in NumPy: the plan as sums of products of integers."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np
from jax.typing import ArrayLike
from opt_einsum import get_symbol

from tenferro_jax.einsum import Step
from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported

from ..algebra.shipped import LogSumExp
from ..network.plan_rows import contracted
from ..network.tropical_slices import TropicalPlan
from ..step.einsum_op import widened
from .factors import Factors
from .variables import Variable, holders, require_known

V = TypeVar("V")

MOST = 1_000_000
"""The most assignments within a gap that are looked at one by one."""

MOST_BITS = 1 << 27
"""The most bits of an integer that holds the numbers for all sums."""

CANDIDATES_AT_ONCE = 1 << 22
"""The most candidates of a step that are compared at once."""


def counted(net: Factors, within: float | None, best: Callable[[int], jax.Array]) -> int:
    """See `Network.count`; `best` gives the scores of so many best assignments."""
    tables = _concrete("count", net.tables)
    if within is not None and not (isinstance(within, numbers.Real) and within >= 0):
        raise InvalidConfig(
            where="Network.count, within", given=repr(within), needed="a number of at least 0"
        )
    if within and within < math.inf:
        return _near(best, within)
    ones = [np.asarray(x > -np.inf) for x in tables]
    # Sums and products that wrap at 2**64 on the way do not change a number below.
    dtype = np.uint64 if _bits(net, ones) < 62 else object
    return _best(net.plan(), tables, dtype) if within == 0 else _total(net.plan(), ones, dtype)


def _concrete(question: str, tables: Sequence[ArrayLike]) -> list[np.ndarray]:
    """Tables in NumPy."""
    if any(isinstance(x, jax.core.Tracer) for x in tables):
        raise Unsupported(
            where=f"Network.{question}",
            given="tables inside a transform",
            needed="concrete tables, because numbers of any size are Python integers",
            fix="Count outside jit, vmap and grad.",
        )
    found = [_floating(np.asarray(widened(x))) for x in list[Any](tables)]
    if any(((x != x) | (x == np.inf)).any() for x in found):
        raise InvalidConfig(
            where=f"Network.{question}",
            given="NaN or inf among the scores",
            needed="numbers below inf",
        )
    return found


def _floating(x: np.ndarray) -> np.ndarray:
    """Integers as floats that hold them and their sums, the least one as -inf: it is impossible,
    and sums with it would wrap.
    """
    if not np.issubdtype(x.dtype, np.integer):
        return x
    if x.dtype.itemsize > 4:
        raise DTypeError(
            where="Network, count", given=f"tables of {x.dtype}", needed="floats or 32-bit integers"
        )
    return np.where(x == np.iinfo(x.dtype).min, -np.inf, x.astype(np.float64))


def _bits(net: Factors, ones: Sequence[np.ndarray]) -> float:
    """A bound on the logarithm of the number of possible assignments."""
    most = math.fsum(map(math.log2, net.variables.values()))
    if most < 62:
        return most
    scores = [np.where(x, np.float32(0), np.float32(-np.inf)) for x in ones]
    found = float(net.like(net.scopes, scores).contracted(LogSumExp())) / math.log(2)
    return min(most, max(found, 0) * 1.001 + 1)  # far more than is rounded


def _in_slices(
    plan: TropicalPlan,
    operands: Sequence[np.ndarray],
    cut: Callable[[np.ndarray, tuple[slice, ...]], V],
    run: Callable[[Step, Sequence[V]], V],
) -> Iterator[V]:
    """The last result of each slice of a plan."""
    cuts = [
        [(label, slice(i * length, (i + 1) * length)) for i in range(count)]
        for label, (count, length) in plan.sliced.items()
    ]
    for chosen in itertools.product(*cuts):
        at = dict(chosen)
        values: list[Any] = [
            cut(x, tuple(at.get(label, slice(None)) for label in term))
            for x, term in zip(operands, plan.plan.terms, strict=True)
        ]
        for step in plan.plan.steps:
            values.append(run(step, [values[i] for i in step.operands]))
            for i in step.operands:
                values[i] = None
        yield values[-1]


def _total(plan: TropicalPlan, arrays: Sequence[np.ndarray], dtype: type) -> int:
    """The sum over all labels of the products of entries, all integers, computed in a dtype."""

    # Of objects an entry without labels is a Python int, and NumPy would compute what follows in
    # int64.
    def cut(x: np.ndarray, at: tuple[slice, ...]) -> np.ndarray:
        return np.asarray(x.astype(dtype)[at], dtype)

    def run(step: Step, operands: Sequence[np.ndarray]) -> np.ndarray:
        return np.asarray(np.einsum(_local(step), *operands), dtype)

    return sum(map(int, _in_slices(plan, arrays, cut, run)))


def _local(step: Step) -> str:
    """The equation of a step in the first letters: NumPy has 52."""
    letter = {label: get_symbol(i) for i, label in enumerate(dict.fromkeys("".join(step.terms)))}
    return step.equation.translate(str.maketrans(letter))


def counted_by(net: Factors, by: Mapping[Variable, Sequence[int]]) -> dict[int, int]:
    """See `Network.count_by`. A sum of 2**(width * sum) has the numbers as digits of `width`
    bits.
    """
    ones = [np.asarray(x > -np.inf) for x in _concrete("count_by", net.tables)]
    sizes, weights = net.variables, {}
    if not isinstance(by, Mapping):
        raise InvalidConfig(
            where="Network.count_by", given=type(by).__name__, needed="a mapping of variables"
        )
    for name, values in by.items():
        require_known(name, sizes, "count_by")
        weights[name] = [operator.index(x) for x in values if isinstance(x, int | np.integer)]
        if len(weights[name]) != sizes[name] or len(values) != sizes[name] or min(values) < 0:
            raise InvalidConfig(
                where=f"Network.count_by, variable {name!r}",
                given=repr(values),
                needed=f"{sizes[name]} integers of at least 0",
            )
    width = 8 * (int(_bits(net, ones)) // 8 + 1)  # bits of a digit
    largest = sum(map(max, weights.values()))
    if width * largest > MOST_BITS:
        raise InvalidConfig(
            where="Network.count_by",
            given=f"sums of up to {largest}, each with {width} bits",
            needed=f"at most {MOST_BITS} bits together",
            fix="Divide the integers by a common factor.",
        )
    arrays, held = [np.array(x, object) for x in ones], holders(net.scopes, ones)
    for name, row in weights.items():  # the table stays as it is, so the plan does too
        digits = np.array([1 << (width * x) for x in row], object)
        arrays[held[name]] = arrays[held[name]] * _spread(digits, (name,), net.scopes[held[name]])
    total = _total(net.plan(), arrays, object)
    step, data = width // 8, total.to_bytes(width // 8 * (largest + 1), "little")
    found = (int.from_bytes(data[i * step : (i + 1) * step], "little") for i in range(largest + 1))
    return {i: digit for i, digit in enumerate(found) if digit}


def _near(best: Callable[[int], jax.Array], within: float) -> int:
    """The number of assignments within a gap, from the list of the best."""
    k = 1024
    while True:
        values = np.asarray(best(k))
        near = int((values >= values[0] - within).sum()) if np.isfinite(values[0]) else 0
        if near < k:
            return near
        if k >= MOST:
            raise InvalidConfig(
                where="Network.count, within",
                given=f"{MOST} assignments and more within {within}",
                needed="fewer, because they are listed",
            )
        k *= 8


def _best(plan: TropicalPlan, tables: Sequence[np.ndarray], dtype: type) -> int:
    """The number of best assignments: of candidates that make the value of their cell."""

    def cut(x: np.ndarray, at: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(x[at]), np.array(x[at] > -np.inf, dtype)

    def run(step: Step, operands: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
        order = step.result + contracted(step)
        scores, numbers = (
            [_spread(x, term, order) for x, term in zip(each, step.terms, strict=True)]
            for each in zip(*operands, strict=True)
        )
        return _chosen(scores, numbers, len(step.result))

    best, number = -np.inf, 0
    for value, count in _in_slices(plan, tables, cut, run):
        if value > best:
            best, number = value[()], 0
        number += int(count) if value == best else 0
    return number if best > -np.inf else 0


def _spread(x: np.ndarray, term: Sequence[Variable], order: Sequence[Variable]) -> np.ndarray:
    """An array with an axis for each label in an order, of size 1 for those it lacks."""
    axes = [term.index(label) for label in order if label in term]
    shape = [x.shape[term.index(label)] if label in term else 1 for label in order]
    return x.transpose(axes).reshape(shape)


def _chosen(
    scores: Sequence[np.ndarray], numbers: Sequence[np.ndarray], rank: int
) -> tuple[np.ndarray, np.ndarray]:
    """The best candidate of each cell, and the number of ways to make it; cells are the first
    axes.
    """
    shape = np.broadcast_shapes(*(x.shape for x in scores))
    if rank and math.prod(shape) > CANDIDATES_AT_ONCE and max(shape[:rank]) > 1:  # in two parts
        axis = int(np.argmax(shape[:rank]))
        middle = shape[axis] // 2
        halves = []
        for own in (slice(None, middle), slice(middle, None)):
            at = (*[slice(None)] * axis, own)
            cut = ([x[at] if x.shape[axis] > 1 else x for x in y] for y in (scores, numbers))
            halves.append(_chosen(next(cut), next(cut), rank))
        best, number = (np.concatenate(each, axis) for each in zip(*halves, strict=True))
        return best, number
    score = np.broadcast_to(functools.reduce(np.add, scores), shape)
    many = np.broadcast_to(functools.reduce(np.multiply, numbers), shape)
    axes = tuple(range(rank, len(shape)))
    best = score.max(axes, keepdims=True) if axes else score
    many = np.where(score == best, many, 0).sum(axes) if axes else many
    return best.reshape(shape[:rank]), np.asarray(many, numbers[0].dtype).reshape(shape[:rank])
