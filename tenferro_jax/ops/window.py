"""Reductions over sliding windows, and the two ops that their derivatives need."""

from __future__ import annotations

from typing import Any

from jax import lax

from .op import StdTensorOp, op


class _Window(StdTensorOp):
    """C1: one entry an axis in every payload tuple, sizes, strides and dilations positive."""

    def _numbers(self) -> dict[str, Any]:
        s: Any = self
        return {
            "window_dimensions": s.sizes,
            "window_strides": s.strides,
            "padding": s.padding,
            "base_dilation": s.base_dilation,
            "window_dilation": s.window_dilation,
        }


class _Pooling(_Window):
    def apply(self, x: Any) -> Any:
        return self._primitive.bind(x, **self._numbers())  # type: ignore[attr-defined]


@op
class ReduceWindowSum(_Pooling):
    """Sum over each window.

    Gradient: linear.
    Example: ReduceWindowSum((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) = [3.0, 5.0]
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    _primitive = lax.reduce_window_sum_p


@op
class ReduceWindowMax(_Pooling):
    """Maximum over each window; NaN propagates.

    Gradient: to the first maximum of each window.
    Example: ReduceWindowMax((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) = [2.0, 3.0]
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    _primitive = lax.reduce_window_max_p


@op
class ReduceWindowMin(_Pooling):
    """Minimum over each window; NaN propagates.

    Gradient: to the first minimum of each window.
    Example: ReduceWindowMin((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) = [1.0, 2.0]
    """

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]
    _primitive = lax.reduce_window_min_p


@op
class ReduceWindow(_Window):
    """Reduce each window with an associative graph of two scalars; the inputs are x and the initial scalar.

    C2: body takes two scalars of x's dtype to one.
    Gradient: in x, through the body, forward mode; refused in the initial scalar.
    Example: ReduceWindow(graph(lambda a, b: a + b), (2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0]), 0.0) = [3.0, 5.0]
    """

    input_count = 2
    body: Any
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def apply(self, x: Any, initial: Any) -> Any:
        return lax.reduce_window(x, initial, lambda a, b: self.body(a, b)[0], **self._numbers())


@op
class SelectAndScatterAdd(StdTensorOp):
    """Add each source element where its window of x has its first maximum (or minimum); the inputs are source, x.

    C1: as ReduceWindowMax. C2: the source has the shape of the pooled x.
    Gradient: linear in the source, zero in x.
    Example: SelectAndScatterAdd(True, (2,), (1,), ((0, 0),)).apply(np.array([1.0, 1.0]), np.array([1.0, 3.0, 2.0])) = [0.0, 2.0, 0.0]
    """

    input_count = 2
    of_maximum: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def apply(self, source: Any, x: Any) -> Any:
        return lax.select_and_scatter_add_p.bind(
            source,
            x,
            select_prim=lax.ge_p if self.of_maximum else lax.le_p,
            window_dimensions=self.sizes,
            window_strides=self.strides,
            padding=self.padding,
        )


@op
class SelectAndGatherAdd(_Window):
    """The source element at the first maximum (or minimum) of each window of x; the inputs are source, x.

    C2: source and x have one dtype and shape.
    Gradient: linear in the source, zero in x.
    Example: SelectAndGatherAdd(True, (2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0]), np.array([1.0, 3.0])) = [2.0]
    """

    input_count = 2
    of_maximum: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def apply(self, source: Any, x: Any) -> Any:
        return lax.select_and_gather_add_p.bind(source, x, select_prim=lax.ge_p if self.of_maximum else lax.le_p, **self._numbers())
