"""Data movement with a pattern given by the payload; row-major."""

from __future__ import annotations

import math

import jax
from jax import lax

from ..errors import ShapeError
from ..shapes import Shaped
from .fields import Size
from .op import StdTensorOp, op


@op
class Transpose(StdTensorOp):
    """Output axis i is input axis permutation[i].

    C1: a permutation of all axes.
    Gradient: linear.
    Example: Transpose((1, 0)).apply(np.arange(4).reshape(2, 2)) = [[0, 2], [1, 3]]
    """

    permutation: tuple[int, ...]

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.transpose(x, self.permutation)


@op
class Reshape(StdTensorOp):
    """The same elements in row-major order, with another shape.

    C1: the same number of elements.
    Gradient: linear.
    Example: Reshape((2, 2)).apply(np.arange(4)) = [[0, 1], [2, 3]]
    """

    shape: tuple[Size, ...]

    def check(self, *operands: Shaped) -> None:
        """C1, for concrete sizes; JAX compares symbolic ones."""
        (x,) = operands
        sizes = (*self.shape, *x.shape)
        if all(isinstance(size, int) for size in sizes) and (
            math.prod(self.shape) != math.prod(x.shape) or min(sizes, default=0) < 0
        ):
            raise ShapeError(
                where=str(self),
                given=f"shape {x.shape}",
                needed=f"{math.prod(x.shape)} elements",
            )

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.reshape(x, self.shape)


@op
class BroadcastInDim(StdTensorOp):
    """Input axis i becomes output axis dims[i]; the other axes, and axes of size 1, repeat.

    C1: one dim for each axis, ascending. C2: each size is 1 or the output's.
    Gradient: linear.
    Example: BroadcastInDim((2, 3), (0,)).apply(np.array([1, 2])) = [[1, 1, 1], [2, 2, 2]]
    """

    shape: tuple[Size, ...]
    dims: tuple[int, ...]

    def apply(self, x: jax.Array) -> jax.Array:
        if len(self.dims) != x.ndim or sorted(self.dims) != list(
            self.dims
        ):  # lax accepts some of these
            raise ShapeError(
                where=str(self),
                given=f"an input of rank {x.ndim}",
                needed=f"rank {len(self.dims)}, dims ascending",
                fix="Give one dim for each axis, and transpose first.",
            )
        return lax.broadcast_in_dim(x, self.shape, self.dims)


@op
class Slice(StdTensorOp):
    """Elements start, start + stride, ... below limit, on every axis.

    C1: one entry for each axis. C2: 0 <= start <= limit <= size. C3: strides positive.
    Gradient: linear.
    Example: Slice((1,), (4,), (2,)).apply(np.arange(5)) = [1, 3]
    """

    starts: tuple[Size, ...]
    limits: tuple[Size, ...]
    strides: tuple[int, ...]

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.slice(x, self.starts, self.limits, self.strides)


@op
class Pad(StdTensorOp):
    """x padded with the scalar second input: at low and high edges (negative ones crop) and in
    interior gaps.

    C1: one entry for each axis. C2: a fill of shape () and of the dtype. C3: interior gaps and
    resulting sizes not negative.
    Gradient: linear in both.
    Example: Pad((1,), (0,), (1,)).apply(np.array([1, 2]), 0) = [0, 1, 0, 2]
    """

    input_count = 2
    low: tuple[Size, ...]
    high: tuple[Size, ...]
    interior: tuple[int, ...]

    def apply(self, x: jax.Array, fill: jax.Array) -> jax.Array:
        return lax.pad(x, fill, tuple(zip(self.low, self.high, self.interior, strict=True)))


@op
class Reverse(StdTensorOp):
    """Reverse the order along the axes.

    C1: different axes, in range.
    Gradient: linear.
    Example: Reverse((0,)).apply(np.arange(3)) = [2, 1, 0]
    """

    axes: tuple[int, ...]

    def apply(self, x: jax.Array) -> jax.Array:
        return lax.rev(x, self.axes)


@op
class Concatenate(StdTensorOp):
    """Join along an axis.

    C1: one dtype and rank, sizes equal except along the axis. C2: at least one input.
    Gradient: linear.
    Example: Concatenate(0).apply(np.arange(2), np.arange(1)) = [0, 1, 0]
    """

    input_count = None
    axis: int

    def apply(self, *xs: jax.Array) -> jax.Array:
        return lax.concatenate(xs, self.axis)
