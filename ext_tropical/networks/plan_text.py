"""The forms of a plan: `Plan`, with which Python computes; text, which payloads hold; and integers,
which the native library reads. A plan that is read from text has the sizes of the inputs, or none
where they are not needed.

The text is the operands' labels, the output's, and for each step the numbers of its operands and
the labels of its result: "ab,bc,cd->ad|0,1:ac|2,3:ad". Values are numbered, first the operands,
then the results of the steps.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Sequence

import numpy as np

from tenferro_jax.errors import InvalidConfig, ShapeError, shortened
from tenferro_jax.extension import require_equal
from tenferro_jax.plans import Equation, Plan, Step

from ..steps.layout import unused_label


def text_of(plan: Plan) -> str:
    """A plan as text, without its sizes."""
    steps = (f"|{','.join(map(str, step.operands))}:{step.result}" for step in plan.steps)
    return f"{','.join(plan.terms)}->{plan.equation.output}{''.join(steps)}"


@functools.lru_cache(maxsize=256)
def plan_in(text: str, where: str) -> Plan:
    """Read a plan, which has no sizes.

    Raises:
      InvalidConfig: the text is no plan: it cannot be read, a step reads a value that is not there
        or was read before, contracts a label that is needed later, or makes up one; or the last
        result has not the output's labels.

    Example:
      >>> step = plan_in("ab,bc,cd->ad|0,1:ac|2,3:ad", "a plan").steps[1]
      >>> step.operands, step.terms, step.result
      ((2, 3), ('cd', 'ac'), 'ad')
    """
    try:
        equation, *written = text.split("|")
        inputs, output = equation.split("->")
        terms = inputs.split(",")
        steps = _steps_in(written, terms, output)
    except ValueError as error:
        raise InvalidConfig(
            where=f"{where}, plan",
            given=f"{shortened(text)!r}: {error}",
            needed='operands, output and steps, such as "ab,bc,cd->ad|0,1:ac|2,3:ad"',
        ) from error
    read = Equation(equation, tuple(terms), output)
    return Plan(read, read.inputs, (), tuple(steps))


def _steps_in(written: Sequence[str], terms: Sequence[str], output: str) -> list[Step]:
    """The steps of a plan; a ValueError says what is wrong."""
    values = dict(enumerate(terms))
    left = collections.Counter(label for term in terms for label in set(term))
    steps = []
    for number, step in enumerate(written):
        numbers, result = step.split(":")
        operands = tuple(map(int, numbers.split(",")))
        distinct = {*operands}
        if not len(distinct) == len(operands) <= 2 or not distinct <= values.keys():
            raise ValueError(f"step {number} reads {numbers}: no value, or one read before")
        of = tuple(map(values.pop, operands))
        for term in of:
            left.subtract(set(term))
        known, given = set().union(*of), set(result)
        if len(given) < len(result) or not given <= known:
            raise ValueError(f"step {number} gives labels {result!r} of {''.join(of)!r}")
        if early := [x for x in known - given if left[x] or x in output]:
            raise ValueError(f"step {number} contracts {min(early)!r}, which is needed later")
        left.update(result)
        values[len(terms) + number] = result
        steps.append(Step(operands, terms=of, result=result, cost=0, size=0))
    rest = [*values.values()]
    if not steps or len(rest) != 1 or sorted(rest[0]) != sorted(output):
        raise ValueError(f"the labels {rest} are left, of the output {output!r}")
    return steps


def planned(text: str, shapes: tuple[tuple[int, ...], ...], where: str) -> Plan:
    """The plan of operands with these shapes.

    Raises:
      ShapeError: the shapes do not fit the labels, or a size is 0.
    """
    plan = plan_in(text, where)
    sizes = plan.equation.sizes(shapes, where, require_equal)
    for label, size in sizes.items():
        if isinstance(size, int) and size == 0:
            raise ShapeError(
                where=f"{where}, label {label!r}", given="size 0", needed="at least one entry"
            )
    return dataclasses.replace(plan, sizes=tuple(sizes.items()))


def batched_text(plan: Plan, in_axes: Sequence[int | None]) -> str:
    """The plan with one more label, an axis of some operands; results have it first."""
    label = unused_label(plan.terms)
    values = [
        term if axis is None else term[:axis] + label + term[axis:]
        for term, axis in zip(plan.terms, in_axes, strict=True)
    ]
    terms, steps = tuple(values), []
    for step in plan.steps:
        is_batched = any(label in values[i] for i in step.operands)
        values.append(label + step.result if is_batched else step.result)
        steps.append(dataclasses.replace(step, result=values[-1]))
    equation = dataclasses.replace(plan.equation, output=label + plan.equation.output)
    return text_of(Plan(equation, terms, (), tuple(steps)))


def without_label(plan: Plan, label: str) -> str:
    """The plan without a label of the output: that of one entry along it."""
    terms = tuple([term.replace(label, "") for term in plan.terms])
    steps = []
    for step in plan.steps:
        steps.append(dataclasses.replace(step, result=step.result.replace(label, "")))
    output = plan.equation.output.replace(label, "")
    equation = dataclasses.replace(plan.equation, output=output)
    return text_of(Plan(equation, terms, (), tuple(steps)))


def labels_of(plan: Plan) -> str:
    """The labels of an assignment: those that the output lacks, sorted."""
    known = set("".join(plan.terms)).union(label for label, _ in plan.sizes)
    return "".join(sorted(known - set(plan.equation.output)))


def integers(plan: Plan, active: Sequence[int], lanes: int) -> np.ndarray:
    """A plan as the native library reads it: see network.h.

    Args:
      active: the numbers of some operands.
      lanes: how many of the output's first labels are those of batches, or -1.
    """
    sizes, output, contracted = dict(plan.sizes), plan.equation.output, labels_of(plan)
    number = {label: i for i, label in enumerate(sizes)}
    counts = len(sizes), len(plan.terms), len(plan.steps), len(contracted), len(active)
    found = [*counts, len(output), lanes, *sizes.values()]
    found += [number[label] for label in output + contracted]
    found += active
    for term in plan.terms:
        found.append(len(term))
        found += [number[label] for label in term]
    for step in plan.steps:
        first, *others = step.operands
        second = others[0] if others else -1
        found += [first, second, len(step.result)]
        found += [number[label] for label in step.result]
    return np.array(found, np.int64)
