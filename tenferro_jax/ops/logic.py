"""Elementwise comparison, selection, logic and bits."""

from __future__ import annotations

import enum

import jax
from jax import lax

from .. import jax_seam
from ..errors import DTypeError
from ..shapes import Shaped
from .op import Binary, StdTensorOp, Unary, op


@op
class And(Binary, function=lax.bitwise_and):
    """Bitwise and; logical for booleans.

    C2: boolean or integer.
    Gradient: none.
    Example: And().apply(6, 3) = 2
    """


@op
class Or(Binary, function=lax.bitwise_or):
    """Bitwise or; logical for booleans.

    C2: boolean or integer.
    Gradient: none.
    Example: Or().apply(6, 3) = 7
    """


@op
class Xor(Binary, function=lax.bitwise_xor):
    """Bitwise exclusive or; logical for booleans.

    C2: boolean or integer.
    Gradient: none.
    Example: Xor().apply(6, 3) = 5
    """


@op
class Not(Unary, function=lax.bitwise_not):
    """Bitwise not; logical for booleans.

    C1: boolean or integer.
    Gradient: none.
    Example: Not().apply(True) = False
    """


@op
class ShiftLeft(Binary, function=lax.shift_left):
    """x shifted left by y bits; 0 if y is negative or at least the width.

    C2: integer.
    Gradient: none.
    Example: ShiftLeft().apply(3, 2) = 12
    """


@op
class ShiftRightArithmetic(Binary, function=lax.shift_right_arithmetic):
    """x shifted right by y bits, with the sign repeated; all sign bits if y is negative or at least
    the width.

    C2: integer.
    Gradient: none.
    Example: ShiftRightArithmetic().apply(-8, 1) = -4
    """


@op
class ShiftRightLogical(Binary, function=lax.shift_right_logical):
    """x shifted right by y bits, with zeros moved in; 0 if y is negative or at least the width.

    C2: integer.
    Gradient: none.
    Example: ShiftRightLogical().apply(8, 1) = 4
    """


@op
class PopulationCount(Unary, function=lax.population_count):
    """The number of bits that are set.

    C1: integer.
    Gradient: none.
    Example: PopulationCount().apply(7) = 3
    """


@op
class CountLeadingZeros(Unary, function=lax.clz):
    """The number of zero bits above the highest set one.

    C1: integer.
    Gradient: none.
    Example: CountLeadingZeros().apply(np.int32(1)) = 31
    """


@op
class IsFinite(Unary, function=lax.is_finite):
    """Whether x is neither NaN nor infinite.

    C1: floating.
    Gradient: none.
    Example: IsFinite().apply(np.inf) = False
    """


class Direction(enum.Enum):
    """How `Compare` compares."""

    Eq = "eq"
    Ne = "ne"
    Lt = "lt"
    Le = "le"
    Gt = "gt"
    Ge = "ge"
    EqTotal = "eq_to"
    LtTotal = "lt_to"
    LeTotal = "le_to"


@op
class Compare(Binary):
    """Boolean comparison of x with y; with NaN every comparison except Ne is False. The total order
    has -NaN < -inf, -0 < 0, inf < NaN.

    C2: Lt, Le, Gt, Ge do not take complex numbers, the total order only floating ones.
    Gradient: none.
    Example: Compare(Direction.Lt).apply(1.0, 2.0) = True
    """

    direction: Direction

    def apply(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return jax_seam.comparison(self.direction.value)(x, y)


@op
class Select(StdTensorOp, function=lax.select):
    """on_true where predicate, else on_false.

    C1: a boolean predicate of the cases' shape, or of shape (). C2: both cases have one dtype and
    shape.
    Gradient: linear in the cases.
    Example: Select().apply(True, 1.0, 2.0) = 1.0
    """

    input_count = 3

    def check(self, *operands: Shaped) -> None:
        """C1."""
        if operands[0].dtype != bool:
            raise DTypeError(
                where="Select", given=f"a predicate of {operands[0].dtype}", needed="booleans"
            )


@op
class Clamp(StdTensorOp):
    """x limited to lower <= x <= upper; inputs are x, lower, upper.

    C1: one dtype. C2: each bound has x's shape or shape ().
    Gradient: to x strictly between the bounds, 0 at a bound; to a bound of x's shape where the
    bound is active; refused for a bound of shape ().
    Example: Clamp().apply(5.0, 0.0, 1.0) = 1.0
    """

    input_count = 3

    def apply(self, x: jax.Array, lower: jax.Array, upper: jax.Array) -> jax.Array:
        return lax.clamp(lower, x, upper)
