"""Ordinary sums of products along a plan as one extension op, and their derivatives of any order.

The value V is linear in each table. Its derivative D_k along k sets of tangents, and the derivative
G_k of D_k by the tables, are two questions of the native library for all k. They are closed: the
tangent of D_k is D_k and D_(k + 1); the transpose of D_k in one set is G_(k - 1); the tangent of
G_k is G_k and G_(k + 1); the transpose of G_k in its cotangent is D_(k + 1), and in one set G_k
again, because derivatives commute.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig
from tenferro_jax.extension import ExtensionOp, LinearInput, apply, extension_op
from tenferro_jax.plans import Plan

from ..arguments import are_numbers
from ..semirings.shipped import SumProduct, sum_product
from ..steps.evaluate import Mode, evaluate
from ..tangents import filled, tangent_of
from . import sum_loops
from .lanes import QuestionInLanes, kernels_in_lanes
from .log_derivatives import with_others
from .plan_text import batched_text
from .question import Asked, AxesOfArrays, Question, at_linear, kernels

MOST_ORDER = 8
"""The most sets of tangents, as in native/sums.cc: products of numbers with so many are 3 to the
power of them.
"""


class SumQuestion(Question):
    """A question to ordinary sums.

    A family has the fields `plan`, as text, and `lanes`: how many of the output's first labels are
    those of batches; -1: the first one, if most results have it. Each entry along them has
    exponents of its own, and they lie innermost.
    """

    def __post_init__(self) -> None:
        most = len(self.network.equation.output)
        if type(self.lanes) is not int or not -1 <= self.lanes <= most:
            raise InvalidConfig(
                where=f"{self.family_id}, field lanes",
                given=repr(self.lanes),
                needed=f"at most {most}, the labels of the output, or -1",
            )

    @property
    def algebra(self) -> SumProduct:
        """Ordinary sums."""
        return sum_product

    def dtype(self, inputs: Sequence[TensorMeta]) -> np.dtype:
        """That of the tables, float32 or float64; exponents are int32."""
        axes = self.arrays.inputs
        found = {m.dtype for i, m in enumerate(inputs) if i != self.exponents_at}
        if len(found) != 1 or found.isdisjoint({np.dtype("float32"), np.dtype("float64")}):
            raise DTypeError(
                where=self.place_of(),
                given=", ".join(sorted(map(str, found))),
                needed=f"float32 or float64, the same for all of {len(axes)} inputs",
            )
        return found.pop()

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if are_numbers(inputs):
            return super().lower_to_standard_ops(*inputs)
        return self.in_steps(self.planned(inputs), *inputs)

    def in_steps(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        """The outputs step by step, for symbolic sizes. A step may overflow here where the value
        does not.
        """
        raise NotImplementedError

    @property
    def exponents_at(self) -> int | None:
        """The number of the input that is int32."""
        return None


@extension_op(package="tenferro-ext-tropical", name="network_sum", version=1)
class NetworkSum(SumQuestion):
    """The sum over all labels that the output lacks of the products of the tables' entries.

    Every intermediate result has a power of two beside it, one for each element of a batch, by its
    largest entry, so that none is beyond the range of the dtype if the value is not. Entries below
    its largest times 1e-230 may be lost; in large steps of float32, 1e-30.

    Attributes:
      plan: the order of contractions, as text: "ab,bc,cd->ad|0,1:ac|2,3:ad".
      lanes: how many of the output's first labels are those of batches, or -1.
      is_scaled: whether the outputs are the value as x and an int32 e, of which it is x 2**e, where
        x is 0 or has a magnitude in [1/2, 1); else it is the value itself.
    """

    plan: str
    lanes: int = -1
    is_scaled: bool = False

    @property
    def asked(self) -> Asked:
        """The value, in one array or two."""
        return Asked.SCALED_SUM if self.is_scaled else Asked.SUM

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        value, *exponents = super().infer_output_meta(inputs)
        return [value, *(TensorMeta(np.dtype(np.int32), m.shape) for m in exponents)]

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        found = sum_loops.sums_of(plan, inputs, [])
        return found.scaled_value() if self.is_scaled else (found.value(),)

    def in_steps(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        value = _in_steps(plan, inputs)
        return jnp.frexp(value) if self.is_scaled else (value,)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The first derivative. Exponents are constant: the value divided by these moves."""
        active = tuple(i for i, t in enumerate(tangents) if t is not None)
        exponents = outputs[1] if self.is_scaled else jnp.zeros(outputs[0].shape, jnp.int32)
        op = NetworkSumDerivative(self.plan, active, lanes=self.lanes)
        moved = [t for t in tangents if t is not None]
        (change,) = apply(op, *primals, exponents, *moved)
        return (change, None) if self.is_scaled else (change,)

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        """In one table, whatever its entries are."""
        linear = tuple(i for i, x in enumerate(inputs) if isinstance(x, LinearInput))
        if self.is_scaled or len(linear) > 1:
            raise ADRuleError(
                self.family_id,
                "transpose",
                given="exponents beside the value" if self.is_scaled else f"{len(linear)} tables",
                needed="a sum of products as a linear function of one table",
                fix="Take jax.vjp, which needs no linear function.",
            )
        tables: list[jax.Array] = []
        for x in inputs:
            if isinstance(x, LinearInput):
                tables.append(jnp.zeros(x.meta.shape, x.meta.dtype))
            else:
                tables.append(x)
        bar = jnp.asarray(cotangents[0])
        op = NetworkSumDerivative(self.plan, linear, order=0, is_transposed=True, lanes=self.lanes)
        found = apply(op, *tables, jnp.zeros(bar.shape, jnp.int32), bar)
        return at_linear([found[0] if i in linear else None for i in range(len(inputs))], inputs)

    def batched(self, in_axes: tuple[int | None, ...]) -> tuple[ExtensionOp, tuple[int, ...]]:
        plan = batched_text(self.network, in_axes)
        form = dataclasses.replace(self, plan=plan, lanes=max(self.lanes, 0) + 1)
        return form, (0,) * self.output_count


