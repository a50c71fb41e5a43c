"""Elementwise arithmetic on numbers."""

from __future__ import annotations

import jax
from jax import lax

from .op import Binary, Unary, op


@op
class Add(Binary, function=lax.add):
    """x + y.

    Gradient: linear.
    Example: Add().apply(1.0, 2.0) = 3.0
    """


@op
class Sub(Binary, function=lax.sub):
    """x - y.

    Gradient: linear.
    Example: Sub().apply(1.0, 2.0) = -1.0
    """


@op
class Mul(Binary, function=lax.mul):
    """x * y.

    Gradient: linear in each input.
    Example: Mul().apply(3.0, 2.0) = 6.0
    """


@op
class Div(Binary, function=lax.div):
    """x / y; for integers the quotient truncated toward zero, -1 (unsigned: the maximum) for a
    divisor of zero.

    Gradient: (t_x - (x / y) t_y) / y.
    Example: Div().apply(7, -2) = -3
    """


@op
class Rem(Binary, function=lax.rem):
    """Remainder with the sign of x.

    C2: not complex.
    Gradient: t_x - trunc(x / y) t_y; one-sided where trunc(x / y) jumps.
    Example: Rem().apply(-7, 3) = -1
    """


@op
class Neg(Unary, function=lax.neg):
    """-x; unsigned integers wrap.

    Gradient: linear.
    Example: Neg().apply(2.0) = -2.0
    """


@op
class Abs(Unary, function=lax.abs):
    """|x|, real for complex x; the most negative integer stays itself.

    C1: signed integer, floating or complex.
    Gradient: t where x >= 0, -t elsewhere, so t at zero; Re(conj(x) t) / |x| for complex x, 0 at
    zero.
    Example: Abs().apply(-2.0) = 2.0
    """


@op
class Sign(Unary, function=lax.sign):
    """-1, 0 or 1 with the sign of x; x / |x| for complex x; NaN for NaN.

    Gradient: zero, for complex x too.
    Example: Sign().apply(-2.0) = -1.0
    """


@op
class Maximum(Binary, function=lax.max):
    """The larger of x and y; NaN if either is NaN; complex numbers by real, then imaginary part.

    Gradient: to the larger one; half to each at a tie.
    Example: Maximum().apply(1.0, 2.0) = 2.0
    """


@op
class Minimum(Binary, function=lax.min):
    """The smaller of x and y; NaN if either is NaN; complex numbers by real, then imaginary part.

    Gradient: to the smaller one; half to each at a tie.
    Example: Minimum().apply(1.0, 2.0) = 1.0
    """


@op
class Floor(Unary, function=lax.floor):
    """The largest integer not above x.

    C1: floating.
    Gradient: zero.
    Example: Floor().apply(-1.5) = -2.0
    """


@op
class Ceil(Unary, function=lax.ceil):
    """The smallest integer not below x.

    C1: floating.
    Gradient: zero.
    Example: Ceil().apply(-1.5) = -1.0
    """


@op
class Round(Unary):
    """The nearest integer; halves go to the even one, or away from zero.

    C1: floating.
    Gradient: zero.
    Example: Round().apply(2.5) = 2.0
    """

    to_even: bool = True

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.round(
            x,
            lax.RoundingMethod.TO_NEAREST_EVEN
            if self.to_even
            else lax.RoundingMethod.AWAY_FROM_ZERO,
        )


@op
class NextAfter(Binary, function=lax.nextafter):
    """The next number after x toward y.

    C2: floating.
    Gradient: t_x from JAX 0.12; earlier versions refuse.
    Example: NextAfter().apply(1.0, 2.0) > 1.0
    """
