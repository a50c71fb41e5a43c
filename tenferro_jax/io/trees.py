"""The nesting of arguments and results as JSON and back, and the names of pytree classes in files.

The JSON is that of `tree_json`, with ["class", name, fields, static data, tree, ...].

Names of classes are kept here, and also registered with `jax.export`, which has no way to look them
up. `jax.export` reads a namedtuple whose fields changed their order without an error, and so
exchanges values; here the fields of the file and of the class are compared.
"""

from __future__ import annotations

import dataclasses
import json
import weakref
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import numpy as np
from jax.tree_util import PyTreeDef, default_registry

from ..errors import Duplicate, InvalidConfig, Unsupported, first_line
from ..extension.definitions import Definition
from ..extension.nesting import PyTree, tree_json, tree_of
from ..identity import Writer
from ..jax_seam import refused_for
from ..payload_leaves import read_value

_classes: dict[str, type] = {}
_names: weakref.WeakKeyDictionary[type, str] = weakref.WeakKeyDictionary()
"""The names of classes, also of those that were defined again since."""
_known_to_jax: dict[str, type] = {}
"""The class that `jax.export` writes under a name, which cannot be changed: the first one."""


def register_pytree_name(cls: type, name: str) -> None:
    """Give a pytree class its name in graph bytes and exported programs.

    The process that reads must register the class under the same name, and the class must have
    the same fields. Its static data (everything but the children) may be None, bool, int, float,
    complex, str, bytes, dtype, and tuples of them. A class that `jax.export` knows keeps its name
    there. A class of the same name in the same module, of a cell that ran again, takes the place of
    the earlier one, which keeps its name for writing.

    Args:
      cls: a namedtuple, or a class registered with `jax.tree_util`, such as a dataclass.
      name: by custom "package.Class".

    Raises:
      InvalidConfig: no pytree class, or no name.
      Duplicate: the class has another name, or the name belongs to another class, here or in
        `jax.export`.

    Example:
      >>> import typing
      >>> import jax.numpy as jnp
      >>> from tenferro_jax import from_wire, to_wire, trace
      >>> class Moments(typing.NamedTuple):
      ...     mean: object
      ...     square: object
      >>> register_pytree_name(Moments, "docs-example.Moments")
      >>> back = from_wire(to_wire(trace(lambda x: Moments(x.mean(), x @ x), jnp.ones(2))))
      >>> back.to_jax()(jnp.array([1.0, 3.0])).square.item()
      10.0
    """
    where, given = "register_pytree_name", f"{cls!r:.100} and {name!r:.100}"
    if not isinstance(name, str) or not name or not _is_pytree_class(cls):
        raise InvalidConfig(
            where=where,
            given=given,
            needed="a namedtuple or a class that jax.tree_util knows, and text as its name",
            fix="Call jax.tree_util.register_dataclass or register_pytree_node first.",
        )
    known = _classes.get(name, cls)
    if _name_of(cls) not in (None, name) or not Definition.of(cls).is_again(Definition.of(known)):
        given += f", after {known!r:.100} and {_name_of(cls)!r:.100}"
        raise Duplicate(
            where=where, given=given, needed="one name for each class, and one class for each name"
        )
    if name not in _classes:
        _register_with_jax(cls, name)
    _classes[name] = cls
    _names[cls] = name


def _name_of(cls: type) -> str | None:
    return _names.get(cls)


def _is_pytree_class(cls: object) -> bool:
    if not isinstance(cls, type) or cls in (tuple, list, dict, type(None)):
        return False
    try:
        PyTreeDef.from_node_data_and_children(default_registry, (cls, None), ())
    except RuntimeError:  # JAX does not know the class
        return False
    return True


def _is_namedtuple(cls: type) -> bool:
    return issubclass(cls, tuple) and hasattr(cls, "_fields")


def _register_with_jax(cls: type, name: str) -> None:
    """Register the name with `jax.export`, in the format that JAX itself uses for namedtuples. The
    functions ask for the class that has the name when they run.
    """

    def write(static: object) -> bytes:
        held: Any = _classes[name]
        if _is_namedtuple(held):
            return json.dumps(held._fields).encode()
        return json.dumps([_known_fields(held), _static_json(static, name)]).encode()

    def read(content: bytes) -> Any:
        held, said = _classes[name], json.loads(content)
        fields, plain = ([said, []], None) if _is_namedtuple(held) else said
        static = read_value(plain, {})
        _require_fields(held, name, fields, static, len(fields[0]) if fields else 0)
        return static

    def made(aux_data: object, children: Iterable[object]) -> Any:
        return _made_of(_classes[name], aux_data, list(children))

    try:
        jax.export.register_pytree_node_serialization(
            cls,
            serialized_name=name,
            serialize_auxdata=write,
            deserialize_auxdata=read,
            from_children=made,
        )
    except ValueError as error:
        if refused_for(error)[0] == "name":  # otherwise the class has a name there, which stays
            raise Duplicate(
                where="register_pytree_name",
                given=first_line(error),
                needed="a name of its own",
            ) from error
    else:
        _known_to_jax[name] = cls


def _made_of(cls: type, static: object, children: Sequence[object]) -> Any:
    """An object of a pytree class from its static data and children."""
    leaves = [jax.tree.structure(0)] * len(children)
    tree = PyTreeDef.from_node_data_and_children(default_registry, (cls, static), leaves)
    return jax.tree.unflatten(tree, children)


