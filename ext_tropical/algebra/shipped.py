"""The semirings of this package: the selective ones, and log-sum-exp, a smooth variant of
max_plus.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
import operator
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.errors import InvalidConfig

from .methods import FLOATS
from .semiring import SelectiveSemiring, Semiring, SemiringKey, register_semiring


def with_nan(value: jax.Array, candidates: jax.Array, axis: int) -> jax.Array:
    """NaN where a candidate is NaN. XLA CPU's own maximum of floats loses NaN for some shapes, when
    it is vectorised.
    """
    if not jnp.issubdtype(candidates.dtype, jnp.floating):
        return value
    return jnp.where(
        jnp.any(candidates != candidates, axis), jnp.asarray(jnp.nan, value.dtype), value
    )


def are_finite(*arrays: jax.Array) -> jax.Array:
    """Whether all entries of floating arrays are finite: a sum of products with zero is faster than
    a test of each entry.

    Example:
      >>> bool(are_finite(jnp.ones(3), jnp.array([1.0, jnp.inf])))
      False
    """
    return functools.reduce(operator.and_, (jnp.sum(x * 0) == 0 for x in arrays))


def _may(
    scan: Callable[[jax.Array, jax.Array], jax.Array],
    a: jax.Array,
    b: jax.Array,
) -> jax.Array:
    """scan(a, b), unless all entries are finite: then no product of these semirings is NaN."""
    return lax.cond(are_finite(a, b), lambda a, b: jnp.asarray(False), scan, a, b)


def _meet_opposite(a: jax.Array, b: jax.Array) -> jax.Array:
    return (jnp.any(a == jnp.inf) & jnp.any(b == -jnp.inf)) | (
        jnp.any(a == -jnp.inf) & jnp.any(b == jnp.inf)
    )


def _meet_zero(a: jax.Array, b: jax.Array) -> jax.Array:
    return (jnp.any(a == 0) & jnp.any(jnp.isinf(b))) | (jnp.any(jnp.isinf(a)) & jnp.any(b == 0))


class _Maximum(SelectiveSemiring):
    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return y > x

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        return with_nan(jnp.max(candidates, axis), candidates, axis)


class _Minimum(SelectiveSemiring):
    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return y < x

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        return with_nan(jnp.min(candidates, axis), candidates, axis)

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return highest(dtype)


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
        return _may(_meet_opposite, a, b)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MaxPlusSemiring(_Plus, _Maximum):
    """(max, +)."""

    id = "tenferro-ext-tropical.max_plus.v1"

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return lowest(dtype)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinPlusSemiring(_Plus, _Minimum):
    """(min, +)."""

    id = "tenferro-ext-tropical.min_plus.v1"


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MaxMulSemiring(_Maximum):
    """(max, x)."""

    id = "tenferro-ext-tropical.max_mul.v1"

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x * y

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

    def one(self, dtype: np.dtype) -> np.ndarray:
        return np.ones((), dtype)

    def identity(self, dtype: np.dtype) -> np.ndarray:
        return lowest(dtype)

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> jax.Array:
        return _may(_meet_zero, a, b)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinMaxSemiring(_Minimum):
    """(min, max). Of two equal entries the first is the maximum, so that the derivative goes to one
    entry.
    """

    id = "tenferro-ext-tropical.min_max.v1"

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
    dtypes = ("bool",)

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return x & y

    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        return y & ~x

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        return jnp.any(candidates, axis)

    def zero(self, dtype: np.dtype) -> np.ndarray:
        return np.zeros((), dtype)

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
      accuracy: "certified": a contraction multiplies matrices of exponentials, and computes from
        all candidates the cells where that could lose more than rounding. "exact": all cells from
        all candidates, up to 20 times slower. Errors of values do not change, those of gradients
        become smaller, at best by half. A network then goes step by step.

    Raises:
      InvalidConfig: another temperature or accuracy.

    Example:
      >>> round(float(log_sum_exp(0.5).plus(1.0, 2.0)), 4)
      2.0635
    """

    id = "tenferro-ext-tropical.log_sum_exp.v1"
    dtypes = FLOATS
    temperature: float = 1.0
    accuracy: str = "certified"

    def __post_init__(self) -> None:
        given: Any = self.temperature
        try:
            temperature = (
                float(given)
                if isinstance(given, numbers.Real) and not isinstance(given, bool)
                else math.nan
            )
        except OverflowError:
            temperature = math.inf
        if not 0 < temperature < math.inf:
            raise InvalidConfig(
                where="log_sum_exp, temperature",
                given=repr(given),
                needed="a positive finite number of Python or NumPy: it is part of the op",
                fix="For the limit at 0 use max_plus; for a minimum negate the operands.",
            )
        if self.accuracy not in ("certified", "exact"):
            raise InvalidConfig(
                where="log_sum_exp, accuracy",
                given=repr(self.accuracy),
                needed="'certified' or 'exact'",
            )
        object.__setattr__(self, "temperature", temperature)

    def __repr__(self) -> str:
        rest = "" if self.accuracy == "certified" else ", accuracy='exact'"
        return f"{self.name}(temperature={self.temperature}{rest})"

    @property
    def parameters(self) -> Mapping[str, bool | int | float | str]:
        given = dict(super().parameters)
        if self.accuracy == "exact":  # payloads from before there was a choice mean this one
            del given["accuracy"]
        return given

    @classmethod
    def of_parameters(cls, *values: Any) -> Semiring:
        return cls(*values, "exact") if len(values) == 1 else cls(*values)

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


log_sum_exp = LogSumExp
"""Makes the semiring (log-sum-exp, +) of a temperature, 1 by default: sums of probabilities in log
space. Its gradient is the softmax of the candidates: marginals."""


def one_form(given: SemiringKey | Semiring | str) -> SemiringKey:
    """The key of a semiring, where log_sum_exp has one form whatever accuracy is asked."""
    key = given if isinstance(given, SemiringKey) else SemiringKey.of(given)
    known = key.semiring
    exact = isinstance(known, LogSumExp) and LogSumExp(known.temperature, "exact")
    return SemiringKey.of(exact) if exact else key


def lowest(dtype: np.dtype) -> np.ndarray:
    """The least value of the dtype: -inf, or the integer minimum."""
    return _extreme(dtype, -np.inf, "min")


def highest(dtype: np.dtype) -> np.ndarray:
    """The greatest value of the dtype: inf, or the integer maximum."""
    return _extreme(dtype, np.inf, "max")


def _extreme(dtype: np.dtype, infinity: float, name: str) -> np.ndarray:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(infinity, dtype)
    return np.asarray(getattr(jnp.iinfo(dtype), name), dtype)
