"""The linear ops of the derivatives of a network under log_sum_exp: one for the first derivative
by some tables, and one for the second. Hessians and the gradients of marginals need the second.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import LinearInput, ShardingRule, apply, extension_op

from ..algebra.shipped import LogSumExp
from ..step.weighted_sum import work_of
from . import log_loops
from .native_network import Question, kernels
from .network_entries import filled
from .plan_text import (
    PlanOp,
    are_numbers,
    integers,
    require_countable,
    same_shapes,
    shape_of,
    split_along,
)
from .steps import Mode, evaluate

Arrays = Sequence[jax.Array]


class LogDerivative(PlanOp):
    """A derivative of a network in some tables: inputs are the tables, then those in which the op
    is linear.
    """

    temperature: float
    active: tuple[int, ...]
    is_transposed: bool
    is_second: ClassVar[bool]
    number: ClassVar[int]
    """Of the question to the library, if this is not the transpose."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", LogSumExp(self.temperature).temperature)
        count = len(self.steps.terms)
        if list(self.active) != sorted({i for i in self.active if 0 <= i < count}):
            raise InvalidConfig(
                where=f"{self.family_id}, field active",
                given=repr(self.active),
                needed=f"increasing numbers of {count} tables",
            )

    @property
    def algebra(self) -> LogSumExp:
        """The semiring."""
        return LogSumExp(self.temperature)

    @property
    def input_count(self) -> int:
        """Tables; tangents or a cotangent; and tangents along which the derivative moves."""
        moved = len(self.active)
        return len(self.steps.terms) + (1 if self.is_transposed else moved) + self.is_second * moved

    @property
    def output_count(self) -> int:
        """1, or one for each active table."""
        return len(self.active) if self.is_transposed else 1

    def _parted(self, inputs: Sequence[Any]) -> tuple[Any, Any, Any]:
        """(tables, tangents or a cotangent, tangents along which the derivative moves)."""
        first = len(self.steps.terms)
        second = first + (1 if self.is_transposed else len(self.active))
        return inputs[:first], inputs[first:second], inputs[second:]

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        tables, rest, along = self._parted(inputs)
        dtype = work_of(self.family_id, self.algebra, inputs)
        plan = self.planned(tables)
        value = [shape_of(plan, plan.equation.output)]
        own = [tuple(tables[i].shape) for i in self.active]
        wanted, outs = (value, own) if self.is_transposed else (own, value)
        same_shapes(f"extension {self.family_id}", (*rest, *along), wanted + own * self.is_second)
        return [TensorMeta(dtype, shape) for shape in outs]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        own = [self.steps.terms[i] for i in self.active]
        ends = [self.steps.output], own
        outs, given = ends[self.is_transposed], ends[not self.is_transposed]
        terms = [*self.steps.terms, *given, *own * self.is_second]
        return split_along(self.steps.output, terms, outs)

    def _first(self, tables: Arrays, rest: Arrays) -> tuple[jax.Array, ...]:
        """The first derivative, in standard ops."""
        plan = self.planned(tables)
        _, results = log_loops.log_search(plan, self.temperature, tables, with_sums=True)
        given = (plan, self.temperature, tables, results)
        if self.is_transposed:
            return tuple(log_loops.log_cotangent(*given, rest[0], self.active))
        return (log_loops.log_tangent(*given, dict(zip(self.active, rest, strict=True))),)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        tables, rest, along = self._parted(inputs)
        require_countable(self.planned(tables), tables)
        if not self.is_second:
            return self._first(tables, rest)
        moved = [tables[i] for i in self.active]
        return jax.jvp(lambda *xs: self._first(self._with(tables, xs), rest), moved, list(along))[1]

    def _with(self, tables: Arrays, moved: Arrays) -> list[jax.Array]:
        """The tables with others in place of the active ones."""
        every = list(tables)
        for i, x in zip(self.active, moved, strict=True):
            every[i] = x
        return every

    def _by_steps(self, tables: Arrays, rest: Arrays, along: Arrays) -> tuple[jax.Array, ...]:
        """The outputs, as derivatives of the steps' own ops."""
        plan, mode = self.planned(tables), Mode(self.algebra)

        def value(*moved: jax.Array) -> jax.Array:
            return evaluate(plan, self._with(tables, moved), mode)[0]

        def first(*moved: jax.Array) -> tuple[jax.Array, ...]:
            if self.is_transposed:
                return tuple(jax.vjp(value, *moved)[1](rest[0]))
            return (jax.jvp(value, moved, tuple(rest))[1],)

        at = tuple(tables[i] for i in self.active)
        return jax.jvp(first, at, tuple(along))[1] if self.is_second else first(*at)

    def _moved_tables(self, primals: Arrays, moved: Sequence[jax.Array | None]) -> Arrays:
        """How the outputs move with the tables."""
        raise NotImplementedError

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Itself in each of the linear inputs, and how it moves with the tables."""
        tables, rest, along = self._parted(primals)
        moved, *directions = self._parted(tangents)
        terms: list[Sequence[jax.Array]] = []
        for i, (given, own) in enumerate(zip(directions, (rest, along), strict=True)):
            if any(t is not None for t in given):
                linear = filled(own, given)
                parts = (linear, along) if i == 0 else (rest, linear)
                terms.append(apply(self, *tables, *parts[0], *parts[1]))
        if any(t is not None for t in moved):
            terms.append(self._moved_tables(primals, moved))
        return [functools.reduce(jnp.add, each) for each in zip(*terms, strict=True)]

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """The other form; of the tangents along which the derivative moves by the symmetry of the
        second derivative.
        """
        tables, rest, along = self._parted(inputs)
        outs = [tables[i] for i in self.active] if self.is_transposed else [cotangents[0]]
        given = filled(outs, cotangents)
        this: Any = self  # a dataclass
        swapped = dataclasses.replace(this, is_transposed=not self.is_transposed)
        found: tuple[list[Any], list[Any]] = [None] * len(rest), [None] * len(along)
        if any(isinstance(x, LinearInput) for x in rest):
            found[0][:] = apply(swapped, *tables, *given, *along)
        elif self.is_transposed:
            found[1][:] = apply(self, *tables, *rest, *given)
        else:
            found[1][:] = apply(swapped, *tables, *given, *rest)
        every = zip((*[None] * len(tables), *found[0], *found[1]), inputs, strict=True)
        return [x if isinstance(y, LinearInput) else None for x, y in every]

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        sizes: Any = dict(self.planned(self._parted(metas)[0]).sizes)
        plan = integers(sizes, self.steps, self.steps.contracted, self.active)
        return Question(self.number + self.is_transposed, plan)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Tables of 2, 3, 4, ... for the labels in their order, with their results."""
        tables = self.steps.examples
        plan = self.planned(tables)
        value = np.ones(shape_of(plan, plan.equation.output))
        own = [tables[i] for i in self.active]
        return [[*tables, *([value] if self.is_transposed else own), *own * self.is_second]]


