"""Scores less constants, which change no probability. Sums of small numbers keep the digits that a
large one among them would cost. Where one op computes the value of a network, it takes away by
itself what the entries of a table share.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes

from ..arguments import are_numbers, widened
from ..einsums.call import best_assignment
from ..native.library import is_on_host
from ..networks.walk import NetworkEntries
from ..steps.cut import cut_all
from ..steps.labels import Labels
from ..steps.shared_number import shared_number
from .factors import Factors

F = TypeVar("F", bound=Factors)
Array: TypeAlias = Any
"""An array of NumPy or JAX."""


SMALL_SUM = 512.0
"""The most that scores / temperature may add up to as they are: float32 rounds such a sum by at
most 3e-5, and so it does a probability."""


def without_shared(tables: Sequence[Array]) -> tuple[list[Any], Any]:
    """Tables, of which those of 16 bits are widened, each less what its finite entries have in
    common, see `shared_number`; and the sum of what was taken away.
    """
    wide = _widened(tables)
    return less(wide, list(map(_shared, wide)))


def _shared(x: Array) -> Any:
    if _is_jax(x):
        return jnp.reshape(shared_number(jnp, x, range(x.ndim)), ())
    least, greatest = _bounds(x)
    if greatest < 0:
        return greatest
    if least == -math.inf:
        least = x.min(where=x > least, initial=math.inf)
    return max(least, x.dtype.type(0))


def _bounds(x: np.ndarray) -> tuple[Any, Any]:
    """The least and the greatest entry. Methods of arrays take twice as long for a small one."""
    return np.minimum.reduce(x, axis=None), np.maximum.reduce(x, axis=None)


def from_best(net: F, temperature: float) -> tuple[F, Any]:
    """The network with each table less its score in one best assignment; and the best score, which
    is finite if there are probabilities.

    The sums of likely assignments are then near 0, also at a low temperature, and where all of them
    have one large score, as that of a constraint which none meets. Tables of which no sum is large
    stay as they are, and the score is another finite one.
    """
    tables = _widened(net.tables)
    if not any(map(_is_jax, tables)) and have_small_sums(tables, temperature):
        has_wide = net.tables[0].dtype.itemsize >= 4
        return net if has_wide else net.like(net.scopes, tables), tables[0].dtype.type(0)
    still = [jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x for x in tables]
    score, labels, _ = net.like(net.scopes, still).answered(best_assignment)
    return net.like(net.scopes, less(tables, _entries(net, still, labels))[0]), score


def _entries(net: Factors, tables: Sequence[Array], labels: Labels) -> Sequence[Array]:
    """The entry of each table at an assignment."""
    letters = {name: get_symbol(number) for number, name in enumerate(net.variables)}
    terms = ["".join(map(letters.__getitem__, scope)) for scope in net.scopes]
    if is_on_host(labels.array) and not any(map(_is_jax, tables)):
        known = labels.tolist()
        places = [tuple(map(known.__getitem__, term)) for term in terms]
        return [x[place] for x, place in zip(tables, places, strict=True)]
    if not are_numbers(tables) or not letters:
        indices = [[*map(labels.__getitem__, term)] for term in terms]
        return [_entry(x, index) for x, index in zip(tables, indices, strict=True)]
    # One op. XLA takes some 20 ms to compile an index of each table, which is cut from all labels.
    sizes = tuple(zip(letters.values(), net.variables.values(), strict=True))
    op = NetworkEntries(",".join(terms), "", sizes)

    def at(array: jax.Array, *tables: jax.Array) -> Sequence[jax.Array]:
        (found,) = apply(op, jnp.maximum(array, 0), *tables)  # -1 if there is no assignment
        return cut_all(found, range(len(terms)), [()] * len(terms))

    return on_automatic_axes(at)(labels.array, *tables)


def have_small_sums(tables: Sequence[np.ndarray], temperature: float) -> bool:
    """Whether all scores are finite, and no sum of them is large. Of infinities and NaN it is."""
    limit = SMALL_SUM * temperature
    flat = np.concatenate([x.reshape(-1) for x in tables])
    if float(abs(flat).max()) * len(tables) <= limit:
        return True
    bounds = map(_bounds, tables)
    return sum(max(-float(least), float(greatest)) for least, greatest in bounds) <= limit


def _widened(tables: Sequence[Array]) -> list[Any]:
    """Tables in the dtype of computation; in NumPy if all are on the host, for each table would
    take several programs otherwise.
    """
    wide = list(map(widened, tables))
    return list(map(np.asarray, wide)) if is_on_host(*wide) else wide


def _is_jax(x: Array) -> bool:
    return isinstance(x, jax.Array)


def _entry(table: Array, at: Sequence[Array]) -> Any:
    """The entry of a table at an index."""
    return on_automatic_axes(lambda x, *at: jnp.asarray(x).at[at].get(mode="clip"))(table, *at)


def less(tables: Sequence[Array], numbers: Sequence[Array]) -> tuple[list[Any], Any]:
    """Each table less a number, where that is finite; and the sum of these numbers."""
    taken = [_finite(x) for x in numbers]
    moved = [
        x if isinstance(n, np.generic) and n == 0 else x - n
        for x, n in zip(tables, taken, strict=True)
    ]
    return moved, sum(taken)


def _finite(x: Array) -> Any:
    """A number, or 0."""
    if isinstance(x, np.generic):
        return x if math.isfinite(x) else x.dtype.type(0)
    return jnp.where(jnp.isfinite(x), x, 0).astype(x.dtype)
