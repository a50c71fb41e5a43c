"""Data movement whose pattern is data: gather, scatter, dynamic slices."""

from __future__ import annotations

import enum
from typing import Any

from jax import lax

from .op import StdTensorOp, op


class OutOfBounds(enum.Enum):
    """What an index out of bounds means."""

    Clip = "clip"
    FillOrDrop = "fill"
    Promised = "promise_in_bounds"

    @property
    def mode(self) -> lax.GatherScatterMode:
        """JAX's name for it."""
        return lax.GatherScatterMode.from_any(self.value)


@op
class Gather(StdTensorOp):
    """Slices of the operand at start indices, as StableHLO gather; the index vector is the last axis of the indices."""

    input_count = 2
    offset_dims: tuple[int, ...]
    collapsed_slice_dims: tuple[int, ...]
    start_index_map: tuple[int, ...]
    slice_sizes: tuple[Any, ...]
    operand_batching_dims: tuple[int, ...] = ()
    start_indices_batching_dims: tuple[int, ...] = ()
    out_of_bounds: OutOfBounds = OutOfBounds.Promised

    def apply(self, operand: Any, indices: Any) -> Any:
        numbers = lax.GatherDimensionNumbers(
            self.offset_dims,
            self.collapsed_slice_dims,
            self.start_index_map,
            self.operand_batching_dims,
            self.start_indices_batching_dims,
        )
        return lax.gather(operand, indices, numbers, self.slice_sizes, mode=self.out_of_bounds.mode)


@op
class Scatter(StdTensorOp):
    """Add updates into the operand at indices, as StableHLO scatter with addition."""

    input_count = 3
    update_window_dims: tuple[int, ...]
    inserted_window_dims: tuple[int, ...]
    scatter_dims_to_operand_dims: tuple[int, ...]
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()
    out_of_bounds: OutOfBounds = OutOfBounds.Promised

    def apply(self, operand: Any, indices: Any, updates: Any) -> Any:
        numbers = lax.ScatterDimensionNumbers(
            self.update_window_dims,
            self.inserted_window_dims,
            self.scatter_dims_to_operand_dims,
            self.operand_batching_dims,
            self.scatter_indices_batching_dims,
        )
        return lax.scatter_add(operand, indices, updates, numbers, mode=self.out_of_bounds.mode)


@op
class DynamicSlice(StdTensorOp):
    """A window of fixed sizes at scalar start indices, clamped into bounds."""

    input_count = None
    sizes: tuple[Any, ...]

    def apply(self, x: Any, *starts: Any) -> Any:
        return lax.dynamic_slice(x, starts, self.sizes)


@op
class DynamicUpdateSlice(StdTensorOp):
    """The operand with a window replaced, at scalar start indices clamped into bounds."""

    input_count = None

    def apply(self, x: Any, update: Any, *starts: Any) -> Any:
        return lax.dynamic_update_slice(x, update, starts)
