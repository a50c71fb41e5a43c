"""Ops, payloads and nests as text for readers, in one line."""

from __future__ import annotations

import dataclasses
import enum

import jax
import numpy as np

from ..extension.carrier import Extension
from ..identity import typed_key
from ..ops.op import StdTensorOp


def leaf_names(tree: jax.tree_util.PyTreeDef, root: str = "") -> list[str]:
    """The names of the leaves of a tree in errors, pictures and commands: their paths, such as
    "args[0]['w']".
    """
    paths, _ = jax.tree_util.tree_flatten_with_path(
        jax.tree.unflatten(tree, range(tree.num_leaves))
    )
    return [root + jax.tree_util.keystr(path) for path, _ in paths]


def op_name(op: StdTensorOp) -> str:
    """The name of an op: its class, or the family of an extension."""
    return getattr(op, "family_id", type(op).__name__)


def op_text(op: StdTensorOp) -> str:
    """An op with its payload in one line."""
    payload = ", ".join(f"{name}={value}" for name, value in payload_texts(op).items())
    text = f"[{payload}]" if payload else ""
    if isinstance(op, Extension):
        levels = "".join(f".vmap{list(v.in_axes)}" for v in op.batching)
        return f"Extension[{op.family_id}]{text}{levels}"
    return type(op).__name__ + text


def payload_texts(op: StdTensorOp) -> dict[str, str]:
    """The text of each field of an op that has not its default."""
    held = op.op if isinstance(op, Extension) else op
    fields = dataclasses.fields(held) if dataclasses.is_dataclass(held) else ()
    return {f.name: value_text(getattr(held, f.name)) for f in fields if not _has_default(held, f)}


def _has_default(op: object, field: dataclasses.Field[object]) -> bool:
    value = getattr(op, field.name)
    return value is field.default or (
        field.default is not dataclasses.MISSING and typed_key(value) == typed_key(field.default)
    )


def value_text(value: object) -> str:
    """A payload value in one line."""
    if isinstance(value, np.ndarray):
        return str(value) if value.ndim == 0 else f"{value.dtype}{list(value.shape)}"
    if hasattr(value, "input_metas") and hasattr(value, "nodes"):
        return f"graph of {len(value.nodes)} nodes"
    if isinstance(value, enum.Enum | np.dtype):
        return value.name
    if type(value) is tuple:
        return "(" + ", ".join(map(value_text, value)) + ("," if len(value) == 1 else "") + ")"
    return repr(value) if isinstance(value, str) else str(value)


def plain(text: str, kept: str = "") -> str:
    """Text of unknown origin on one line: control characters, line breaks and changes of direction
    are escaped.
    """
    return "".join(
        c if c.isprintable() or c in kept else c.encode("unicode_escape").decode() for c in text
    )
