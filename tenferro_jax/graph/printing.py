"""The text form of a graph: one line a node, bodies of control flow folded to their size."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any

import numpy as np

from ..extension import Extension
from ..ops.op import StdTensorOp


def graph_text(graph: Any) -> str:
    """The graph as text, stable across processes.

    Large constants are shown by dtype and shape only.
    """
    inputs = ", ".join(f"%{i}: {m}" for i, m in enumerate(graph.input_metas))
    lines = [f"graph({inputs}) {{", *(f"  guard {guard}" for guard in graph.guards)]
    ends = [*(n.first_output for n in graph.nodes), len(graph.metas)][1:]
    for node, end in zip(graph.nodes, ends, strict=bool(graph.nodes)):
        outs = range(node.first_output, end)
        names, types = ", ".join(f"%{i}" for i in outs), ", ".join(str(graph.metas[i]) for i in outs)
        lines.append(f"  {names} = {op_text(node.op)}({', '.join(f'%{i}' for i in node.inputs)}) : {types}")
    lines.append(f"  return {', '.join(f'%{i}' for i in graph.outputs)}".rstrip())
    return "\n".join([*lines, "}"])


def op_text(op: StdTensorOp) -> str:
    """An op with its payload in one line."""
    if isinstance(op, Extension):
        return f"Extension[{op.family_id}]{_fields(op.op)}" + "".join(f".vmap{list(v.in_axes)}" for v in op.batching)
    return type(op).__name__ + _fields(op)


def _fields(op: Any) -> str:
    if not dataclasses.is_dataclass(op) or not dataclasses.fields(op):
        return ""
    return "[" + ", ".join(f"{f.name}={_value(getattr(op, f.name))}" for f in dataclasses.fields(op)) + "]"


def _value(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return str(value) if value.ndim == 0 else f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "input_metas"):
        return f"graph of {len(value.nodes)} nodes"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.dtype):
        return value.name
    if type(value) is tuple:
        return "(" + ", ".join(map(_value, value)) + ("," if len(value) == 1 else "") + ")"
    return str(value) if not isinstance(value, str) else repr(value)
