"""The shared library that is built at installation; it is loaded and registered with JAX at first
use.

JAX's CPU backend is started before a handler is registered, because a handler that was built for a
newer JAX could otherwise break the whole backend. So only the handler fails, and XLA computes the
step.
"""

from __future__ import annotations

import ctypes
import functools
import pathlib
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import BackendFailure
from tenferro_jax.extension import ExtensionOp
from tenferro_jax.shapes import Shaped

from ..arguments import are_numbers

NAMES = [
    "einsum",
    "at_winner",
    "network",
    "network_bound",
    "tables_dot",
    "align",
    "align_symbols",
    "chain",
    "chain_durations",
    "shortest_paths",
    "tree_sums",
]
"""The calls of the library; `target` is the name of each as a custom call."""

TYPES = {"float32": 0, "float64": 1, "int32": 2, "bool": 3}
"""The dtypes of the library, with their numbers in problem.h."""

FILE = "kernels.shared"
"""The result of the build: a shared library, not a Python module."""


class Native(NamedTuple):
    """The state of the library.

    Attributes:
      instructions: the sets that it has for this machine, of "baseline", "AVX2" and "AVX-512", the
        widest last.
      problem: why there is no library, or "".
      library: the library itself.
    """

    instructions: tuple[str, ...]
    problem: str
    library: ctypes.CDLL | None = None

    def __str__(self) -> str:
        return (
            f"native kernels: absent ({self.problem})"
            if self.problem
            else f"native kernels: {self.instructions[-1]}"
        )


@functools.cache
def native() -> Native:
    """Load the library, once.

    Example:
      >>> bool(native().instructions) != bool(native().problem)
      True
    """
    path = pathlib.Path(__file__).with_name(FILE)
    if not path.exists():
        return Native((), "not built; install with a C++17 compiler at hand")
    try:
        library = ctypes.CDLL(str(path))
        library.tropical_instructions.restype = ctypes.c_char_p
        instructions = library.tropical_instructions().decode().split(",")
        jax.devices("cpu")
        for name in NAMES:
            handler = jax.ffi.pycapsule(getattr(library, f"tropical_{name}"))
            jax.ffi.register_ffi_target(target(name), handler, platform="cpu")
    except (OSError, AttributeError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        return Native((), f"{FILE} cannot be used: {' '.join(str(error).split())}")
    return Native(tuple(instructions), "", library)


def target(name: str) -> str:
    """What XLA calls a call of the library: the family that it computes first."""
    return f"tenferro-ext-tropical.{name}.v1"


def unserved(metas: Sequence[TensorMeta], dtype: np.dtype, dtypes: Collection[str]) -> str:
    """Why a call that computes in some dtypes cannot serve these arrays in this one, or ""."""
    if not are_numbers(metas):
        return "sizes are symbolic"
    return "" if dtype.name in dtypes else f"it computes in {', '.join(dtypes)}"


def outputs_of(op: ExtensionOp, arrays: Sequence[Shaped]) -> Sequence[TensorMeta]:
    """Those of an op for these arrays."""
    return op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in arrays])


def in_program(
    name: str,
    outputs: Sequence[TensorMeta],
    arrays: Sequence[jax.Array],
    vmap_method: str,
    **attributes: object,
) -> tuple[jax.Array, ...]:
    """Make a call inside a compiled program."""
    outs = [jax.ShapeDtypeStruct(meta.shape, meta.dtype) for meta in outputs]
    return tuple(
        jax.ffi.ffi_call(target(name), outs, vmap_method=vmap_method)(*arrays, **attributes)
    )


def on_host(
    outputs: Sequence[TensorMeta], arrays: Sequence[np.ndarray]
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """The arrays as `now` takes them, and others for the outputs."""
    outs = [np.empty(meta.shape, meta.dtype) for meta in outputs]
    return [np.ascontiguousarray(x) for x in arrays], outs


def now(name: str, *given: float | np.ndarray | list[Any]) -> None:
    """Make a call outside XLA: with int64 and double numbers, pointers to arrays, and arrays of
    such pointers.

    Raises:
      BackendFailure: the library refuses.
    """

    def passed(x: Any) -> Any:
        if isinstance(x, float):
            return ctypes.c_double(x)
        if isinstance(x, list):
            return (ctypes.c_void_p * max(len(x), 1))(*(y if y is None else passed(y) for y in x))
        return ctypes.c_void_p(x.ctypes.data) if isinstance(x, np.ndarray) else ctypes.c_int64(x)

    text = ctypes.create_string_buffer(200)
    call = getattr(native().library, f"tropical_{name}_now")
    if call(*map(passed, given), text):
        raise BackendFailure(
            where=f"native kernel {target(name)}",
            given=text.value.decode() or "no memory for what lies between operands and results",
            needed="a payload and arrays that fit it, and room for what lies between",
        )


def doctor() -> str:
    """One line for `python -m tenferro_jax doctor`."""
    return str(native())


def is_on_host(*tables: np.ndarray | jax.Array) -> bool:
    """Whether arrays are concrete, in the memory of this process and put nowhere on purpose."""
    kinds = set(map(type, tables))  # few, of thousands of tables
    if any(issubclass(kind, jax.core.Tracer) for kind in kinds):
        return False
    of_jax = tuple(kind for kind in kinds if issubclass(kind, jax.Array))
    arrays: list[Any] = [x for x in tables if isinstance(x, of_jax)]
    if any(x.committed for x in arrays):
        return False
    devices = set[Any]().union(*(sharding.device_set for sharding in {x.sharding for x in arrays}))
    return all(device.platform == "cpu" for device in devices)
