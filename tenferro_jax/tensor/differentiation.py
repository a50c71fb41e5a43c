"""Derivatives of lazy tensors, again as lazy tensors.

The program is cut into segments, at the tensors that are differentiated with respect to and at checkpoints; each
segment is a graph, `tenferro_jax.ad` differentiates it, and its nodes become records. Nodes of a derivative that the
program has already are one with them in every graph that is made of both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import ad
from ..dimensions import are_equal, undecided
from ..errors import ArityError, DTypeError, InvalidConfig, NonScalarGrad, PlaceholderDtypeMismatch, PlaceholderShapeMismatch
from ..graph.graph import Graph
from ..ops.arithmetic import Add
from ..ops.source import OptimizationBarrier, StopGradient
from .promotion import SCALARS, number
from .record import Handle, Key, Leaf, Record, Recorder, to_graph, walk


class Segment(NamedTuple):
    """A part of a program: from tensors where it was cut, or leaves, to the next.

    Attributes:
      end: the tensor that it computes.
      graph: how.
      inputs: where it begins.
      active: the positions of the inputs through which a tensor of interest moves the end.
      again: whether it ends in a checkpoint.
    """

    end: Handle
    graph: Graph
    inputs: list[Handle]
    active: list[int]
    again: bool


def vjp(recorder: Recorder[Any], y: Handle, wrt: Sequence[Handle], cotangent: Any, where: str) -> list[Any]:
    """The cotangent of each tensor of `wrt`, None where y does not depend on it.

    From y backward, each segment hands cotangents to the tensors where it begins. A segment that ends in a checkpoint
    is computed again, from its inputs behind a barrier that waits for the cotangent.
    """
    _require_inexact(wrt, where)
    found: dict[Key, Any] = {y.key: _fitting(recorder, [y], [cotangent], where)[0]}
    for end, graph, inputs, active, again in reversed(_segments(y, wrt, checkpoints=True)):
        if end.key not in found or not active:
            continue
        values = [*inputs, found[end.key]]
        if again:
            values = list(recorder.add(OptimizationBarrier(), *values))
        for i, part in zip(active, recorder.spliced(_backward(graph, active), values), strict=True):
            key = inputs[i].key
            found[key] = part if key not in found else recorder.add(Add(), found[key], part)[0]
    return [found.get(x.key) for x in wrt]


def jvp(recorder: Recorder[Any], y: Handle, wrt: Sequence[Handle], tangents: Sequence[Any], where: str) -> Any:
    """The tangent of y for tangents of `wrt`; None where y depends on none of them."""
    _require_inexact(wrt, where)
    found: dict[Key, Any] = dict(zip((x.key for x in wrt), _fitting(recorder, wrt, tangents, where), strict=True))
    for end, graph, inputs, active, _ in _segments(y, wrt, checkpoints=False):
        if active:
            (moved,) = recorder.spliced(_forward(graph, active), [*inputs, *(found[inputs[i].key] for i in active)])
            found[end.key] = moved if end.key not in found else recorder.add(Add(), found[end.key], moved)[0]
    return found.get(y.key)


def _segments(y: Handle, wrt: Sequence[Handle], checkpoints: bool) -> list[Segment]:
    """The program of y cut at the tensors of `wrt`, and at checkpoints if asked, each after those that it needs."""
    wanted: dict[Any, dict[Key, Handle]] = {}
    for x in wrt:
        wanted.setdefault(x.source, {})[x.key] = x
    ends: dict[Key, Handle] = {}
    again: set[Key] = set()
    hidden = frozenset(x.key for x in wrt if len(wrt) == 1)  # what is behind a single tensor does not move y by itself
    for handle in walk([y], hidden):
        if handle.key in hidden:
            ends[handle.key] = handle
            continue
        ends.update(wanted.get(handle.source, {}))
        if checkpoints and isinstance(handle.source, Record) and handle.source.op is None:
            ends[handle.key] = handle
            again.add(handle.key)
    cuts = frozenset(ends)
    ends[y.key] = y
    moving = {x.key for x in wrt}
    segments = []
    for key, end in ends.items():
        if isinstance(end.source, Leaf) or key in hidden:
            continue
        computed = end.source.inputs[0] if key in again else end
        graph, inputs = to_graph([computed], cuts - {key}, jax.tree.structure(0))
        active = [i for i in _active_inputs(graph) if inputs[i].key in moving]
        if active:
            moving.add(key)
        segments.append(Segment(end, graph, inputs, active, key in again))
    return segments


def _active_inputs(graph: Graph) -> list[int]:
    """The inputs that reach the output through floating and complex values."""
    moves = [_inexact(meta.dtype) for meta in graph.metas]
    live = [False] * len(moves)
    for out in graph.outputs:
        live[out] = moves[out]
    for node, outs in reversed(list(graph.steps())):
        if not isinstance(node.op, StopGradient) and any(live[out] for out in outs):
            for i in node.inputs:
                live[i] = moves[i]
    return [i for i in range(graph.input_count) if live[i]]


def _backward(graph: Graph, active: Sequence[int]) -> Graph:
    """(inputs..., cotangent) -> the cotangents of the active inputs."""
    both = ad.vjp(graph, tuple(active))
    return _last_outputs(both, len(active))


def _forward(graph: Graph, active: Sequence[int]) -> Graph:
    """(inputs..., tangents of the active ones...) -> the output's tangent."""
    return _last_outputs(ad.jvp(graph, tuple(active)), 1)


