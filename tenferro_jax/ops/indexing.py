"""Data movement with indices that are data: gather, scatter, dynamic slices."""

from __future__ import annotations

import enum

import jax
import jax.numpy as jnp
from jax import lax

from .fields import Scalar, Size
from .op import StdTensorOp, op


class OutOfBounds(enum.Enum):
    """The meaning of an index out of bounds."""

    Clip = "clip"
    FillOrDrop = "fill"
    Promised = "promise_in_bounds"

    @property
    def mode(self) -> lax.GatherScatterMode:
        """JAX's name for it."""
        return lax.GatherScatterMode.from_any(self.value)


@op
class Gather(StdTensorOp):
    """Slices of the operand at start indices, as StableHLO gather; the index vector is the last
    axis of the indices.

    C1: the dimension numbers of StableHLO gather. C2: integer indices. C3: if a promise (in bounds,
    sorted, unique) is broken, the values are unspecified.
    Gradient: linear in the operand.
    Example: Gather((), (0,), (0,), (1,)).apply(np.array([5.0, 6.0]), np.array([[1], [0]])) = [6.0,
    5.0]
    """

    input_count = 2
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    slice_sizes: tuple[Size, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    out_of_bounds: OutOfBounds = OutOfBounds.Promised
    indices_are_sorted: bool = False
    unique_indices: bool = False
    fill_value: Scalar = None

    def apply(self, operand: jax.Array, indices: jax.Array) -> jax.Array:
        numbers = lax.GatherDimensionNumbers(
            self.offset_dims,
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            self.start_indices_batching_dims,
        )
        return lax.gather(
            operand,
            indices,
            numbers,
            self.slice_sizes,
            mode=self.out_of_bounds.mode,
            indices_are_sorted=self.indices_are_sorted,
            unique_indices=self.unique_indices,
            fill_value=self.fill_value,
        )


@op
class _Scattering(StdTensorOp):
    """C1: the dimension numbers of StableHLO scatter. C2: integer indices. C3: promises as of
    Gather.
    """

    input_count = 3
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    out_of_bounds: OutOfBounds = OutOfBounds.Promised
    indices_are_sorted: bool = False
    unique_indices: bool = False

    def apply(self, operand: jax.Array, indices: jax.Array, updates: jax.Array) -> jax.Array:
        numbers = lax.ScatterDimensionNumbers(
            self.update_window_dims,
            self.inserted_window_dims,
            self.scatter_dims_to_operand_dims,
            self.operand_batching_dims,
            self.scatter_indices_batching_dims,
        )
        return self._function(
            operand,
            indices,
            updates,
            numbers,
            mode=self.out_of_bounds.mode,
            indices_are_sorted=self.indices_are_sorted,
            unique_indices=self.unique_indices,
        )


@op
class Scatter(_Scattering, function=lax.scatter_add):
    """Add updates into the operand at indices, as StableHLO scatter with addition.

    Gradient: linear in operand and updates.
    Example: Scatter((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]), np.array([2.0])) =
    [5.0, 8.0]
    """


@op
class ScatterSub(_Scattering, function=lax.scatter_sub):
    """Subtract updates from the operand at indices.

    Gradient: linear in operand and updates.
    Example: ScatterSub((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]),
    np.array([2.0])) = [5.0, 4.0]
    """


@op
class ScatterMul(_Scattering, function=lax.scatter_mul):
    """Multiply the operand by updates at indices.

    Gradient: that of the product, for unique indices.
    Example: ScatterMul((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]),
    np.array([2.0])) = [5.0, 12.0]
    """


@op
class ScatterMin(_Scattering, function=lax.scatter_min):
    """The smaller of operand and updates at indices.

    Gradient: refused.
    Example: ScatterMin((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]),
    np.array([2.0])) = [5.0, 2.0]
    """


@op
class ScatterMax(_Scattering, function=lax.scatter_max):
    """The larger of operand and updates at indices.

    Gradient: refused.
    Example: ScatterMax((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]),
    np.array([2.0])) = [5.0, 6.0]
    """


@op
class ScatterUpdate(_Scattering, function=lax.scatter):
    """Replace the operand's elements at indices; of several updates of one element it is
    unspecified which one stays.

    Gradient: linear in operand and updates, for unique indices.
    Example: ScatterUpdate((), (0,), (0,)).apply(np.array([5.0, 6.0]), np.array([[1]]),
    np.array([2.0])) = [5.0, 2.0]
    """


def _clamped(starts: tuple[jax.Array, ...]) -> list[jax.Array]:
    """Starts as arrays, which lax clamps; lax would count negative NumPy numbers from the end, or
    refuse them.
    """
    return [jnp.asarray(start) for start in starts]


@op
class DynamicSlice(StdTensorOp):
    """A window of fixed sizes at scalar start indices, clamped into bounds; the starts follow x.

    C1: one size and one start for each axis, sizes within x's. C2: integer starts of one dtype.
    Gradient: linear in x.
    Example: DynamicSlice((2,)).apply(np.arange(5), np.int32(9)) = [3, 4]
    """

    input_count = None
    sizes: tuple[Size, ...]

    def apply(self, x: jax.Array, *starts: jax.Array) -> jax.Array:
        return lax.dynamic_slice(x, _clamped(starts), self.sizes, allow_negative_indices=False)


@op
class DynamicUpdateSlice(StdTensorOp):
    """The operand with a window replaced, at scalar start indices clamped into bounds; the inputs
    are x, window, starts.

    C1: the window has x's dtype and rank, sizes within x's; one start for each axis. C2: integer
    starts of one dtype.
    Gradient: linear in x and window.
    Example: DynamicUpdateSlice().apply(np.arange(3), np.array([9]), np.int32(1)) = [0, 9, 2]
    """

    input_count = None

    def apply(self, x: jax.Array, update: jax.Array, *starts: jax.Array) -> jax.Array:
        return lax.dynamic_update_slice(x, update, _clamped(starts), allow_negative_indices=False)
