"""Inference without tracing: for most ops the output's dtype and shape follow from the inputs' by a line of arithmetic.

A rule answers only where it is sure to say what `StdTensorOp.infer` says; in every other case (other dtypes, sizes that
do not fit, symbolic sizes that would have to be computed with) it gives None and JAX is asked, which also words the refusal.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..jax_seam import is_symbolic_dim
from ..meta import TensorMeta, x64_enabled
from . import analytic, arithmetic, contraction, conversion, logic, reduction, source, structural
from .op import StdTensorOp
from .vocabulary import ANALYTIC

Metas = tuple[TensorMeta, ...]
Rule = Callable[..., TensorMeta | None]

_BOOL = np.dtype(bool)
_SIGNED = frozenset(map(np.dtype, ("int8", "int16", "int32", "int64")))
_INTEGER = _SIGNED | frozenset(map(np.dtype, ("uint8", "uint16", "uint32", "uint64")))
_FLOAT = frozenset(map(np.dtype, ("bfloat16", "float16", "float32", "float64")))
_COMPLEX = frozenset(map(np.dtype, ("complex64", "complex128")))
_REAL = _INTEGER | _FLOAT
_NUMBER = _REAL | _COMPLEX
_TOTAL = (logic.Direction.EqTotal, logic.Direction.LtTotal, logic.Direction.LeTotal)
_ANY = _NUMBER | {_BOOL}
_NEEDS_X64 = frozenset(map(np.dtype, ("int64", "uint64", "float64", "complex128")))


def infer(op: StdTensorOp, metas: Metas) -> Metas:
    """dtype and shape of each output: by the op's rule where it has one and the rule is sure, by JAX otherwise.

    Raises:
      ArityError, InvalidConfig: as `StdTensorOp.infer`.

    Example:
      >>> import numpy as np
      >>> from tenferro_jax.ops.structural import Transpose
      >>> print(*infer(Transpose((1, 0)), (TensorMeta(np.dtype("float32"), (2, 3)),)))
      float32[3,2]
    """
    answer = infer_direct(op, metas)
    return op.infer(*metas) if answer is None else answer


def infer_direct(op: StdTensorOp, metas: Metas) -> Metas | None:
    """What the op's rule says of its output; None where there is no rule, or it is not sure."""
    rule = RULES.get(type(op))
    if rule is None or (op.input_count is not None and len(metas) != op.input_count):
        return None
    wide = False
    for dtype, shape in metas:
        if dtype not in _ANY or not _is_shape(shape):
            return None
        wide = wide or dtype in _NEEDS_X64
    out = rule(op, *metas)
    if out is None or ((wide or out[0] in _NEEDS_X64) and not x64_enabled()):
        return None
    return (out,)


def _is_shape(shape: Any) -> bool:
    return type(shape) is tuple and all((type(size) is int and size >= 0) or is_symbolic_dim(size) for size in shape)


def _is_concrete(shape: Any) -> bool:
    return type(shape) is tuple and all(type(size) is int and size >= 0 for size in shape)


def _are_axes(axes: Any, rank: int) -> bool:
    """Whether these are different axes of an array of that rank, counted from the front."""
    if type(axes) is not tuple:
        return False
    for axis in axes:
        if type(axis) is not int or not 0 <= axis < rank:
            return False
    return len(set(axes)) == len(axes)


def _are_rows(rank: int, *rows: Any) -> bool:
    """Whether each is a tuple with one entry an axis."""
    return all(type(row) is tuple and len(row) == rank for row in rows)


def _dtype(value: Any) -> np.dtype[Any] | None:
    return value if isinstance(value, np.dtype) and value in _ANY else None


# --- elementwise ---------------------------------------------------------------------------------------------------


def _one(dtypes: frozenset[Any]) -> Rule:
    """One input of these dtypes; the output is like it."""
    return lambda op, x: x if x[0] in dtypes else None


def _two(dtypes: frozenset[Any]) -> Rule:
    """Two inputs, alike, of these dtypes; the output is like them."""
    return lambda op, x, y: x if x == y and x[0] in dtypes else None


def _is_finite(op: Any, x: TensorMeta) -> TensorMeta | None:
    return TensorMeta(_BOOL, x.shape) if x.dtype in _FLOAT else None


