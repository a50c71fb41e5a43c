"""From lazy tensors to arrays: bind arrays to inputs, then run one program for all results; and
lazy tensors as JAX functions of other lazy tensors, which JAX can differentiate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from ..engine.engine import Engine
from ..errors import DTypeError, InvalidConfig, require_kind
from ..graph.graph import Graph
from ..shapes import meta_of, solve_sizes
from .record import (
    Array,
    Handle,
    Leaf,
    Record,
    concrete,
    inputs_of,
    is_number,
    number,
    to_graph,
    walk,
)

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
      >>> from tenferro_jax.tensor import TracedTensor, eval_all
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
    require_kind(engine, Engine | None, "eval", "an Engine, or None", name="engine")
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


Arrays: TypeAlias = Sequence[jax.Array]
Function: TypeAlias = Callable[[Arrays, Arrays], jax.Array]


def as_function(y: Handle, wrt: Sequence[Handle]) -> tuple[Function, list[Handle]]:
    """y as a function of the tensors of `wrt` and of the other inputs; and those other inputs.

    If one tensor of `wrt` is computed from another, it also depends on that one. The program is
    cut at checkpoints and at the tensors of `wrt`; the part before a checkpoint is under
    `jax.checkpoint`. The part that only computes a single tensor of `wrt` is
    ignored.
    """
    wanted = {x.key for x in wrt}
    alone = wanted if len(wanted) == 1 else set()
    ends = [x for x in walk([y], alone) if x.key in wanted or _is_checkpoint(x) or x.key == y.key]
    cuts = {x.key for x in ends} - {y.key}
    parts = []
    for end in ends:
        if not (isinstance(end.source, Leaf) and end.key in wanted) and end.key not in alone:
            again = _is_checkpoint(end)
            graph, inputs = to_graph(inputs_of(end) if again else [end], cuts - {end.key})
            parts.append((end.key, jax.checkpoint(graph.__call__) if again else graph, inputs))
    met = {x.key: x for _, _, inputs in parts for x in inputs}
    others = [x for key, x in met.items() if key not in wanted and isinstance(x.source, Leaf)]

    def run(moving: Arrays, rest: Arrays) -> jax.Array:
        given: dict[object, jax.Array] = {}
        for x, value in zip(wrt, moving, strict=True):
            given[x.key] = _moved_by_both(value, given[x.key]) if x.key in given else value
        values = given | {x.key: value for x, value in zip(others, rest, strict=True)}
        for key, part, inputs in parts:
            (out,) = part(*[values[x.key] for x in inputs])
            values[key] = _moved_by_both(given[key], out) if key in given else out
        return values[y.key]

    return run, others


def _is_checkpoint(x: Handle) -> bool:
    return isinstance(x.source, Record) and x.source.graph is None


@jax.custom_jvp
def _moved_by_both(x: jax.Array, same: jax.Array) -> jax.Array:
    """x, with the sum of the tangents of two equal arrays."""
    return x


@_moved_by_both.defjvp
def _sum_of_tangents(primals: Arrays, tangents: Arrays) -> tuple[jax.Array, jax.Array]:
    return primals[0], tangents[0] + tangents[1]


def require_scalar(y: Handle) -> None:
    """Refuse the gradient of a tensor that is not a floating scalar.

    Raises:
      InvalidConfig: y is not a floating tensor of shape ().
    """
    if y.shape != () or not jnp.issubdtype(y.dtype, jnp.floating):
        raise InvalidConfig(
            where="grad",
            given=str(y.meta),
            needed="a floating tensor of shape ()",
            fix="Reduce it first, with sum for example, or use vjp.",
        )


def tensors_of(wrt: object, where: str) -> tuple[list[Handle], jax.tree_util.PyTreeDef]:
    """The tensors of `wrt`, and their nesting.

    Raises:
      InvalidConfig: a value that is not a tensor.
      DTypeError: a tensor that is neither floating nor complex.
    """
    tensors, tree = jax.tree.flatten(wrt)
    if not tensors or not all(isinstance(x, Handle) for x in tensors):
        raise InvalidConfig(
            where=where,
            given=f"wrt={wrt!r}",
            needed="a TracedTensor, or a list or dict of them",
        )
    for x in tensors:
        if not jnp.issubdtype(x.dtype, jnp.inexact):
            raise DTypeError(
                where=where,
                given=f"wrt of dtype {x.dtype}",
                needed="floating or complex tensors",
            )
    return tensors, tree
