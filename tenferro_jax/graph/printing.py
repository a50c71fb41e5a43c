"""A graph as text: for readers one line for each node, bodies of control flow as their size or
written out; for comparison canonical JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import json
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from ..extension.carrier import Extension
from ..identity import Sealed, typed_key
from ..jax_seam import is_symbolic_dim
from ..ops.op import StdTensorOp
from ..payload_leaves import int_json

if TYPE_CHECKING:
    from .graph import Graph

HEAD, TAIL = 20, 10
"""The number of nodes that an abbreviated text shows at the start and at the end of a
large graph.
"""


def graph_text(graph: Graph, *, expand: bool = False, abbreviate: bool = False) -> str:
    """The graph as text, stable across processes.

    Large constants are shown by dtype and shape only.

    Args:
      graph: the graph.
      expand: also write the bodies of control flow, below their op.
      abbreviate: leave out the middle of a large graph and say how many nodes that are.
    """
    inputs = ", ".join(f"%{i}: {m}" for i, m in enumerate(graph.input_metas))
    lines = [f"graph({inputs}) {{", *(f"  guard {guard}" for guard in graph.guards)]
    hidden = range(HEAD, len(graph.nodes) - TAIL) if abbreviate else range(0)
    for i, (node, outs) in enumerate(graph.steps()):
        if i in hidden:
            if i == HEAD:
                lines.append(f"  ... {len(hidden)} more nodes ...")
            continue
        names, types = (
            ", ".join(f"%{i}" for i in outs),
            ", ".join(str(graph.metas[i]) for i in outs),
        )
        lines.append(
            f"  {names} = {op_text(node.op)}({', '.join(f'%{i}' for i in node.inputs)}) : {types}"
        )
        if expand:
            for name, body in named_bodies(node.op):
                text = f"{name}: {graph_text(body, expand=True)}"
                lines.extend(f"    {line}" for line in text.splitlines())
    lines.append(f"  return {', '.join(f'%{i}' for i in graph.outputs)}".rstrip())
    return "\n".join([*lines, "}"])


def leaf_names(tree: Any, root: str = "") -> list[str]:
    """The names of the leaves of a tree in errors, pictures and commands: their paths, such as
    "args[0]['w']".
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(tree, range(tree.num_leaves))
    )
    return [root + jax.tree_util.keystr(path) for path, _ in paths]


def named_bodies(op: StdTensorOp) -> list[tuple[str, Graph]]:
    """The graphs in an op's payload, each with the name of its field and its position there."""
    found = []
    fields: Any = dataclasses.fields(op) if dataclasses.is_dataclass(op) else ()
    for field in fields:
        value = getattr(op, field.name)
        several = type(value) is tuple
        for i, item in enumerate(value if several else (value,)):
            if hasattr(item, "input_metas"):
                found.append((f"{field.name}[{i}]" if several else field.name, item))
    return found


def op_name(op: StdTensorOp) -> str:
    """The name of an op: its class, or the family of an extension."""
    return getattr(op, "family_id", type(op).__name__)


def op_text(op: StdTensorOp) -> str:
    """An op with its payload in one line."""
    if isinstance(op, Extension):
        return f"Extension[{op.family_id}]{_fields(op.op)}" + "".join(
            f".vmap{list(v.in_axes)}" for v in op.batching
        )
    return type(op).__name__ + _fields(op)


def _fields(op: object) -> str:
    """The payload without fields that have their default."""
    told = (
        [f for f in dataclasses.fields(op) if not _has_default(op, f)]
        if dataclasses.is_dataclass(op)
        else []
    )
    return (
        "[" + ", ".join(f"{f.name}={value_text(getattr(op, f.name))}" for f in told) + "]"
        if told
        else ""
    )


def _has_default(op: object, field: dataclasses.Field[object]) -> bool:
    value = getattr(op, field.name)
    return value is field.default or (
        field.default is not dataclasses.MISSING and typed_key(value) == typed_key(field.default)
    )


def value_text(value: Any) -> str:
    """A payload value in one line."""
    if isinstance(value, np.ndarray):
        return str(value) if value.ndim == 0 else f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "input_metas"):
        return f"graph of {len(value.nodes)} nodes"
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, np.dtype):
        return value.name
    if type(value) is tuple:
        return "(" + ", ".join(map(value_text, value)) + ("," if len(value) == 1 else "") + ")"
    return str(value) if not isinstance(value, str) else repr(value)


def plain(text: str, kept: str = "") -> str:
    """Text of unknown origin on one line: control characters, line breaks and changes of direction
    are escaped.
    """
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )


def canonical_bytes(value: Sealed) -> bytes:
    """The typed key of an op, a graph or another sealed value as canonical JSON.

    Classes and kernels are written by module and name, symbolic dimensions and pytrees by their
    text.

    Example:
      >>> from tenferro_jax.ops.structural import Transpose
      >>> canonical_bytes(Transpose((1, 0)))
      b'[{"class":"tenferro_jax.ops.structural.Transpose"},["integers",[1,0]]]'
    """
    return json.dumps(_key_json(value.typed_key), separators=(",", ":"), sort_keys=True).encode()


def _key_json(key: object) -> Any:
    if isinstance(key, int) and not isinstance(key, bool):
        return int_json(key)
    if key is None or isinstance(key, bool | str):
        return key
    if isinstance(key, tuple):
        return [_key_json(item) for item in key]
    if isinstance(key, Sealed):
        return _key_json(key.typed_key)
    if isinstance(key, type):
        return {"class": f"{key.__module__}.{key.__qualname__}"}
    if isinstance(key, frozenset):
        return sorted(map(str, key))
    if isinstance(key, bytes):
        return {"bytes": key.hex()}
    if is_symbolic_dim(key):
        return {"dimension": str(key)}
    if isinstance(key, jax.tree_util.PyTreeDef):
        return {"tree": str(key)}
    if callable(key):  # a kernel
        return {
            "kernel": f"{key.__module__}.{getattr(key, '__qualname__', type(key).__qualname__)}"
        }
    return {"dtype": str(key)}
