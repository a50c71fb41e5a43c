"""The best entry of each segment of a vector, with winners: whose gradient goes to the winner."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, ShapeError, typed_call
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, require_integers

from ..arguments import inside, require_size
from ..semirings.semiring import SelectiveSemiring
from ..semirings.shipped import max_plus, min_plus


class Segments(NamedTuple):
    """The best entry of each segment.

    Attributes:
      value: (num_segments,); the semiring's zero if the segment has no entry.
      winner: int32 (num_segments,), the number of the first entry that has this value; -1 if there
        is none.
    """

    value: jax.Array
    winner: jax.Array


@typed_call
def segment_max(data: ArrayLike, segment_ids: ArrayLike, num_segments: int) -> Segments:
    """As jax.ops.segment_max, with winners; the gradient goes to the winner alone.

    Args:
      data: (E,), floats or integers; for more axes `jax.vmap`.
      segment_ids: integers (E,); entries outside 0..num_segments - 1 are left out.
      num_segments: how many there are.

    Returns:
      Segments. The value is NaN, and the winner the first NaN, where a segment has one.

    Raises:
      ShapeError, DTypeError: arrays that do not fit.
      InvalidConfig: num_segments is no integer, or negative.

    Cost: two scatters of E entries.

    Example:
      >>> print(*segment_max(jnp.array([1.0, 4.0, 4.0, 2.0]), jnp.array([0, 1, 1, 0]), 3))
      [  2.   4. -inf] [ 3  1 -1]
    """
    return _segments("segment_max", data, segment_ids, num_segments, max_plus)


@typed_call
def segment_min(data: ArrayLike, segment_ids: ArrayLike, num_segments: int) -> Segments:
    """As `segment_max`, for the least entries.

    Args:
      data: (E,), as in `segment_max`.
      segment_ids: (E,), as in `segment_max`.
      num_segments: a Python int.

    Example:
      >>> print(*segment_min(jnp.array([1, 4, 2]), jnp.array([0, 1, 0]), 2))
      [1 4] [0 1]
    """
    return _segments("segment_min", data, segment_ids, num_segments, min_plus)


def is_real(dtype: np.dtype) -> bool:
    """Whether a dtype is one of floats or integers."""
    return any(jax.dtypes.issubdtype(dtype, kind) for kind in (np.integer, np.floating))


def _segments(
    where: str, data: ArrayLike, ids: ArrayLike, count: int, semiring: SelectiveSemiring
) -> Segments:
    values = jnp.asarray(as_array(data, f"{where}, data"))
    places = jnp.asarray(as_array(ids, f"{where}, segment_ids"))
    require_integers(f"{where}, segment_ids", places)
    if values.dtype != bool and not is_real(values.dtype):
        raise DTypeError(
            where=f"{where}, data", given=values.dtype.name, needed="floats or integers"
        )
    size: Any = count
    if not jax.export.is_symbolic_dim(size):
        size = require_size(f"{where}, num_segments", count)
    if values.ndim != 1 or values.shape != places.shape:
        raise ShapeError(
            where=where,
            given=f"data {values.shape}, segment_ids {places.shape}",
            needed="two arrays (E,)",
            fix="For more axes use jax.vmap.",
        )
    return on_automatic_axes(best_of)(values, places, count=size, semiring=semiring)


def best_of(
    values: jax.Array, places: jax.Array, count: int, semiring: SelectiveSemiring
) -> Segments:
    """The winners by two scatters; values are gathered there, which is their derivative, too."""
    zero, most = jnp.asarray(semiring.zero(values.dtype)), np.int32(2**31 - 1)
    if values.shape == (0,):  # with an entry that is left out
        values, places = jnp.full(1, zero), jnp.full(1, -1)
    places = inside(places, count, count)
    known = jax.lax.stop_gradient(values)
    cells = jnp.full(count, semiring.identity(values.dtype), values.dtype).at[places]
    best = (cells.max if semiring.reduction == "max" else cells.min)(known, mode="drop")
    # NaN is looked for apart, because not every platform's scatter keeps it.
    number = jnp.arange(values.shape[0], dtype=np.int32)
    wins = jnp.where(known == jnp.append(best, zero)[places], number, most)
    rank = jnp.where(known != known, number - most, wins)  # before all others
    first = jnp.full(count, most).at[places].min(rank, mode="drop")
    winner = jnp.where(first == most, -1, jnp.where(first < 0, first + most, first))
    return Segments(jnp.where(winner < 0, zero, values[jnp.maximum(winner, 0)]), winner)
