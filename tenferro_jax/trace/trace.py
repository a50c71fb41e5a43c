"""JAX function -> graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from ..errors import InvalidConfig
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from ..meta import require_x64_leaves


def trace(fn: Callable[..., Any], *specs: Any) -> Graph:
    """Record a JAX-traceable function as a graph.

    Calls (jit, custom_jvp, custom_vjp, checkpoint) are inlined; counted loops, while and cond become control-flow ops;
    extensions stay themselves and their AD rules are united into the graph's rule set.

    Args:
      fn: a function of pytrees of arrays.
      *specs: its arguments as pytrees of arrays or jax.ShapeDtypeStruct; dimensions may be symbolic.

    Returns:
      The graph; `graph.to_jax()` gives the function back.

    Raises:
      Unsupported: a primitive without a row; the text names it and the line that made it.
      X64Error: a 64-bit spec while 64-bit types are off.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> print(trace(lambda x: jnp.tanh(x) + 1, jax.ShapeDtypeStruct((2,), jnp.float32)))
      graph(%0: float32[2]) {
        %1 = Tanh(%0) : float32[2]
        %2 = Constant[value=1.0]() : float32[]
        %3 = BroadcastInDim[shape=(2,), dims=()](%2) : float32[2]
        %4 = Add(%1, %3) : float32[2]
        return %4
      }
    """
    if not callable(fn):
        raise InvalidConfig(where="trace", given=repr(fn), needed="a function of arrays", fix="Pass the function first, then its specs.")
    leaves, in_tree = jax.tree.flatten(specs)
    require_x64_leaves(leaves, "trace")
    builder = GraphBuilder()
    structs = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in map(_shaped, leaves)]
    inputs = [builder.input(s) for s in structs]
    trees: list[Any] = []

    def flat(*values: Any) -> list[Any]:
        outs, tree = jax.tree.flatten(fn(*jax.tree.unflatten(in_tree, values)))
        trees.append(tree)
        return outs

    outputs = builder.inline(flat, *inputs)
    return builder.build(outputs, in_tree, trees[-1])


def _shaped(leaf: Any) -> Any:
    return leaf if hasattr(leaf, "dtype") and hasattr(leaf, "shape") else jax.numpy.asarray(leaf)
