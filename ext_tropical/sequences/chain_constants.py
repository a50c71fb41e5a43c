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

from ..native.library import is_on_host
from ..steps.shared_number import shared_number

SMALL_NUMBER = 16.0
"""One that costs the scores to which it is added at most 1e-6 of a probability in float32."""


def are_small(
    initial: jax.Array, transition: jax.Array, emission: jax.Array, final: Sequence[jax.Array]
) -> bool:
    """Whether these arrays are on the host, and the numbers that `without_shared` would take away
    are small: they are no further from 0 than any entry.
    """
    given = [initial, transition, *final, *[emission] * len(final)]
    if not all(map(is_on_host, given)):
        return False
    first = [x[..., 0] for x in map(np.asarray, given)]
    first[1] = first[1][..., 0]
    return all((abs(x) <= SMALL_NUMBER).all() for x in first)  # also of no chains


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
    ends = [shared_number(xp, x, (-1,)) for x in (initial, *final)]
    move = shared_number(xp, transition, (-2, -1), banded)
    arrays = [initial - ends[0], transition - move, emission]
    each = move[..., 0, 0]
    if steps == 1:
        shared = (each * (length - 1).astype(each.dtype)).sum(-1)
    else:
        shared = _summed(xp, each, length - 1)
    for x in ends:
        shared = shared + x[..., 0]
    if final:
        seen = shared_number(xp, emission, (-1,))
        arrays[2] = emission - seen
        shared = shared + _summed(xp, seen[..., 0], length)
        arrays.append(final[0] - ends[1])
    return arrays, shared


def with_shared(score: jax.Array, shared: jax.Array | None) -> jax.Array:
    """The score of all sequences, with what was taken away."""
    if shared is None:
        return score
    if isinstance(shared, jax.Array) or isinstance(score, jax.core.Tracer):
        return score + jnp.broadcast_to(shared, score.shape)
    return jax.device_put(np.asarray(score) + shared)  # nothing is compiled


def _summed(xp: ModuleType, x: jax.Array, count: jax.Array) -> jax.Array:
    """The sum of so many first entries of the last axis."""
    time = xp.arange(x.shape[-1], dtype=xp.int32)
    return xp.where(time < count, x, xp.zeros_like(x)).sum(-1)
