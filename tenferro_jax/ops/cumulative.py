"""Running reductions along an axis."""

from __future__ import annotations

import jax
from jax import lax

from .op import INEXACT, StdTensorOp, op


@op
class _Cumulative(StdTensorOp):
    axis: int
    reverse: bool = False

    def apply(self, x: jax.Array) -> jax.Array:
        return self._run(x, axis=self.axis, reverse=self.reverse)  # type: ignore[attr-defined]


@op
class CumSum(_Cumulative):
    """Running sum along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: linear.
    Example: CumSum(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 3.0, 6.0]
    """

    _run = staticmethod(lax.cumsum)


@op
class CumProd(_Cumulative):
    """Running product along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: that of the product; exact at zeros.
    Example: CumProd(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 2.0, 6.0]
    """

    _run = staticmethod(lax.cumprod)


@op
class CumMax(_Cumulative):
    """Running maximum along an axis, from its end if reverse; NaN stays.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: to the largest so far; half to each side of a tie.
    Example: CumMax(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 2.0, 3.0]
    """

    _run = staticmethod(lax.cummax)


@op
class CumMin(_Cumulative):
    """Running minimum along an axis, from its end if reverse; NaN stays.

    C1: 0 <= axis < rank. C2: numeric.
    Gradient: to the smallest so far; half to each side of a tie.
    Example: CumMin(0).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 1.0, 1.0]
    """

    _run = staticmethod(lax.cummin)


@op
class CumLogSumExp(_Cumulative):
    """Running logarithm of the sum of exponentials along an axis, from its end if reverse.

    C1: 0 <= axis < rank. C2: floating or complex.
    Gradient: the softmax of the inputs so far.
    Example: CumLogSumExp(0).apply(np.array([1.0, 2.0, 3.0])) = np.log(np.cumsum(np.exp([1.0, 2.0,
    3.0])))
    """

    takes = INEXACT
    _run = staticmethod(lax.cumlogsumexp)
