"""Elementwise analytic functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .fields import Accuracy
from .op import INEXACT, Binary, Unary, op


@op
class _Accurate(Unary):
    """`accuracy` is None or a lax.AccuracyMode."""

    accuracy: Accuracy = None

    def apply(self, x: jax.Array) -> jax.Array:
        return self._function(x, accuracy=self.accuracy)  # type: ignore[attr-defined]


@op
class Exp(_Accurate):
    """e**x.

    C1: floating or complex.
    Gradient: e**x t.
    Example: Exp().apply(0.0) = 1.0
    """

    _function = staticmethod(lax.exp)


@op
class Exp2(_Accurate):
    """2**x.

    C1: floating or complex.
    Gradient: ln(2) 2**x t.
    Example: Exp2().apply(3.0) = 8.0
    """

    _function = staticmethod(lax.exp2)


@op
class Expm1(_Accurate):
    """e**x - 1, accurate near zero.

    C1: floating or complex.
    Gradient: e**x t.
    Example: Expm1().apply(0.0) = 0.0
    """

    _function = staticmethod(lax.expm1)


@op
class Log(_Accurate):
    """Natural logarithm; NaN for negative x, -inf at zero.

    C1: floating or complex.
    Gradient: t / x.
    Example: Log().apply(1.0) = 0.0
    """

    _function = staticmethod(lax.log)


@op
class Log1p(_Accurate):
    """log(1 + x), accurate near zero.

    C1: floating or complex.
    Gradient: t / (1 + x).
    Example: Log1p().apply(0.0) = 0.0
    """

    _function = staticmethod(lax.log1p)


@op
class Sqrt(_Accurate):
    """Square root; NaN for negative x.

    C1: floating or complex.
    Gradient: t / (2 sqrt(x)).
    Example: Sqrt().apply(9.0) = 3.0
    """

    _function = staticmethod(lax.sqrt)


@op
class Rsqrt(_Accurate):
    """1 / sqrt(x).

    C1: floating or complex.
    Gradient: -t / (2 x sqrt(x)).
    Example: Rsqrt().apply(4.0) = 0.5
    """

    _function = staticmethod(lax.rsqrt)


@op
class Cbrt(_Accurate):
    """Real cube root, of the sign of x.

    C1: floating.
    Gradient: t / (3 cbrt(x)**2).
    Example: Cbrt().apply(-8.0) = -2.0
    """

    _function = staticmethod(lax.cbrt)


@op
class Logistic(_Accurate):
    """1 / (1 + e**-x).

    C1: floating or complex.
    Gradient: y (1 - y) t.
    Example: Logistic().apply(0.0) = 0.5
    """

    _function = staticmethod(lax.logistic)


@op
class Sin(_Accurate):
    """Sine of radians.

    C1: floating or complex.
    Gradient: cos(x) t.
    Example: Sin().apply(0.0) = 0.0
    """

    _function = staticmethod(lax.sin)


@op
class Cos(_Accurate):
    """Cosine of radians.

    C1: floating or complex.
    Gradient: -sin(x) t.
    Example: Cos().apply(0.0) = 1.0
    """

    _function = staticmethod(lax.cos)


@op
class Tan(_Accurate):
    """Tangent of radians.

    C1: floating or complex.
    Gradient: (1 + tan(x)**2) t.
    Example: Tan().apply(0.0) = 0.0
    """

    _function = staticmethod(lax.tan)


@op
class Asin(Unary):
    """Inverse sine in radians; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: t / sqrt(1 - x**2).
    Example: Asin().apply(1.0) = np.pi / 2
    """

    apply = staticmethod(lax.asin)


@op
class Acos(Unary):
    """Inverse cosine in radians; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: -t / sqrt(1 - x**2).
    Example: Acos().apply(1.0) = 0.0
    """

    apply = staticmethod(lax.acos)


@op
class Atan(Unary):
    """Inverse tangent in radians.

    C1: floating or complex.
    Gradient: t / (1 + x**2).
    Example: Atan().apply(1.0) = np.pi / 4
    """

    apply = staticmethod(lax.atan)


@op
class Sinh(Unary):
    """Hyperbolic sine.

    C1: floating or complex.
    Gradient: cosh(x) t.
    Example: Sinh().apply(0.0) = 0.0
    """

    apply = staticmethod(lax.sinh)


@op
class Cosh(Unary):
    """Hyperbolic cosine.

    C1: floating or complex.
    Gradient: sinh(x) t.
    Example: Cosh().apply(0.0) = 1.0
    """

    apply = staticmethod(lax.cosh)


@op
class Tanh(_Accurate):
    """Hyperbolic tangent.

    C1: floating or complex.
    Gradient: (1 - y**2) t.
    Example: Tanh().apply(0.0) = 0.0
    """

    _function = staticmethod(lax.tanh)


@op
class Asinh(Unary):
    """Inverse hyperbolic sine.

    C1: floating or complex.
    Gradient: t / sqrt(x**2 + 1).
    Example: Asinh().apply(0.0) = 0.0
    """

    apply = staticmethod(lax.asinh)


@op
class Acosh(Unary):
    """Inverse hyperbolic cosine; NaN below 1.

    C1: floating or complex.
    Gradient: t / sqrt(x**2 - 1); JAX's has the wrong sign for complex x with a negative real part.
    Example: Acosh().apply(1.0) = 0.0
    """

    apply = staticmethod(lax.acosh)


@op
class Atanh(Unary):
    """Inverse hyperbolic tangent; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: t / (1 - x**2).
    Example: Atanh().apply(0.0) = 0.0
    """

    apply = staticmethod(lax.atanh)


@op
class Log2(Unary):
    """Logarithm to base 2.

    C1: floating or complex.
    Gradient: t / (ln(2) x).
    Example: Log2().apply(8.0) = 3.0
    """

    takes = INEXACT
    apply = staticmethod(getattr(lax, "log2", jnp.log2))  # in lax from JAX 0.11 on


@jax.custom_jvp
def _one_minus_square(x: jax.Array) -> jax.Array:
    return (1 + x) * (1 - x)


@_one_minus_square.defjvp
def _one_minus_square_jvp(
    primals: tuple[jax.Array],
    tangents: tuple[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    return _one_minus_square(*primals), tangents[0] * -2 * primals[0]


@op
class OneMinusSquare(Unary):
    """1 - x**2, accurate near 1 and differentiated accurately near 0.

    C1: floating or complex.
    Gradient: -2 x t.
    Example: OneMinusSquare().apply(0.5) = 0.75
    """

    takes = INEXACT
    apply = staticmethod(
        getattr(lax, "one_minus_square", _one_minus_square)
    )  # in lax from JAX 0.11 on


@op
class Pow(Binary):
    """x**y; NaN for negative x and fractional y. An integer y has its own dtype.

    C1: floating or complex x; y of its dtype, or integer; one shape.
    Gradient: y x**(y - 1) t_x + log(x) x**y t_y, the latter 0 at x = 0 and y = 0.
    Example: Pow().apply(2.0, 3.0) = 8.0
    """

    equal_dtypes = False
    apply = staticmethod(lax.pow)


@op
class IntegerPow(Unary):
    """x**exponent for a fixed integer exponent.

    C1: a negative exponent does not take integer x.
    Gradient: exponent x**(exponent - 1) t.
    Example: IntegerPow(3).apply(2.0) = 8.0
    """

    exponent: int

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.integer_pow(x, self.exponent)


@op
class Atan2(Binary):
    """Angle of the point (y, x) in radians; the inputs are y, x.

    C2: floating or complex.
    Gradient: (x t_y - y t_x) / (x**2 + y**2).
    Example: Atan2().apply(1.0, 1.0) = np.pi / 4
    """

    apply = staticmethod(lax.atan2)
