"""Lazy tensors as JAX functions of other lazy tensors, which JAX can differentiate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import jax
import jax.numpy as jnp

from ..errors import DTypeError, InvalidConfig
from .record import Handle, Leaf, Record, inputs_of, to_graph, walk

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