class SumParts(NamedTuple):
    """The inputs of a derivative, or what belongs to each, such as its tangent.

    Attributes:
      tables: all tables.
      exponents: int32, of the value's shape: what is computed is divided by 2 to these.
      cotangent: of the value; of a transposed derivative alone.
      along: for each set of tangents those of the active tables.
    """

    tables: Sequence[Any]
    exponents: Any
    cotangent: Sequence[Any]
    along: Sequence[Sequence[Any]]

    def joined(self) -> list[Any]:
        """The inputs in order."""
        every = [*self.tables, self.exponents, *self.cotangent]
        for each in self.along:
            every.extend(each)
        return every


@extension_op(package="tenferro-ext-tropical", name="network_sum_derivative", version=1)
class NetworkSumDerivative(QuestionInLanes, SumQuestion):
    """The derivative of a sum of products along tangents of some tables; or of this derivative the
    product of a cotangent with its derivatives by these tables.

    Inputs are the tables; int32 exponents of the value's shape, by whose powers of two the value is
    divided; if transposed the cotangent of the value; and for each set of tangents those of the
    active tables. The output is of the value's shape; transposed, one cotangent for each active
    table.

    Attributes:
      plan, lanes: as of the network.
      active: the numbers of the active tables, increasing.
      order: how many sets of tangents there are.
      is_transposed: see above.
      given: the labels of each input, where some lack lanes, along which they are constant; else
        empty.
    """

    plan: str
    active: tuple[int, ...]
    order: int = 1
    is_transposed: bool = False
    lanes: int = -1
    given: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        count = len(self.network.terms)
        if not self.active or list(self.active) != sorted({*self.active} & {*range(count)}):
            raise InvalidConfig(
                where=f"{self.family_id}, field active",
                given=repr(self.active),
                needed=f"increasing numbers of {count} tables",
            )
        least = 0 if self.is_transposed else 1
        if type(self.order) is not int or not least <= self.order <= MOST_ORDER:
            raise InvalidConfig(
                where=f"{self.family_id}, field order",
                given=repr(self.order),
                needed=f"from {least} to {MOST_ORDER} sets of tangents",
            )

    @property
    def asked(self) -> Asked:
        """The derivative, or its transpose."""
        return Asked.SUM_COTANGENT if self.is_transposed else Asked.SUM_TANGENT

    @property
    def about(self) -> Sequence[int]:
        """The active tables."""
        return self.active

    @property
    def exponents_at(self) -> int:
        """Behind the tables."""
        return len(self.network.terms)

    @property
    def complete_arrays(self) -> AxesOfArrays:
        terms, output = self.network.terms, self.network.equation.output
        active = [terms[i] for i in self.active]
        values = [output, output] if self.is_transposed else [output]
        return AxesOfArrays(
            [*terms, *values, *active * self.order], active if self.is_transposed else [output]
        )

    def _parted(self, inputs: Sequence[Any]) -> SumParts:
        first = len(self.network.terms)
        second = first + (2 if self.is_transposed else 1)
        count = len(self.active)
        along = [inputs[second + j * count :][:count] for j in range(self.order)]
        return SumParts(inputs[:first], inputs[first], inputs[first + 1 : second], along)

    def of_plan(self, plan: str, lanes: int) -> NetworkSumDerivative:
        return dataclasses.replace(self, plan=plan, given=(), lanes=lanes)

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        tables, exponents, cotangent, along = self._parted(inputs)
        sets = [dict(zip(self.active, each, strict=True)) for each in along]
        found = sum_loops.sums_of(plan, tables, sets)
        if not self.is_transposed:
            return (found.value(exponents),)
        return sum_loops.backward(found, cotangent[0], exponents, self.active)

    def in_steps(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        tables, exponents, cotangent, along = self._parted(inputs)

        def value(*own: jax.Array) -> jax.Array:
            found = _in_steps(plan, with_others(tables, self.active, own))
            return jnp.ldexp(found, -exponents)

        run: Callable[..., jax.Array] = value
        for each in along:
            run = functools.partial(_along, run, tuple(each))
        own = [tables[i] for i in self.active]
        return jax.vjp(run, *own)[1](cotangent[0]) if self.is_transposed else (run(*own),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Itself in the cotangent and in each set; and one order more in the tables."""
        if self.given:
            return tangent_of(self.in_complete_form, primals, tangents)
        given, moved = self._parted(primals), self._parted(tangents)
        terms: list[Sequence[jax.Array]] = []
        if _is_any(moved.cotangent):
            terms.append(apply(self, *given._replace(cotangent=moved.cotangent).joined()))
        for j, each in enumerate(moved.along):
            if _is_any(each):
                along = list(given.along)
                along[j] = filled(given.along[j], each)
                terms.append(apply(self, *given._replace(along=along).joined()))
        if _is_any(moved.tables):
            terms.append(self._moved_tables(given, moved.tables))
        return [functools.reduce(jnp.add, each) for each in zip(*terms, strict=True)]

    def _moved_tables(
        self, given: SumParts, moved: Sequence[jax.Array | None]
    ) -> Sequence[jax.Array]:
        """One order more, in the tables that are active here or move."""
        active = tuple(i for i, t in enumerate(moved) if t is not None or i in self.active)
        own = [given.tables[i] for i in active]
        along = []
        for each in given.along:
            known = dict(zip(self.active, each, strict=True))
            along.append(filled(own, [known.get(i) for i in active]))
        along.append(filled(own, [moved[i] for i in active]))
        op = dataclasses.replace(self, active=active, order=self.order + 1)
        found = apply(op, *given._replace(along=along).joined())
        if not self.is_transposed:
            return found
        by_table = dict(zip(active, found, strict=True))
        return [by_table[i] for i in self.active]

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        """Of the value's derivative the derivative by the tables, and the other way round; of a set
        of tangents, transposed, itself.
        """
        if self.given:
            return self.transposed_in_complete_form(cotangents, inputs)
        given = self._parted(inputs)
        nothing = given._replace(
            tables=[None] * len(given.tables),
            exponents=None,
            cotangent=[None] * len(given.cotangent),
            along=[[None] * len(self.active) for _ in given.along],
        )
        bars: Sequence[Any] = cotangents
        if self.is_transposed:
            bars = filled([given.tables[i] for i in self.active], cotangents)
        if _has_linear(given.cotangent):
            op = dataclasses.replace(self, order=self.order + 1, is_transposed=False)
            found = apply(op, *given._replace(cotangent=(), along=[*given.along, bars]).joined())
            return at_linear(nothing._replace(cotangent=found).joined(), inputs)
        linear = next(j for j, each in enumerate(given.along) if _has_linear(each))
        along = list(given.along)
        if self.is_transposed:
            along[linear] = bars
            found = apply(self, *given._replace(along=along).joined())
        else:
            del along[linear]
            op = dataclasses.replace(self, order=self.order - 1, is_transposed=True)
            found = apply(op, *given._replace(cotangent=bars, along=along).joined())
        sets = list(nothing.along)
        sets[linear] = found
        return at_linear(nothing._replace(along=sets).joined(), inputs)


def _in_steps(plan: Plan, tables: Sequence[jax.Array]) -> jax.Array:
    return evaluate(plan, tables, Mode(sum_product, in_standard_ops=True))[0]


def _along(
    run: Callable[..., jax.Array], tangents: Sequence[jax.Array], *own: jax.Array
) -> jax.Array:
    """The derivative of a function along tangents of all its arguments."""
    return jax.jvp(run, own, tuple(tangents))[1]


def _has_linear(inputs: Sequence[object]) -> bool:
    return any(isinstance(x, LinearInput) for x in inputs)


def _is_any(tangents: Sequence[jax.Array | None]) -> bool:
    return any(t is not None for t in tangents)


NetworkSum.runtimes = kernels(NetworkSum.family_id)
NetworkSumDerivative.runtimes = kernels_in_lanes(NetworkSumDerivative.family_id)
