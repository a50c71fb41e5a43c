"""Which shape an operation on several tensors has: NumPy's rule, for symbolic sizes where it can be decided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..dimensions import are_equal, undecided
from ..errors import ShapeError
from ..ops.structural import BroadcastInDim

Shape = tuple[Any, ...]


def common_shape(shapes: Sequence[Shape], where: str) -> Shape:
    """The shape to which shapes broadcast, aligned at the last axis; a size of 1 repeats.

    Raises:
      ShapeError: two sizes differ and neither is 1.
      UndecidedDimensionError: two sizes are symbolic and may or may not be equal.

    Example:
      >>> common_shape([(2, 1), (3,)], "docs")
      (2, 3)
    """
    first = shapes[0]
    if all(shape == first for shape in shapes):
        return first
    rank = max(map(len, shapes))
    result: list[Any] = [1] * rank
    for shape in shapes:
        for axis, size in enumerate(shape, rank - len(shape)):
            held = result[axis]
            if held == 1:
                result[axis] = size
            elif size != 1 and (equal := are_equal(held, size)) is not True:
                if equal is None:
                    raise undecided(held, size, where)
                given = f"shapes {' and '.join(map(str, shapes))}"
                needed = f"sizes on axis {axis - rank} that are equal or 1"
                raise ShapeError(where=where, given=given, needed=needed, fix="Reshape one of them.")
    return tuple(result)


def broadcast(recorder: Any, value: Any, shape: Shape) -> Any:
    """The value repeated to a shape, aligned at the last axis; itself if it has that shape."""
    if tuple(value.shape) == shape:
        return value
    dims = tuple(range(len(shape) - len(value.shape), len(shape)))
    return recorder.add(BroadcastInDim(shape, dims), value)[0]


def broadcast_together(recorder: Any, values: Sequence[Any], where: str) -> list[Any]:
    """The values repeated to their common shape."""
    shape = common_shape([tuple(v.shape) for v in values], where)
    return [broadcast(recorder, v, shape) for v in values]