def _last_outputs(graph: Graph, count: int) -> Graph:
    outputs = graph.outputs[len(graph.outputs) - count :]
    tree = jax.tree.structure(outputs)
    return Graph(graph.metas, graph.input_count, graph.nodes, outputs, graph.in_tree, tree, graph.rules, graph.lost_rules, graph.guards)


def require_scalar(y: Handle) -> None:
    """Refuse the gradient of what is no floating scalar.

    Raises:
      NonScalarGrad: y is no floating tensor of shape ().
    """
    if y.shape != () or not jnp.issubdtype(y.dtype, np.floating):
        fix = "Reduce it first, with reduce_sum for example, or use vjp."
        raise NonScalarGrad(where="grad", given=str(y.meta), needed="a floating tensor of shape ()", fix=fix)


def tensors_of(wrt: Any, where: str) -> list[Handle]:
    """One tensor, or several, as a list."""
    tensors = [wrt] if isinstance(wrt, Handle) else list(wrt) if isinstance(wrt, list | tuple) else []
    if not tensors or not all(isinstance(x, Handle) for x in tensors):
        given = f"wrt of type {type(wrt).__name__}"
        raise InvalidConfig(where=where, given=given, needed="a TracedTensor or a list of them", fix="Pass the tensors themselves.")
    return tensors


def inactive(y: Handle, x: Handle, where: str) -> InvalidConfig:
    """The refusal of a tensor that does not move y."""
    return InvalidConfig(
        where=where,
        given=f"wrt {x!r}, on which {y!r} does not depend through floating or complex values",
        needed="a tensor that y is computed from",
        fix=f"Use {where}_optional, which gives None.",
    )


def _require_inexact(wrt: Sequence[Handle], where: str) -> None:
    for x in wrt:
        if not _inexact(x.dtype):
            given = f"wrt of dtype {x.dtype}"
            raise DTypeError(where=where, given=given, needed="floating or complex tensors", fix="Convert before it is used.")


def _fitting(recorder: Recorder[Any], tensors: Sequence[Handle], given: Sequence[Any], where: str) -> list[Any]:
    """Tangents or cotangents, of the dtypes and shapes of their tensors."""
    if len(tensors) != len(given):
        needed = f"{len(tensors)}, one for each tensor"
        raise ArityError(where=where, given=f"{len(given)} tangents", needed=needed, fix="Pass them in the order of wrt.")
    values = []
    for x, v in zip(tensors, given, strict=True):
        value = number(v, x.dtype, where) if type(v) in SCALARS else v
        values.append(value if isinstance(value, Handle) else recorder.constant(value))
    for x, v in zip(tensors, values, strict=True):
        if v.dtype != x.dtype:
            raise PlaceholderDtypeMismatch(where=f"{where}, tangent", given=str(v.meta), needed=str(x.meta), fix="Convert it.")
        same = [are_equal(a, b) for a, b in zip(v.shape, x.shape, strict=False)]
        if v.ndim != x.ndim or False in same:
            raise PlaceholderShapeMismatch(where=f"{where}, tangent", given=str(v.meta), needed=str(x.meta), fix="Reshape it.")
        if None in same:
            raise undecided(v.shape[same.index(None)], x.shape[same.index(None)], f"{where}, tangent")
    return values


def _inexact(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, np.inexact))
