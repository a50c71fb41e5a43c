"""Derivatives of graphs. JAX differentiates; the result is read back into the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .errors import InvalidConfig
from .extension import ExtensionRuleSet
from .graph.graph import Graph, require_graph
from .trace.trace import trace


def grad(graph: Graph, argnums: int | Sequence[int] = 0, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The gradient of a scalar graph with respect to some of its arguments, as a graph of the same arguments.

    Args:
      graph: a graph with one floating output of shape ().
      argnums: which arguments, as in jax.grad.
      rules: AD rules for the extensions, in place of those that the graph carries.

    Raises:
      InvalidConfig: no graph, no scalar floating output, or arguments that are not there or not floating.
      ADRuleError: an extension on the way has no rule.
      Unsupported: the derivative needs a primitive that the vocabulary lacks, or a custom derivative was inlined.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> square = trace(lambda x: (x * x).sum(), jax.ShapeDtypeStruct((3,), jnp.float32))
      >>> grad(square).to_jax()(jnp.arange(3.0)).tolist()
      [0.0, 2.0, 4.0]
    """
    fn = _function(graph, rules)
    outputs = graph.output_metas
    if len(outputs) != 1 or outputs[0].shape != () or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        given = f"outputs {', '.join(map(str, outputs)) or 'none'}"
        raise InvalidConfig(where="grad", given=given, needed="one floating output of shape ()", fix="Reduce it first, or use vjp.")
    count = len(graph.input_specs)
    chosen: tuple[Any, ...] = (argnums,) if isinstance(argnums, int) else tuple(argnums) if isinstance(argnums, Sequence) else ()
    if not isinstance(argnums, str):
        chosen = tuple(i + count if isinstance(i, int) and -count <= i < 0 else i for i in chosen)
    if not chosen or isinstance(argnums, str) or len(set(chosen)) < len(chosen) or not set(chosen) <= set(range(count)):
        needed = f"one or more of {list(range(count))}, each once"
        raise InvalidConfig(where="grad", given=f"argnums={argnums!r}", needed=needed, fix="Name arguments of the graph.")
    for leaf in jax.tree.leaves([graph.input_specs[i] for i in chosen]):
        if not jnp.issubdtype(leaf.dtype, jnp.floating):
            raise InvalidConfig(
                where="grad", given=f"an argument of dtype {leaf.dtype}", needed="floating arguments", fix="Choose other argnums."
            )
    return _derived(graph, jax.grad(fn, chosen[0] if isinstance(argnums, int) else chosen), *graph.input_specs)


def jvp(graph: Graph, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., tangents...) -> (outputs, output tangents).

    Args:
      graph: a graph of floating inputs.
      rules: AD rules for the extensions, in place of those that the graph carries.

    Raises:
      ADRuleError, Unsupported: as `grad`.

    Example:
      >>> import jax.numpy as jnp
      >>> square = trace(lambda x: x * x, jnp.float32(0))
      >>> [float(x) for x in jvp(square).to_jax()(jnp.float32(3), jnp.float32(1))]
      [9.0, 6.0]
    """
    fn = _function(graph, rules)
    count = len(graph.input_specs)
    return _derived(graph, lambda *both: jax.jvp(fn, both[:count], both[count:]), *graph.input_specs, *graph.input_specs)


def vjp(graph: Graph, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., output cotangents) -> (outputs, argument cotangents).

    Args:
      graph: a graph of floating inputs and outputs; the cotangents are one argument, nested as the output.
      rules: AD rules for the extensions, in place of those that the graph carries.

    Raises:
      ADRuleError, Unsupported: as `grad`.

    Example:
      >>> import jax.numpy as jnp
      >>> product = trace(lambda x, y: x * y, jnp.float32(0), jnp.float32(0))
      >>> value, (to_x, to_y) = vjp(product).to_jax()(jnp.float32(3), jnp.float32(5), jnp.float32(1))
      >>> float(value), float(to_x), float(to_y)
      (15.0, 5.0, 3.0)
    """
    fn = _function(graph, rules)

    def run(*both: Any) -> Any:
        outs, pullback = jax.vjp(fn, *both[:-1])
        return outs, pullback(both[-1])

    return _derived(graph, run, *graph.input_specs, graph.output_specs)


def _function(graph: Graph, rules: ExtensionRuleSet | None) -> Callable[..., Any]:
    require_graph(graph, "a derivative of a graph")
    return (graph if rules is None else graph.with_rules(rules)).with_guards(()).to_jax()


def _derived(graph: Graph, fn: Callable[..., Any], *specs: Any) -> Graph:
    """A function made of a graph's, as a graph that keeps its guards also where the ops that assumed them are gone."""
    derived = trace(fn, *specs)
    return derived.with_guards((*graph.guards, *derived.guards)) if graph.guards else derived
