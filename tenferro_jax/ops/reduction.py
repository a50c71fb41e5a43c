"""Reductions over axes, which are dropped."""

from __future__ import annotations

from typing import Any

from jax import lax

from .op import StdTensorOp, op


class Reduction(StdTensorOp):
    """Reduce over `axes`."""


@op
class ReduceSum(Reduction):
    """Sum; 0 over nothing."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_sum(x, self.axes)


@op
class ReduceProd(Reduction):
    """Product; 1 over nothing."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_prod(x, self.axes)


@op
class ReduceMax(Reduction):
    """Maximum; NaN propagates; the type's minimum over nothing."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_max(x, self.axes)


@op
class ReduceMin(Reduction):
    """Minimum; NaN propagates; the type's maximum over nothing."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_min(x, self.axes)


@op
class ReduceAnd(Reduction):
    """Bitwise and; logical for booleans."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_and(x, self.axes)


@op
class ReduceOr(Reduction):
    """Bitwise or; logical for booleans."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.reduce_or(x, self.axes)


@op
class ArgMax(StdTensorOp):
    """Index of the first maximum along an axis; the first NaN wins."""

    axis: int
    index_dtype: Any

    def apply(self, x: Any) -> Any:
        return lax.argmax(x, self.axis, self.index_dtype)


@op
class ArgMin(StdTensorOp):
    """Index of the first minimum along an axis; the first NaN wins."""

    axis: int
    index_dtype: Any

    def apply(self, x: Any) -> Any:
        return lax.argmin(x, self.axis, self.index_dtype)
