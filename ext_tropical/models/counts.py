"""Exact numbers of assignments, in NumPy, by sums of products of integers."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from opt_einsum import get_symbol

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.plans import Step
from tenferro_jax.shapes import as_index, as_real, shown

from ..arguments import require_concrete, widened
from ..einsums.slices import TropicalPlan
from ..networks.plan_rows import contracted
from ..semirings.shipped import LogSumExp
from ..steps.evaluate import Assignment
from .factors import Factors
from .variables import Variable, as_floats, holders, pairs_of, require_known, spread

V = TypeVar("V")

MOST = 1_000_000  # assignments within a gap that are looked at one by one

MOST_BITS = 1 << 27  # of an integer that holds the numbers for all sums


def counted(
    net: Factors,
    within: float | None,
    best: Callable[[int], Assignment],
    question: str = "count",
) -> int:
    """See `Network.count`; `best` gives so many best assignments."""
    where = f"Network.{question}"
    net = _concrete(where, net)
    gap = math.inf if within is None else as_real(within)
    if gap is None or not gap >= 0:
        raise InvalidConfig(
            where=f"{where}, within", given=shown(within), needed="a number of at least 0"
        )
    if gap < math.inf:
        _require_exact(where, net.tables)
    if 0 < gap < math.inf:
        return _near(where, best, gap)
    tables, plan = list(map(as_floats, net.tables)), _planned(where, net)
    ones = [np.asarray(x > -np.inf) for x in tables]
    # Sums and products that wrap at 2**64 on the way do not change a number below.
    dtype = np.uint64 if _bits(net, ones) < 62 else object
    return _best(plan, tables, dtype) if gap == 0 else _total(plan, ones, dtype)


def _concrete(where: str, net: Factors) -> Factors:
    """The network in NumPy, without the variables of one value: NumPy has few axes."""
    require_concrete(where, net.tables, "Ask outside of it.")
    scopes, tables = [], []
    for scope, table in zip(net.scopes, net.tables, strict=True):
        known = np.asarray(widened(table))
        kept = [axis for axis, size in enumerate(known.shape) if size > 1]
        scopes.append(tuple(scope[axis] for axis in kept))
        tables.append(known.reshape([known.shape[axis] for axis in kept]))
    if any(((x != x) | (x == np.inf)).any() for x in tables):
        raise InvalidConfig(
            where=where, given="NaN or inf among the scores", needed="numbers below inf"
        )
    return net.like(scopes, tables)


def _require_exact(where: str, tables: Sequence[np.ndarray]) -> None:
    """Refuse integers whose sums float64 may round."""
    known = [as_floats(x) for x in tables]
    largest = sum(float(np.abs(x[x > -np.inf]).max(initial=0)) for x in known)
    if np.issubdtype(tables[0].dtype, np.integer) and largest >= 2**53:
        raise DTypeError(
            where=where,
            given=f"integers whose sums may reach {int(largest)}",
            needed="sums below 2**53, which are exact",
            fix="Divide the scores by a common factor.",
        )


MOST_LABELS = 32  # of a step in NumPy


def _planned(where: str, net: Factors) -> TropicalPlan:
    """The plan of a network, whose steps NumPy can run."""
    plan = net.plan()
    most = max((len(set("".join(step.terms))) for step in plan.plan.steps), default=0)
    if most > MOST_LABELS:
        raise ShapeError(
            where=where,
            given=f"a step over {most} variables at once",
            needed=f"at most {MOST_LABELS} with two values and more",
            fix="Fix some variables with given, and add the numbers of all their values.",
        )
    return plan


def _bits(net: Factors, ones: Sequence[np.ndarray]) -> float:
    """A bound on the logarithm of the number of possible assignments."""
    most = math.fsum(map(math.log2, net.variables.values()))
    if most < 62:
        return most
    scores = [np.where(x, np.float32(0), np.float32(-np.inf)) for x in ones]
    found = float(net.like(net.scopes, scores).contracted(LogSumExp())) / math.log(2)
    return min(most, max(found, 0) * 1.001 + 1)  # far more than is rounded


def _last_results(
    plan: TropicalPlan,
    operands: Sequence[np.ndarray],
    cut: Callable[[np.ndarray, tuple[slice, ...]], V],
    run: Callable[[Step, Sequence[V]], V],
) -> Iterator[V]:
    """The last result of each slice of a plan."""
    cuts = []
    for count, length in plan.sliced.values():
        cuts.append([slice(i * length, (i + 1) * length) for i in range(count)])
    for chosen in itertools.product(*cuts):
        at = dict(zip(plan.sliced, chosen, strict=True))
        values: list[Any] = []
        for x, term in zip(operands, plan.plan.terms, strict=True):
            parts = [at.get(label, slice(None)) for label in term]
            values.append(cut(x, tuple(parts)))
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
        # In the first letters, because NumPy has 52.
        letter = {x: get_symbol(i) for i, x in enumerate(dict.fromkeys("".join(step.terms)))}
        equation = step.equation.translate(str.maketrans(letter))
        return np.asarray(np.einsum(equation, *operands), dtype)

    return sum(map(int, _last_results(plan, arrays, cut, run)))


def counted_by(net: Factors, by: Mapping[Variable, Sequence[int]]) -> dict[int, int]:
    """See `Network.count_by`. A sum of 2**(width * sum) has the numbers as digits of `width`
    bits.
    """
    where, sizes = "Network.count_by", net.variables
    weights: dict[Variable, list[int]] = {}
    for key, values in pairs_of(where, by, "a mapping of variables to integers, or pairs"):
        name = require_known(key, sizes, "count_by")
        weights[name] = _weights(f"{where}, variable {name!r}", values, sizes[name])
    net = _concrete(where, net)
    ones = [np.asarray(as_floats(x) > -np.inf) for x in net.tables]
    always = sum(weights.pop(name)[0] for name in sizes.keys() & weights if sizes[name] == 1)
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
        arrays[held[name]] = arrays[held[name]] * spread(digits, (name,), net.scopes[held[name]])
    total = _total(_planned(where, net), arrays, object)
    step = width // 8  # bytes of a digit
    data = total.to_bytes(step * (largest + 1), "little")
    numbers = {}
    for i in range(largest + 1):
        digit = int.from_bytes(data[i * step : (i + 1) * step], "little")
        if digit:
            numbers[always + i] = digit
    return numbers


def _weights(where: str, values: object, count: int) -> list[int]:
    """An integer for each value of a variable."""
    found = [as_index(x) for x in values] if isinstance(values, Iterable) else []
    known = [x for x in found if x is not None and x >= 0]
    if len(known) != len(found) or len(found) != count:
        raise InvalidConfig(
            where=where,
            given=shown(values),
            needed=f"{count} integers of at least 0, one for each value",
        )
    return known


def _near(where: str, best: Callable[[int], Assignment], within: float) -> int:
    """The number of assignments within a gap, from the list of the best."""
    k = 1024
    while True:
        values = np.asarray(best(k).value)
        near = int((values >= values[0] - within).sum()) if np.isfinite(values[0]) else 0
        if near < k:
            return near
        if k >= MOST:
            raise InvalidConfig(
                where=f"{where}, within",
                given=f"{MOST} assignments and more within {within}",
                needed="fewer, because they are listed",
            )
        k *= 8


def _best(plan: TropicalPlan, tables: Sequence[np.ndarray], dtype: type) -> int:
    """The number of best assignments: of candidates that make the value of their cell."""

    def cut(x: np.ndarray, at: tuple[slice, ...]) -> tuple[np.ndarray, np.ndarray]:
        return np.asarray(x[at]), np.array(x[at] > -np.inf, dtype)

    def run(step: Step, operands: Sequence[tuple[np.ndarray, np.ndarray]]) -> Any:
        # The best candidate of each cell, and the number of ways to make it.
        rank, order = len(step.result), step.result + contracted(step)
        scores, numbers = [], []
        for (score, number), term in zip(operands, step.terms, strict=True):
            scores.append(spread(score, term, order))
            numbers.append(spread(number, term, order))
        shape = np.broadcast_shapes(*(x.shape for x in scores))
        score = np.broadcast_to(functools.reduce(np.add, scores), shape)
        many = np.broadcast_to(functools.reduce(np.multiply, numbers), shape)
        axes = tuple(range(rank, len(shape)))
        top = score.max(axes, keepdims=True) if axes else score
        many = np.where(score == top, many, 0).sum(axes) if axes else many
        return top.reshape(shape[:rank]), np.asarray(many, dtype).reshape(shape[:rank])

    best, number = -np.inf, 0
    for value, count in _last_results(plan, tables, cut, run):
        if value > best:
            best, number = value[()], 0
        if value == best:
            number += int(count)
    return number if best > -np.inf else 0
