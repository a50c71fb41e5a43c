"""NaN, where XLA on CPU loses it or is slow to look for it."""

from __future__ import annotations

import functools
import operator
from typing import Any

import jax.numpy as jnp


def with_nan(value: Any, candidates: Any, axis: int) -> Any:
    """NaN where a candidate is NaN. XLA CPU's own maximum of floats loses NaN for some shapes, where it is vectorised."""
    if not jnp.issubdtype(candidates.dtype, jnp.floating):
        return value
    return jnp.where(jnp.any(candidates != candidates, axis), jnp.asarray(jnp.nan, value.dtype), value)


def are_finite(*arrays: Any) -> Any:
    """Whether all entries of floating arrays are finite: a sum of zeros is quicker than a look at each entry.

    Example:
      >>> bool(are_finite(jnp.ones(3), jnp.array([1.0, jnp.inf])))
      False
    """
    return functools.reduce(operator.and_, (jnp.sum(x * 0) == 0 for x in arrays))
