"""The linear ops of the derivatives of a network under log_sum_exp: one for the first derivative
by some tables, and one for the second. Hessians and the gradients of marginals need the second.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import LinearInput, apply, extension_op
from tenferro_jax.plans import Plan

from ..semirings.shipped import OfTemperature
from ..steps.evaluate import Mode, evaluate
from ..tangents import filled, tangent_of
from . import loops
from .lanes import QuestionInLanes, kernels_in_lanes
from .question import Asked, at_linear

Arrays = Sequence[jax.Array]


class Parts(NamedTuple):
    """The inputs of a derivative, or what belongs to each, such as its tangent.

    Attributes:
      tables: all tables of the network.
      linear: tangents of the active tables; transposed, the cotangent of the value.
      along: of a second derivative the tangents along which the first one moves.
    """

    tables: Sequence[Any]
    linear: Sequence[Any]
    along: Sequence[Any]


def with_others(tables: Arrays, places: Sequence[int], others: Arrays) -> list[jax.Array]:
    """The tables with others at some places."""
    every = list(tables)
    for i, x in zip(places, others, strict=True):
        every[i] = x
    return every


@dataclasses.dataclass(frozen=True)
class LogDerivative(OfTemperature, QuestionInLanes):
    """A derivative of a network in some tables: inputs are the tables, then those in which the op
    is linear.

    Attributes:
      temperature: T, positive and finite.
      plan: as for the network.
      active: the numbers of the active tables.
      is_transposed: whether this is the transpose.
      given: the labels of each input, where some lack those of batches; else empty.
    """

    temperature: float
    plan: str
    active: tuple[int, ...]
    is_transposed: bool = False
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.network.terms)
        if list(self.active) != sorted({i for i in self.active if 0 <= i < count}):
            raise InvalidConfig(
                where=f"{self.family_id}, field active",
                given=repr(self.active),
                needed=f"increasing numbers of {count} tables",
            )

    @property
    def about(self) -> Sequence[int]:
        """The active tables."""
        return self.active

    def _parted(self, inputs: Sequence[Any]) -> Parts:
        first = len(self.network.terms)
        second = first + (1 if self.is_transposed else len(self.active))
        return Parts(inputs[:first], inputs[first:second], inputs[second:])

    def _first(self, plan: Plan, tables: Arrays, linear: Arrays) -> tuple[jax.Array, ...]:
        """The first derivative, in standard ops."""
        sums = loops.log_sums(plan, self.temperature, tables)
        if self.is_transposed:
            return tuple(loops.log_cotangent(sums, linear[0], self.active))
        return (loops.log_tangent(sums, dict(zip(self.active, linear, strict=True))),)

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
        if self.given:
            return tangent_of(self.in_complete_form, primals, tangents)
        given, moved = self._parted(primals), self._parted(tangents)
        terms: list[Sequence[jax.Array]] = []
        if _is_any(moved.linear):
            linear = filled(given.linear, moved.linear)
            terms.append(apply(self, *given.tables, *linear, *given.along))
        if _is_any(moved.along):
            along = filled(given.along, moved.along)
            terms.append(apply(self, *given.tables, *given.linear, *along))
        if _is_any(moved.tables):
            terms.append(self._moved_tables(primals, moved.tables))
        return [functools.reduce(jnp.add, each) for each in zip(*terms, strict=True)]

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        """The other form; of the tangents along which the derivative moves by the symmetry of the
        second derivative.
        """
        if self.given:
            return self.transposed_in_complete_form(cotangents, inputs)
        tables, linear, along = self._parted(inputs)
        given = [c for c in cotangents if c is not None]
        if self.is_transposed:
            given = filled([tables[i] for i in self.active], cotangents)
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        of_tables = [None] * len(tables)
        if any(isinstance(x, LinearInput) for x in linear):
            found = apply(swapped, *tables, *given, *along)
            return at_linear([*of_tables, *found, *[None] * len(along)], inputs)
        if self.is_transposed:
            found = apply(self, *tables, *linear, *given)
        else:
            found = apply(swapped, *tables, *given, *linear)
        return at_linear([*of_tables, *[None] * len(linear), *found], inputs)


def _is_any(tangents: Sequence[jax.Array | None]) -> bool:
    return any(t is not None for t in tangents)


@extension_op(package="tenferro-ext-tropical", name="network_curvature", version=2)
class NetworkCurvature(LogDerivative):
    """The second derivative of a network under log_sum_exp in some tables, or its transpose.

    Inputs are the tables, tangents of the active ones, and other tangents, along which the first
    derivative moves; the output is a tangent of the value. Transposed, the cotangent of the value
    stands in place of the first tangents, and outputs are cotangents of the active tables.
    """

    @property
    def asked(self) -> Asked:
        """The second derivative, or its transpose."""
        return Asked.LOG_CURVATURE if self.is_transposed else Asked.LOG_BEND

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        tables, linear, along = self._parted(inputs)

        def first(*moved: jax.Array) -> tuple[jax.Array, ...]:
            return self._first(plan, with_others(tables, self.active, moved), linear)

        return jax.jvp(first, [tables[i] for i in self.active], list(along))[1]

    def _moved_tables(self, primals: Arrays, moved: Sequence[jax.Array | None]) -> Arrays:
        """The third derivative, by those of the steps' own ops."""
        tables, linear, along = self._parted(primals)
        mode, plan = Mode(self.algebra), self.planned(tables)

        def curvature(*every: jax.Array) -> tuple[jax.Array, ...]:
            own = tuple(every[i] for i in self.active)

            def value(*own: jax.Array) -> jax.Array:
                moved = with_others(every, self.active, own)
                return evaluate(plan, loops.operands_without_shared(plan, moved)[0], mode)[0]

            def first(*own: jax.Array) -> tuple[jax.Array, ...]:
                if self.is_transposed:
                    return tuple(jax.vjp(value, *own)[1](linear[0]))
                return (jax.jvp(value, own, tuple(linear))[1],)

            return jax.jvp(first, own, tuple(along))[1]

        return tangent_of(curvature, tables, moved)


