"""Data movement with a pattern given by the payload, diagonals and triangles; row-major."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from jax import lax

from ..dimensions import require_equal
from ..errors import InvalidConfig, ShapeError
from ..jax_seam import max_dim
from ..shapes import Shaped
from .fields import Size
from .op import StdTensorOp, op


@op
class Transpose(StdTensorOp, function=lax.transpose):
    """Output axis i is input axis permutation[i].

    C1: a permutation of all axes.
    Gradient: linear.
    Example: Transpose((1, 0)).apply(np.arange(4).reshape(2, 2)) = [[0, 2], [1, 3]]
    """

    permutation: tuple[int, ...]


@op
class Reshape(StdTensorOp, function=lax.reshape):
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


@op
class BroadcastInDim(StdTensorOp, function=lax.broadcast_in_dim):
    """Input axis i becomes output axis dims[i]; the other axes, and axes of size 1, repeat.

    C1: one dim for each axis, ascending. C2: each size is 1 or the output's.
    Gradient: linear.
    Example: BroadcastInDim((2, 3), (0,)).apply(np.array([1, 2])) = [[1, 1, 1], [2, 2, 2]]
    """

    shape: tuple[Size, ...]
    dims: tuple[int, ...]

    def check(self, *operands: Shaped) -> None:
        """C1; lax accepts some others."""
        rank = len(operands[0].shape)
        if len(self.dims) != rank or sorted(self.dims) != list(self.dims):
            raise ShapeError(
                where=str(self),
                given=f"an input of rank {rank}",
                needed=f"rank {len(self.dims)}, dims ascending",
                fix="Give one dim for each axis, and transpose first.",
            )


@op
class Slice(StdTensorOp, function=lax.slice):
    """Elements start, start + stride, ... below limit, on every axis.

    C1: one entry for each axis. C2: 0 <= start <= limit <= size. C3: strides positive.
    Gradient: linear.
    Example: Slice((1,), (4,), (2,)).apply(np.arange(5)) = [1, 3]
    """

    starts: tuple[Size, ...]
    limits: tuple[Size, ...]
    strides: tuple[int, ...]


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
class Reverse(StdTensorOp, function=lax.rev):
    """Reverse the order along the axes.

    C1: different axes, in range.
    Gradient: linear.
    Example: Reverse((0,)).apply(np.arange(3)) = [2, 1, 0]
    """

    axes: tuple[int, ...]


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


@op
class ExtractDiag(StdTensorOp):
    """The diagonal of two axes of one size: it stays at axis_a, axis_b is dropped.

    C1: the axes differ, both in range. C2: their sizes are equal.
    Gradient: linear.
    Example: ExtractDiag(0, 1).apply(np.arange(4.0).reshape(2, 2)) = [0.0, 3.0]
    """

    axis_a: int
    axis_b: int

    def apply(self, x: jax.Array) -> jax.Array:
        _two_axes(self, x.ndim)
        require_equal(x.shape[self.axis_a], x.shape[self.axis_b], str(self))
        axes = self.axis_a, self.axis_b
        indices = lax.broadcasted_iota(jnp.int32, (x.shape[self.axis_a], 2), 0)
        numbers = lax.GatherDimensionNumbers(tuple(range(1, x.ndim - 1)), tuple(sorted(axes)), axes)
        sizes = [1 if axis in axes else size for axis, size in enumerate(x.shape)]
        diagonal = lax.gather(
            x, indices, numbers, sizes, mode="promise_in_bounds", unique_indices=True
        )  # its axis is the first
        return jnp.moveaxis(diagonal, 0, self.axis_a - (self.axis_b < self.axis_a))


@op
class EmbedDiag(StdTensorOp):
    """Zeros with the input on a diagonal: a new axis, axis_b of the output, repeats the size of the
    output's axis_a.

    C1: the axes differ, both in range of the output.
    Gradient: linear.
    Example: EmbedDiag(0, 1).apply(np.array([1.0, 2.0])) = [[1.0, 0.0], [0.0, 2.0]]
    """

    axis_a: int
    axis_b: int

    def apply(self, x: jax.Array) -> jax.Array:
        _two_axes(self, x.ndim + 1)
        kept = [axis for axis in range(x.ndim + 1) if axis != self.axis_b]
        shape = [x.shape[kept.index(axis)] if axis in kept else None for axis in range(x.ndim + 1)]
        shape[self.axis_b] = shape[self.axis_a]
        on_diagonal = jnp.equal(
            *(lax.broadcasted_iota(jnp.int32, shape, axis) for axis in (self.axis_a, self.axis_b))
        )
        return lax.select(
            on_diagonal, lax.broadcast_in_dim(x, shape, kept), jnp.zeros(shape, x.dtype)
        )


def _two_axes(op: ExtractDiag | EmbedDiag, rank: int) -> None:
    if op.axis_a == op.axis_b or not {op.axis_a, op.axis_b} <= set(range(rank)):
        raise InvalidConfig(
            where=str(op),
            given=f"rank {rank}",
            needed="two different axes in range",
            fix="Count axes from 0.",
        )


@op
class _Triangle(StdTensorOp):
    k: int = 0


@op
class Tril(_Triangle, function=jnp.tril):
    """Entries of the last two axes on and below the k-th diagonal, zero above.

    C1: rank 2 or more.
    Gradient: linear.
    Example: Tril().apply(np.ones((2, 2))) = [[1.0, 0.0], [1.0, 1.0]]
    """


@op
class Triu(_Triangle, function=jnp.triu):
    """Entries of the last two axes on and above the k-th diagonal, zero below.

    C1: rank 2 or more.
    Gradient: linear.
    Example: Triu().apply(np.ones((2, 2))) = [[1.0, 1.0], [0.0, 1.0]]
    """


@op
class PadToMatch(StdTensorOp):
    """x padded with zeros at the end of an axis to the size of the second input; x if that size is
    not larger.

    C1: 0 <= axis < both ranks.
    Gradient: linear in x, none in the second input.
    Example: PadToMatch(0).apply(np.ones(1), np.ones(3)) = [1.0, 0.0, 0.0]
    """

    input_count = 2
    axis: int

    def apply(self, x: jax.Array, reference: jax.Array) -> jax.Array:
        missing = max_dim(reference.shape[self.axis], x.shape[self.axis]) - x.shape[self.axis]
        widths = [(0, missing if axis == self.axis else 0, 0) for axis in range(x.ndim)]
        return lax.pad(x, jnp.zeros((), x.dtype), widths)
