"""Exact numbers of assignments, in NumPy: the plan as sums of products of integers."""

from __future__ import annotations

import functools
import itertools
import math
import numbers
import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
from jax.typing import ArrayLike
from opt_einsum import get_symbol

from tenferro_jax.einsum import Plan, Step
from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported

from ..network.plan_rows import contracted
from ..network.tropical_slices import TropicalPlan
from ..step.einsum_op import widened
from .variables import Variable, holders, require_known

if TYPE_CHECKING:
    from .network import Network

MOST = 1_000_000
"""The most assignments within a gap that are looked at one by one."""

MOST_BITS = 1 << 27
"""The most bits of an integer that holds the numbers for all sums."""

CELLS = 1 << 22
"""The most candidates of a step that are compared at once."""


def counted(net: Network, within: float | None) -> int:
    """See `Network.count`."""
    tables = _concrete("count", net.tables)
    if within is not None and not (isinstance(within, numbers.Real) and within >= 0):
        raise InvalidConfig(
            where="Network.count, within", given=repr(within), needed="a number of at least 0"
        )
    if within is not None and within < math.inf:
        return _best(net, tables) if within == 0 else _near(net, within)
    ones = [np.asarray(x > -np.inf) for x in tables]
    dtype = _integers(net, ones)
    return _total(net.plan(), ones, dtype)


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


def _integers(net: Network, ones: Sequence[np.ndarray]) -> type:
    """The dtype that holds the number of all possible assignments. Sums and products that wrap at
    2**64 on the way do not change it.
    """
    return np.uint64 if _bits(net, ones) < 62 else object


def _bits(net: Network, ones: Sequence[np.ndarray]) -> float:
    """A bound on the logarithm of the number of possible assignments."""
    most = math.fsum(map(math.log2, net.variables.values()))
    if most < 62:
        return most
    scores = [np.where(x, np.float32(0), np.float32(-np.inf)) for x in ones]
    found = float(net.like(net.scopes, scores).log_partition()) / math.log(2)
    return min(most, max(found, 0) * 1.001 + 1)  # far more than is rounded


def _slices(plan: TropicalPlan, arrays: Sequence[np.ndarray]) -> Iterator[Sequence[np.ndarray]]:
    """The operands of each slice."""
    cuts = [
        [(label, slice(i * length, (i + 1) * length)) for i in range(count)]
        for label, (count, length) in plan.sliced.items()
    ]
    for chosen in itertools.product(*cuts):
        at = dict(chosen)
        yield [
            np.asarray(x[tuple(at.get(label, slice(None)) for label in term)], x.dtype)
            for x, term in zip(arrays, plan.plan.terms, strict=True)
        ]


def _total(plan: TropicalPlan, arrays: Sequence[np.ndarray], dtype: type) -> int:
    """The sum over all labels of the products of entries, all integers, computed in a dtype."""
    given: list[np.ndarray] = [x.astype(dtype) for x in arrays]
    return sum(int(_run(plan.plan, part, dtype)) for part in _slices(plan, given))


def _run(plan: Plan, arrays: Sequence[np.ndarray], dtype: type) -> Any:
    values: list[Any] = list(arrays)
    for step in plan.steps:
        operands = [values[i] for i in step.operands]
        # Of objects a result without labels is a Python int, and NumPy would compute what follows
        # in int64.
        values.append(np.asarray(np.einsum(_local(step), *operands), dtype))
        for i in step.operands:
            values[i] = None
    return values[-1]


def _local(step: Step) -> str:
    """The equation of a step in the first letters: NumPy has 52."""
    letter = {label: get_symbol(i) for i, label in enumerate(dict.fromkeys("".join(step.terms)))}
    terms = ("".join(letter[label] for label in term) for term in (*step.terms, step.result))
    *inputs, output = terms
    return f"{','.join(inputs)}->{output}"


def counted_by(net: Network, by: Mapping[Variable, Sequence[int]]) -> dict[int, int]:
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


def _near(net: Network, within: float) -> int:
    """The number of assignments within a gap, from the list of the best."""
    k = 1024
    while True:
        values = np.asarray(net.best(k=k).value)
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


def _best(net: Network, tables: Sequence[np.ndarray]) -> int:
    """The number of best assignments: of candidates that make the value of their cell."""
    plan, dtype = net.plan(), _integers(net, [np.asarray(x > -np.inf) for x in tables])
    best, number = -np.inf, 0
    for part in _slices(plan, tables):
        value, count = _counted_best(plan.plan, part, dtype)
        if value > best:
            best, number = value, 0
        number += int(count) if value == best else 0
    return number if best > -np.inf else 0


def _counted_best(plan: Plan, arrays: Sequence[np.ndarray], dtype: type) -> tuple[Any, Any]:
    """The best score, and how many assignments have it."""
    values: list[Any] = [(x, np.array(x > -np.inf, dtype)) for x in arrays]
    for step in plan.steps:
        order = step.result + contracted(step)
        pairs = [values[i] for i in step.operands]
        scores, numbers = (
            [_spread(x, term, order) for x, term in zip(each, step.terms, strict=True)]
            for each in zip(*pairs, strict=True)
        )
        values.append(_chosen(scores, numbers, len(step.result)))
        for i in step.operands:
            values[i] = None
    value, count = values[-1]
    return value[()], count[()]


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
    if rank and math.prod(shape) > CELLS and max(shape[:rank]) > 1:  # in two parts
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
