"""The standard tensor ops, each by its name: `from tenferro_jax.ops import Transpose`.

The files have the ops of one subject each; `vocabulary` collects all.
"""

import importlib
from typing import Any


def __getattr__(name: str) -> Any:
    """An op. All are imported at the first use, because most modules need the base class alone."""
    ops = importlib.import_module(f"{__name__}.vocabulary").VOCABULARY if name[:1].isupper() else ()
    for op in ops:
        if op.__name__ == name:
            return op
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name)
