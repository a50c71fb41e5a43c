"""JAX function -> graph."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any

import jax

from ..errors import InvalidConfig, require_kind
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph, arguments
from ..shapes import PyTree, as_operand, require_x64_leaves


def trace(
    fn: Callable[..., PyTree],
    *specs: PyTree,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    **keyword_specs: PyTree,
) -> Graph:
    """Record a JAX-traceable function as a graph.

    Calls (jit, checkpoint, composite) are inlined, the recomputation of a checkpoint behind an
    OptimizationBarrier; scan, while and cond become control-flow ops with graphs as bodies;
    functions with a custom_jvp or custom_vjp keep their derivative as graphs beside their body;
    extensions are recorded as extensions, and the graph's rule set has all their AD rules.

    Args:
      fn: a function of pytrees of arrays.
      *specs: its arguments as pytrees of arrays or jax.ShapeDtypeStruct; dimensions may be
        symbolic.
      static_argnums: positions of arguments that are passed on as plain values and are not
        arguments of the graph.
      static_argnames: names of such arguments, whether they are passed by position or by keyword.
      **keyword_specs: keyword arguments; in the graph they are one dict, the last argument.

    Returns:
      The graph; `graph.to_jax()` is a function of the arguments that are not static.

    Raises:
      Unsupported: a primitive that no standard op covers; the text names it and its source line.
      InvalidConfig: not a function, or a static argument that does not exist.
      DTypeError: a 64-bit spec while 64-bit types are off.

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
    require_kind(
        fn, Callable, "trace", "a function of arrays", "Pass the function first, then its specs."
    )
    names = (static_argnames,) if isinstance(static_argnames, str) else tuple(static_argnames)
    static = _static_positions(fn, specs, keyword_specs, static_argnums, names)
    given = tuple(spec for i, spec in enumerate(specs) if i not in static)
    by_name = {name: spec for name, spec in keyword_specs.items() if name not in names}
    fixed = {name: value for name, value in keyword_specs.items() if name in names}
    leaves, in_tree = jax.tree.flatten(arguments(given, by_name))
    require_x64_leaves(leaves, "trace")
    builder = GraphBuilder()
    shaped = [
        x if hasattr(x, "dtype") and hasattr(x, "shape") else as_operand(x, "trace") for x in leaves
    ]
    inputs = [builder.input(jax.ShapeDtypeStruct(x.shape, x.dtype)) for x in shaped]
    trees: list[Any] = []

    def flat(*values: jax.Array) -> list[object]:
        args = list(jax.tree.unflatten(in_tree, values))
        kwargs = args.pop() if by_name else {}
        dynamic = iter(args)
        positional = (specs[i] if i in static else next(dynamic) for i in range(len(specs)))
        outs, tree = jax.tree.flatten(fn(*positional, **kwargs, **fixed))
        trees.append(tree)
        return outs

    outputs = builder.inline(flat, *inputs)
    return builder.build(outputs, in_tree, trees[-1])


def _static_positions(
    fn: Callable[..., PyTree],
    specs: tuple[PyTree, ...],
    by_name: dict[str, PyTree],
    argnums: int | Iterable[int],
    names: tuple[str, ...],
) -> set[int]:
    """Positions, from 0, of the static arguments among the specs."""
    count = len(specs)
    wanted = (argnums,) if isinstance(argnums, int) else tuple(argnums)
    positions = {i + count if isinstance(i, int) and i < 0 else i for i in wanted}
    if not positions <= set(range(count)):
        raise InvalidConfig(
            where="trace",
            given=f"static_argnums={argnums!r}",
            needed=f"positions among {list(range(count))}",
            fix="Count the positional arguments from 0.",
        )
    if names:
        try:
            parameters = list(inspect.signature(fn).parameters)
        except (TypeError, ValueError):  # a builtin
            parameters = []
        for name in names:
            if name in parameters[:count]:
                positions.add(parameters.index(name))
            elif name not in by_name:
                raise InvalidConfig(
                    where="trace",
                    given=f"static_argnames {name!r}",
                    needed=f"arguments that are given: "
                    f"{', '.join((*parameters[:count], *by_name)) or 'none'}",
                )
    return positions
