"""python -m tenferro_jax doctor"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform

import jax

from ..version import __version__
from .shared import OK, show

_OPTIONAL = {
    "flatbuffers": "exported programs",
    "matplotlib": "pictures of the demo",
}


def doctor(chosen: argparse.Namespace) -> int:
    """Print one line for each fact; packages of extensions add lines by the entry point group
    "tenferro_jax.doctor".
    """
    show(f"Python {platform.python_version()}, tenferro_jax {__version__}, JAX {jax.__version__}")
    show(f"devices: {', '.join(str(device) for device in jax.devices())}")
    show(
        f"jaxlib {importlib.metadata.version('jaxlib')}, NumPy "
        f"{importlib.metadata.version('numpy')}, {platform.platform()}"
    )
    set_by = "JAX_ENABLE_X64" if "JAX_ENABLE_X64" in os.environ else "the default"
    # The default of a process, because this process has turned 64-bit types on.
    starts_with_x64 = os.environ.get("JAX_ENABLE_X64", "0").lower() in (
        "1",
        "true",
        "yes",
        "on",
        "t",
        "y",
    )
    show(
        f"64-bit types: {'on' if starts_with_x64 else 'off'} by {set_by}; "
        f"jax.config.update('jax_enable_x64', True) turns them on"
    )
    for name, use in _OPTIONAL.items():
        show(f"{name}: {_version(name) or f'not installed, no {use}'}")
    for point in sorted(
        importlib.metadata.entry_points(group="tenferro_jax.doctor"), key=lambda point: point.name
    ):
        show(f"{point.name}: {_reported(point)}")
    return OK


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _reported(point: importlib.metadata.EntryPoint) -> str:
    try:
        return str(point.load()())
    except Exception as error:  # of another package; the rest of the report is still printed
        return f"its report failed: {type(error).__name__}: {error}"
