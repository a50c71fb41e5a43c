"""Rewrites of graphs that XLA does not make itself. A rewrite stays only as long as a benchmark
shows that it helps.
"""

from __future__ import annotations

import dataclasses

from ..ops.contraction import DotGeneral
from ..ops.op import StdTensorOp
from .builder import GraphBuilder
from .graph import Graph, map_bodies, require_graph


def sort_dot_dimensions(graph: Graph) -> Graph:
    """Sort the contracted axes of every DotGeneral, if one order suits both operands.

    XLA for CPU takes the axes in the given order and copies operands whose axes descend; operands
    with ascending axes are read in place. The order of the sums changes, so float results may
    differ in the last bits; call this explicitly.

    Args:
      graph: a Graph; control-flow bodies are rewritten too.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from tenferro_jax import trace
      >>> spec = jax.ShapeDtypeStruct((4, 4, 4), jnp.float32)
      >>> graph = trace(lambda a, b: jax.lax.dot_general(a, b, (((2, 1), (1, 0)), ((), ()))), spec,
      ...     spec)
      >>> op = sort_dot_dimensions(graph).nodes[0].op
      >>> op.lhs_contracting, op.rhs_contracting
      ((1, 2), (0, 1))
    """
    require_graph(graph, "sort_dot_dimensions")
    builder = GraphBuilder()  # not map_ops: two nodes that become equal are one
    outputs = builder.splice(graph, list(map(builder.input, graph.input_metas)), _sorted)
    return builder.build(outputs, graph.in_tree, graph.out_tree)


def _sorted(op: StdTensorOp) -> StdTensorOp:
    if not isinstance(op, DotGeneral):
        return map_bodies(op, sort_dot_dimensions)
    pairs = sorted(zip(op.lhs_contracting, op.rhs_contracting, strict=True))
    lhs, rhs = (tuple(axes) for axes in zip(*pairs, strict=True)) if pairs else ((), ())
    return (
        dataclasses.replace(op, lhs_contracting=lhs, rhs_contracting=rhs)
        if rhs == tuple(sorted(rhs))
        else op
    )
