"""Ops that make values from their payload or from shapes."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .fields import Array, DType, Size
from .op import StdTensorOp, op


@op
class Constant(StdTensorOp, function=jnp.asarray):
    """A concrete array held in the payload.

    Gradient: none, it has no input.
    Example: Constant(np.arange(3)).apply() = [0, 1, 2]
    """

    input_count = 0
    value: Array


@op
class Iota(StdTensorOp, function=lax.broadcasted_iota):
    """0, 1, 2, ... along an axis, repeated along the others.

    C1: 0 <= axis < rank. C2: a numeric dtype.
    Gradient: none, it has no input.
    Example: Iota(np.dtype("int32"), (2, 3), 1).apply() = [[0, 1, 2], [0, 1, 2]]
    """

    input_count = 0
    dtype: DType
    shape: tuple[Size, ...]
    axis: int


@op
class DimensionValue(StdTensorOp, function=jnp.asarray):
    """A dimension expression as a scalar of a dtype.

    Gradient: none, it has no input.
    Example: DimensionValue(7, np.dtype("int32")).apply() = 7
    """

    input_count = 0
    dim: Size
    dtype: DType


@op
class ShapeOf(StdTensorOp):
    """The size of one axis, as an int32 scalar.

    C1: 0 <= axis < rank.
    Gradient: none: sizes do not vary.
    Example: ShapeOf(1).apply(np.zeros((2, 3))) = 3
    """

    axis: int

    def apply(self, x: jax.Array) -> jax.Array:
        return jnp.asarray(x.shape[self.axis], jnp.int32)


@op
class StopGradient(StdTensorOp, function=lax.stop_gradient):
    """x, with a derivative of zero.

    Gradient: zero.
    Example: StopGradient().apply(2.0) = 2.0
    """


@op
class OptimizationBarrier(StdTensorOp):
    """Its inputs, unchanged; the compiler neither moves nor merges work across it.

    Gradient: linear, through another barrier.
    Example: OptimizationBarrier().apply(2.0) = [2.0]
    """

    input_count = None
    output_count = None

    def apply(self, *xs: jax.Array) -> list[jax.Array]:
        return lax.optimization_barrier(xs)