def _compare(op: Any, x: TensorMeta, y: TensorMeta) -> TensorMeta | None:
    dtypes = _FLOAT if op.direction in _TOTAL else _REAL | {_BOOL}
    return TensorMeta(_BOOL, x.shape) if x == y and x.dtype in dtypes and isinstance(op.direction, logic.Direction) else None


def _integer_pow(op: Any, x: TensorMeta) -> TensorMeta | None:
    return x if x.dtype in _FLOAT and type(op.exponent) is int else None


def _select(op: Any, predicate: TensorMeta, x: TensorMeta, y: TensorMeta) -> TensorMeta | None:
    return x if x == y and predicate == (_BOOL, x.shape) else None


def _clamp(op: Any, x: TensorMeta, low: TensorMeta, high: TensorMeta) -> TensorMeta | None:
    return x if x.dtype in _REAL and low == high and low in (x, (x.dtype, ())) else None


def _convert(op: Any, x: TensorMeta) -> TensorMeta | None:
    dtype = _dtype(op.dtype)
    return None if dtype is None or (x.dtype in _COMPLEX and dtype not in _COMPLEX) else TensorMeta(dtype, x.shape)


def _constant(op: Any) -> TensorMeta | None:
    value = op.value
    return TensorMeta(value.dtype, value.shape) if isinstance(value, np.ndarray) and value.dtype in _ANY else None


# --- structural ----------------------------------------------------------------------------------------------------


def _iota(op: Any) -> TensorMeta | None:
    dtype = _dtype(op.dtype)
    sure = dtype in _REAL and _is_concrete(op.shape) and _are_axes((op.axis,), len(op.shape))
    return TensorMeta(dtype, op.shape) if sure else None


def _transpose(op: Any, x: TensorMeta) -> TensorMeta | None:
    shape, axes = x.shape, op.permutation
    if not _are_rows(len(shape), axes) or not _are_axes(axes, len(shape)):
        return None
    return TensorMeta(x.dtype, tuple([shape[i] for i in axes]))


def _reverse(op: Any, x: TensorMeta) -> TensorMeta | None:
    return x if _are_axes(op.axes, len(x.shape)) else None


def _reshape(op: Any, x: TensorMeta) -> TensorMeta | None:
    sure = _is_concrete(op.shape) and _is_concrete(x.shape) and math.prod(op.shape) == math.prod(x.shape)
    return TensorMeta(x.dtype, op.shape) if sure else None


def _broadcast_in_dim(op: Any, x: TensorMeta) -> TensorMeta | None:
    shape, dims = op.shape, op.dims
    if not _is_concrete(shape) or not _are_axes(dims, len(shape)) or len(dims) != len(x.shape) or list(dims) != sorted(dims):
        return None
    for size, axis in zip(x.shape, dims, strict=True):
        if type(size) is not int or size not in (1, shape[axis]):
            return None
    return TensorMeta(x.dtype, shape)


