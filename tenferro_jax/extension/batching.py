"""vmap of an extension op is the same op with a batch level: its identity and its AD rule stay."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from ..shapes import TensorMeta


@dataclasses.dataclass(frozen=True)
class BatchLevel:
    """One vmap around an op. Outputs carry the batch axis first; its size is read from the input shapes.

    Attributes:
      in_axes: for each input the mapped axis, or None.
      axis_name: name for collectives inside the op's lowering, or None.
      spmd_axis_name: mesh axis (or axes) that the batch axis lives on, or None.
    """

    in_axes: tuple[int | None, ...]
    axis_name: Any = None
    spmd_axis_name: Any = None

    def size(self, shapes: Sequence[Sequence[Any]]) -> Any:
        """The batch size that the shapes of the mapped inputs state."""
        return next(shape[axis] for shape, axis in zip(shapes, self.in_axes, strict=True) if axis is not None)

    def inner(self, metas: Sequence[TensorMeta]) -> list[TensorMeta]:
        """Metas of one element of the batch."""
        return [
            m if axis is None else TensorMeta(m.dtype, (*m.shape[:axis], *m.shape[axis + 1 :]))
            for m, axis in zip(metas, self.in_axes, strict=True)
        ]

    def vmap(self, fn: Callable[..., Any], in_axes: Any = None) -> Callable[..., Any]:
        """jax.vmap of fn over this level; `in_axes` where fn takes something else than the op's inputs."""
        names = {} if self.axis_name is None else {"axis_name": self.axis_name}
        if self.spmd_axis_name is not None:
            names["spmd_axis_name"] = self.spmd_axis_name
        return jax.vmap(fn, in_axes=self.in_axes if in_axes is None else in_axes, **names)


Levels = tuple[BatchLevel, ...]
"""Batch levels, outermost first."""


def over_levels(levels: Levels, fn: Callable[..., Any]) -> Callable[..., Any]:
    """A JAX function of arrays mapped over all levels."""
    for level in reversed(levels):
        fn = level.vmap(lambda *arrays, fn=fn: tuple(fn(*arrays)))
    return fn


def host_over_levels(levels: Levels, fn: Callable[..., Any], out_metas: Sequence[TensorMeta]) -> Callable[..., Any]:
    """A NumPy function mapped over all levels by a loop; an empty batch gives empty outputs."""
    if not levels:
        return fn
    level, rest = levels[0], levels[1:]
    inner = host_over_levels(rest, fn, [TensorMeta(m.dtype, m.shape[1:]) for m in out_metas])

    def mapped(*arrays: np.ndarray) -> list[np.ndarray]:
        outs = [np.empty(m.shape, m.dtype) for m in out_metas]
        for i in range(level.size([a.shape for a in arrays])):
            element = [a if axis is None else np.take(a, i, axis=axis) for a, axis in zip(arrays, level.in_axes, strict=True)]
            for out, value in zip(outs, inner(*element), strict=True):
                out[i] = value
        return outs

    return mapped
