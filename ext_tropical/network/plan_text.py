"""A contraction plan as text, which payloads hold, and back.

The text is the operands' labels, the output's, and for each step the numbers of its operands and
the labels of its result: "ab,bc,cd->ad|0,1:ac|2,3:ad". Values are numbered, first the operands,
then the results of the steps.
"""

from __future__ import annotations

import collections
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Equation, Plan, Step
from tenferro_jax.errors import InvalidConfig, ShapeError, Unsupported, shortened
from tenferro_jax.extension import ShardingRule, require_equal

from ..step.layout import unused_label
from ..step.shards import factors_of
from .native_network import NativeOp

MOST_ENTRIES = 2**31 - 1
"""Entries of tables and results are counted in int32."""


class Steps(NamedTuple):
    """A plan without sizes.

    Attributes:
      terms: the labels of each operand.
      output: the labels of the value.
      steps: for each step its operands' numbers, their labels, and the labels of its result.
    """

    terms: tuple[str, ...]
    output: str
    steps: tuple[tuple[tuple[int, ...], tuple[str, ...], str], ...]

    @property
    def contracted(self) -> str:
        """The labels that the output lacks, sorted."""
        return "".join(sorted(set("".join(self.terms)) - set(self.output)))

    @property
    def text(self) -> str:
        """The plan as text."""
        steps = (f"|{','.join(map(str, operands))}:{result}" for operands, _, result in self.steps)
        return f"{','.join(self.terms)}->{self.output}{''.join(steps)}"

    @property
    def examples(self) -> list[np.ndarray]:
        """Tables of normal numbers, of 2, 3, 4, ... for the labels in their order."""
        labels = dict.fromkeys("".join(self.terms))
        sizes = dict(zip(labels, itertools.count(2), strict=False))
        rng = np.random.default_rng(0)
        return [rng.normal(size=[sizes[label] for label in term]) for term in self.terms]

    def batched_text(self, in_axes: Sequence[int | None]) -> str:
        """The plan with one more label, an axis of some operands; results have it first."""
        label = unused_label(self.terms)
        terms = [
            term if axis is None else term[:axis] + label + term[axis:]
            for term, axis in zip(self.terms, in_axes, strict=True)
        ]
        values, steps = list(terms), []
        for operands, _, result in self.steps:
            of = tuple(values[i] for i in operands)
            values.append(label * any(label in term for term in of) + result)
            steps.append((operands, of, values[-1]))
        return Steps(tuple(terms), label + self.output, tuple(steps)).text


def steps_of(plan: Plan) -> Steps:
    """A plan without its sizes."""
    steps = tuple((step.operands, step.terms, step.result) for step in plan.steps)
    return Steps(plan.terms, plan.equation.output, steps)


@functools.lru_cache(maxsize=256)
def steps_in(text: str, where: str) -> Steps:
    """Read a plan.

    Raises:
      InvalidConfig: the text is no plan: it cannot be read, a step reads a value that is not there
        or was read before, contracts a label that is needed later, or makes up one; or the last
        result has not the output's labels.

    Example:
      >>> steps_in("ab,bc,cd->ad|0,1:ac|2,3:ad", "a plan").steps[1]
      ((2, 3), ('cd', 'ac'), 'ad')
    """
    try:
        equation, *written = text.split("|")
        inputs, output = equation.split("->")
        terms = inputs.split(",")
        values: list[str | None] = list(terms)
        left = collections.Counter(label for term in terms for label in set(term))
        steps = []
        for number, step in enumerate(written):
            numbers, result = step.split(":")
            operands = tuple(map(int, numbers.split(",")))
            if not 1 <= len(operands) <= 2 or min(operands) < 0 or max(operands) >= len(values):
                raise ValueError(f"step {number} reads {numbers}")
            of = tuple([x for x in [values[i] for i in operands] if x is not None])
            if len(of) < len(operands) or len(set(operands)) < len(operands):
                raise ValueError(f"step {number} reads a value that was read before")
            for i, term in zip(operands, of, strict=True):
                for label in set(term):
                    left[label] -= 1
                values[i] = None
            known = set().union(*of)
            given = set(result)
            if len(given) < len(result) or not given <= known:
                raise ValueError(f"step {number} gives labels {result!r} of {''.join(of)!r}")
            if early := [x for x in known - given if left[x] or x in output]:
                needed = min(early)
                raise ValueError(f"step {number} contracts {needed!r}, which is needed later")
            for label in result:
                left[label] += 1
            values.append(result)
            steps.append((operands, of, result))
        rest = [x for x in values if x is not None]
        if not steps or len(rest) != 1 or sorted(rest[0]) != sorted(output):
            raise ValueError(f"the labels {rest} are left, of the output {output!r}")
    except ValueError as error:
        raise InvalidConfig(
            where=f"{where}, plan",
            given=f"{shortened(text)!r}: {error}",
            needed='operands, output and steps, such as "ab,bc,cd->ad|0,1:ac|2,3:ad"',
        ) from error
    return Steps(tuple(terms), output, tuple(steps))


