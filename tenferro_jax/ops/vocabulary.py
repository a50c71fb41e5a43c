"""The closed list of standard ops, module by module, and named sets of them. The tests sweep this
list.
"""

from __future__ import annotations

from types import ModuleType

from . import (
    analytic,
    arithmetic,
    contraction,
    control,
    conversion,
    indexing,
    linalg,
    logic,
    random,
    reduction,
    sorting,
    source,
    special,
    structural,
    window,
)
from .op import StdTensorOp

Ops = tuple[type[StdTensorOp], ...]


def _ops_of(module: ModuleType) -> Ops:
    """The op classes of a module, in its order; classes that start with an underscore are shared
    bases.
    """
    classes = (c for c in vars(module).values() if isinstance(c, type))
    ops = (c for c in classes if issubclass(c, StdTensorOp) and c.__module__ == module.__name__)
    return tuple(op for op in ops if op.__name__[0] != "_")


_MODULES: dict[str, ModuleType] = {
    "Arithmetic": arithmetic,
    "Analytic": analytic,
    "Special functions": special,
    "Comparison, selection, logic": logic,
    "Conversion": conversion,
    "Sources, gradient, compiler": source,
    "Structural": structural,
    "Contraction": contraction,
    "Reduction": reduction,
    "Window": window,
    "Sorting": sorting,
    "Indexing": indexing,
    "Linear algebra": linalg,
    "Random bits": random,
    "Control flow": control,
}
ROOMS: dict[str, Ops] = {title: _ops_of(module) for title, module in _MODULES.items()}
"""The ops by what they are about: the parts of docs/spec/ops.md."""

VOCABULARY = tuple(op for ops in ROOMS.values() for op in ops)
"""Every standard op."""

WITH_BODIES: tuple[type, ...] = (*ROOMS["Control flow"], reduction.Reduce, window.ReduceWindow)
"""Ops whose payload holds graphs."""
