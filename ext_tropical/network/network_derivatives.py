"""The linear ops of the derivatives of a network: what tables contribute at an assignment, and what
they contribute by their shares under log_sum_exp.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Equation, Plan
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import LinearInput, apply, extension_op

from ..algebra.semiring import Semiring
from ..algebra.shipped import LogSumExp, max_plus
from ..step.weighted_sum import work_of
from . import assignments, log_loops
from .native_network import NativeOp, Question, kernels
from .plan_text import (
    PlanOp,
    Steps,
    are_numbers,
    integers,
    placed,
    require_countable,
    same_shapes,
    shape_of,
)
from .steps import Mode, evaluate


def filled(like: Sequence[Any], given: Sequence[jax.Array | None]) -> list[jax.Array]:
    """The given arrays, and zeros like others where there is none."""
    return [
        jnp.zeros(x.shape, x.dtype) if t is None else t for x, t in zip(like, given, strict=True)
    ]


@extension_op(package="tenferro-ext-tropical", name="network_entries", version=1)
class NetworkEntries(NativeOp):
    """The entries of tables at an assignment of labels, or their sum; or the transpose of that.

    Inputs are the labels, int32 (contracted labels in sorted order, *shape of the value), then the
    tables; outputs an array (tables, *shape), or their sum (*shape). Transposed, inputs are the
    labels and such an array, outputs the tables, to whose entries it is added.

    Attributes:
      terms: the labels of the tables, with a comma between.
      output: the labels of the value.
      sizes: (label, size) of every label of the network.
      is_sum: whether the entries of all tables are added.
      is_transposed: whether this is the transpose.
    """

    terms: str
    output: str
    sizes: tuple[tuple[str, int], ...]
    is_sum: bool = False
    is_transposed: bool = False

    def __post_init__(self) -> None:
        known = dict(self.sizes)
        unknown = sorted(set(self.terms.replace(",", "") + self.output) - set(known))
        if unknown or len(set(self.output)) < len(self.output) or len(known) < len(self.sizes):
            raise InvalidConfig(
                where=self.family_id,
                given=f"terms {self.terms!r}, output {self.output!r}, sizes {self.sizes!r}",
                needed="one size for each label, and no label twice in the output",
            )
        if not all(type(size) is int and size > 0 for size in known.values()):
            raise InvalidConfig(
                where=f"{self.family_id}, field sizes",
                given=repr(self.sizes),
                needed="positive integers",
            )

    @property
    def algebra(self) -> Semiring:
        """The semiring whose loops add the entries: any."""
        return max_plus

    @property
    def contracted(self) -> str:
        """The labels that the output lacks, sorted."""
        return "".join(sorted(set(dict(self.sizes)) - set(self.output)))

    @property
    def tables(self) -> Plan:
        """The labels as a plan without steps."""
        terms = tuple(self.split)
        return Plan(Equation(self.terms, terms, self.output), terms, self.sizes, ())

    @property
    def split(self) -> list[str]:
        """The labels of each table."""
        return self.terms.split(",")

    def shape(self, labels: str) -> tuple[int, ...]:
        """The sizes of labels."""
        known = dict(self.sizes)
        return tuple(known[label] for label in labels)

    @property
    def shapes(self) -> list[tuple[int, ...]]:
        """The shapes of the tables."""
        known = dict(self.sizes)
        return [tuple(known[label] for label in term) for term in self.split]

    @property
    def input_count(self) -> int:
        """The labels, and the tables or an array."""
        return 2 if self.is_transposed else 1 + len(self.split)

    @property
    def output_count(self) -> int:
        """1, or one for each table."""
        return len(self.split) if self.is_transposed else 1

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of the entries."""
        return (() if self.is_sum else (len(self.split),)) + self.shape(self.output)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        labels, *given = inputs
        tables = self.shapes
        wanted = [self.rows] if self.is_transposed else tables
        at = (len(self.contracted), *self.shape(self.output))
        if (
            labels.dtype != np.int32
            or len({m.dtype for m in given}) != 1
            or not (jnp.issubdtype(given[0].dtype, jnp.floating))
        ):
            raise DTypeError(
                where=self.family_id,
                given=", ".join(map(str, inputs)),
                needed="int32 labels, and one floating dtype for all else",
            )
        same_shapes(f"extension {self.family_id}", inputs, [at, *wanted])
        outs = tables if self.is_transposed else [self.rows]
        return [TensorMeta(given[0].dtype, shape) for shape in outs]

    def infer_output_sharding(
        self,
        inputs: Sequence[jax.ShapeDtypeStruct],
    ) -> Sequence[jax.NamedSharding]:
        rows = self.output if self.is_sum else " " + self.output
        ends = (rows,), tuple(self.split)
        outs, given = ends[self.is_transposed], ends[not self.is_transposed]
        terms = (" " + self.output, *given)
        return placed(f"extension {self.family_id}", terms, inputs, outs)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        labels, *given = inputs
        if self.is_transposed:
            (rows,) = given
            rows = jnp.broadcast_to(rows, (len(self.split), *self.shape(self.output)))
            return assignments.add_entries(self.tables, labels, rows, range(len(self.split)))
        found = assignments.entries(self.tables, labels, given, range(len(self.split)))
        return (jnp.sum(found, 0) if self.is_sum else found,)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        return apply(self, primals[0], *filled(primals[1:], tangents[1:]))

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        some: Any = next(c for c in cotangents if c is not None)
        shapes = self.shapes if self.is_transposed else [self.rows]
        like = [jax.ShapeDtypeStruct(shape, some.dtype) for shape in shapes]
        labels: Any = inputs[0]
        found = apply(swapped, labels, *filled(like, cotangents))
        return [
            x if isinstance(y, LinearInput) else None
            for x, y in zip((None, *found), inputs, strict=True)
        ]

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        steps = Steps(tuple(self.split), self.output, ())
        number = 2 + (not self.is_sum) + 2 * self.is_transposed
        active = range(len(self.split))
        return Question(number, integers(dict(self.sizes), steps, self.contracted, active))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Labels in range, and normal numbers."""
        rng = np.random.default_rng(0)
        labels = [rng.integers(0, n, self.shape(self.output)) for n in self.shape(self.contracted)]
        at = np.array(labels, np.int32).reshape(-1, *self.shape(self.output))
        shapes = [self.rows] if self.is_transposed else self.shapes
        return [[at, *(rng.normal(size=shape) for shape in shapes)]]


@extension_op(package="tenferro-ext-tropical", name="network_shares", version=1)
class NetworkShares(PlanOp):
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
        return LogSumExp(self.temperature, "exact")

    @property
    def input_count(self) -> int:
        """Tables, and tangents or a cotangent."""
        return len(self.steps.terms) + (1 if self.is_transposed else len(self.active))

    @property
    def output_count(self) -> int:
        """1, or one for each active table."""
        return len(self.active) if self.is_transposed else 1

    def _parted(self, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """(tables, the rest)."""
        count = len(self.steps.terms)
        return inputs[:count], inputs[count:]

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        tables, rest = self._parted(inputs)
        dtype = work_of(self.family_id, self.algebra, inputs)
        plan = self.planned(tables)
        value = [shape_of(plan, plan.equation.output)]
        own = [tuple(tables[i].shape) for i in self.active]
        wanted, outs = (value, own) if self.is_transposed else (own, value)
        same_shapes(f"extension {self.family_id}", rest, wanted)
        return [TensorMeta(dtype, shape) for shape in outs]

    def infer_output_sharding(
        self,
        inputs: Sequence[jax.ShapeDtypeStruct],
    ) -> Sequence[jax.NamedSharding]:
        ends = (self.steps.output,), tuple(self.steps.terms[i] for i in self.active)
        outs, given = ends[self.is_transposed], ends[not self.is_transposed]
        terms = (*self.steps.terms, *given)
        return placed(f"extension {self.family_id}", terms, inputs, outs)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        tables, rest = self._parted(inputs)
        plan = self.planned(tables)
        require_countable(plan, tables)
        _, results = log_loops.log_search(plan, self.temperature, tables)
        given = (plan, self.temperature, tables, results)
        if self.is_transposed:
            return log_loops.log_cotangent(*given, rest[0], self.active)
        return (log_loops.log_tangent(*given, dict(zip(self.active, rest, strict=True))),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Itself in the linear inputs; in the tables the derivative of the derivative of the steps
        one after another.
        """
        tables, rest = self._parted(primals)
        moved, directions = self._parted(tangents)
        terms: list[Sequence[jax.Array]] = []
        if any(t is not None for t in directions):
            terms.append(apply(self, *tables, *filled(rest, directions)))
        if active := [i for i, t in enumerate(moved) if t is not None]:

            def derivative(*chosen: jax.Array) -> Sequence[jax.Array]:
                every = list(tables)
                for i, x in zip(active, chosen, strict=True):
                    every[i] = x
                return self._by_steps(every, rest)

            _, out = jax.jvp(derivative, [tables[i] for i in active], [moved[i] for i in active])
            terms.append(out)
        return [functools.reduce(jnp.add, each) for each in zip(*terms, strict=True)]

    def _by_steps(
        self, tables: Sequence[jax.Array], rest: Sequence[jax.Array]
    ) -> Sequence[jax.Array]:
        """The outputs, as derivatives of the steps' own ops."""
        plan, mode = self.planned(tables), Mode(self.algebra)

        def value(*active: jax.Array) -> jax.Array:
            every = list(tables)
            for i, x in zip(self.active, active, strict=True):
                every[i] = x
            return evaluate(plan, every, mode)[0]

        at = [tables[i] for i in self.active]
        if self.is_transposed:
            return jax.vjp(value, *at)[1](rest[0])
        return (jax.jvp(value, at, list(rest))[1],)

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        tables, _ = self._parted(inputs)
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        like = [tables[i] for i in self.active] if self.is_transposed else [cotangents[0]]
        found = apply(swapped, *tables, *filled(like, cotangents))
        every = zip((*[None] * len(tables), *found), inputs, strict=True)
        return [x if isinstance(y, LinearInput) else None for x, y in every]

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        sizes: Any = dict(self.planned(self._parted(metas)[0]).sizes)
        plan = integers(sizes, self.steps, self.steps.contracted, self.active)
        return Question(6 + self.is_transposed, plan)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Tables of 2, 3, 4, ... for the labels in their order, with their results."""
        tables = self.steps.examples
        plan = self.planned(tables)
        value = np.ones(shape_of(plan, plan.equation.output))
        rest = [value] if self.is_transposed else [tables[i] for i in self.active]
        return [[*tables, *rest]]


for _op in (NetworkEntries, NetworkShares):
    _op.runtimes = kernels(_op.family_id)
