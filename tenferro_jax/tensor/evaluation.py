"""From lazy tensors to arrays: what is bound to which input, then one program for all results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import jax

from ..engine.engine import Engine
from ..errors import DuplicateBinding, InvalidConfig, PlaceholderDtypeMismatch, UnboundPlaceholder, UnexpectedBinding
from ..graph.graph import Graph
from ..shapes import meta_of, require_x64, solve_sizes
from .promotion import SCALARS, common_dtype, number
from .record import Handle, Leaf, concrete, to_graph

Bindings: TypeAlias = Mapping[Any, Any] | Iterable[tuple[Any, Any]] | None
"""An input, or its name, to an array: a mapping, or pairs."""

_DEFAULT = Engine()


def eval_all(tensors: Iterable[Handle], engine: Engine | None = None, bindings: Bindings = None) -> list[Any]:
    """The arrays of several lazy tensors, computed by one program: what they share is computed once.

    Args:
      tensors: lazy tensors.
      engine: compiles and keeps the program; None is an engine of the process.
      bindings: an array for each input that has none attached: a mapping, or pairs, from the input or its name. A
        symbolic dimension takes the size that it meets.

    Returns:
      A JAX array for each tensor. Where a binding is traced by JAX the results are too: `eval` works under every transform.

    Raises:
      UnboundPlaceholder, UnexpectedBinding, DuplicateBinding: an input without an array, an array for no input or for one
        that has an array, two arrays for one input.
      PlaceholderDtypeMismatch, PlaceholderRankMismatch, PlaceholderShapeMismatch: an array is not what the input declares.
      ShapeConstraintViolation: a guard does not hold at these sizes.
      DTypeError, X64Error: no concrete array. All of these before anything is compiled or uploaded.

    Example:
      >>> import numpy as np
      >>> from tenferro_jax import TracedTensor, eval_all
      >>> x = TracedTensor.input("x", np.float32, ("n",))
      >>> loss = (x * x).reduce_sum()
      >>> [a.tolist() for a in eval_all([loss, loss.grad(x)], bindings={"x": np.float32([1, 2])})]
      [5.0, [2.0, 4.0]]
    """
    tensors = tensors if isinstance(tensors, Handle) else list(tensors)
    if isinstance(tensors, Handle) or not all(isinstance(t, Handle) for t in tensors):
        given = "one tensor" if isinstance(tensors, Handle) else f"{[type(t).__name__ for t in tensors]}"
        raise InvalidConfig(where="eval_all", given=given, needed="a list of TracedTensors", fix="Use tensor.eval for one.")
    if engine is not None and not isinstance(engine, Engine):
        fix = "Leave it out, or make one."
        raise InvalidConfig(where="eval", given=f"engine={type(engine).__name__}", needed="a tenferro_jax.Engine", fix=fix)
    if not tensors:
        return []
    graph, leaves = _program(tensors)
    arrays = _bound(leaves, {} if bindings is None else bindings)
    return list((engine or _DEFAULT).eval(graph, *arrays))


def _program(tensors: Sequence[Handle]) -> tuple[Graph, list[Leaf]]:
    """The graph and its leaves; the first tensor keeps them, so that the same request is recorded once."""
    keys = tuple([t.key for t in tensors])
    held = tensors[0].program
    if held is None or held[0] != keys:
        graph, inputs = to_graph(tensors)
        held = tensors[0].program = keys, graph, [h.source for h in inputs if isinstance(h.source, Leaf)]
    return held[1], held[2]


def _bound(leaves: Sequence[Leaf], bindings: Any) -> list[Any]:
    """The array of each leaf."""
    by_name = {leaf.name: leaf for leaf in leaves if leaf.name is not None}
    found: dict[Leaf, Any] = {leaf: leaf.array for leaf in leaves if leaf.array is not None}
    attached = set(found)
    for key, value in _pairs(bindings):
        leaf = by_name.get(key) if isinstance(key, str) else key.source if isinstance(key, Handle) else None
        if not isinstance(leaf, Leaf) or leaf not in leaves:
            declared = ", ".join(map(repr, by_name)) or "none"
            fix = "Remove it, or use the input in what is evaluated."
            raise UnexpectedBinding(where="eval", given=f"an array for {key!r}", needed=f"inputs of this program: {declared}", fix=fix)
        if leaf in found:
            given = "an array although one is attached" if leaf in attached else "a second array"
            raise DuplicateBinding(where=repr(leaf), given=given, needed="one array an input", fix="Bind it once.")
        found[leaf] = _array(leaf, value)
    missing = [leaf for leaf in leaves if leaf not in found]
    if missing:
        given = f"no array for {', '.join(f'{leaf.name!r}: {leaf.meta}' for leaf in missing)}"
        raise UnboundPlaceholder(where="eval", given=given, needed="an array for each input", fix="Pass bindings={name: array}.")
    arrays = [found[leaf] for leaf in leaves]
    solve_sizes([leaf.meta for leaf in leaves], [meta_of(a) for a in arrays], [f"graph input {leaf.label}" for leaf in leaves])
    return arrays


def _pairs(bindings: Any) -> list[tuple[Any, Any]]:
    try:
        return [(key, value) for key, value in (bindings.items() if isinstance(bindings, Mapping) else bindings)]
    except (TypeError, ValueError) as error:
        needed = "a mapping from inputs or names to arrays, or a sequence of such pairs"
        fix = "Write bindings={'x': array}."
        raise InvalidConfig(where="eval, bindings", given=type(bindings).__name__, needed=needed, fix=fix) from error


def _array(leaf: Leaf, value: Any) -> Any:
    where = repr(leaf)
    if isinstance(value, jax.core.Tracer):
        return value
    if type(value) in SCALARS:
        if common_dtype(leaf.meta.dtype, type(value)) != leaf.meta.dtype:
            given = f"the number {value}"
            raise PlaceholderDtypeMismatch(where=where, given=given, needed=str(leaf.meta))
        return number(value, leaf.meta.dtype, where)
    if hasattr(value, "dtype") and not isinstance(value, Handle):
        require_x64(value, where)
    return concrete(value, where)
