"""Forms of arrays that more than one recurrence over sequences needs."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp


def diagonals(x: jax.Array, width: int) -> jax.Array:
    """x[r, r + k] at [r, k], for k below the width: without a gather, whose transpose is slow."""
    rows, columns = x.shape
    return jnp.pad(x.reshape(-1), (0, rows)).reshape(rows, columns + 1)[:, :width]


def folded(
    op: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, neutral: jax.Array
) -> jax.Array:
    """One value of the entries of a vector, by halves."""
    while x.shape[0] > 1:
        if x.shape[0] % 2:
            x = jnp.append(x, neutral)
        x = op(x[::2], x[1::2])
    return x[0]
