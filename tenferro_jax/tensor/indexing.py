"""NumPy's basic indexing: integers, slices, ... and None."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..dimensions import SymDim
from ..errors import InvalidConfig, ShapeError
from ..jax_seam import is_symbolic_dim
from ..ops.structural import Reshape, Reverse, Slice
from .record import Recorder


def indexed(recorder: Recorder[Any], x: Any, index: Any) -> Any:
    """x[index].

    On a symbolic axis nothing is clamped: bounds count as written, negative ones from the end, and must be known to fit.

    Raises:
      ShapeError: too many indices, or an integer out of bounds.
      InvalidConfig: an index of another kind; gather and dynamic_slice take tensors.
      UndecidedDimensionError: a bound of a symbolic axis that may not fit.
    """
    items = index if isinstance(index, tuple) else (index,)
    for item in items:
        if isinstance(item, slice):
            bounds = (item.start, item.stop, item.step)
            if not all(b is None or _is_integer(b) or is_symbolic_dim(b) for b in bounds) or item.step == 0:
                needed = "bounds that are integers, a step that is not 0"
                raise InvalidConfig(where="indexing", given=f"the {item}", needed=needed)
        if not (item is None or item is Ellipsis or isinstance(item, slice) or _is_integer(item)):
            needed = "integers, slices, ... and None"
            fix = "Use gather, dynamic_slice or select."
            raise InvalidConfig(where="indexing", given=f"an index of type {type(item).__name__}", needed=needed, fix=fix)
    if sum(item is Ellipsis for item in items) > 1:
        raise InvalidConfig(where="indexing", given="two ellipses", needed="one at most", fix="Write ':' for single axes.")
    taken = sum(item is not None and item is not Ellipsis for item in items)
    if taken > x.ndim:
        raise ShapeError(where="indexing", given=f"{taken} indices for {x.meta}", needed=f"{x.ndim} at most", fix="Drop some.")
    if Ellipsis not in items:
        items = (*items, Ellipsis)
    at = items.index(Ellipsis)
    items = (*items[:at], *[slice(None)] * (x.ndim - taken), *items[at + 1 :])

    starts: list[Any] = []
    limits: list[Any] = []
    strides: list[int] = []
    reversed_axes: list[int] = []
    shape: list[Any] = []
    axis = 0
    for item in items:
        if item is None:
            shape.append(1)
            continue
        start, limit, stride, size = _integer(item, x.shape[axis], axis) if not isinstance(item, slice) else _range(item, x.shape[axis])
        if stride < 0:
            reversed_axes.append(axis)
        starts.append(start)
        limits.append(limit)
        strides.append(abs(stride))
        if isinstance(item, slice):
            shape.append(size)
        axis += 1
    if (tuple(starts), tuple(limits), tuple(strides)) != ((0,) * x.ndim, tuple(x.shape), (1,) * x.ndim):
        (x,) = recorder.add(Slice(tuple(starts), tuple(limits), tuple(strides)), x)
    if reversed_axes:
        (x,) = recorder.add(Reverse(tuple(reversed_axes)), x)
    return x if tuple(shape) == tuple(x.shape) else recorder.add(Reshape(tuple(shape)), x)[0]


def _is_integer(item: Any) -> bool:
    return isinstance(item, int | np.integer) and not isinstance(item, bool)


def _integer(item: Any, size: Any, axis: int) -> tuple[Any, Any, int, int]:
    item = int(item)
    start = item if item >= 0 else size + item
    if not is_symbolic_dim(size) and not 0 <= start < size:
        needed = f"one from {-size} to {size - 1}"
        raise ShapeError(where=f"indexing, axis {axis}", given=f"the index {item}", needed=needed)
    return start, start + 1, 1, 1


def _range(item: slice, size: SymDim) -> tuple[Any, Any, int, Any]:
    """start, limit, stride and size of a slice; for a negative stride those of the same elements in ascending order."""
    if not is_symbolic_dim(size):
        first, end, step = item.indices(size)
        count = len(range(first, end, step))
        low = 0 if not count else first if step > 0 else first + (count - 1) * step
        return low, low + (count - 1) * abs(step) + 1 if count else 0, step, count
    if item == slice(None, None, -1):
        return 0, size, -1, size
    if item.step not in (None, 1):
        given = f"the slice {item} of a symbolic axis"
        raise InvalidConfig(where="indexing", given=given, needed="stride 1, or [::-1]", fix="Use the slice method.")
    start: Any = 0 if item.start is None else _bound(item.start, size)
    stop: Any = size if item.stop is None else _bound(item.stop, size)
    return start, stop, 1, stop - start


def _bound(bound: Any, size: SymDim) -> Any:
    return bound if is_symbolic_dim(bound) or bound >= 0 else size + bound
