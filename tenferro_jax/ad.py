"""Derivatives of graphs. JAX differentiates; the result is read back into the vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax

from .extension import ExtensionRuleSet
from .graph.graph import Graph
from .trace.trace import trace


def grad(graph: Graph, argnums: int | Sequence[int] = 0, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The gradient of a scalar graph with respect to some of its arguments, as a graph of the same arguments.

    Args:
      graph: a graph with one floating output of shape ().
      argnums: which arguments, as in jax.grad.
      rules: AD rules for the extensions, in place of those that the graph carries.

    Raises:
      ADRuleError: an extension on the way has no rule.
      Unsupported: the derivative needs a primitive that the vocabulary lacks.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> square = trace(lambda x: (x * x).sum(), jax.ShapeDtypeStruct((3,), jnp.float32))
      >>> grad(square).to_jax()(jnp.arange(3.0)).tolist()
      [0.0, 2.0, 4.0]
    """
    return trace(jax.grad(_function(graph, rules), argnums if isinstance(argnums, int) else tuple(argnums)), *graph.input_specs)


def jvp(graph: Graph, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., tangents...) -> (outputs, output tangents).

    Args:
      graph: any graph.
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
    return trace(lambda *both: jax.jvp(fn, both[:count], both[count:]), *graph.input_specs, *graph.input_specs)


def vjp(graph: Graph, *, rules: ExtensionRuleSet | None = None) -> Graph:
    """The graph of (arguments..., output cotangents) -> (outputs, argument cotangents).

    Args:
      graph: any graph; the cotangents are one argument, nested as the output.
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

    return trace(run, *graph.input_specs, jax.eval_shape(fn, *graph.input_specs))


def _function(graph: Graph, rules: ExtensionRuleSet | None) -> Callable[..., Any]:
    return (graph if rules is None else graph.with_rules(rules)).to_jax()
