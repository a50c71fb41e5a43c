"""Functions of JAX, applied to lazy tensors: what is recorded is what tracing them gives."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, TypeVar

import jax
import numpy as np

from ..bounded_cache import BoundedCache
from ..graph.builder import GraphBuilder
from ..graph.graph import Graph
from .record import Handle, Record, concrete, is_number

H = TypeVar("H", bound=Handle)

ARRAYS = (Handle, jax.Array, np.ndarray, np.generic)
"""What a function is traced for; everything else in its arguments is given to it as it is."""

_GRAPHS = BoundedCache(4096, "TracedTensor")
"""Graphs that are kept: tracing a function takes a millisecond, finding its graph microseconds."""


def recorded(
    kind: type[H],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    keep: bool = False,
) -> Any:
    """What a JAX function makes of tensors and arrays anywhere in its arguments.

    Args:
      kind: the class of the tensors that are made.
      fn: the function.
      args: of fn; what is neither tensor nor array is given to it as it is.
      kwargs: likewise.
      keep: whether the graph is kept for other calls of fn; what is no array must be hashable.
    """
    leaves, tree = jax.tree.flatten((args, dict(kwargs)))
    arrays = [x for x in leaves if isinstance(x, ARRAYS)]
    inputs = [x if isinstance(x, kind) else constant(kind, x) for x in arrays]

    def call(*arrays: jax.Array) -> Any:
        traced = iter(arrays)
        values = [next(traced) if isinstance(x, ARRAYS) else x for x in leaves]
        args, kwargs = jax.tree.unflatten(tree, values)
        return fn(*args, **kwargs)

    def trace() -> Graph:
        builder = GraphBuilder()
        result = builder.inline(call, *[builder.input(x.meta) for x in inputs])
        outputs, out_tree = jax.tree.flatten(result)
        return builder.build(outputs, out_tree=out_tree)

    if keep:
        metas = iter([x.meta for x in inputs])
        described = [next(metas) if isinstance(x, ARRAYS) else _static(x) for x in leaves]
        graph = _GRAPHS.get((fn, tree, tuple(described), _settings()), trace)
    else:
        graph = trace()
    return jax.tree.unflatten(graph.out_tree, _outputs(kind, graph, inputs))


def constant(kind: type[H], array: object) -> H:
    """A concrete array as a tensor: a part of the program."""
    builder = GraphBuilder()
    graph = builder.build([builder.constant(concrete(array, "a constant"))])
    return kind(Record(graph, ()), 0, graph.output_metas[0])


def _outputs(kind: type[H], graph: Graph, inputs: Sequence[H]) -> list[H]:
    """A tensor for each output of a graph; where it hands an input on, that one."""
    record = Record(graph, inputs)
    made = [kind(record, i, meta) for i, meta in enumerate(graph.output_metas)]
    count = len(inputs)
    return [inputs[k] if k < count else x for k, x in zip(graph.outputs, made, strict=True)]


def _static(leaf: object) -> Hashable:
    """What tells an argument from every other: 1 from True, 0.0 from -0.0.

    Slices are hashable from Python 3.12 on.
    """
    if isinstance(leaf, slice):
        return slice, _static(leaf.start), _static(leaf.stop), _static(leaf.step)
    return type(leaf), repr(leaf) if is_number(leaf) else leaf


def _settings() -> Hashable:
    """The settings of JAX that change what a function is traced to."""
    config: Any = jax.config
    return (
        config.jax_enable_x64,
        config.jax_numpy_dtype_promotion,
        config.jax_numpy_rank_promotion,
        config.jax_default_matmul_precision,
    )
