"""Reductions over axes, which are dropped, and running reductions along one."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ..errors import DTypeError
from ..shapes import Shaped
from .fields import Body, DType
from .op import INEXACT, OfBody, StdTensorOp, op


@op
class _Reduction(StdTensorOp):
    """C1: different axes, in range."""

    axes: tuple[int, ...]


@op
class ReduceSum(_Reduction, function=lax.reduce_sum):
    """Sum; 0 over nothing; integers wrap.

    Gradient: linear.
    Example: ReduceSum((0,)).apply(np.array([1.0, 2.0])) = 3.0
    """


@op
class ReduceProd(_Reduction, function=lax.reduce_prod):
    """Product; 1 over nothing; integers wrap.

    Gradient: the product of the other entries; exact at zeros.
    Example: ReduceProd((0,)).apply(np.array([1.0, 2.0])) = 2.0
    """


@op
class ReduceMax(_Reduction, function=lax.reduce_max):
    """Maximum; NaN propagates; the type's minimum over nothing.

    Gradient: split equally among the maxima.
    Example: ReduceMax((0,)).apply(np.array([1.0, 2.0])) = 2.0
    """


@op
class ReduceMin(_Reduction, function=lax.reduce_min):
    """Minimum; NaN propagates; the type's maximum over nothing.

    Gradient: split equally among the minima.
    Example: ReduceMin((0,)).apply(np.array([1.0, 2.0])) = 1.0
    """


@op
class ReduceAnd(_Reduction, function=lax.reduce_and):
    """Bitwise and; logical for booleans; all bits set over nothing.

    Gradient: none.
    Example: ReduceAnd((0,)).apply(np.array([True, False])) = False
    """


@op
class ReduceOr(_Reduction, function=lax.reduce_or):
    """Bitwise or; logical for booleans; 0 over nothing.

    Gradient: none.
    Example: ReduceOr((0,)).apply(np.array([True, False])) = True
    """


@op
class ReduceXor(_Reduction, function=lax.reduce_xor):
    """Bitwise exclusive or; logical for booleans; 0 over nothing.

    Gradient: none.
    Example: ReduceXor((0,)).apply(np.array([6, 3])) = 5
    """


@op
class ReduceSumSquares(_Reduction):
    """Sum of squares; 0 over nothing; for complex numbers the sum of the squares, not of the
    absolute squares.

    Gradient: 2 x t, summed.
    Example: ReduceSumSquares((0,)).apply(np.array([1.0, 2.0])) = 5.0
    """

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.reduce_sum(lax.mul(x, x), self.axes)


@op
class Reduce(OfBody):
    """Reduce n inputs together with an associative graph of 2n scalars; n initial scalars follow
    the inputs.

    C1: inputs of one shape; different axes, in range. C2: body takes 2n scalars of these dtypes and
    returns n.
    Gradient: in the inputs, through the body; refused in the initial scalars.
    Example: Reduce(graph(lambda a, b: a + b), (0,)).apply(np.array([1.0, 2.0]), 0.0) = [3.0]
    """

    body: Body
    axes: tuple[int, ...]

    def apply(self, *inputs: jax.Array) -> jax.Array:
        count = len(self.body.outputs)
        return lax.reduce(
            inputs[:count], inputs[count:], lambda a, b: tuple(self.body(*a, *b)), self.axes
        )


@op
class _Arg(StdTensorOp):
    axis: int
    index_dtype: DType

    def check(self, *operands: Shaped) -> None:
        """C3, C4."""
        (x,) = operands
        size = x.shape[self.axis] if 0 <= self.axis < len(x.shape) else 0
        if not jnp.issubdtype(self.index_dtype, jnp.integer) or (
            isinstance(size, int) and size - 1 > jnp.iinfo(self.index_dtype).max
        ):
            raise DTypeError(
                where=str(self),
                given=f"an axis of {size}",
                needed="an index dtype that is large enough",
                fix="Use int32 or int64.",
            )
        if jnp.issubdtype(x.dtype, jnp.complexfloating):
            raise DTypeError(
                where=str(self),
                given=str(x.dtype),
                needed="numbers with an order",
                fix="Take the absolute value first.",
            )


@op
class ArgMax(_Arg, function=lax.argmax):
    """Index of the first maximum along an axis; the first NaN wins.

    C1: 0 <= axis < rank. C2: the axis is not empty. C3: size - 1 fits into the integer index dtype.
    C4: not complex.
    Gradient: none.
    Example: ArgMax(0, np.dtype("int32")).apply(np.array([1.0, 2.0])) = 1
    """


@op
class ArgMin(_Arg, function=lax.argmin):
    """Index of the first minimum along an axis; the first NaN wins.

    C1: 0 <= axis < rank. C2: the axis is not empty. C3: size - 1 fits into the integer index dtype.
    C4: not complex.
    Gradient: none.
    Example: ArgMin(0, np.dtype("int32")).apply(np.array([1.0, 2.0])) = 0
    """


@op
class _Cumulative(StdTensorOp):
    axis: int
    reverse: bool = False


@op
class CumSum(_Cumulative, function=lax.cumsum):
    """Running sum along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: linear.
    Example: CumSum(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 3.0, 6.0]
    """


@op
class CumProd(_Cumulative, function=lax.cumprod):
    """Running product along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: that of the product; exact at zeros.
    Example: CumProd(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 2.0, 6.0]
    """


@op
class CumMax(_Cumulative, function=lax.cummax):
    """Running maximum along an axis, from its end if reverse; NaN stays.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: to the largest so far; half to each side of a tie.
    Example: CumMax(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 2.0, 3.0]
    """


@op
class CumMin(_Cumulative, function=lax.cummin):
    """Running minimum along an axis, from its end if reverse; NaN stays.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: to the smallest so far; half to each side of a tie.
    Example: CumMin(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 1.0, 1.0]
    """


@op
class CumLogSumExp(_Cumulative, function=lax.cumlogsumexp, takes=INEXACT):
    """Running logarithm of the sum of exponentials along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: floating or complex.
    Gradient: the softmax of the inputs so far.
    Example: CumLogSumExp(0).apply(np.array([1.0, 2.0, 3.0])) = np.log(np.cumsum(np.exp([1.0, 2.0,
    3.0])))
    """
