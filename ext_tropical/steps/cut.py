"""Parts of a flat array."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

CUT_TOGETHER = 1 << 10
"""Entries at most of a part that is cut out together with others."""


def cut(flat: jax.Array, start: int, shape: Sequence[int]) -> jax.Array:
    """The part of a flat array that begins there."""
    return lax.reshape(lax.slice(flat, (start,), (start + math.prod(shape),)), shape)


def cut_all(
    flat: jax.Array, starts: Sequence[int], shapes: Sequence[Sequence[int]]
) -> list[jax.Array]:
    """Parts of a flat array. XLA CPU compiles a function for each slice, which takes five times as
    long as one reduction of many slices: so small parts are added to zeros, 32 of a size at once.
    """
    sizes, zero = [*map(math.prod, shapes)], np.zeros((), flat.dtype)
    found: dict[int, jax.Array] = {}
    with_zeros = lax.optimization_barrier(jnp.stack([flat, jnp.zeros_like(flat)]))
    for size in dict.fromkeys(sizes):
        members = [i for i, own in enumerate(sizes) if own == size]
        for some in (members[first : first + 32] for first in range(0, len(members), 32)):
            if size > CUT_TOGETHER or len(some) == 1:
                parts = [lax.slice(flat, (starts[i],), (starts[i] + size,)) for i in some]
            else:
                pairs = [lax.slice(with_zeros, (0, starts[i]), (2, starts[i] + size)) for i in some]
                parts = lax.reduce(tuple(pairs), (zero,) * len(some), _added, (0,))
            found |= dict(zip(some, parts, strict=True))
    return [lax.reshape(found[i], shape) for i, shape in enumerate(shapes)]


def _added(x: Sequence[jax.Array], y: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
    return tuple(a + b for a, b in zip(x, y, strict=True))
