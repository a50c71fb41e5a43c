"""Contractions and linear transforms."""

from __future__ import annotations

from typing import Any

from jax import lax

from .op import StdTensorOp, op


def _precision(names: Any) -> Any:
    """JAX's value for a pair of `lax.Precision` names, or the name of one `lax.DotAlgorithmPreset`."""
    if names is None or isinstance(names, str):
        return None if names is None else lax.DotAlgorithmPreset[names]
    return lax.Precision[names[0]], lax.Precision[names[1]]


@op
class DotGeneral(StdTensorOp):
    """Sum of products over the contracting axes; output axes are batch, lhs free, rhs free.

    C1: contracted and batch axes pair up in equal sizes, each named once. C2: one dtype.
    Gradient: linear in each input.
    Example: DotGeneral((1,), (0,)).apply(np.ones((1, 3)), np.ones((3, 1))) = [[3.0]]
    """

    input_count = 2
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: Any = None
    accumulation_dtype: Any = None

    def apply(self, lhs: Any, rhs: Any) -> Any:
        return lax.dot_general(
            lhs,
            rhs,
            ((self.lhs_contracting, self.rhs_contracting), (self.lhs_batch, self.rhs_batch)),
            precision=_precision(self.precision),
            preferred_element_type=self.accumulation_dtype,
        )


@op
class Convolution(StdTensorOp):
    """Windowed sum of products over the spatial axes, as StableHLO convolution; the inputs are lhs, kernel.

    Each of the three `*_spec` tuples gives the axis of (batch, feature, spatial...), for the kernel of
    (output feature, input feature, spatial...).

    C1: two or more axes, one entry a spatial axis. C2: feature_group_count and batch_group_count divide, one of them is 1. C3: one dtype.
    Gradient: linear in each input.
    Example: Convolution((1,), ((0, 0),), (1,), (1,), *3 * [(0, 1, 2)]).apply(np.ones((1, 1, 3)), np.ones((1, 1, 2))) = [[[2.0, 2.0]]]
    """

    input_count = 2
    strides: tuple[int, ...]
    padding: tuple[tuple[Any, Any], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: Any = None
    accumulation_dtype: Any = None

    def apply(self, lhs: Any, rhs: Any) -> Any:
        return lax.conv_general_dilated(
            lhs,
            rhs,
            self.strides,
            self.padding,
            self.lhs_dilation,
            self.rhs_dilation,
            lax.ConvDimensionNumbers(self.lhs_spec, self.rhs_spec, self.out_spec),
            self.feature_group_count,
            self.batch_group_count,
            _precision(self.precision),
            self.accumulation_dtype,
        )


@op
class Fft(StdTensorOp):
    """Discrete Fourier transform over the last axes: kind FFT, IFFT, RFFT or IRFFT.

    C1: one to three lengths, those of the last axes (of the real side). C2: complex; real for RFFT.
    Gradient: linear.
    Example: Fft("FFT", (2,)).apply(np.array([1.0 + 0j, 1.0])) = [2.0, 0.0]
    """

    kind: str
    lengths: tuple[int, ...]

    def apply(self, x: Any) -> Any:
        return lax.fft(x, self.kind, self.lengths)
