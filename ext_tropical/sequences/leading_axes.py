"""Functions of one chain or text, mapped over the leading axes of arrays."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax.errors import ShapeError
from tenferro_jax.extension.transforms import on_automatic_axes


def lead_of(where: str, arrays: Sequence[jax.Array], ranks: Sequence[int]) -> tuple[int, ...]:
    """The leading axes of arrays that have so many axes behind them."""
    leads = [x.shape[: x.ndim - n] for x, n in zip(arrays, ranks, strict=True)]
    try:
        return jnp.broadcast_shapes(*leads)
    except ValueError as error:
        raise ShapeError(
            where=where,
            given=f"leading axes {', '.join(map(str, leads))}",
            needed="leading axes that broadcast",
        ) from error


def mapped(where: str, run: Callable[..., Any], arrays: Sequence[jax.Array], *ranks: int) -> Any:
    """A function of one chain, mapped over the leading axes. An array is mapped over those that it
    has, so that what all chains share is there once.

    Args:
      where: for errors.
      run: the function, of arrays without leading axes.
      arrays: its arguments.
      *ranks: how many of the axes of each are no leading ones.
    """
    lead, kept, axes = lead_of(where, arrays, ranks), [], []
    for x, rank in zip(arrays, ranks, strict=True):
        own = (1,) * (len(lead) + rank - x.ndim) + x.shape[: x.ndim - rank]
        has = [size == whole for size, whole in zip(own, lead, strict=True)]
        kept.append((*itertools.compress(own, has), *x.shape[x.ndim - rank :]))
        axes.append([0 if there else None for there in has])
    for level in reversed([*zip(*axes, strict=True)]):
        run = jax.vmap(run, in_axes=level)

    def reshaped(*xs: jax.Array) -> Any:  # an operation on what is one already takes its time, too
        return run(*(x if x.shape == to else x.reshape(to) for x, to in zip(xs, kept, strict=True)))

    return on_automatic_axes(reshaped)(*arrays)
