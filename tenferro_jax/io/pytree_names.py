"""Pytree classes by name: what a file may call a class of the user's by. Nothing is looked up anywhere else."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

import jax
import jax.export
from jax.tree_util import PyTreeDef, default_registry

from ..errors import Duplicate, InvalidConfig, first_line
from .pytree_fields import fields_of, is_namedtuple, known_fields, require_fields, static_json, static_value

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_names: dict[type, str] = {}
_classes: dict[str, type] = {}
_lock = threading.Lock()


def register_pytree_name(cls: type, name: str) -> None:
    """Give a pytree class the name by which graph bytes and exported programs call it.

    The process that reads registers the class under the same name; the class must have the same fields there. Its static data
    (what is no child) consists of None, bool, int, float, complex, str, bytes, dtype, and tuples of them. A class that
    `jax.export` knows already keeps its name there.

    Args:
      cls: a namedtuple, or a class registered with `jax.tree_util`, such as a dataclass.
      name: 1 to 200 letters, digits and `_.:/-`, the first of them a letter, a digit or `_`; by custom "package.Class".

    Raises:
      InvalidConfig: no pytree class, or no such name.
      Duplicate: the class has another name, or the name another class, here or for `jax.export`.

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
        needed = "1 to 200 letters, digits and _.:/-, the first of them a letter, a digit or _"
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
        if cls not in _names:
            _register_with_jax(cls, name)
            _names[cls], _classes[name] = name, cls


def name_of(cls: type) -> str | None:
    """The name of a class, or None."""
    return _names.get(cls)


def class_named(name: str) -> type | None:
    """The class of a name, or None."""
    return _classes.get(name)


def _is_pytree(cls: Any) -> bool:
    if not isinstance(cls, type) or cls in (tuple, list, dict, type(None)):
        return False
    try:
        PyTreeDef.from_node_data_and_children(default_registry, (cls, None), ())
    except RuntimeError:  # JAX knows no such class
        return False
    return True


def _register_with_jax(cls: type, name: str) -> None:
    """Give `jax.export` the same name, with the bytes that JAX gives namedtuples, and JSON of fields and static data for other classes."""
    named = is_namedtuple(cls)

    def write(static: Any) -> bytes:
        fields = known_fields(cls)
        said = fields[0] if named and fields else [fields, static_json(static, f"static data of {name}")]
        return json.dumps(said).encode()

    def read(content: bytes) -> Any:
        said = json.loads(content)
        fields, plain = ([said, []], None) if named else said
        require_fields(cls, name, fields)
        static = static_value(plain)
        fields_of(cls, static, len(fields[0]) if fields else 0)
        return static

    made: Any = (lambda _, children: cls(*children)) if named else None  # JAX has none for namedtuples
    try:
        jax.export.register_pytree_node_serialization(
            cls, serialized_name=name, serialize_auxdata=write, deserialize_auxdata=read, from_children=made
        )
    except ValueError as error:
        if "for serialized_name" in str(error):  # else the class has a name there, which stays
            raise Duplicate(
                where="register_pytree_name", given=first_line(error), needed="a name of its own", fix="Choose another name."
            ) from error
