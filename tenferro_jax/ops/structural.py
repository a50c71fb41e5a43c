"""Data movement that knows its pattern from the payload. Row-major throughout."""

from __future__ import annotations

from typing import Any

from jax import lax

from ..errors import ShapeError
from .op import StdTensorOp, op


@op
class Transpose(StdTensorOp):
    """Output axis i is input axis permutation[i]."""

    permutation: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.transpose(x, self.permutation)


@op
class Reshape(StdTensorOp):
    """The same elements in row-major order under another shape."""

    shape: tuple[Any, ...]

    def apply(self, x: Any) -> Any:
        return lax.reshape(x, self.shape)


@op
class BroadcastInDim(StdTensorOp):
    """Input axis i becomes output axis dims[i]; the other axes, and axes of size 1, repeat."""

    shape: tuple[Any, ...]
    dims: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        if len(self.dims) != x.ndim:  # lax lets some of these pass and returns x as it is
            raise ShapeError(
                where=str(self), given=f"an input of rank {x.ndim}", needed=f"rank {len(self.dims)}", fix="Name one dim an axis."
            )
        return lax.broadcast_in_dim(x, self.shape, self.dims)


@op
class Slice(StdTensorOp):
    """Elements start, start + stride, ... below limit, on every axis."""

    starts: tuple[Any, ...]
    limits: tuple[Any, ...]
    strides: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.slice(x, self.starts, self.limits, self.strides)


@op
class Pad(StdTensorOp):
    """Surround with the scalar second input: low and high edges (negative crops) and interior gaps."""

    input_count = 2
    low: tuple[Any, ...]
    high: tuple[Any, ...]
    interior: tuple[int, ...]

    def apply(self, x: Any, fill: Any) -> Any:
        return lax.pad(x, fill, tuple(zip(self.low, self.high, self.interior, strict=True)))


@op
class Reverse(StdTensorOp):
    """Reverse the order along the axes."""

    axes: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.rev(x, self.axes)


@op
class Concatenate(StdTensorOp):
    """Join along an axis."""

    input_count = None
    axis: int

    def apply(self, *xs: Any) -> Any:
        return lax.concatenate(xs, self.axis)


@op
class Iota(StdTensorOp):
    """0, 1, 2, ... along an axis, repeated along the others."""

    input_count = 0
    dtype: Any
    shape: tuple[Any, ...]
    axis: int

    def apply(self) -> Any:
        return lax.broadcasted_iota(self.dtype, self.shape, self.axis)
