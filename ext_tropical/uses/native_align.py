"""The native CPU kernel of alignments: inside a compiled program by XLA's FFI, and on concrete
arrays by a direct call, for which nothing is compiled.
"""

from __future__ import annotations

import ctypes
from typing import Any

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import BackendFailure
from tenferro_jax.extension import ExtensionRuntimeSet, Kernel

from ..algebra.shipped import LogSumExp, max_plus, min_plus
from ..network.question import TYPES
from ..step.native.library import ALIGN, native

MOST = 1 << 29
"""Elements of a sequence that the library can count."""


def _attributes(op: Any) -> dict[str, Any]:
    is_log = isinstance(op.algebra, LogSumExp)
    return {
        "algebra": np.int64(op.algebra.native_number),
        "temperature": np.float64(op.algebra.temperature if is_log else 1.0),
        "rules": np.int64(op.warps + 2 * op.affine + 4 * op.local),
        "band": np.int64(op.band),
    }


def _declines(op: Any, *metas: TensorMeta) -> str:
    """Why XLA computes an alignment, or "" if the library does."""
    scores = metas[0]
    if scores.dtype.name not in ("float32", "float64"):
        return "it computes in float32 and float64"
    if max(*scores.shape, op.band) > MOST:
        return f"a sequence has more than {MOST} elements"
    if not isinstance(op.algebra, LogSumExp) and op.algebra not in (max_plus, min_plus):
        return "it has max_plus, min_plus and log_sum_exp"
    return native().problem


def _run(op: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    metas = op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in arrays])
    outs = [jax.ShapeDtypeStruct(meta.shape, meta.dtype) for meta in metas]
    target = jax.ffi.ffi_call(ALIGN, outs, vmap_method="broadcast_all")
    return tuple(target(*arrays, instructions="", **_attributes(op)))


def _eager(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    metas = op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in arrays])
    outs = [np.empty(meta.shape, meta.dtype) for meta in metas]
    given = [np.ascontiguousarray(x) for x in arrays]
    places = [x.ctypes.data for x in given] + [0] * (4 - len(given))
    text = ctypes.create_string_buffer(200)
    at, library = _attributes(op), native().library
    numbers = (TYPES[given[0].dtype.name], at["algebra"])
    sizes = (at["rules"], at["band"], *given[0].shape)
    answer: Any = library
    state = answer.tropical_align_now(
        *(ctypes.c_int64(int(x)) for x in numbers),
        ctypes.c_double(at["temperature"]),
        *(ctypes.c_int64(int(x)) for x in sizes),
        (ctypes.c_void_p * 4)(*places),
        (ctypes.c_void_p * len(outs))(*(x.ctypes.data for x in outs)),
        ctypes.c_int64(len(outs)),
        text,
    )
    if state:
        raise BackendFailure(
            where=f"native kernel of extension {op.family_id}",
            given=text.value.decode() or "no memory for the nodes",
            needed="a payload and arrays that fit it, and room for the nodes",
        )
    return outs


def kernels(family_id: str) -> ExtensionRuntimeSet:
    """The kernel of a family of alignments."""
    return ExtensionRuntimeSet(Kernel(family_id, "cpu", _run, _declines, "native", _eager))
