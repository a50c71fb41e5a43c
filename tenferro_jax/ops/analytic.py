"""Elementwise analytic functions."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .fields import Accuracy
from .op import INEXACT, Binary, Unary, op


@op
class _Accurate(Unary, keywords=True):
    """`accuracy` is None or a lax.AccuracyMode."""

    accuracy: Accuracy = None


@op
class Exp(_Accurate, function=lax.exp):
    """e**x.

    C1: floating or complex.
    Gradient: e**x t.
    Example: Exp().apply(0.0) = 1.0
    """


@op
class Exp2(_Accurate, function=lax.exp2):
    """2**x.

    C1: floating or complex.
    Gradient: ln(2) 2**x t.
    Example: Exp2().apply(3.0) = 8.0
    """


@op
class Expm1(_Accurate, function=lax.expm1):
    """e**x - 1, accurate near zero.

    C1: floating or complex.
    Gradient: e**x t.
    Example: Expm1().apply(0.0) = 0.0
    """


@op
class Log(_Accurate, function=lax.log):
    """Natural logarithm; NaN for negative x, -inf at zero.

    C1: floating or complex.
    Gradient: t / x.
    Example: Log().apply(1.0) = 0.0
    """


@op
class Log1p(_Accurate, function=lax.log1p):
    """log(1 + x), accurate near zero.

    C1: floating or complex.
    Gradient: t / (1 + x).
    Example: Log1p().apply(0.0) = 0.0
    """


@op
class Sqrt(_Accurate, function=lax.sqrt):
    """Square root; NaN for negative x.

    C1: floating or complex.
    Gradient: t / (2 sqrt(x)).
    Example: Sqrt().apply(9.0) = 3.0
    """


@op
class Rsqrt(_Accurate, function=lax.rsqrt):
    """1 / sqrt(x).

    C1: floating or complex.
    Gradient: -t / (2 x sqrt(x)).
    Example: Rsqrt().apply(4.0) = 0.5
    """


@op
class Cbrt(_Accurate, function=lax.cbrt):
    """Real cube root, of the sign of x.

    C1: floating.
    Gradient: t / (3 cbrt(x)**2).
    Example: Cbrt().apply(-8.0) = -2.0
    """


@op
class Logistic(_Accurate, function=lax.logistic):
    """1 / (1 + e**-x).

    C1: floating or complex.
    Gradient: y (1 - y) t.
    Example: Logistic().apply(0.0) = 0.5
    """


@op
class Sin(_Accurate, function=lax.sin):
    """Sine of radians.

    C1: floating or complex.
    Gradient: cos(x) t.
    Example: Sin().apply(0.0) = 0.0
    """


@op
class Cos(_Accurate, function=lax.cos):
    """Cosine of radians.

    C1: floating or complex.
    Gradient: -sin(x) t.
    Example: Cos().apply(0.0) = 1.0
    """


@op
class Tan(_Accurate, function=lax.tan):
    """Tangent of radians.

    C1: floating or complex.
    Gradient: (1 + tan(x)**2) t.
    Example: Tan().apply(0.0) = 0.0
    """


@op
class Asin(Unary, function=lax.asin):
    """Inverse sine in radians; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: t / sqrt(1 - x**2).
    Example: Asin().apply(1.0) = np.pi / 2
    """


@op
class Acos(Unary, function=lax.acos):
    """Inverse cosine in radians; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: -t / sqrt(1 - x**2).
    Example: Acos().apply(1.0) = 0.0
    """


@op
class Atan(Unary, function=lax.atan):
    """Inverse tangent in radians.

    C1: floating or complex.
    Gradient: t / (1 + x**2).
    Example: Atan().apply(1.0) = np.pi / 4
    """


@op
class Sinh(Unary, function=lax.sinh):
    """Hyperbolic sine.

    C1: floating or complex.
    Gradient: cosh(x) t.
    Example: Sinh().apply(0.0) = 0.0
    """


@op
class Cosh(Unary, function=lax.cosh):
    """Hyperbolic cosine.

    C1: floating or complex.
    Gradient: sinh(x) t.
    Example: Cosh().apply(0.0) = 1.0
    """


@op
class Tanh(_Accurate, function=lax.tanh):
    """Hyperbolic tangent.

    C1: floating or complex.
    Gradient: (1 - y**2) t.
    Example: Tanh().apply(0.0) = 0.0
    """


@op
class Asinh(Unary, function=lax.asinh):
    """Inverse hyperbolic sine.

    C1: floating or complex.
    Gradient: t / sqrt(x**2 + 1).
    Example: Asinh().apply(0.0) = 0.0
    """


@op
class Acosh(Unary, function=lax.acosh):
    """Inverse hyperbolic cosine; NaN below 1.

    C1: floating or complex.
    Gradient: t / sqrt(x**2 - 1); JAX's has the wrong sign for complex x with a negative real part.
    Example: Acosh().apply(1.0) = 0.0
    """


@op
class Atanh(Unary, function=lax.atanh):
    """Inverse hyperbolic tangent; NaN outside [-1, 1].

    C1: floating or complex.
    Gradient: t / (1 - x**2).
    Example: Atanh().apply(0.0) = 0.0
    """


@op  # in lax from JAX 0.11 on
class Log2(Unary, function=getattr(lax, "log2", jnp.log2), takes=INEXACT):
    """Logarithm to base 2.

    C1: floating or complex.
    Gradient: t / (ln(2) x).
    Example: Log2().apply(8.0) = 3.0
    """


@jax.custom_jvp
def _one_minus_square(x: jax.Array) -> jax.Array:
    return (1 + x) * (1 - x)


@_one_minus_square.defjvp
def _one_minus_square_jvp(
    primals: tuple[jax.Array],
    tangents: tuple[jax.Array],
) -> tuple[jax.Array, jax.Array]:
    return _one_minus_square(*primals), tangents[0] * -2 * primals[0]


@op  # in lax from JAX 0.11 on
class OneMinusSquare(
    Unary, function=getattr(lax, "one_minus_square", _one_minus_square), takes=INEXACT
):
    """1 - x**2, accurate near 1 and differentiated accurately near 0.

    C1: floating or complex.
    Gradient: -2 x t.
    Example: OneMinusSquare().apply(0.5) = 0.75
    """


@op
class Pow(Binary, function=lax.pow):
    """x**y; NaN for negative x and fractional y. An integer y has its own dtype.

    C1: floating or complex x; y of its dtype, or integer; one shape.
    Gradient: y x**(y - 1) t_x + log(x) x**y t_y, the latter 0 at x = 0 and y = 0.
    Example: Pow().apply(2.0, 3.0) = 8.0
    """

    equal_dtypes = False


@op
class IntegerPow(Unary, function=lax.integer_pow):
    """x**exponent for a fixed integer exponent.

    C1: a negative exponent does not take integer x.
    Gradient: exponent x**(exponent - 1) t.
    Example: IntegerPow(3).apply(2.0) = 8.0
    """

    exponent: int


@op
class Atan2(Binary, function=lax.atan2):
    """Angle of the point (y, x) in radians; the inputs are y, x.

    C2: floating or complex.
    Gradient: (x t_y - y t_x) / (x**2 + y**2).
    Example: Atan2().apply(1.0, 1.0) = np.pi / 4
    """
