"""Scores less constants, which change no probability. Sums of small numbers keep the digits that a
large one among them would cost.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from tenferro_jax.einsum.spread import on_automatic_axes

from ..network.tropical_einsum import best_assignment
from ..step.einsum_op import widened
from ..step.native.library import is_on_host
from .factors import Factors
from .variables import Variable

F = TypeVar("F", bound=Factors)
Array: TypeAlias = Any
"""An array of NumPy or JAX."""


def from_largest(tables: Sequence[Array]) -> tuple[list[Any], Any]:
    """Tables, of which those of 16 bits are widened, each less its largest score; and the sum of
    what was taken away.
    """
    wide = _widened(tables)
    tops = [jnp.max(jax.lax.stop_gradient(x)) if _is_jax(x) else x.max() for x in wide]
    return less(wide, tops)


def from_best(net: F) -> tuple[F, jax.Array]:
    """The network with each table less its score in one best assignment; and the best score, which
    is finite if there are probabilities.

    The sums of likely assignments are then near 0, also at a low temperature, and where all of them
    have one large score, as that of a constraint which none meets.
    """
    tables = _widened(net.tables)
    still = [jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x for x in tables]
    score, labels, _ = net.like(net.scopes, still).answered(best_assignment)
    is_known = is_on_host(score) and not any(map(_is_jax, tables))
    chosen: dict[Variable, Any] = {}
    for number, name in enumerate(net.variables):
        label = labels[get_symbol(number)]
        chosen[name] = int(label) if is_known else label
    pairs = zip(still, net.scopes, strict=True)
    entries = [entry(x, [chosen[name] for name in scope]) for x, scope in pairs]
    return net.like(net.scopes, less(tables, entries)[0]), score


def _widened(tables: Sequence[Array]) -> list[Any]:
    """Tables in the dtype of computation; in NumPy if all are on the host, for each table would
    take several programs otherwise.
    """
    wide = list(map(widened, tables))
    return list(map(np.asarray, wide)) if all(map(is_on_host, wide)) else wide


def _is_jax(x: Array) -> bool:
    return isinstance(x, jax.Array)


def entry(table: Array, at: Sequence[Array | int]) -> Any:
    """The entry of a table at an index."""
    if not _is_jax(table) and all(isinstance(i, int) for i in at):
        return table[tuple(at)]
    return on_automatic_axes(lambda x, *at: jnp.asarray(x).at[at].get(mode="clip"))(table, *at)


def less(tables: Sequence[Array], numbers: Sequence[Array]) -> tuple[list[Any], Any]:
    """Each table less a number, where that is finite; and the sum of these numbers."""
    taken = [_finite(x) for x in numbers]
    return [x - n for x, n in zip(tables, taken, strict=True)], sum(taken)


def _finite(x: Array) -> Any:
    """A number, or 0."""
    if isinstance(x, np.generic):
        return x if math.isfinite(x) else x.dtype.type(0)
    return jnp.where(jnp.isfinite(x), x, 0).astype(x.dtype)