def _slice(op: Any, x: TensorMeta) -> TensorMeta | None:
    if not _are_rows(len(x.shape), op.starts, op.limits, op.strides):
        return None
    shape = []
    for size, start, limit, stride in zip(x.shape, op.starts, op.limits, op.strides, strict=True):
        if not (type(start) is type(limit) is type(stride) is type(size) is int and 0 <= start <= limit <= size and stride > 0):
            return None
        shape.append(-((start - limit) // stride))
    return TensorMeta(x.dtype, tuple(shape))


def _pad(op: Any, x: TensorMeta, fill: TensorMeta) -> TensorMeta | None:
    if not _are_rows(len(x.shape), op.low, op.high, op.interior) or fill != (x.dtype, ()):
        return None
    shape = []
    for size, low, high, gap in zip(x.shape, op.low, op.high, op.interior, strict=True):
        if not type(low) is type(high) is type(gap) is type(size) is int or gap < 0:
            return None
        out = size + max(size - 1, 0) * gap + low + high
        if out < 0:
            return None
        shape.append(out)
    return TensorMeta(x.dtype, tuple(shape))


def _concatenate(op: Any, *xs: TensorMeta) -> TensorMeta | None:
    if not xs or not _are_axes((op.axis,), len(xs[0].shape)):
        return None
    axis, total, (dtype, shape) = op.axis, 0, xs[0]
    before, after = shape[:axis], shape[axis + 1 :]
    for x in xs:
        if x.dtype != dtype or x.shape[:axis] != before or x.shape[axis + 1 :] != after or type(x.shape[axis]) is not int:
            return None
        total += x.shape[axis]
    return TensorMeta(dtype, (*before, total, *after))


# --- reduction and contraction -------------------------------------------------------------------------------------


def _reduced(dtypes: frozenset[Any]) -> Rule:
    def rule(op: Any, x: TensorMeta) -> TensorMeta | None:
        if x.dtype not in dtypes or not _are_axes(op.axes, len(x.shape)):
            return None
        return TensorMeta(x.dtype, _without(x.shape, op.axes))

    return rule


def _without(shape: Sequence[Any], axes: Sequence[int]) -> tuple[Any, ...]:
    return tuple([size for i, size in enumerate(shape) if i not in axes])


def _is_precision(names: Any) -> bool:
    return names is None or (type(names) is tuple and len(names) == 2 and set(names) <= {"DEFAULT", "HIGH", "HIGHEST"})


def _dot_general(op: Any, x: TensorMeta, y: TensorMeta) -> TensorMeta | None:
    left, right = (op.lhs_contracting, op.lhs_batch), (op.rhs_contracting, op.rhs_batch)
    if x.dtype != y.dtype or x.dtype not in _NUMBER or op.accumulation_dtype not in (None, x.dtype) or not _is_precision(op.precision):
        return None
    for meta, (contracting, batch) in ((x, left), (y, right)):
        if type(contracting) is not tuple or type(batch) is not tuple or not _are_axes(contracting + batch, len(meta.shape)):
            return None
    for a, b in zip(left, right, strict=True):
        if len(a) != len(b) or any(x.shape[i] != y.shape[j] for i, j in zip(a, b, strict=True)):
            return None
    batch = tuple([x.shape[i] for i in op.lhs_batch])
    return TensorMeta(x.dtype, (*batch, *_without(x.shape, sum(left, ())), *_without(y.shape, sum(right, ()))))


RULES: dict[type[StdTensorOp], Rule] = {
    **{cls: _one(_FLOAT) if cls.input_count == 1 else _two(_FLOAT) for cls in ANALYTIC},
    analytic.IntegerPow: _integer_pow,
    **dict.fromkeys((arithmetic.Add, arithmetic.Sub, arithmetic.Mul, arithmetic.Div), _two(_NUMBER)),
    **dict.fromkeys((arithmetic.Rem, arithmetic.Maximum, arithmetic.Minimum), _two(_REAL)),
    **dict.fromkeys((logic.And, logic.Or), _two(_INTEGER | {_BOOL})),
    logic.Not: _one(_INTEGER | {_BOOL}),
    arithmetic.Neg: _one(_SIGNED | _FLOAT | _COMPLEX),
    arithmetic.Abs: _one(_SIGNED | _FLOAT),
    arithmetic.Sign: _one(_SIGNED | _FLOAT),
    source.StopGradient: _one(_ANY),
    logic.IsFinite: _is_finite,
    logic.Compare: _compare,
    logic.Select: _select,
    logic.Clamp: _clamp,
    conversion.Convert: _convert,
    source.Constant: _constant,
    source.Iota: _iota,
    structural.Transpose: _transpose,
    structural.Reverse: _reverse,
    structural.Reshape: _reshape,
    structural.BroadcastInDim: _broadcast_in_dim,
    structural.Slice: _slice,
    structural.Pad: _pad,
    structural.Concatenate: _concatenate,
    **dict.fromkeys((reduction.ReduceSum, reduction.ReduceProd, reduction.ReduceMax, reduction.ReduceMin), _reduced(_REAL)),
    **dict.fromkeys((reduction.ReduceAnd, reduction.ReduceOr), _reduced(frozenset({_BOOL}))),
    contraction.DotGeneral: _dot_general,
}
"""Op class -> its rule. A class without one is inferred by JAX."""
