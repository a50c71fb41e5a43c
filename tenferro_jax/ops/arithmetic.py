"""Elementwise arithmetic, comparison, selection and logic. No implicit broadcasting: shapes and dtypes are equal."""

from __future__ import annotations

import enum
from typing import Any

import jax.numpy as jnp
from jax import lax

from .op import StdTensorOp, op


class Unary(StdTensorOp):
    """One input, one output."""


class Binary(StdTensorOp):
    """Two inputs of one dtype and shape, one output."""

    input_count = 2


@op
class Add(Binary):
    """x + y."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.add(x, y)


@op
class Sub(Binary):
    """x - y."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.sub(x, y)


@op
class Mul(Binary):
    """x * y."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.mul(x, y)


@op
class Div(Binary):
    """x / y; for integers the quotient truncated toward zero."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.div(x, y)


@op
class Rem(Binary):
    """Remainder with the sign of x."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.rem(x, y)


@op
class Maximum(Binary):
    """The larger of x and y; NaN if either is NaN."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.max(x, y)


@op
class Minimum(Binary):
    """The smaller of x and y; NaN if either is NaN."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.min(x, y)


@op
class And(Binary):
    """Bitwise and; logical for booleans."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.bitwise_and(x, y)


@op
class Or(Binary):
    """Bitwise or; logical for booleans."""

    def apply(self, x: Any, y: Any) -> Any:
        return lax.bitwise_or(x, y)


@op
class Not(Unary):
    """Bitwise not; logical for booleans."""

    def apply(self, x: Any) -> Any:
        return lax.bitwise_not(x)


@op
class Neg(Unary):
    """-x."""

    def apply(self, x: Any) -> Any:
        return lax.neg(x)


@op
class Abs(Unary):
    """|x|; real for complex input."""

    def apply(self, x: Any) -> Any:
        return lax.abs(x)


@op
class Sign(Unary):
    """-1, 0 or 1; x/|x| for complex input."""

    def apply(self, x: Any) -> Any:
        return lax.sign(x)


@op
class IsFinite(Unary):
    """Whether x is neither NaN nor infinite."""

    def apply(self, x: Any) -> Any:
        return lax.is_finite(x)


@op
class StopGradient(Unary):
    """x, with a derivative of zero."""

    def apply(self, x: Any) -> Any:
        return lax.stop_gradient(x)


class Direction(enum.Enum):
    """How `Compare` compares."""

    Eq = "eq"
    Ne = "ne"
    Lt = "lt"
    Le = "le"
    Gt = "gt"
    Ge = "ge"


@op
class Compare(Binary):
    """Boolean comparison of x with y; every comparison with NaN but Ne is False."""

    direction: Direction

    def apply(self, x: Any, y: Any) -> Any:
        return getattr(lax, self.direction.value)(x, y)


@op
class Select(StdTensorOp):
    """on_true where predicate, else on_false."""

    input_count = 3

    def apply(self, predicate: Any, on_true: Any, on_false: Any) -> Any:
        return lax.select(predicate, on_true, on_false)


@op
class Clamp(StdTensorOp):
    """x limited to lower <= x <= upper; the bounds have x's shape or are scalars."""

    input_count = 3

    def apply(self, x: Any, lower: Any, upper: Any) -> Any:
        return lax.clamp(lower, x, upper)


@op
class Convert(Unary):
    """x in another dtype, by JAX's conversion rules."""

    dtype: Any

    def apply(self, x: Any) -> Any:
        return lax.convert_element_type(x, self.dtype)


@op
class Constant(StdTensorOp):
    """A concrete array held in the payload."""

    input_count = 0
    value: Any

    def apply(self) -> Any:
        return jnp.asarray(self.value)


@op
class DimensionValue(StdTensorOp):
    """A dimension expression as a scalar of an integer dtype."""

    input_count = 0
    dim: Any
    dtype: Any

    def apply(self) -> Any:
        return jnp.asarray(self.dim, self.dtype)
