"""Elementwise analytic functions."""

from __future__ import annotations

from typing import Any

from jax import lax

from .arithmetic import Binary, Unary
from .op import op


@op
class Exp(Unary):
    """e**x."""

    def apply(self, x: Any) -> Any:
        return lax.exp(x)


@op
class Log(Unary):
    """Natural logarithm; NaN for negative x, -inf at zero."""

    def apply(self, x: Any) -> Any:
        return lax.log(x)


@op
class Expm1(Unary):
    """e**x - 1, accurate near zero."""

    def apply(self, x: Any) -> Any:
        return lax.expm1(x)


@op
class Log1p(Unary):
    """log(1 + x), accurate near zero."""

    def apply(self, x: Any) -> Any:
        return lax.log1p(x)


@op
class Sin(Unary):
    """Sine of radians."""

    def apply(self, x: Any) -> Any:
        return lax.sin(x)


@op
class Cos(Unary):
    """Cosine of radians."""

    def apply(self, x: Any) -> Any:
        return lax.cos(x)


@op
class Tanh(Unary):
    """Hyperbolic tangent."""

    def apply(self, x: Any) -> Any:
        return lax.tanh(x)


@op
class Logistic(Unary):
    """1 / (1 + e**-x)."""

    def apply(self, x: Any) -> Any:
        return lax.logistic(x)


@op
class Sqrt(Unary):
    """Square root; NaN for negative x."""

    def apply(self, x: Any) -> Any:
        return lax.sqrt(x)


@op
class Rsqrt(Unary):
    """1 / sqrt(x)."""

    def apply(self, x: Any) -> Any:
        return lax.rsqrt(x)


@op
class Pow(Binary):
    """x**y for floating x and y."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.pow(x, y)


@op
class IntegerPow(Unary):
    """x**exponent for a fixed integer exponent."""

    exponent: int

    def apply(self, x: Any) -> Any:
        return lax.integer_pow(x, self.exponent)
