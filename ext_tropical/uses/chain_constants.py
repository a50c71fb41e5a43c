"""Numbers that all scores of a chain's array share. In sums over sequences they would cost the
digits of the scores that they are added to; the scores of a time's emission are taken from their
greatest one by the ops themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np


def without_shared(
    initial: jax.Array,
    transition: jax.Array,
    emission: jax.Array,
    final: Sequence[jax.Array],
    lengths: Sequence[jax.Array],
    *,
    banded: bool,
) -> tuple[list[jax.Array], jax.Array]:
    """The first four, less what their entries share, the emission only if there are final scores,
    which are added to it; and the sum of what was taken away. All in NumPy, or all in JAX.

    Args:
      initial: as in `Chain`.
      transition: (..., R, K, S).
      emission: (..., T, S).
      final: (..., S), or none.
      lengths: (...), or none.
      banded: as in `Chain`.
    """
    given = initial, transition, emission, *final, *lengths
    xp: ModuleType = np if all(isinstance(x, np.ndarray) for x in given) else jnp
    times, steps = emission.shape[-2], transition.shape[-3]
    length = xp.expand_dims(lengths[0] if lengths else xp.int32(times), -1)
    ends = [shared_number(xp, x, 1) for x in (initial, *final)]
    move = shared_number(xp, transition, 2, banded)
    arrays = [initial - ends[0], transition - move, emission]
    each = move[..., 0, 0]
    if steps == 1:
        shared = (each * (length - 1).astype(each.dtype)).sum(-1)
    else:
        shared = _summed(xp, each, length - 1)
    for x in ends:
        shared = shared + x[..., 0]
    if final:
        seen = shared_number(xp, emission, 1)
        arrays[2] = emission - seen
        shared = shared + _summed(xp, seen[..., 0], length)
        arrays.append(final[0] - ends[1])
    return arrays, shared


def with_shared(score: jax.Array, shared: jax.Array) -> jax.Array:
    """The score of all sequences, with what was taken away."""
    if isinstance(shared, jax.Array) or isinstance(score, jax.core.Tracer):
        return score + jnp.broadcast_to(shared, score.shape)
    return jax.device_put(np.asarray(score) + shared)  # nothing is compiled


def shared_number(xp: ModuleType, x: jax.Array, axes: int, banded: bool = False) -> jax.Array:
    """The finite entry that is nearest to 0, over so many last axes, which are kept: a constant for
    derivatives. No entry is more than twice as far from it as from 0. 0 if there is none, and in 16
    bits, where differences are rounded.
    """
    over = tuple(range(x.ndim - axes, x.ndim))
    if x.dtype.itemsize < 4:
        return xp.zeros([*x.shape[: x.ndim - axes], *[1] * axes], x.dtype)
    if xp is jnp:
        x = jax.lax.stop_gradient(x)
    counts = xp.isfinite(x)
    if banded:  # entries of states below 0 have no influence
        row, column = (xp.arange(n, dtype=xp.int32) for n in x.shape[-2:])
        counts &= row[:, None] <= column
    far = xp.asarray(xp.inf, x.dtype)
    least = xp.where(counts, abs(x), far).min(over, keepdims=True)
    is_positive = (counts & (x == least)).any(over, keepdims=True)
    return xp.where(least < far, xp.where(is_positive, least, -least), xp.zeros_like(far))


def _summed(xp: ModuleType, x: jax.Array, count: jax.Array) -> jax.Array:
    """The sum of so many first entries of the last axis."""
    time = xp.arange(x.shape[-1], dtype=xp.int32)
    return xp.where(time < count, x, xp.zeros_like(x)).sum(-1)
