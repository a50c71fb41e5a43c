"""The call of a graph on arrays, and the error for arguments of another nesting."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

import jax

from ..dimensions import undecided
from ..errors import InvalidConfig, Unsupported, counted
from ..extension.carrier import Extension
from ..extension.primitive import apply
from ..jax_seam import graph_assumptions
from ..ops.op import call
from ..shapes import as_operand, meta_of, require_x64, x64_enabled
from .printing import leaf_names

if TYPE_CHECKING:
    from .graph import Graph


def called(graph: Graph, arrays: Sequence[jax.typing.ArrayLike]) -> tuple[jax.Array, ...]:
    """The flat outputs for flat inputs; errors as for `Graph.__call__`."""
    if len(arrays) != graph.input_count:
        raise InvalidConfig(
            where="Graph",
            given=counted(len(arrays), "input"),
            needed=f"{graph.input_count}: {', '.join(graph.input_names)}",
        )
    values = [as_operand(a, f"graph input {i}") for i, a in enumerate(arrays)]
    bound = graph.bound_metas([meta_of(value) for value in values])
    # An undecided guard goes to the graph that is being recorded.
    for guard in bound.guards:
        if graph_assumptions.value is None:
            raise undecided(guard.lhs, guard.rhs, f"Graph, from {guard.where}")
        graph_assumptions.value.append(guard)
    require_x64_values(graph)
    if graph.lost_rules:
        values = list(map(_not_to_be_differentiated(graph.lost_rules), values))
    for node in bound.nodes:
        inputs = [values[i] for i in node.inputs]
        values.extend(
            apply(node.op, *inputs, rules=graph.rules)
            if isinstance(node.op, Extension)
            else call(node.op, inputs)
        )
    return tuple(values[i] for i in graph.outputs)


def require_x64_values(graph: Graph) -> None:
    """Refuse a graph with 64-bit values while 64-bit types are off."""
    if not x64_enabled():
        for meta in graph.metas:
            require_x64(meta, "a value of a graph that was made with 64-bit types")


def _not_to_be_differentiated(names: tuple[str, ...]) -> Callable[[jax.Array], jax.Array]:
    """The identity, which refuses to be differentiated: no derivative is better than another one
    than the author's.
    """

    @jax.custom_jvp
    def identity(x: jax.Array) -> jax.Array:
        return x

    @identity.defjvp
    def _refuse(primals: object, tangents: object) -> NoReturn:
        raise Unsupported(
            where="differentiating a graph",
            given=f"custom derivatives that tracing inlined: {', '.join(names)}",
            needed="a graph without them",
            fix="Differentiate first and trace the result: trace(jax.grad(fn), ...).",
        )

    return identity


def nesting_error(graph: Graph, tree: jax.tree_util.PyTreeDef, where: str) -> InvalidConfig:
    """The error for arguments that are nested otherwise than those of the traced call."""
    declared, given = graph.input_names, leaf_names(tree, "args")
    missing = [name for name in declared if name not in given]
    extra = [name for name in given if name not in declared]
    found = (
        f"nothing for {', '.join(missing)}"
        if missing
        else f"an array too many, {', '.join(extra)}"
        if extra
        else "another nesting"
    )
    return InvalidConfig(
        where=where,
        given=f"{found}: {tree}",
        needed=str(graph.in_tree),
        fix="Nest the arguments as in the traced call.",
    )
