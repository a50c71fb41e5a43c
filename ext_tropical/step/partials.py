"""Partial derivatives of the "times" of a semiring."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from ..algebra.semiring import Semiring


def derivative(times: Callable[..., jax.Array], word: str) -> Callable[..., jax.Array]:
    """The mixed partial derivative of an elementwise function of two arguments, along "l" and "r"
    in turn.
    """
    if not word:
        return times
    lower, at = derivative(times, word[:-1]), "lr".index(word[-1])

    def along(*operands: jax.Array) -> jax.Array:
        x = operands[at]
        return jax.jvp(
            lambda x: lower(*operands[:at], x, *operands[at + 1 :]), (x,), (jnp.ones_like(x),)
        )[1]

    return along


@functools.lru_cache(maxsize=256)
def vanishes(semiring: Semiring, partial: str) -> bool:
    """Whether a derivative of times is zero everywhere, as far as JAX sees: under max_plus every
    second one.
    """
    (out,) = jax.make_jaxpr(derivative(semiring.times, partial))(1.0, 1.0).jaxpr.outvars
    return getattr(out, "val", None) == 0.0
