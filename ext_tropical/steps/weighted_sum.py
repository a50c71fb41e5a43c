"""Weighted sums over the candidates of a contraction step, which make up the derivatives of "plus".

Derivatives and transposes of these ops are of the same family, so a derivative of any order is a
few such sums, without an array of all candidates. docs/maths/tropical.md derives them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, counted
from tenferro_jax.extension import (
    NOT_DIFFERENTIABLE,
    LinearInput,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)
from tenferro_jax.plans import Equation

from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp
from .kernels import products, selection
from .kernels.summed import summed
from .layout import StepOp, factors_of, grouped, product


class Place(enum.Enum):
    """The labels of an array: those of an operand, or of the step's result."""

    LHS = "lhs"
    RHS = "rhs"
    OUT = "out"


@extension_op(package="tenferro-ext-tropical", name="weighted_sum", version=1)
class WeightedSum(OfSemiring, StepOp):
    """result[labels of output] = sum over all other labels of  weight x derivative of times x
    product of factors.

    Inputs are the operands of the step, its value, then the factors. The weight of a candidate p in
    a cell of value v is exp((p - v) / T) under log_sum_exp, 0 if p is -inf; under a selective
    semiring it is 1 if p is best in its cell or NaN, else 0. The best candidates are searched
    again, because v may have been rounded and equal none of them. A candidate whose weight is 0 by
    definition is left out, whatever its factors are.

    Attributes:
      semiring: a registered semiring, selective or log_sum_exp, or its key.
      equation: of the step, as in the einsum ops.
      places: for each factor, the place of its labels.
      output: the place of the result's labels.
      partial: the derivative of times(lhs, rhs), in letters "l" and "r": "lr" is the mixed second
        one. "": no such factor.
    """

    semiring: SemiringKey
    equation: str
    places: tuple[Place, ...] = ()
    output: Place = Place.OUT
    partial: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        count = self.operand_count
        if not isinstance(self.algebra, SelectiveSemiring | LogSumExp):
            raise self._wrong("semiring", "a selective semiring or log_sum_exp")
        known = tuple(p for p in Place if count == 2 or p is not Place.RHS)
        if not isinstance(self.places, tuple) or any(
            p not in known for p in (*self.places, self.output)
        ):
            some = f"a tuple of {', '.join(map(str, known))}, and one of them as output"
            raise self._wrong("places", f"of {counted(count, 'operand')} {some}")
        if not (
            isinstance(self.partial, str) and set(self.partial) <= set("lr" if count == 2 else "")
        ):
            raise self._wrong("partial", "letters l and r, where the step has two operands")

    def _wrong(self, field: str, needed: str) -> InvalidConfig:
        return InvalidConfig(
            where=f"{self.family_id}, field {field}",
            given=repr(getattr(self, field)),
            needed=needed,
        )

    @property
    def input_count(self) -> int:
        """The operands, the value, the factors."""
        return self.operand_count + 1 + len(self.places)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = work_of(f"{self.family_id} {self.equation!r}", self.algebra, inputs)
        sizes = self._sizes([m.shape for m in inputs], require_equal)
        return [TensorMeta(dtype, tuple(sizes[label] for label in self._labels(self.output)))]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        """Where the best candidates are searched again, every device has all of a cell."""
        factors = factors_of(self._terms, [self._labels(self.output)])
        searches = isinstance(self.algebra, SelectiveSemiring)
        return ShardingRule(factors, "sum", tuple(self.layout.contracted) if searches else ())

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        if not isinstance(self.algebra, SelectiveSemiring):
            of = dict(zip(Place, products.PLACES, strict=True))
            places = (*products.PLACES, *(of[p] for p in (*self.places, self.output)))
            return (products.lowered(self, products.weighted, inputs, places),)

        count = self.operand_count

        def searched(may_be_nan: bool, *inputs: jax.Array) -> jax.Array:
            operands, factors = inputs[:count], inputs[count + 1 :]
            (best,) = selection.contract(
                self.algebra,
                self.layout.matrices(*operands),
                with_winner=False,
                contracted_last=self.layout.contracted_last,
            )
            value = self.layout.tensor(best, self._sizes([x.shape for x in inputs]))
            return self.from_candidates(*operands, value, *factors, may_be_nan=may_be_nan)

        # The operands of a branch are arrays that were stored: each candidate made of them has the
        # same bits everywhere.
        has_nan = jnp.any(inputs[count] != inputs[count])
        branches = (functools.partial(searched, True), functools.partial(searched, False))
        return (lax.cond(has_nan, *branches, *inputs),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Weighted sums, one for each active input."""
        count = self.operand_count + 1
        terms: list[Any] = []
        for i, tangent in enumerate(tangents):
            if tangent is None:
                continue
            if i >= count:
                terms += apply(self, *primals[:i], tangent, *primals[i + 1 :])
                continue
            place = Place.OUT if i == count - 1 else tuple(Place)[i]
            scale, partial = _moved(self, place)
            if scale:
                op = dataclasses.replace(self, places=(*self.places, place), partial=partial)
                terms.append(apply(op, *primals, tangent)[0] * scale)
        return (functools.reduce(jnp.add, terms) if terms else None,)

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """A weighted sum whose output and the place of the active factor are swapped."""
        count = self.operand_count + 1
        active = [i for i, x in enumerate(inputs) if isinstance(x, LinearInput)]
        if len(active) > 1 or active[0] < count:  # linear in each factor, not in several together
            return [NOT_DIFFERENTIABLE if i in active else None for i in range(len(inputs))]
        (at,) = active
        places = (*self.places[: at - count], self.output, *self.places[at - count + 1 :])
        swapped = dataclasses.replace(self, places=places, output=self.places[at - count])
        given: list[Any] = [*inputs[:at], cotangents[0], *inputs[at + 1 :]]
        found: list[Any] = [None] * len(inputs)
        (found[at],) = apply(swapped, *given)
        return found

    def from_candidates(self, *inputs: jax.Array, may_be_nan: bool = True) -> jax.Array:
        """The sum in one pass over all candidates."""
        sizes = self._sizes([x.shape for x in inputs])
        operands, value, factors = (
            inputs[: self.operand_count],
            inputs[self.operand_count],
            inputs[self.operand_count + 1 :],
        )
        known = {**dict(zip(Place, operands, strict=False)), Place.OUT: value}
        given = {
            place: [x for p, x in zip(self.places, factors, strict=True) if p is place]
            for place in Place
        }
        products = {place: functools.reduce(jnp.multiply, xs) for place, xs in given.items() if xs}
        after = products.pop(self.output, None)  # a constant of the sum
        *order, over, first, second = _SUMS[self.output]
        batch, over, first, second = (
            getattr(self.layout, name) for name in ("batch", over, first, second)
        )

        def matrices(place: Place, *groups: str) -> list[jax.Array]:
            arrays = [table[place] for table in (known, products) if place in table]
            return [grouped(self._labels(place), x, groups) for x in arrays]

        def term(*sides: Sequence[jax.Array]) -> jax.Array:
            at = dict(zip((*order, self.output), sides, strict=True))
            entries = [at[place][0] for place in known]
            factors = [x for place, side in at.items() for x in side[place in known :]]
            return self._term(entries[:-1], entries[-1], factors, may_be_nan)

        sides = [
            matrices(p, batch, *own)
            for p, own in zip(
                (*order, self.output), ((over, first), (over, second), (first, second))
            )
        ]
        total = summed(
            term,
            sides,
            [product(sizes, group) for group in (batch, over, first, second)],
            np.zeros((), value.dtype),
            lax.add,
            TURN_TERMS,
        )
        labels = batch + first + second
        result = jnp.transpose(
            total.reshape([sizes[label] for label in labels]),
            [labels.index(label) for label in self._labels(self.output)],
        )
        return result if after is None else result * after

    def _term(
        self,
        operands: Sequence[jax.Array],
        value: jax.Array,
        factors: Sequence[jax.Array],
        may_be_nan: bool,
    ) -> jax.Array:
        """One weighted candidate."""
        semiring = self.algebra
        candidate = operands[0] if len(operands) == 1 else semiring.times(*operands)
        amount = functools.reduce(
            jnp.multiply,
            factors,
            derivative(semiring.times, self.partial)(*operands) if self.partial else 1,
        )
        if isinstance(semiring, LogSumExp):
            counts = candidate != semiring.zero(value.dtype)
            amount = amount * jnp.exp((candidate - value) / semiring.temperature)
        else:
            counts = (
                (candidate == value) | (candidate != candidate)
                if may_be_nan
                else candidate == value
            )
        return jnp.where(counts, jnp.asarray(amount, value.dtype), jnp.zeros((), value.dtype))

    @property
    def _terms(self) -> tuple[str, ...]:
        """The labels of each input."""
        return *self.layout.equation.inputs, *map(self._labels, (Place.OUT, *self.places))

    def _labels(self, place: Place) -> str:
        equation = self.layout.equation
        return equation.output if place is Place.OUT else equation.inputs[place is Place.RHS]

    def _sizes(
        self,
        shapes: Sequence[Sequence[int]],
        compare: Callable[[int, int], None] | None = None,
    ) -> Mapping[str, int]:
        equation = Equation(self.equation, self._terms, self._labels(Place.OUT))
        return equation.sizes(shapes, self.family_id, compare)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Operands, their value, and factors, of 2, 3, 4, ... for the labels in their order; no
        dtype rounds them.
        """
        sizes, rng = self.example_sizes, np.random.default_rng(0)
        terms = [*self.layout.equation.inputs, *map(self._labels, self.places)]
        shapes = [[sizes[label] for label in term] for term in terms]
        arrays: list[Any] = [rng.integers(1, 7, size=shape) / 4 for shape in shapes]
        lhs, *rhs = self.layout.matrices(*arrays[: self.operand_count])
        candidates = (
            self.algebra.times(lhs[..., None], rhs[0][:, :, None, :]) if rhs else lhs[..., None]
        )
        value = functools.reduce(
            self.algebra.plus, [candidates[:, k] for k in range(candidates.shape[1])]
        )
        arrays.insert(self.operand_count, np.asarray(self.layout.tensor(value, sizes)))
        return [arrays]


def work_of(where: str, semiring: Semiring, inputs: Sequence[TensorMeta]) -> np.dtype:
    """The dtype of all inputs.

    Raises:
      DTypeError: not float32 for all, nor float64.
      InvalidConfig: a temperature that becomes 0, subnormal or infinite in this dtype.
    """
    if {m.dtype.name for m in inputs} not in ({"float32"}, {"float64"}):
        raise DTypeError(
            where=where,
            given=f"inputs of dtype {', '.join(m.dtype.name for m in inputs)}",
            needed="float32 or float64 for all",
            fix="Convert the operands; tropical_einsum widens 16-bit floats itself.",
        )
    dtype = inputs[0].dtype
    temperature = semiring.temperature if isinstance(semiring, LogSumExp) else 1.0
    if not float(np.finfo(dtype).tiny) <= temperature <= float(np.finfo(dtype).max):
        raise InvalidConfig(
            where=where,
            given=f"temperature {temperature}",
            needed=f"a normal number of {dtype}",
            fix="Scale the operands, or take max_plus for the limit at 0.",
        )
    return dtype


TURN_TERMS = 8
"""Terms in each turn of a sum. More arrays are fetched than in `selection`: with 16 terms XLA CPU
runs out of registers and takes twice as long.
"""

_SUMS = {
    Place.OUT: (Place.LHS, Place.RHS, "contracted", "rows", "columns"),
    Place.LHS: (Place.RHS, Place.OUT, "columns", "contracted", "rows"),
    Place.RHS: (Place.LHS, Place.OUT, "rows", "contracted", "columns"),
}
"""For each output: the two other places; the group of labels that is summed, which both places have
and the output lacks; and the other group of each place, which together are the groups of the
output.
"""


def _moved(op: WeightedSum, place: Place) -> tuple[float, str]:
    """(scale, partial) of the derivative of `op` in an operand or the value, whose tangent is one
    more factor.

    The derivative of a weight exp((p - v) / T) is itself over T; a weight of 1 or 0 has none, but
    times has one.
    """
    if isinstance(op.algebra, LogSumExp):
        return (-1.0 if place is Place.OUT else 1.0) / op.algebra.temperature, op.partial
    partial = "".join(sorted(op.partial + place.value[0]))
    if not op.partial or place is Place.OUT or vanishes(op.algebra, partial):
        return 0.0, ""
    return 1.0, partial


# --- partial derivatives of times -----------------------------------------------------------------


def derivative(times: Callable[..., jax.Array], word: str) -> Callable[..., jax.Array]:
    """The mixed partial derivative of an elementwise function of two arguments, along "l" and "r"
    in turn.
    """
    if not word:
        return times
    lower, at = derivative(times, word[:-1]), "lr".index(word[-1])

    def along(*operands: jax.Array) -> jax.Array:
        x = operands[at]
        return jax.jvp(
            lambda x: lower(*operands[:at], x, *operands[at + 1 :]), (x,), (jnp.ones_like(x),)
        )[1]

    return along


@functools.lru_cache(maxsize=256)
def vanishes(semiring: Semiring, partial: str) -> bool:
    """Whether a derivative of times is zero everywhere, as far as JAX sees: under max_plus every
    second one.
    """
    (out,) = jax.make_jaxpr(derivative(semiring.times, partial))(1.0, 1.0).jaxpr.outvars
    return getattr(out, "val", None) == 0.0