@extension_op(package="tenferro-ext-tropical", name="network_curvature", version=1)
class NetworkCurvature(LogDerivative):
    """The second derivative of a network under log_sum_exp in some tables, or its transpose.

    Inputs are the tables, tangents of the active ones, and other tangents, along which the first
    derivative moves; the output is a tangent of the value. Transposed, the cotangent of the value
    stands in place of the first tangents, and outputs are cotangents of the active tables.

    Attributes:
      temperature: T, positive and finite.
      plan: as for the network.
      active: the numbers of the active tables.
      is_transposed: whether this is the transpose.
    """

    temperature: float
    plan: str
    active: tuple[int, ...]
    is_transposed: bool = False

    is_second: ClassVar[bool] = True
    number: ClassVar[int] = 10

    def _moved_tables(self, primals: Arrays, moved: Sequence[jax.Array | None]) -> Arrays:
        """Step by step."""
        tables, rest, along = self._parted(primals)
        at = [i for i, t in enumerate(moved) if t is not None]

        def derivative(*chosen: jax.Array) -> tuple[jax.Array, ...]:
            every = list(tables)
            for i, x in zip(at, chosen, strict=True):
                every[i] = x
            return self._by_steps(every, rest, along)

        return jax.jvp(derivative, [tables[i] for i in at], [t for t in moved if t is not None])[1]


@extension_op(package="tenferro-ext-tropical", name="network_shares", version=1)
class NetworkShares(LogDerivative):
    """The derivative of a network under log_sum_exp in some tables, or its transpose.

    Inputs are the tables, then the tangents of the active tables, or the cotangent of the value;
    outputs the tangent of the value, or the cotangents of those tables.

    Attributes:
      temperature: T, positive and finite.
      plan: as for the network.
      active: the numbers of the active tables.
      is_transposed: whether this is the transpose.
    """

    temperature: float
    plan: str
    active: tuple[int, ...]
    is_transposed: bool = False

    is_second: ClassVar[bool] = False
    number: ClassVar[int] = 6

    def _moved_tables(self, primals: Arrays, moved: Sequence[jax.Array | None]) -> Arrays:
        """The second derivative in the tables that are active here or move."""
        tables, rest, _ = self._parted(primals)
        active = tuple(i for i, t in enumerate(moved) if t is not None or i in self.active)
        own = [tables[i] for i in active]
        along = filled(own, [moved[i] for i in active])
        if self.is_transposed:
            op = NetworkCurvature(self.temperature, self.plan, active, True)
            found = dict(zip(active, apply(op, *tables, *rest, *along), strict=True))
            return [found[i] for i in self.active]
        given = dict(zip(self.active, rest, strict=True))
        op = NetworkCurvature(self.temperature, self.plan, active)
        return apply(op, *tables, *filled(own, [given.get(i) for i in active]), *along)


for _op in (NetworkShares, NetworkCurvature):
    _op.runtimes = kernels(_op.family_id)
