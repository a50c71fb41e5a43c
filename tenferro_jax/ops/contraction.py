"""Contractions and linear transforms."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from ..errors import InvalidConfig
from ..shapes import Shaped
from .fields import DType, Precision, Size
from .op import StdTensorOp, op


def _precision(names: Precision) -> Any:
    """JAX's value for a pair of `lax.Precision` names, or the name of one
    `lax.DotAlgorithmPreset`.
    """
    if names is None:
        return None
    if isinstance(names, str):
        return lax.DotAlgorithmPreset[names]
    return lax.Precision[names[0]], lax.Precision[names[1]]


def precision_names(precision: object) -> Any:
    """A precision argument of `jax.numpy`, as the names that ops hold.

    Raises:
      InvalidConfig: another value.

    Example:
      >>> precision_names("highest"), precision_names("BF16_BF16_F32"), precision_names(None)
      (('HIGHEST', 'HIGHEST'), 'BF16_BF16_F32', None)
    """
    if isinstance(precision, lax.DotAlgorithmPreset):
        return precision.name
    if precision is None or (
        isinstance(precision, str) and precision in lax.DotAlgorithmPreset.__members__
    ):
        return precision
    pair = precision if isinstance(precision, tuple | list) else (precision, precision)
    try:
        if len(pair) == 2 and all(isinstance(each, str | lax.Precision) for each in pair):
            return tuple(lax.Precision(each).name for each in pair)
    except ValueError:
        pass  # a text that is not one of its names
    raise InvalidConfig(
        where="precision",
        given=repr(precision),
        needed="a lax.Precision or its name, a pair of them, or a lax.DotAlgorithmPreset or its "
        "name",
        fix="Use 'highest'.",
    )


@op
class DotGeneral(StdTensorOp):
    """Sum of products over the contracting axes; output axes are batch, lhs free, rhs free. For
    booleans "or" and "and".

    C1: paired contracted and batch axes have equal sizes, each axis named once. C2: for two dtypes
    the result has JAX's common dtype.
    Gradient: linear in each input.
    Example: DotGeneral((1,), (0,)).apply(np.ones((1, 3)), np.ones((3, 1))) = [[3.0]]
    """

    input_count = 2
    lhs_contracting: tuple[int, ...]
    rhs_contracting: tuple[int, ...]
    lhs_batch: tuple[int, ...] = ()
    rhs_batch: tuple[int, ...] = ()
    precision: Precision = None
    accumulation_dtype: DType | None = None

    def apply(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        return lax.dot_general(
            lhs,
            rhs,
            ((self.lhs_contracting, self.rhs_contracting), (self.lhs_batch, self.rhs_batch)),
            precision=_precision(self.precision),
            preferred_element_type=self.accumulation_dtype,
        )


@op
class Convolution(StdTensorOp):
    """Windowed sum of products over the spatial axes, as StableHLO convolution; the inputs are lhs,
    kernel.

    Each of the three `*_spec` tuples gives the axis of (batch, feature, spatial...), for the kernel
    of (output feature, input feature, spatial...).

    C1: two or more axes, one entry for each spatial axis. C2: feature_group_count and
    batch_group_count divide their axes, one of them is 1. C3: one dtype.
    Gradient: linear in each input.
    Example: Convolution((1,), ((0, 0),), (1,), (1,), *3 * [(0, 1, 2)]).apply(np.ones((1, 1, 3)),
    np.ones((1, 1, 2))) = [[[2.0, 2.0]]]
    """

    input_count = 2
    strides: tuple[int, ...]
    padding: tuple[tuple[Size, Size], ...]
    lhs_dilation: tuple[int, ...]
    rhs_dilation: tuple[int, ...]
    lhs_spec: tuple[int, ...]
    rhs_spec: tuple[int, ...]
    out_spec: tuple[int, ...]
    feature_group_count: int = 1
    batch_group_count: int = 1
    precision: Precision = None
    accumulation_dtype: DType | None = None

    def check(self, *operands: Shaped) -> None:
        """C1."""
        rank = len(operands[0].shape)
        specs = (self.lhs_spec, self.rhs_spec, self.out_spec)
        spatial = (self.strides, self.padding, self.lhs_dilation, self.rhs_dilation)
        positive = min((*self.strides, *self.lhs_dilation, *self.rhs_dilation), default=1)
        if (
            any(sorted(s) != list(range(rank)) for s in specs)
            or any(len(s) != rank - 2 for s in spatial)
            or positive < 1
        ):
            raise InvalidConfig(
                where="Convolution",
                given=str(self),
                needed=f"specs that permute {rank} axes, {rank - 2} positive strides and "
                f"dilations, as many paddings",
                fix="See the convolution op of StableHLO.",
            )

    def apply(self, lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        numbers = lax.ConvDimensionNumbers(self.lhs_spec, self.rhs_spec, self.out_spec)
        return lax.conv_general_dilated(
            lhs,
            rhs,
            self.strides,
            self.padding,
            self.lhs_dilation,
            self.rhs_dilation,
            numbers,
            self.feature_group_count,
            self.batch_group_count,
            _precision(self.precision),
            self.accumulation_dtype,
        )


@op
class Fft(StdTensorOp, function=lax.fft):
    """Discrete Fourier transform over the last axes: kind FFT, IFFT, RFFT or IRFFT.

    C1: one to three lengths: sizes of the last axes, on the real side. C2: complex; real for RFFT.
    Gradient: linear.
    Example: Fft("FFT", (2,)).apply(np.array([1.0 + 0j, 1.0])) = [2.0, 0.0]
    """

    kind: str
    lengths: tuple[int, ...]

    def check(self, *operands: Shaped) -> None:
        """C1, C2."""
        (x,) = operands
        real = "float" in str(x.dtype)
        last = x.shape[len(x.shape) - len(self.lengths) :]
        wanted = self.lengths
        if self.kind == "IRFFT" and wanted:
            wanted = (*wanted[:-1], wanted[-1] // 2 + 1)
        known = all(isinstance(n, int) for n in (*last, *wanted))
        if (
            not 1 <= len(self.lengths) <= 3
            or real != (self.kind == "RFFT")
            or "int" in str(x.dtype)
            or (known and last != wanted)
        ):
            raise InvalidConfig(
                where=str(self),
                given=f"{x.dtype}{list(x.shape)}",
                needed=f"one to three lengths, those of the last axes, "
                f"{'real' if self.kind == 'RFFT' else 'complex'} numbers",
                fix="Convert, pad or slice first.",
            )
