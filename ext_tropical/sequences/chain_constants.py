"""Numbers that all scores of a chain's array share. In sums over sequences they would cost the
digits of the scores that they are added to; the scores of a time's emission are taken from their
greatest one by the ops themselves.
"""

from __future__ import annotations

from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np

from ..native.library import is_on_host
from ..steps.shared_number import shared_number
from .chain_inputs import Inputs

SMALL_NUMBER = 16.0
"""One that costs the scores to which it is added at most 1e-6 of a probability in float32."""


def are_small(inputs: Inputs, final: jax.Array | None) -> bool:
    """Whether the scores are on the host, and the numbers that `without_shared` would take away are
    small: they are no further from 0 than any entry.
    """
    scores = [inputs.initial, inputs.moves]
    if final is not None:
        scores += [final, inputs.seen]
    if not all(map(is_on_host, scores)):
        return False
    first = [np.asarray(x)[..., 0] for x in scores]
    first[1] = first[1][..., 0]
    return all((abs(x) <= SMALL_NUMBER).all() for x in first)


def without_shared(
    inputs: Inputs, final: jax.Array | None, is_banded: bool
) -> tuple[Inputs, jax.Array | None, jax.Array]:
    """The scores less what the entries of each array share, and the sum of what was taken away.
    What is seen is changed only if there are final scores, which are added to it. All in NumPy, or
    all in JAX.

    Args:
      inputs: of a chain, with leading axes.
      final: (..., S), or None.
      is_banded: whether the moves are a band's.
    """
    is_numpy = all(isinstance(x, np.ndarray) for x in jax.tree.leaves((inputs, final)))
    xp: ModuleType = np if is_numpy else jnp
    times, steps = inputs.seen.shape[-2], inputs.moves.shape[-3]
    length = xp.expand_dims(xp.int32(times) if inputs.length is None else inputs.length, -1)
    start = shared_number(xp, inputs.initial, (-1,))
    move = shared_number(xp, inputs.moves, (-2, -1), is_banded)
    each = move[..., 0, 0]
    if steps == 1:
        shared = (each * (length - 1).astype(each.dtype)).sum(-1)
    else:
        shared = _summed(xp, each, length - 1)
    shared = shared + start[..., 0]
    inputs = inputs._replace(initial=inputs.initial - start, moves=inputs.moves - move)
    if final is None:
        return inputs, final, shared
    end = shared_number(xp, final, (-1,))
    seen = shared_number(xp, inputs.seen, (-1,))
    shared = shared + end[..., 0] + _summed(xp, seen[..., 0], length)
    return inputs._replace(seen=inputs.seen - seen), final - end, shared


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
