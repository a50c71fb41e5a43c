"""Elementwise change of representation: dtypes, precision, complex parts."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .fields import DType
from .op import INEXACT, Binary, Unary, op


@op
class Convert(Unary):
    """x in another dtype by JAX's rules: to integers toward zero, to bool as x != 0, complex to its
    real part.

    Gradient: linear between inexact dtypes, none through integers.
    Example: Convert(np.dtype("int32")).apply(2.7) = 2
    """

    dtype: DType

    def apply(self, x: jax.Array) -> jax.Array:
        if jnp.iscomplexobj(x) and not jnp.issubdtype(self.dtype, jnp.complexfloating):
            x = lax.real(x)  # as lax does itself, but with a warning
        return lax.convert_element_type(x, self.dtype)


@op
class BitcastConvert(Unary, function=lax.bitcast_convert_type):
    """The bits of x read as another dtype.

    C1: a narrower dtype adds a last axis of the ratio of the widths, a wider one removes it.
    Gradient: none.
    Example: BitcastConvert(np.dtype("int32")).apply(np.float32(1.0)) = 0x3F800000
    """

    dtype: DType


@op
class ReducePrecision(Unary, function=lax.reduce_precision):
    """x rounded to a format of fewer bits, kept in its dtype.

    C1: floating. C2: exponent_bits at least 1, mantissa_bits at least 0.
    Gradient: the tangent, rounded in the same format.
    Example: ReducePrecision(8, 7).apply(np.float32(1.001)) = 1.0
    """

    exponent_bits: int
    mantissa_bits: int


@op
class Real(Unary, function=lax.real):
    """The real part.

    C1: complex.
    Gradient: linear.
    Example: Real().apply(1 + 2j) = 1.0
    """


@op
class Imag(Unary, function=lax.imag):
    """The imaginary part.

    C1: complex.
    Gradient: linear.
    Example: Imag().apply(1 + 2j) = 2.0
    """


@op
class Complex(Binary, function=lax.complex):
    """x + iy.

    C2: float32 or float64.
    Gradient: linear.
    Example: Complex().apply(1.0, 2.0) = 1 + 2j
    """


@op
class Conj(Unary, takes=INEXACT):
    """The complex conjugate; real x is unchanged.

    C1: floating or complex.
    Gradient: linear over the reals.
    Example: Conj().apply(1 + 2j) = 1 - 2j
    """

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.conj(x) if jnp.iscomplexobj(x) else x
