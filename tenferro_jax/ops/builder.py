"""One protocol to emit ops, so that a lowering or an AD rule is written once.

`JaxBuilder` runs what it is given, on arrays or tracers; `tenferro_jax.GraphBuilder` records it in a graph.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .op import StdTensorOp, call


class Builder(Protocol):
    """Where `lower_to_standard_ops` and AD rules emit. Values are opaque, but have `.shape` and `.dtype`."""

    def add(self, op: Any, *values: Any) -> tuple[Any, ...]:
        """Emit one op; returns its outputs as a tuple."""

    def inline(self, fn: Callable[..., Any], *values: Any) -> Any:
        """Emit what a JAX function of arrays does; a graph refuses a primitive that the vocabulary lacks."""


class JaxBuilder:
    """Emits into JAX: every op runs, or is traced, at once."""

    def add(self, op: StdTensorOp, *values: Any) -> tuple[Any, ...]:
        """Apply one op."""
        return call(op, values)

    def inline(self, fn: Callable[..., Any], *values: Any) -> Any:
        """Call the function."""
        return fn(*values)
