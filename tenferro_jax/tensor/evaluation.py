"""From lazy tensors to arrays: bind arrays to inputs, then run one program for all results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..engine.engine import Engine
from ..errors import DTypeError, InvalidConfig, require_kind
from ..graph.graph import Graph
from ..shapes import meta_of, solve_sizes
from .record import Array, Handle, Leaf, concrete, is_number, number, to_graph

Bindings: TypeAlias = Mapping[Handle | str, ArrayLike] | Iterable[tuple[Handle | str, ArrayLike]]
"""An array for each input or its name: a mapping, or pairs that `dict` takes."""

_DEFAULT = Engine()


def eval_all(
    tensors: Iterable[Handle], engine: Engine | None = None, bindings: Bindings = ()
) -> list[jax.Array]:
    """The arrays of several lazy tensors, computed by one program.

    Shared parts are computed once.

    Args:
      tensors: lazy tensors.
      engine: compiles and keeps the program; None uses a default engine of the process.
      bindings: an array for each input without attached data: a mapping, or pairs, from the
        input or its name. A symbolic dimension takes the size of the array.

    Returns:
      A JAX array for each tensor. If a binding is a tracer, the results are tracers: `eval`
      works under every transform.

    Raises:
      InvalidConfig: an input without an array, an array
        for an unknown input or one with attached data, two arrays for one input.
      DTypeError, ShapeError: an array does
        not fit its input.
      ShapeError: a guard does not hold at these sizes.
      DTypeError: not a concrete array.
    All of these are raised before anything is compiled or uploaded.

    Example:
      >>> import numpy as np
      >>> from tenferro_jax import TracedTensor, eval_all
      >>> x = TracedTensor.input("x", np.float32, ("n",))
      >>> loss = (x * x).sum()
      >>> [a.tolist() for a in eval_all([loss, loss.grad(x)], bindings={"x": np.float32([1, 2])})]
      [5.0, [2.0, 4.0]]
    """
    tensors = [tensors] if isinstance(tensors, Handle) else list(tensors)
    if not all(isinstance(t, Handle) for t in tensors):
        raise InvalidConfig(
            where="eval_all",
            given=f"{[type(t).__name__ for t in tensors]}",
            needed="TracedTensors",
        )
    require_kind(engine, Engine | None, "eval", "a tenferro_jax.Engine, or None", name="engine")
    if not tensors:
        return []
    graph, leaves = _program(tensors)
    return list((engine or _DEFAULT).eval(graph, *_bound(leaves, bindings)))


def _program(tensors: Sequence[Handle]) -> tuple[Graph, list[Leaf]]:
    """The graph and its leaves; the first tensor keeps them for the next equal request."""
    keys = tuple([t.key for t in tensors])
    held = tensors[0].program
    if held is None or held[0] != keys:
        graph, inputs = to_graph(tensors)
        leaves = [x.source for x in inputs if isinstance(x.source, Leaf)]
        held = tensors[0].program = keys, graph, leaves
    return held[1], held[2]


def _bound(leaves: Sequence[Leaf], bindings: Bindings) -> list[Array]:
    """The array of each leaf."""
    by_name = {leaf.name: leaf for leaf in leaves if leaf.name is not None}
    found = {leaf: leaf.array for leaf in leaves if leaf.array is not None}
    try:
        wanted = dict(bindings)
    except (TypeError, ValueError) as error:
        raise InvalidConfig(
            where="eval, bindings",
            given=type(bindings).__name__,
            needed="a mapping from inputs or names to arrays, as {'x': array}",
        ) from error
    for key, value in wanted.items():
        leaf = key.source if isinstance(key, Handle) else by_name.get(key)
        if not isinstance(leaf, Leaf) or leaf not in leaves:
            raise InvalidConfig(
                where="eval",
                given=f"an array for {key!r}",
                needed=f"inputs of this program: {', '.join(map(repr, by_name)) or 'none'}",
            )
        if leaf in found:
            is_attached = leaf.array is not None
            raise InvalidConfig(
                where=leaf.label,
                given="an array for an input with attached data"
                if is_attached
                else "a second array",
                needed="one array for each input",
            )
        found[leaf] = _array(leaf, value)
    if missing := [leaf for leaf in leaves if leaf not in found]:
        raise InvalidConfig(
            where="eval",
            given=f"no array for {', '.join(f'{leaf.name!r}: {leaf.meta}' for leaf in missing)}",
            needed="an array for each input",
            fix="Pass bindings={name: array}.",
        )
    arrays = [found[leaf] for leaf in leaves]
    metas, labels = [leaf.meta for leaf in leaves], [leaf.label for leaf in leaves]
    solve_sizes(metas, [meta_of(a) for a in arrays], labels)
    return arrays


def _array(leaf: Leaf, value: ArrayLike) -> Array:
    """The array bound to a leaf; a Python number takes the dtype of the leaf if it can."""
    if isinstance(value, jax.core.Tracer):
        return value
    if is_number(value):
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(value, leaf.meta.dtype)
        if dtype != leaf.meta.dtype:
            raise DTypeError(
                where=leaf.label,
                given=f"the number {value}",
                needed=str(leaf.meta),
            )
        return number(value, dtype, leaf.label)
    return concrete(value, leaf.label)
