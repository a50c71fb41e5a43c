"""Reductions over sliding windows, and the two ops that their derivatives need."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from ..errors import ShapeError
from ..shapes import Shaped, meta_of
from .fields import Body
from .op import FLOATING, Binary, OfBody, StdTensorOp, op


@op
class _Window(StdTensorOp):
    """C1: one entry for each axis in every payload tuple, sizes, strides and dilations positive."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]
    base_dilation: tuple[int, ...]
    window_dilation: tuple[int, ...]

    def _numbers(self) -> dict[str, Any]:
        return {
            "window_dimensions": self.sizes,
            "window_strides": self.strides,
            "padding": self.padding,
            "base_dilation": self.base_dilation,
            "window_dilation": self.window_dilation,
        }


class _Pooling(_Window):
    def apply(self, x: jax.Array) -> jax.Array:
        return self._function(x, **self._numbers())


@op
class ReduceWindowSum(_Pooling, function=lax.reduce_window_sum_p.bind):
    """Sum over each window.

    Gradient: linear.
    Example: ReduceWindowSum((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) =
    [3.0, 5.0]
    """


@op
class ReduceWindowMax(_Pooling, function=lax.reduce_window_max_p.bind):
    """Maximum over each window; NaN propagates.

    Gradient: to the first maximum of each window.
    Example: ReduceWindowMax((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) =
    [2.0, 3.0]
    """


@op
class ReduceWindowMin(_Pooling, function=lax.reduce_window_min_p.bind):
    """Minimum over each window; NaN propagates.

    Gradient: to the first minimum of each window.
    Example: ReduceWindowMin((2,), (1,), ((0, 0),), (1,), (1,)).apply(np.array([1.0, 2.0, 3.0])) =
    [1.0, 2.0]
    """


@op
class ReduceWindow(_Window, OfBody):
    """Reduce each window of n inputs together with an associative graph of 2n scalars; n initial
    scalars follow the inputs.

    C2: inputs of one shape. C3: body takes 2n scalars of these dtypes and returns n.
    Gradient: in the inputs, through the body, forward mode; refused in the initial scalars.
    Example: ReduceWindow((2,), (1,), ((0, 0),), (1,), (1,), graph(lambda a, b: a +
    b)).apply(np.ones(3), 0.0) = [[2.0, 2.0]]
    """

    body: Body

    def apply(self, *inputs: jax.Array) -> jax.Array:
        count = len(self.body.outputs)
        operands, initial = tuple(inputs[:count]), tuple(inputs[count:])
        numbers = self._numbers()
        return lax.reduce_window(
            operands, initial, lambda a, b: tuple(self.body(*a, *b)), **numbers
        )


@op
class SelectAndScatterAdd(StdTensorOp):
    """Add each source element where its window of x has its first maximum (or minimum); the inputs
    are source, x.

    C1: as ReduceWindowMax. C2: the source has the shape of the pooled x, and its dtype.
    Gradient: linear in the source, zero in x.
    Example: SelectAndScatterAdd(True, (2,), (1,), ((0, 0),)).apply(np.array([1.0, 1.0]),
    np.array([1.0, 3.0, 2.0])) = [0.0, 2.0, 0.0]
    """

    input_count = 2
    of_maximum: bool
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[tuple[int, int], ...]

    def check(self, *operands: Shaped) -> None:
        """C1, C2."""
        source, x = operands
        ones = (1,) * len(x.shape)
        pooling = ReduceWindowMax(
            self.sizes, self.strides, self.padding, base_dilation=ones, window_dilation=ones
        )
        (pooled,) = pooling.infer(meta_of(x))
        if tuple(source.shape) != pooled.shape or source.dtype != x.dtype:
            raise ShapeError(
                where="SelectAndScatterAdd",
                given=f"source {source.dtype}{list(source.shape)}",
                needed=str(pooled),
                fix="Pass one element for each window.",
            )

    def apply(self, source: jax.Array, x: jax.Array) -> jax.Array:
        return lax.select_and_scatter_add_p.bind(
            source,
            x,
            select_prim=lax.ge_p if self.of_maximum else lax.le_p,
            window_dimensions=self.sizes,
            window_strides=self.strides,
            padding=self.padding,
        )


@op
class SelectAndGatherAdd(_Window, Binary, takes=FLOATING):
    """The source element at the first maximum (or minimum) of each window of x; the inputs are
    source, x.

    C2: source and x have one floating dtype and one shape.
    Gradient: linear in the source, zero in x.
    Example: SelectAndGatherAdd((2,), (1,), ((0, 0),), (1,), (1,), True).apply(np.array([1.0, 2.0]),
    np.array([1.0, 3.0])) = [2.0]
    """

    of_maximum: bool

    def apply(self, source: jax.Array, x: jax.Array) -> jax.Array:
        return lax.select_and_gather_add_p.bind(
            source, x, select_prim=lax.ge_p if self.of_maximum else lax.le_p, **self._numbers()
        )
