"""Pytree classes by name: what a file may call a class of the user's by. Nothing is looked up anywhere else."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.export
from jax.tree_util import PyTreeDef, default_registry

from ..errors import Duplicate, InvalidConfig, Unsupported
from .field_json import field_json, field_value

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_LEAF = jax.tree.structure(0)
_names: dict[type, str] = {}
_classes: dict[str, type] = {}
_lock = threading.Lock()


def register_pytree_name(cls: type, name: str) -> None:
    """Give a pytree class the name by which graph bytes and exported programs call it.

    The process that reads registers the class under the same name. Its static data (what is no child) is written as the closed
    list of payloads: None, bool, int, float, complex, str, bytes, dtype, and tuples of them. A class that `jax.export` knows
    already keeps its name there; a process with JAX alone registers the name with
    `jax.export.register_namedtuple_serialization`, or with `register_pytree_node_serialization`.

    Args:
      cls: a namedtuple, or a class registered with `jax.tree_util`, such as a dataclass.
      name: 1 to 200 letters, digits and `_.:/-`; by custom "package.Class".

    Raises:
      InvalidConfig: no pytree class, or no such name.
      Duplicate: the class has another name, or the name another class.

    Example:
      >>> import typing
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import from_wire, to_wire, trace
      >>> class Moments(typing.NamedTuple):
      ...     mean: object
      ...     square: object
      >>> register_pytree_name(Moments, "docs-example.Moments")
      >>> back = from_wire(to_wire(trace(lambda x: Moments(x.mean(), (x * x).mean()), jnp.ones(2))))
      >>> back.to_jax()(jnp.array([1.0, 3.0])).square.item()
      5.0
    """
    where = "register_pytree_name"
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        needed = "1 to 200 letters, digits and _.:/-"
        raise InvalidConfig(where=where, given=f"the name {name!r:.100}", needed=needed, fix="Pass text such as package.Class.")
    if not _is_pytree(cls):
        raise InvalidConfig(
            where=where,
            given=f"{cls!r:.100}",
            needed="a namedtuple, or a class that jax.tree_util knows",
            fix="Register it with jax.tree_util.register_dataclass or register_pytree_node first.",
        )
    with _lock:
        if (_names.get(cls, name), _classes.get(name, cls)) != (name, cls):
            raise Duplicate(
                where=where,
                given=f"{cls!r:.100} and {name!r}, after {_classes.get(name, cls)!r:.100} and {_names.get(cls, name)!r}",
                needed="one name a class, one class a name",
                fix="Register once, where the class is defined.",
            )
        _names[cls], _classes[name] = name, cls
    with contextlib.suppress(ValueError):  # JAX has a name for it already
        if _is_namedtuple(cls):
            jax.export.register_namedtuple_serialization(cls, serialized_name=name)
        else:
            jax.export.register_pytree_node_serialization(
                cls, serialized_name=name, serialize_auxdata=_aux_bytes, deserialize_auxdata=_aux_of
            )


def named_node(cls: type, aux: Any, where: str) -> tuple[str, Any]:
    """The name of a pytree class, and the static data of a node of it as JSON.

    Raises:
      Unsupported: the class has no name.
      PayloadError: static data outside the closed list.
    """
    if cls not in _names:
        label = f"{cls.__module__}.{cls.__qualname__}"
        raise Unsupported(
            where=f"to_wire, {where}",
            given=f"a pytree node of type {label}",
            needed="tuples, lists, None, dicts with text or integers as keys, and classes that have a name for files",
            fix=f"Call register_pytree_name({cls.__name__}, {label.replace('__main__.', 'package.')!r}) here and where it is read.",
        )
    return _names[cls], _aux_json(aux, f"{where}, static data of {_names[cls]}")


def node_of(name: str, plain: Any, children: Sequence[Any]) -> Any:
    """An instance of the class of a name, with its static data from JSON.

    Raises:
      Unsupported: no class has this name here.
      ValueError: it has another number of children.
    """
    cls = _classes.get(name)
    if cls is None:
        raise Unsupported(
            where="pytree class",
            given=f"{name!r:.200}: not registered",
            needed="a class of this name in this process",
            fix="Import the package that defines it and call register_pytree_name(cls, name).",
        )
    count = _dataclass_children(cls)
    if count not in (None, len(children)):  # JAX reads beyond the end of too few
        raise ValueError(f"{len(children)} children for {name}, which has {count}")
    tree = PyTreeDef.from_node_data_and_children(default_registry, (cls, _aux_value(plain)), [_LEAF] * len(children))
    return jax.tree.unflatten(tree, children)


def _is_namedtuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def _is_pytree(cls: Any) -> bool:
    if not isinstance(cls, type) or cls in (tuple, list, dict, type(None)):
        return False
    try:
        PyTreeDef.from_node_data_and_children(default_registry, (cls, None), ())
    except RuntimeError:  # JAX knows no such class
        return False
    return True


def _dataclass_children(cls: type) -> int | None:
    """How many children a dataclass has, None where its own code says so for each instance."""
    if not dataclasses.is_dataclass(cls):
        return None
    blank: Any = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(blank, field.name, None)
    try:
        children, _ = default_registry.flatten_one_level(blank)
    except Exception:  # a flattening of the author's
        return None
    return len(tuple(children))


def _aux_json(aux: Any, where: str) -> Any:
    def refused(_: Any) -> NoReturn:
        raise Unsupported(
            where=f"to_wire, {where}",
            given=f"{aux!r:.100}",
            needed="static data without arrays, graphs and symbolic dimensions",
            fix="Make the array a child of the class.",
        )

    return field_json(aux, where, refused, refused, refused)


def _aux_value(plain: Any) -> Any:
    def refused(_: Any) -> NoReturn:
        raise ValueError("static data with an array, a graph or a dimension")

    return field_value(plain, refused, refused, refused)


def _aux_bytes(aux: Any) -> bytes:
    return json.dumps(_aux_json(aux, "static data of a pytree class"), separators=(",", ":"), sort_keys=True).encode()


def _aux_of(content: bytes) -> Any:
    return _aux_value(json.loads(content))
