"""Tangents and cotangents of which some are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax.shapes import Shaped


def tangent_of(
    fn: Callable[..., Any], primals: Sequence[jax.Array], tangents: Sequence[jax.Array | None]
) -> Any:
    """The tangent of fn(*primals), which is differentiated by the inputs that have a tangent."""
    inputs = [None if t is None else x for x, t in zip(primals, tangents, strict=True)]

    def moved(inputs: Sequence[jax.Array | None]) -> Any:
        return fn(*(x if m is None else m for x, m in zip(primals, inputs, strict=True)))

    return jax.jvp(moved, (inputs,), (list(tangents),))[1]


def filled(like: Sequence[Shaped], given: Sequence[jax.Array | None]) -> list[jax.Array]:
    """The given arrays, and zeros like others where there is none."""
    return [
        jnp.zeros(x.shape, x.dtype) if t is None else t for x, t in zip(like, given, strict=True)
    ]
