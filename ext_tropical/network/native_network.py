"""The native CPU kernel of networks: inside a compiled program by XLA's FFI, and on concrete arrays
by a direct call, for which nothing is compiled.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import BackendFailure
from tenferro_jax.extension import ExtensionOp, ExtensionRuntimeSet, Kernel

from ..algebra.semiring import Semiring
from ..algebra.shipped import LogSumExp
from ..step.native.library import NETWORK_TARGET, native

TYPES = {"float32": 0, "float64": 1, "int32": 2, "bool": 3}
"""The dtypes of the library, with their numbers in problem.h."""


class Question(NamedTuple):
    """A question to the library.

    Attributes:
      number: see network.h.
      plan: the plan as integers.
    """

    number: int
    plan: np.ndarray


class NativeOp(ExtensionOp):
    """An op that the library computes."""

    @property
    def algebra(self) -> Any:
        """The semiring."""
        raise NotImplementedError

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the library is asked for these inputs."""
        raise NotImplementedError


class _Call(NamedTuple):
    """A call as the library takes it; `attributes` are those of the custom call."""

    attributes: dict[str, Any]
    outputs: tuple[TensorMeta, ...]


@functools.lru_cache(maxsize=256)
def _call(op: NativeOp, described: tuple[tuple[np.dtype, tuple[int, ...]], ...]) -> _Call:
    metas = [TensorMeta(dtype, shape) for dtype, shape in described]
    question = op.question(metas)
    is_log = isinstance(op.algebra, LogSumExp)
    attributes = {
        "plan": question.plan,
        "type": np.int64(TYPES[metas[-1].dtype.name]),
        "algebra": np.int64(op.algebra.native_number),
        "question": np.int64(question.number),
        "temperature": np.float64(op.algebra.temperature if is_log else 1.0),
    }
    return _Call(attributes, tuple(op.infer_output_meta(metas)))


def _declines(op: NativeOp, *metas: TensorMeta) -> str:
    """Why XLA computes a network, or "" if the library does."""
    if not all(isinstance(size, int) for meta in metas for size in meta.shape):
        return "sizes are symbolic"
    return unknown(op.algebra, metas[-1].dtype)


def unknown(algebra: Semiring, dtype: np.dtype) -> str:
    """Why the library computes nothing under this semiring in this dtype, or ""."""
    if algebra.native_number is None:
        return f"it lacks {algebra!r}"
    if dtype.name not in TYPES:
        return f"it computes in {', '.join(TYPES)}"
    return native().problem


def _run(op: NativeOp, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    call = _call(op, tuple((x.dtype, tuple(x.shape)) for x in arrays))
    outs = [jax.ShapeDtypeStruct(meta.shape, meta.dtype) for meta in call.outputs]
    target = jax.ffi.ffi_call(NETWORK_TARGET, outs, vmap_method="sequential")
    return tuple(target(*arrays, instructions="", **call.attributes))


def _eager(op: NativeOp, *arrays: np.ndarray) -> list[np.ndarray]:
    call = _call(op, tuple((x.dtype, x.shape) for x in arrays))
    given = [x if x.flags.c_contiguous else np.ascontiguousarray(x) for x in arrays]
    outs = [np.empty(meta.shape, meta.dtype) for meta in call.outputs]
    pairs = np.array([(x.ctypes.data, x.size) for x in (*given, *outs)], np.int64)
    text = ctypes.create_string_buffer(200)
    at, plan = call.attributes, call.attributes["plan"]
    answer: Any = native().library
    state = answer.tropical_network_now(
        ctypes.c_void_p(plan.ctypes.data),
        *(ctypes.c_int64(int(x)) for x in (plan.size, at["type"], at["algebra"], at["question"])),
        ctypes.c_double(at["temperature"]),
        ctypes.c_void_p(pairs.ctypes.data),
        *(ctypes.c_int64(len(xs)) for xs in (given, outs)),
        text,
    )
    if state:
        raise BackendFailure(
            where=f"native kernel of extension {op.family_id}",
            given=text.value.decode() or "no memory for the results of the steps",
            needed="a plan and operands that fit it, and room for the results",
        )
    return outs


def kernels(family_id: str) -> ExtensionRuntimeSet:
    """The kernel of a family of networks."""
    return ExtensionRuntimeSet(Kernel(family_id, "cpu", _run, _declines, "native", _eager))