def as_jax_writes(tree: PyTreeDef) -> PyTreeDef:
    """A PyTreeDef of classes that `jax.export` knows: of a class that was defined again it knows
    the first definition, under the same name.

    Raises:
      Unsupported: a class that was defined again with other fields since.
    """
    node = tree.node_data()
    if node is None:
        return tree
    kind, static = node
    if (name := _name_of(kind)) is not None:
        fields, now = _known_fields(kind), _known_fields(_classes[name])
        if fields != now:
            raise Unsupported(
                where=f"pytree class {name}",
                given=f"fields {fields!r:.500}, before the class was defined again",
                needed=f"{now}: children, then static data, as in the class of this process",
                fix="Export the function again.",
            )
        kind = _known_to_jax.get(name, kind)
    children = [as_jax_writes(child) for child in tree.children()]
    return PyTreeDef.from_node_data_and_children(default_registry, (kind, static), children)


def _known_fields(cls: Any) -> list[list[str]] | None:
    """The names of children and of static data, in order; None if the author's code flattens."""
    if _is_namedtuple(cls):
        return [list(cls._fields), []]
    if not dataclasses.is_dataclass(cls):
        return None
    blank = object.__new__(cls)  # type: ignore[arg-type]
    own = [field.name for field in dataclasses.fields(cls)]
    for name in own:
        object.__setattr__(blank, name, name)
    try:
        children, static = default_registry.flatten_one_level(blank)
    except Exception:  # the author's code
        return None
    named = [list(children), list(static) if isinstance(static, tuple) else [None]]
    found = [*named[0], *named[1]]
    return named if all(name in own and found.count(name) == 1 for name in found) else None


def _require_fields(cls: type, name: str, fields: object, static: object, count: int) -> None:
    """Refuse a node whose fields, children or static values do not fit its class in this process.

    JAX would read beyond the end if there are too few.

    Raises:
      Unsupported: the text shows both.
    """
    known = _known_fields(cls)
    given = f"fields {fields!r:.500}"
    if fields == known:
        if known is None:
            return
        held: Any = () if static is None and _is_namedtuple(cls) else static
        is_kind = isinstance(held, tuple) and (static is None) == _is_namedtuple(cls)
        if is_kind and (count, len(held)) == (len(known[0]), len(known[1])):
            return
        given = f"{count} children and the static data {static!r:.100}"
    raise Unsupported(
        where=f"pytree class {name}",
        given=given,
        needed=f"{known}: children, then static data, as in the class of this process",
        fix="Read it with the release of the class's package that wrote it.",
    )


def _static_json(static: object, name: str) -> Any:
    where = f"static data of {name}"

    def refused(array: np.ndarray) -> str:
        writer.held.append("an array")
        return "null"

    writer, cause = Writer(refused), None
    try:
        text = writer.text(static, where)
        if not writer.held:  # an array, a class or a dimension
            return json.loads(text)
    except InvalidConfig as error:
        cause = error
    raise InvalidConfig(
        where=where,
        given=f"{static!r:.100}",
        needed="None, bool, int, float, complex, str, bytes, dtype, and tuples of them",
        fix="Make it a child of the class, or write it as one of these.",
    ) from cause


def structure_json(tree: PyTreeDef, where: str) -> Any:
    """A PyTreeDef as JSON.

    Raises:
      Unsupported: a node other than tuple, list, None, dict with text or integer keys, and
        classes with a name.
      InvalidConfig: static data that no payload may hold.
    """

    def of_class(node: PyTreeDef) -> list[Any]:
        kind, static = node.node_data()
        if kind is dict:
            raise Unsupported(
                where=where,
                given=f"a dict with the keys {list(static)!r:.100}",
                needed="keys that are text or integers",
            )
        items = [tree_json(child, of_class) for child in node.children()]
        if (name := _name_of(kind)) is None:
            label = f"{kind.__module__}.{kind.__qualname__}"
            named = f"{kind.__name__}, {label.replace('__main__.', 'package.')!r}"
            raise Unsupported(
                where=where,
                given=f"a pytree node of type {label}",
                needed="tuples, lists, None, dicts with text or integer keys, and named classes",
                fix=f"Call register_pytree_name({named}) in this process and in the process that "
                f"reads.",
            )
        fields = _known_fields(kind)
        _require_fields(kind, name, fields, static, len(items))
        return ["class", name, fields, _static_json(static, name), *items]

    return tree_json(tree, of_class)


def structure_of(plain: object) -> Any:
    """The PyTreeDef that `structure_json` wrote.

    Raises:
      Unsupported: a class whose name is not registered, or that has other fields in this process.
      ValueError: other JSON.
    """

    def of_class(parts: list[PyTree]) -> PyTree:
        match parts:
            case ["class", str(name), fields, static, *items]:
                children = [tree_of(item, of_class) for item in items]
                return _instance(name, fields, static, children)
        raise ValueError(f"{parts!r:.100} instead of a tree")

    return jax.tree.structure(tree_of(plain, of_class))


def _instance(name: str, fields: object, plain: object, children: list[object]) -> Any:
    cls = _classes.get(name)
    if cls is None:
        raise Unsupported(
            where="pytree class",
            given=f"{name!r:.200}: not registered",
            needed="a class of this name in this process",
            fix="Import the package that defines it and call register_pytree_name(cls, name).",
        )
    static = read_value(plain, {})
    _require_fields(cls, name, fields, static, len(children))
    return _made_of(cls, static, children)
