"""The semirings of this package: the selective ones, and log-sum-exp, a smooth variant of
max_plus.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.shapes import as_real, shown

from .registered import register_semiring
from .semiring import FLOATS, SelectiveSemiring, Semiring, lowest


def are_finite(*arrays: jax.Array) -> jax.Array:
    """Whether all entries of floating arrays are finite: a sum of products with zero is faster than
    a test of each entry.

    Example:
      >>> bool(are_finite(jnp.ones(3), jnp.array([1.0, jnp.inf])))
      False
    """
    return functools.reduce(operator.and_, (jnp.sum(x * 0) == 0 for x in arrays))


def _may_meet(
    one: Callable[[jax.Array], jax.Array],
    other: Callable[[jax.Array], jax.Array],
    a: jax.Array,
    b: jax.Array,
) -> jax.Array:
    """Whether there is one number in an array and the other in the other array, whose product is
    NaN. If all entries are finite it is not looked for.
    """

    def met(a: jax.Array, b: jax.Array) -> jax.Array:
        is_one_first = jnp.any(one(a)) & jnp.any(other(b))
        is_other_first = jnp.any(other(a)) & jnp.any(one(b))
        return is_one_first | is_other_first

    return lax.cond(are_finite(a, b), lambda a, b: jnp.asarray(False), met, a, b)


class _Plus(SelectiveSemiring):
    """times is +, and the zero is infinite: for integers the type's extreme value, which absorbs
    like infinity.
    """

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x + y
        zero = self.zero(x.dtype)
        return jnp.where((x == zero) | (y == zero), zero, x + y)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return _may_meet(jnp.isposinf, jnp.isneginf, a, b)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MaxPlusSemiring(_Plus):
    """(max, +)."""

    id = "tenferro-ext-tropical.max_plus.v1"
    native_number = 0
    reduction = "max"


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinPlusSemiring(_Plus):
    """(min, +)."""

    id = "tenferro-ext-tropical.min_plus.v1"
    native_number = 1
    reduction = "min"


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MaxMulSemiring(SelectiveSemiring):
    """(max, x)."""

    id = "tenferro-ext-tropical.max_mul.v1"
    native_number = 2
    reduction = "max"

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.ones((), dtype)

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return _may_meet(lambda x: x == 0, jnp.isinf, a, b)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinMaxSemiring(SelectiveSemiring):
    """(min, max). Of two equal entries the first is the maximum, so that the derivative goes to one
    entry.
    """

    id = "tenferro-ext-tropical.min_max.v1"
    native_number = 4
    reduction = "min"

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where((y > x) | (y != y), y, x)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return lowest(dtype)

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> np.bool_:
        return np.False_


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class OrAndSemiring(SelectiveSemiring):
    """(or, and)."""

    id = "tenferro-ext-tropical.or_and.v1"
    native_number = 3
    reduction = "max"
    dtypes = ("bool",)

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x & y

    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return y & ~x

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        return jnp.any(candidates, axis)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.ones((), dtype)


max_plus = MaxPlusSemiring()
"""(max, +), zero -inf, one 0: longest paths, Viterbi scores in log space."""

min_plus = MinPlusSemiring()
"""(min, +), zero +inf, one 0: shortest paths."""

max_mul = MaxMulSemiring()
"""(max, x), zero 0, one 1: most probable explanations. The exact maximum of products of two
operands of any sign; its semiring laws hold for non-negative entries."""

min_max = MinMaxSemiring()
"""(min, max), zero +inf, one -inf: bottlenecks, the least largest step."""

or_and = OrAndSemiring()
"""(or, and), zero False, one True: reachability."""

SEMIRINGS = (max_plus, min_plus, max_mul, min_max, or_and)
"""The selective semirings of this package."""


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class LogSumExp(Semiring):
    """plus is T log(exp(x / T) + exp(y / T)), times is +, zero -inf, one 0.

    Attributes:
      temperature: T, positive and finite. As it falls, plus tends to the maximum.

    A contraction multiplies matrices of exponentials, and sums over all candidates in the cells
    where that could lose more than rounding.

    Raises:
      InvalidConfig: another temperature.

    Example:
      >>> round(float(log_sum_exp(0.5).plus(1.0, 2.0)), 4)
      2.0635
    """

    id = "tenferro-ext-tropical.log_sum_exp.v1"
    native_number = 5
    dtypes = FLOATS
    temperature: float = 1.0
    accuracy: dataclasses.InitVar[str] = "certified"

    def __post_init__(self, accuracy: str) -> None:
        given = as_real(self.temperature)
        if given is None or not 0 < given < math.inf:
            raise InvalidConfig(
                where="log_sum_exp, temperature",
                given=shown(self.temperature),
                needed="a positive finite number of Python or NumPy: it is part of the op",
                fix="For the limit at 0 use max_plus; for a minimum negate the operands.",
            )
        if accuracy != "certified":
            raise InvalidConfig(
                where="log_sum_exp, accuracy",
                given=repr(accuracy),
                needed="'certified', the only one",
                fix="Leave it out: cells that products could spoil are summed over all candidates.",
            )
        object.__setattr__(self, "temperature", given)

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y

    def plus(self, x: jax.Array, y: jax.Array) -> jax.Array:
        gap = jnp.where(x == y, 0.0, abs(x - y))  # infinities too
        return jnp.maximum(x, y) + self.temperature * jnp.log1p(jnp.exp(-gap / self.temperature))

    def share(self, x: jax.Array, total: jax.Array) -> jax.Array:
        """exp((x - total) / T), the share of x in a total; 0 for -inf."""
        return jnp.where(x == -jnp.inf, 0.0, jnp.exp((x - total) / self.temperature)).astype(
            x.dtype
        )

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return lowest(dtype)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class SumProduct(Semiring):
    """(+, x) of numbers."""

    id = "tenferro-ext-tropical.sum_product.v1"
    native_number = 6
    dtypes = FLOATS

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    def plus(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x + y

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.ones((), dtype)


sum_product = SumProduct()
"""(+, x), zero 0, one 1: sums of products of ordinary numbers, of any sign. It has derivatives of
any order."""


class OfTemperature:
    """A payload with the temperature of a log_sum_exp, positive and finite."""

    temperature: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", self.algebra.temperature)

    @property
    def algebra(self) -> LogSumExp:
        """The semiring."""
        return LogSumExp(self.temperature)


log_sum_exp = LogSumExp
"""Makes the semiring (log-sum-exp, +) of a temperature, 1 by default: sums of probabilities in log
space. Its gradient is the softmax of the candidates: marginals."""
