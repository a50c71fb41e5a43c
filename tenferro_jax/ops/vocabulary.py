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
    return tuple(
        c
        for c in vars(module).values()
        if isinstance(c, type)
        and issubclass(c, StdTensorOp)
        and c.__module__ == module.__name__
        and c.__name__[0] != "_"
    )


ROOMS: dict[str, Ops] = {
    "Arithmetic": _ops_of(arithmetic),
    "Analytic": _ops_of(analytic),
    "Special functions": _ops_of(special),
    "Comparison, selection, logic": _ops_of(logic),
    "Conversion": _ops_of(conversion),
    "Sources, gradient, compiler": _ops_of(source),
    "Structural": _ops_of(structural),
    "Contraction": _ops_of(contraction),
    "Reduction": _ops_of(reduction),
    "Window": _ops_of(window),
    "Sorting": _ops_of(sorting),
    "Indexing": _ops_of(indexing),
    "Linear algebra": _ops_of(linalg),
    "Random bits": _ops_of(random),
    "Control flow": _ops_of(control),
}
"""The ops by what they are about: the parts of docs/spec/ops.md."""

VOCABULARY = tuple(op for ops in ROOMS.values() for op in ops)
"""Every standard op."""

WITH_BODIES: tuple[type, ...] = (*ROOMS["Control flow"], reduction.Reduce, window.ReduceWindow)
"""Ops whose payload holds graphs."""
