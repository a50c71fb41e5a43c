"""python -m tenferro_jax doctor"""

from __future__ import annotations

import argparse
import importlib.metadata

import jax

from ..version import __version__
from .shared import OK, show


def doctor(chosen: argparse.Namespace) -> int:
    """Print what JAX says of its environment, and a line of each package that has the entry point
    "tenferro_jax.doctor".
    """
    show(f"tenferro_jax {__version__}")
    show(jax.print_environment_info(return_string=True) or "")
    for point in sorted(importlib.metadata.entry_points(group="tenferro_jax.doctor")):
        show(f"{point.name}: {point.load()()}")
    return OK
