"""Nodes of pytree classes as JSON and back."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import jax
from jax.tree_util import PyTreeDef, default_registry

from ..errors import Unsupported
from .pytree_fields import fields_of, require_fields, static_json, static_value
from .pytree_names import class_named, name_of

_LEAF = jax.tree.structure(0)


def named_node(cls: type, static: Any, count: int, where: str) -> list[Any]:
    """A node with `count` children as JSON: the name of its class, the names of its fields, its static data.

    Raises:
      Unsupported: the class has no name, or is a dataclass whose own code flattens it in several ways.
      PayloadError: static data outside the closed list.
    """
    if cls is MissingClass:
        return [static[0], *json.loads(static[1])]
    name = name_of(cls)
    if name is None:
        label = f"{cls.__module__}.{cls.__qualname__}"
        raise Unsupported(
            where=where,
            given=f"a pytree node of type {label}",
            needed="tuples, lists, None, dicts with text or integers as keys, and classes that have a name for files",
            fix=f"Call register_pytree_name({cls.__name__}, {label.replace('__main__.', 'package.')!r}) here and where it is read.",
        )
    try:
        fields = fields_of(cls, static, count)
    except ValueError as error:
        raise Unsupported(
            where=where,
            given=f"{name}: {error}",
            needed="as many children and static values as the fields of the class say",
            fix="Flatten every instance alike.",
        ) from error
    return [name, fields, static_json(static, f"{where}, static data of {name}")]


def node_of(name: str, fields: Any, plain: Any, children: Sequence[Any], skip_missing: bool) -> Any:
    """An instance of the class of a name, with its static data from JSON.

    Raises:
      Unsupported: no class has this name here, or it has other fields.
      ValueError: the class has another number of children, or of static values.
    """
    cls = class_named(name)
    if cls is None and skip_missing:
        return MissingClass(children, name, json.dumps([fields, plain]))
    if cls is None:
        raise Unsupported(
            where="pytree class",
            given=f"{name!r:.200}: not registered",
            needed="a class of this name in this process",
            fix="Import the package that defines it and call register_pytree_name(cls, name).",
        )
    static = static_value(plain)
    require_fields(cls, name, fields)
    fields_of(cls, static, len(children))
    tree = PyTreeDef.from_node_data_and_children(default_registry, (cls, static), [_LEAF] * len(children))
    return jax.tree.unflatten(tree, children)


@jax.tree_util.register_pytree_node_class
class MissingClass:
    """Stands for a pytree class that is not known here; it keeps what the file says of it."""

    def __init__(self, children: Sequence[Any], name: str, plain: str):
        self._children, self._name, self._plain = children, name, plain

    def tree_flatten(self) -> tuple[Sequence[Any], tuple[str, str]]:
        """For JAX."""
        return self._children, (self._name, self._plain)

    @classmethod
    def tree_unflatten(cls, static: tuple[str, str], children: Sequence[Any]) -> MissingClass:
        """For JAX."""
        return cls(children, *static)

    def __repr__(self) -> str:
        return f"<{self._name}, which is not registered: {self._children!r}>"
