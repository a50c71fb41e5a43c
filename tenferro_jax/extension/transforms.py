"""Transforms of functions, as ops and what calls them need them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from .. import jax_seam
from ..jax_seam import recomputed as recomputed

P = ParamSpec("P")
T = TypeVar("T")


def on_automatic_axes(
    fn: Callable[P, T], spec: Callable[..., jax.P] | None = None
) -> Callable[P, T]:
    """fn, on meshes with explicit axes too: inside it they are automatic, so that every op is
    defined. Without such a mesh it is called as it is.

    Args:
      fn: a function of pytrees, which returns a pytree; keyword arguments stay as they are.
      spec: of the operands, the spec of the first result on the explicit axes, and of others of its
        shape; all else is on all devices.
    """

    @functools.wraps(fn)
    def call(*operands: P.args, **how: P.kwargs) -> T:
        tree: Any = None

        def flat(*moved: Any) -> list[Any]:
            nonlocal tree
            leaves, tree = jax.tree.flatten(fn(*moved, **how))
            return leaves

        def places(outs: Sequence[jax.Array]) -> list[jax.P | None]:
            place, shape = spec(*operands) if spec else None, jnp.shape(outs[0])
            return [place if jnp.shape(out) == shape else None for out in outs]

        leaves = jax_seam.run_on_automatic_axes(flat, operands, places)
        return jax.tree.unflatten(tree, leaves)

    return call
