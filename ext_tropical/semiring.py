"""The semirings: frozen values that state how candidates are made and which one wins."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np


@dataclasses.dataclass(frozen=True, repr=False)
class Semiring:
    """A selective semiring: "times" makes a candidate from two entries, "plus" keeps the better of two candidates.

    Attributes:
      id: `<package>.<name>.v<n>`, the identity in payloads and exported programs.
    """

    id: str

    def __repr__(self) -> str:
        return self.id.split(".")[-2]

    def times(self, x: Any, y: Any) -> Any:
        """The candidate of two entries, elementwise, differentiable by JAX."""
        raise NotImplementedError

    def better(self, y: Any, x: Any) -> Any:
        """Whether candidate y replaces candidate x; strict, so that the first of equal candidates stays."""
        raise NotImplementedError

    def zero(self, dtype: Any) -> Any:
        """The neutral element of "plus": the value of an empty contraction."""
        raise NotImplementedError

    def one(self, dtype: Any) -> Any:
        """The neutral element of "times"."""
        raise NotImplementedError

    def identity(self, dtype: Any) -> Any:
        """The selection identity: what loses to every candidate. Not always the zero: under max_mul -1 loses to 0."""
        raise NotImplementedError

    def may_make_nan(self, a: Any, b: Any) -> Any:
        """A boolean scalar: False only if no product of a non-NaN entry of a with one of b is NaN. Floating inputs."""
        raise NotImplementedError


def lowest(dtype: Any) -> Any:
    """What no value of the dtype is below: -inf, or the integer minimum."""
    return _extreme(dtype, -np.inf, "min")


def highest(dtype: Any) -> Any:
    """What no value of the dtype is above: inf, or the integer maximum."""
    return _extreme(dtype, np.inf, "max")


def _extreme(dtype: Any, infinity: float, name: str) -> Any:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(infinity, dtype)
    return np.asarray(getattr(jnp.iinfo(dtype), name), dtype)


@dataclasses.dataclass(frozen=True, repr=False)
class _Plus(Semiring):
    """times is +, and the zero is infinite: in integers the type's extreme value, which absorbs as infinity does."""

    def times(self, x: Any, y: Any) -> Any:
        if jnp.issubdtype(x.dtype, jnp.floating):
            return x + y
        zero = self.zero(x.dtype)
        return jnp.where((x == zero) | (y == zero), zero, x + y)

    def one(self, dtype: Any) -> Any:
        return np.zeros((), dtype)

    def identity(self, dtype: Any) -> Any:
        return self.zero(dtype)

    def may_make_nan(self, a: Any, b: Any) -> Any:
        return (jnp.any(a == jnp.inf) & jnp.any(b == -jnp.inf)) | (jnp.any(a == -jnp.inf) & jnp.any(b == jnp.inf))


@dataclasses.dataclass(frozen=True, repr=False)
class _MaxPlus(_Plus):
    def better(self, y: Any, x: Any) -> Any:
        return y > x

    def zero(self, dtype: Any) -> Any:
        return lowest(dtype)


@dataclasses.dataclass(frozen=True, repr=False)
class _MinPlus(_Plus):
    def better(self, y: Any, x: Any) -> Any:
        return y < x

    def zero(self, dtype: Any) -> Any:
        return highest(dtype)


@dataclasses.dataclass(frozen=True, repr=False)
class _MaxMul(Semiring):
    def times(self, x: Any, y: Any) -> Any:
        return x * y

    def better(self, y: Any, x: Any) -> Any:
        return y > x

    def zero(self, dtype: Any) -> Any:
        return np.zeros((), dtype)

    def one(self, dtype: Any) -> Any:
        return np.ones((), dtype)

    def identity(self, dtype: Any) -> Any:
        return lowest(dtype)

    def may_make_nan(self, a: Any, b: Any) -> Any:
        return (jnp.any(a == 0) & jnp.any(jnp.isinf(b))) | (jnp.any(jnp.isinf(a)) & jnp.any(b == 0))


max_plus: Semiring = _MaxPlus("tenferro-ext-tropical.max_plus.v1")
"""(max, +), zero -inf, one 0: longest paths, Viterbi scores in log space."""

min_plus: Semiring = _MinPlus("tenferro-ext-tropical.min_plus.v1")
"""(min, +), zero +inf, one 0: shortest paths."""

max_mul: Semiring = _MaxMul("tenferro-ext-tropical.max_mul.v1")
"""(max, x), zero 0, one 1: most probable explanations. The exact maximum of products for any real entries; its semiring
laws hold for non-negative ones."""

SEMIRINGS = (max_plus, min_plus, max_mul)
"""The semirings that ship here."""