@extension_op(package="tenferro-ext-tropical", name="network_shares", version=2)
class NetworkShares(LogDerivative):
    """The derivative of a network under log_sum_exp in some tables, or its transpose.

    Inputs are the tables, then the tangents of the active tables, or the cotangent of the value;
    outputs the tangent of the value, or the cotangents of those tables.
    """

    @property
    def asked(self) -> Asked:
        """The derivative, or its transpose."""
        return Asked.LOG_COTANGENT if self.is_transposed else Asked.LOG_TANGENT

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        tables, linear, _ = self._parted(inputs)
        return self._first(plan, tables, linear)

    def _moved_tables(self, primals: Arrays, moved: Sequence[jax.Array | None]) -> Arrays:
        """The second derivative in the tables that are active here or move."""
        tables, linear, _ = self._parted(primals)
        active = tuple(i for i, t in enumerate(moved) if t is not None or i in self.active)
        own = [tables[i] for i in active]
        along = filled(own, [moved[i] for i in active])
        op = NetworkCurvature(self.temperature, self.plan, active, self.is_transposed)
        if self.is_transposed:
            found = dict(zip(active, apply(op, *tables, *linear, *along), strict=True))
            return [found[i] for i in self.active]
        given = dict(zip(self.active, linear, strict=True))
        return apply(op, *tables, *filled(own, [given.get(i) for i in active]), *along)


@extension_op(package="tenferro-ext-tropical", name="network_curvature", version=1)
class NetworkCurvatureV1(NetworkCurvature):
    """NetworkCurvature of files from before `given`."""

    given: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]

    def batched(self, in_axes: tuple[int | None, ...]) -> None:
        """An element of a batch is a call of its own."""

    def of_plan(self, plan: str, lanes: int) -> NetworkCurvature:
        return NetworkCurvature(self.temperature, plan, self.active, self.is_transposed)


@extension_op(package="tenferro-ext-tropical", name="network_shares", version=1)
class NetworkSharesV1(NetworkShares):
    """NetworkShares of files from before `given`."""

    given: ClassVar[tuple[str, ...]] = ()  # type: ignore[misc]

    def batched(self, in_axes: tuple[int | None, ...]) -> None:
        """An element of a batch is a call of its own."""

    def of_plan(self, plan: str, lanes: int) -> NetworkShares:
        return NetworkShares(self.temperature, plan, self.active, self.is_transposed)


for _op in (NetworkShares, NetworkSharesV1, NetworkCurvature, NetworkCurvatureV1):
    _op.runtimes = kernels_in_lanes(_op.family_id)
