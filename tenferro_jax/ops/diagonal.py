"""Diagonals and triangles."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from ..dimensions import require_equal
from ..errors import InvalidConfig, ShapeError
from ..jax_seam import max_dim
from .op import StdTensorOp, op


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

    def apply(self, x: jax.Array) -> jax.Array:
        if x.ndim < 2:
            raise ShapeError(where=str(self), given=f"rank {x.ndim}", needed="rank 2 or more")
        return self._cut(x, self.k)  # type: ignore[attr-defined]


@op
class Tril(_Triangle):
    """Entries of the last two axes on and below the k-th diagonal, zero above.

    C1: rank 2 or more.
    Gradient: linear.
    Example: Tril().apply(np.ones((2, 2))) = [[1.0, 0.0], [1.0, 1.0]]
    """

    _cut = staticmethod(jnp.tril)


@op
class Triu(_Triangle):
    """Entries of the last two axes on and above the k-th diagonal, zero below.

    C1: rank 2 or more.
    Gradient: linear.
    Example: Triu().apply(np.ones((2, 2))) = [[1.0, 1.0], [0.0, 1.0]]
    """

    _cut = staticmethod(jnp.triu)


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
