"""Pytree classes by name: what a file may call a class of the user's by. Nothing is looked up anywhere else."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
from collections.abc import Sequence
from typing import Any, NoReturn

import jax
import jax.export
from jax.tree_util import PyTreeDef, default_registry

from ..errors import Duplicate, InvalidConfig, PayloadError, Unsupported, first_line
from .field_json import field_json, field_value

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:/-]{0,199}")
_LEAF = jax.tree.structure(0)
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


def named_node(cls: type, static: Any, count: int, where: str) -> list[Any]:
    """A node with `count` children as JSON: the name of its class, the names of its fields, its static data.

    Raises:
      Unsupported: the class has no name, or is a dataclass whose own code flattens it in several ways.
      PayloadError: static data outside the closed list.
    """
    if cls is MissingClass:
        return [static[0], *json.loads(static[1])]
    if cls not in _names:
        label = f"{cls.__module__}.{cls.__qualname__}"
        raise Unsupported(
            where=where,
            given=f"a pytree node of type {label}",
            needed="tuples, lists, None, dicts with text or integers as keys, and classes that have a name for files",
            fix=f"Call register_pytree_name({cls.__name__}, {label.replace('__main__.', 'package.')!r}) here and where it is read.",
        )
    try:
        fields = _fields_of(cls, static, count)
    except ValueError as error:
        raise Unsupported(
            where=where,
            given=f"{_names[cls]}: {error}",
            needed="as many children and static values as the fields of the class say",
            fix="Flatten every instance alike.",
        ) from error
    return [_names[cls], fields, _static_json(static, f"{where}, static data of {_names[cls]}")]


def node_of(name: str, fields: Any, plain: Any, children: Sequence[Any], skip_missing: bool) -> Any:
    """An instance of the class of a name, with its static data from JSON.

    Raises:
      Unsupported: no class has this name here, or it has other fields.
      ValueError: the class has another number of children, or of static values.
    """
    cls = _classes.get(name)
    if cls is None and skip_missing:
        return MissingClass(children, name, json.dumps([fields, plain]))
    if cls is None:
        raise Unsupported(
            where="pytree class",
            given=f"{name!r:.200}: not registered",
            needed="a class of this name in this process",
            fix="Import the package that defines it and call register_pytree_name(cls, name).",
        )
    static = _static_value(plain)
    known = _fields(cls)
    if fields != known:
        raise Unsupported(
            where=f"pytree class {name}",
            given=f"fields {fields!r:.500}",
            needed=f"{known}: children, then static data, as the class has them here",
            fix="Read it with the release of the class's package that wrote it.",
        )
    _fields_of(cls, static, len(children))  # JAX reads beyond the end of too few
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


def _fields(cls: Any) -> list[list[str]] | None:
    """The names of the children and of the static data, in order; None where the author's code says what they are."""
    if _is_namedtuple(cls):
        return [list(cls._fields), []]
    if not dataclasses.is_dataclass(cls):
        return None
    blank = object.__new__(cls)  # type: ignore[arg-type]
    for field in dataclasses.fields(cls):
        object.__setattr__(blank, field.name, field.name)
    try:
        children, static = default_registry.flatten_one_level(blank)
    except Exception:  # the author's code
        return None
    named = [list(children), list(static) if isinstance(static, tuple) else [static]]
    return named if all(isinstance(name, str) for names in named for name in names) else None


def _fields_of(cls: type, static: Any, count: int) -> list[list[str]] | None:
    """The fields of a class; ValueError where a node of it has not as many."""
    fields = _fields(cls)
    values = 0 if static is None else len(static) if isinstance(static, tuple) else 1
    if fields is not None and [count, values] != [len(names) for names in fields]:
        raise ValueError(f"{count} children and {values} static values for the fields {fields}")
    return fields


def _static_json(static: Any, where: str) -> Any:
    def refused(_: Any = None) -> NoReturn:
        raise PayloadError(
            where=where,
            given=f"{static!r:.100}",
            needed="None, bool, int, float, complex, str, bytes, dtype, and tuples of them",
            fix="Make it a child of the class, or write it as one of these.",
        )

    try:
        return field_json(static, where, refused, refused, refused)
    except PayloadError:
        refused()


def _static_value(plain: Any) -> Any:
    def refused(_: Any) -> NoReturn:
        raise ValueError("static data with an array, a graph or a dimension")

    return field_value(plain, refused, refused, refused)


def _register_with_jax(cls: type, name: str) -> None:
    """Give `jax.export` the same name, with the bytes that JAX gives namedtuples, and JSON of fields and static data for other classes."""
    is_namedtuple = _is_namedtuple(cls)

    def write(static: Any) -> bytes:
        fields = _fields(cls)
        said = fields[0] if is_namedtuple and fields else [fields, _static_json(static, f"static data of {name}")]
        return json.dumps(said).encode()

    def read(content: bytes) -> Any:
        said = json.loads(content)
        fields, plain = ([said, []], None) if is_namedtuple else said
        if fields != _fields(cls):
            raise ValueError(f"the fields {fields} of {name}, which has {_fields(cls)} here")
        return _static_value(plain)

    made: Any = (lambda _, children: cls(*children)) if is_namedtuple else None  # JAX has none for namedtuples
    try:
        jax.export.register_pytree_node_serialization(
            cls, serialized_name=name, serialize_auxdata=write, deserialize_auxdata=read, from_children=made
        )
    except ValueError as error:
        if "for serialized_name" in str(error):  # else the class has a name there, which stays
            raise Duplicate(
                where="register_pytree_name", given=first_line(error), needed="a name of its own", fix="Choose another name."
            ) from error