def planned(text: str, shapes: tuple[tuple[int, ...], ...], where: str) -> Plan:
    """The plan of operands with these shapes.

    Raises:
      ShapeError: the shapes do not fit the labels, or a size is 0.
    """
    read = steps_in(text, where)
    equation = Equation(text.partition("|")[0], read.terms, read.output)
    sizes = dict(equation.sizes(shapes, where, require_equal))
    empty = [label for label, size in sizes.items() if isinstance(size, int) and size == 0]
    if empty:
        raise ShapeError(
            where=f"{where}, label {empty[0]!r}", given="size 0", needed="at least one entry"
        )
    steps = tuple(Step(operands, terms, result, 0, 0) for operands, terms, result in read.steps)
    return Plan(equation, read.terms, tuple(sizes.items()), steps)


_planned = functools.lru_cache(maxsize=256)(planned)


def integers(
    sizes: dict[str, int], steps: Steps, contracted: str, active: Sequence[int]
) -> np.ndarray:
    """A plan as the native library reads it: see network.h."""
    number = {label: i for i, label in enumerate(sizes)}

    def numbers(labels: str) -> list[int]:
        return [number[label] for label in labels]

    found = [
        *(len(sizes), len(steps.terms), len(steps.steps), len(contracted), len(active)),
        *(len(steps.output), *sizes.values(), *numbers(steps.output), *numbers(contracted)),
        *active,
    ]
    for term in steps.terms:
        found += [len(term), *numbers(term)]
    for operands, _, result in steps.steps:
        found += [operands[0], operands[1] if operands[1:] else -1, len(result), *numbers(result)]
    return np.array(found, np.int64)


class PlanOp(NativeOp):
    """An op whose payload has a plan as text."""

    plan: str

    @property
    def steps(self) -> Steps:
        """The plan without sizes."""
        return steps_in(self.plan, self._where)

    def planned(self, tables: Sequence[Any]) -> Plan:
        """The plan of tables, or of their metas."""
        shapes = tuple(tuple(x.shape) for x in tables)
        # An equality of symbolic sizes is a guard of each call.
        plan = _planned if are_numbers(tables) else planned
        return plan(self.plan, shapes, self._where)

    @property
    def _where(self) -> str:
        return f"extension {self.family_id}"


def are_numbers(arrays: Sequence[Any]) -> bool:
    """Whether all sizes are numbers; a plan of others is contracted step by step."""
    return all(isinstance(size, int) for x in arrays for size in x.shape)


def same_shapes(where: str, metas: Sequence[TensorMeta], shapes: Sequence[Sequence[int]]) -> None:
    """Refuse inputs of other shapes.

    Raises:
      ShapeError: the text names the first one.
    """
    for i, (meta, shape) in enumerate(zip(metas, shapes, strict=True)):
        if len(meta.shape) != len(shape):
            raise ShapeError(
                where=f"{where}, input {i}", given=str(meta), needed=f"shape {tuple(shape)}"
            )
        for size, wanted in zip(meta.shape, shape, strict=True):
            require_equal(size, wanted)


def split_along(
    free: Sequence[str],
    terms: Sequence[Sequence[str]],
    outputs: Sequence[Sequence[str]],
    on_device: Callable[..., Sequence[jax.Array]] | None = None,
) -> ShardingRule:
    """How an op splits over devices along some labels.

    Args:
      free: the labels; others, and those of which an array has a diagonal, stay whole.
      terms: for each input the label of each axis, or a longer name if it has none.
      outputs: for each output.
      on_device: as in `ShardingRule`.
    """
    arrays = [*terms, *outputs]
    whole = {c for term in arrays for c in term if c not in free or list(term).count(c) > 1}
    named = [[factor_of(c, list(term[:i]).count(c)) for i, c in enumerate(term)] for term in arrays]
    pairs = zip(itertools.chain(*named), itertools.chain(*arrays), strict=True)
    kept = sorted({name for name, label in pairs if label in whole})
    factors = factors_of(named[: len(terms)], named[len(terms) :])
    return ShardingRule(factors, whole=tuple(kept), on_device=on_device)


def factor_of(label: str, earlier: int = 0) -> str:
    """The name in a sharding rule of a label that its term has so often before."""
    return (label if label.isascii() else f"u{ord(label)}") + "'" * earlier


def shape_of(plan: Plan, labels: str) -> tuple[int, ...]:
    """The sizes of labels."""
    sizes: Any = dict(plan.sizes)
    return tuple(sizes[label] for label in labels)


def entries_of(plan: Plan) -> int:
    """The number of entries of the results of all steps."""
    sizes: Any = dict(plan.sizes)
    return sum(math.prod(map(sizes.__getitem__, step.result)) for step in plan.steps)


def require_countable(plan: Plan, tables: Sequence[Any]) -> None:
    """Refuse networks whose entries int32 cannot count."""
    count = entries_of(plan) + sum(x.size for x in tables)
    if count > MOST_ENTRIES:
        raise Unsupported(
            where="tropical network in standard ops",
            given=f"{count} entries of tables and results",
            needed=f"at most {MOST_ENTRIES}, because they are counted in int32",
            fix="Pass a memory_limit, which contracts in slices.",
        )
