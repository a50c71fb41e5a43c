"""A number that scores have in common. Added to other scores, a large one would cost these their
digits, so sums of exponentials are taken without it.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType

import jax
import jax.numpy as jnp
import numpy as np


def shared_number(
    xp: ModuleType, x: jax.Array, axes: Sequence[int], banded: bool = False
) -> jax.Array:
    """What all finite entries have in common, over some axes, which are kept: the greatest if all
    lie below 0, the least if all lie above, else 0; a constant for derivatives. 0 also if there is
    none or a NaN, and in 16 bits, where differences are rounded.

    No entry is further from this number than from 0, so none loses digits.

    Args:
      xp: NumPy, or jax.numpy.
      x: (...), floats.
      axes: which are looked through.
      banded: whether entries below the diagonal of the last two axes do not count.
    """
    over = tuple(axes)
    if x.dtype.itemsize < 4:
        return xp.zeros_like(x.max(over, keepdims=True))
    if xp is jnp:
        x = jax.lax.stop_gradient(x)
    infinity = xp.asarray(xp.inf, x.dtype)
    if banded:  # entries of states below 0 have no influence
        row, column = (xp.arange(n, dtype=xp.int32) for n in x.shape[-2:])
        x = xp.where(row[:, None] <= column, x, -infinity)
    greatest = x.max(over, keepdims=True)
    if xp is np and (greatest < 0).all():
        found = greatest
    else:
        least = xp.where(x == -infinity, infinity, x).min(over, keepdims=True)
        found = xp.where(greatest < 0, greatest, xp.maximum(least, xp.zeros_like(least)))
    return xp.where(xp.isfinite(found), found, xp.zeros_like(found))
