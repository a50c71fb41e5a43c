"""Weighted sums over the candidates of a contraction step, which make up the derivatives of "plus".

Derivatives and transposes of these ops are of the same family, so a derivative of any order is a
few such sums, without an array of all candidates. docs/maths/tropical.md derives them.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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

from ..arguments import widened
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp
from .kernels import products, selection
from .kernels.summed import summed
from .layout import StepOp, factors_of, grouped, product, ungrouped


class Place(enum.Enum):
    """The labels of an array: those of an operand, or of the step's result."""

    LHS = "lhs"
    RHS = "rhs"
    OUT = "out"


class SumInputs(NamedTuple):
    """The arrays of a weighted sum.

    Attributes:
      operands: of the step.
      value: of the step; or a reference for each cell.
      factors: one for each place.
    """

    operands: Sequence[jax.Array]
    value: jax.Array
    factors: Sequence[jax.Array]


class SumOver(NamedTuple):
    """How a result is a sum.

    Attributes:
      first, second: the places beside that of the result.
      over: the group of labels that is summed, which both of these have and the result lacks.
      of_first, of_second: the other group of each, which together are the groups of the result.
    """

    first: Place
    second: Place
    over: str
    of_first: str
    of_second: str


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

    def inputs(self, *given: Any) -> SumInputs:
        """The inputs of a call by their names."""
        count = self.operand_count
        return SumInputs(given[:count], given[count], given[count + 1 :])

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = work_of(f"{self.family_id} {self.equation!r}", self.algebra, inputs)
        sizes = self._sizes([m.shape for m in inputs], require_equal)
        return [TensorMeta(dtype, tuple(map(sizes.__getitem__, self._labels(self.output))))]

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

        def searched(may_be_nan: bool, *inputs: jax.Array) -> jax.Array:
            operands, _, factors = self.inputs(*inputs)
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
        value = self.inputs(*inputs).value
        has_nan = jnp.any(value != value)
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

    def of_tangents(
        self, inputs: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
    ) -> jax.Array:
        """The sum over all candidates, each times its tangent: of an op without factors, for its
        inputs and tangents of the operands.
        """
        is_sum = self.operand_count == 1 or isinstance(self.algebra, LogSumExp)
        moved: list[jax.Array] = []
        for place, tangent in zip(Place, tangents, strict=False):
            if tangent is not None:
                partial = "" if is_sum else place.value[0]
                op = dataclasses.replace(self, places=(place,), partial=partial)
                moved += apply(op, *inputs, widened(tangent))
        return functools.reduce(jnp.add, moved)

    def from_candidates(self, *inputs: jax.Array, may_be_nan: bool = True) -> jax.Array:
        """The sum in one pass over all candidates."""
        sizes = self._sizes([x.shape for x in inputs])
        given, layout, how = self.inputs(*inputs), self.layout, _SUMS[self.output]
        entries = dict(zip(Place, given.operands, strict=False)) | {Place.OUT: given.value}
        factors = self._factors(given)
        after = factors.pop(self.output, None)  # a constant of the sum
        over, of_first, of_second = (getattr(layout, name) for name in how[2:])

        def side(place: Place, *groups: str) -> list[jax.Array]:
            """The entries of a place, if it has some, and the product of its factors."""
            arrays = [table[place] for table in (entries, factors) if place in table]
            return [grouped(self._labels(place), x, (layout.batch, *groups)) for x in arrays]

        def term(
            first: Sequence[jax.Array], second: Sequence[jax.Array], whole: Sequence[jax.Array]
        ) -> jax.Array:
            at = {how.first: first, how.second: second, self.output: whole}
            *operands, value = (at[place][0] for place in entries)
            weights = [*first[1:], *second[1:], *whole[1:]]
            return self._term(operands, value, weights, may_be_nan)

        first, second = side(how.first, over, of_first), side(how.second, over, of_second)
        whole = side(self.output, of_first, of_second)
        groups = layout.batch, over, of_first, of_second
        total = summed(
            term,
            [first, second, whole],
            [product(sizes, group) for group in groups],
            np.zeros((), given.value.dtype),
            lax.add,
            TURN_TERMS,
        )
        labels = layout.batch + of_first + of_second
        result = ungrouped(labels, total, sizes, self._labels(self.output))
        return result if after is None else result * after

    def _factors(self, given: SumInputs) -> dict[Place, jax.Array]:
        """The product of the factors of each place that has some."""
        found: dict[Place, jax.Array] = {}
        for place, x in zip(self.places, given.factors, strict=True):
            found[place] = found[place] * x if place in found else x
        return found

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
        begin = derivative(semiring.times, self.partial)(*operands) if self.partial else 1
        amount = functools.reduce(jnp.multiply, factors, begin)
        if isinstance(semiring, LogSumExp):
            counts = candidate != semiring.zero(value.dtype)
            amount = amount * jnp.exp((candidate - value) / semiring.temperature)
        else:
            counts = candidate == value
            if may_be_nan:
                counts |= candidate != candidate
        return jnp.where(counts, jnp.asarray(amount, value.dtype), jnp.zeros((), value.dtype))

    @property
    def _terms(self) -> tuple[str, ...]:
        """The labels of each input."""
        return *self.layout.equation.inputs, *map(self._labels, (Place.OUT, *self.places))

    def _labels(self, place: Place) -> str:
        equation = self.layout.equation
        if place is Place.OUT:
            return equation.output
        return equation.inputs[tuple(Place).index(place)]

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
        rng = np.random.default_rng(0)
        terms = [*self.layout.equation.inputs, *map(self._labels, self.places)]
        shapes = self.example_shapes(terms)
        arrays: list[Any] = [rng.integers(1, 7, size=shape) / 4 for shape in shapes]
        lhs, *rhs = self.layout.matrices(*arrays[: self.operand_count])
        candidates = lhs[..., None]
        for x in rhs:
            candidates = self.algebra.times(candidates, x[:, :, None, :])
        parts = (candidates[:, k] for k in range(candidates.shape[1]))
        value = functools.reduce(self.algebra.plus, parts)
        tensor = self.layout.tensor(value, self.example_sizes)
        arrays.insert(self.operand_count, np.asarray(tensor))
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

_OUT = SumOver(Place.LHS, Place.RHS, over="contracted", of_first="rows", of_second="columns")
_LHS = SumOver(Place.RHS, Place.OUT, over="columns", of_first="contracted", of_second="rows")
_RHS = SumOver(Place.LHS, Place.OUT, over="rows", of_first="contracted", of_second="columns")
_SUMS = {Place.OUT: _OUT, Place.LHS: _LHS, Place.RHS: _RHS}
"""How the result of each place is a sum."""


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
        def of_one(x: jax.Array) -> jax.Array:
            return lower(*operands[:at], x, *operands[at + 1 :])

        x = operands[at]
        return jax.jvp(of_one, (x,), (jnp.ones_like(x),))[1]

    return along


@functools.lru_cache(maxsize=256)
def vanishes(semiring: Semiring, partial: str) -> bool:
    """Whether a derivative of times is zero everywhere, as far as JAX sees: under max_plus every
    second one.
    """
    (out,) = jax.make_jaxpr(derivative(semiring.times, partial))(1.0, 1.0).jaxpr.outvars
    return getattr(out, "val", None) == 0.0
