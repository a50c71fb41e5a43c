"""Mosaic GPU, Pallas's backend for GPUs: whether it is available, and whether the cards can run the
kernel, checked at first use.

`import ext_tropical` does not load it, which would take a third of a second more even without a
card.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any, NamedTuple

import jax

HOPPER = 9.0
"""The first compute capability whose copy engine fills shared memory in blocks of several axes,
which the kernel needs.
"""


class Backend(NamedTuple):
    """The state of the backend.

    Attributes:
      pallas: jax.experimental.pallas, or None.
      module: its mosaic_gpu, or None.
      problem: why the kernel cannot be compiled, or "".
    """

    pallas: Any
    module: Any
    problem: str


@functools.cache
def backend() -> Backend:
    """Load the backend, once.

    Example:
      >>> (backend().module is None) == bool(backend().problem)
      True
    """
    if jax.__version_info__ < (
        0,
        11,
    ):  # 0.10 has no public way to run such a kernel without a card, so none to test it
        return Backend(None, None, f"it needs JAX 0.11 or newer, and this is {jax.__version__}")
    try:
        pallas, module = map(
            importlib.import_module,
            ("jax.experimental.pallas", "jax.experimental.pallas.mosaic_gpu"),
        )
    except ImportError as error:
        return Backend(None, None, f"Mosaic GPU is missing: {error}")
    return Backend(pallas, module, "")


def problem_of_cards(devices: list[Any]) -> str:
    """Why a card cannot run the kernel, or "".

    Example:
      >>> problem_of_cards([])
      ''
    """
    old = [
        d.device_kind for d in devices if float(getattr(d, "compute_capability", HOPPER)) < HOPPER
    ]
    return f"it needs compute capability {HOPPER} or newer, and {old[0]} has less" if old else ""


@functools.cache
def cards() -> list[Any]:
    """The CUDA devices of this process; none if JAX does not have the platform."""
    try:
        return jax.devices("cuda")
    except RuntimeError:
        return []


def problem() -> str:
    """Why the kernel is not used here, or ""."""
    return backend().problem or problem_of_cards(cards())


def doctor() -> str:
    """One line for `python -m tenferro_jax doctor`."""
    why = problem() or ("" if cards() else "JAX has no CUDA device here")
    return f"GPU kernel: off ({why})" if why else "GPU kernel: on"
