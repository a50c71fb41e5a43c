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
from typing import Any, NamedTuple

import jax
import numpy as np

from tenferro_jax.errors import BackendFailure

TARGET = "tenferro-ext-tropical.einsum.v1"
"""The name of the custom call of a step."""

AT_WINNER = "tenferro-ext-tropical.at_winner.v1"
"""The name of the custom call that adds cells at their winners."""

NETWORK_TARGET = "tenferro-ext-tropical.network.v1"
"""The name of the custom call of a network."""

ROWS = "tenferro-ext-tropical.rows.v1"
"""The name of the custom call that cuts an array into rows."""

ALIGN = "tenferro-ext-tropical.align.v1"
"""The name of the custom call of alignments."""

CHAIN = "tenferro-ext-tropical.chain.v1"
"""The name of the custom call of chains."""

PATHS = "tenferro-ext-tropical.shortest_paths.v1", "tenferro-ext-tropical.tree_sums.v1"
"""The names of the custom calls of shortest paths, and of sums along their trees."""

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
        for target in (TARGET, AT_WINNER, NETWORK_TARGET, ROWS, ALIGN, CHAIN, *PATHS):
            handler = getattr(library, f"tropical_{target.split('.')[1]}")
            jax.ffi.register_ffi_target(target, jax.ffi.pycapsule(handler), platform="cpu")
    except (OSError, AttributeError, RuntimeError) as error:  # JaxRuntimeError is a RuntimeError
        return Native((), f"{FILE} cannot be used: {' '.join(str(error).split())}")
    return Native(tuple(instructions), "", library)


def now(target: str, *given: float | np.ndarray | list[Any]) -> None:
    """Make the call of a target outside XLA: with int64 and double numbers, pointers to arrays, and
    arrays of such pointers.

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
    call = getattr(native().library, f"tropical_{target.split('.')[1]}_now")
    if call(*map(passed, given), text):
        raise BackendFailure(
            where=f"native kernel {target}",
            given=text.value.decode() or "no memory for what lies between operands and results",
            needed="a payload and arrays that fit it, and room for what lies between",
        )


def doctor() -> str:
    """One line for `python -m tenferro_jax doctor`."""
    return str(native())
