"""Payloads as canonical JSON text, which is stored beside a family_id, and back.

The annotations of the fields tell how to read the text: only classes that they name are
constructed. So an op may hold only values that the annotations of its fields admit.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import jax
import jax.export
import numpy as np

from .errors import InvalidConfig, TenferroError
from .identity import CACHED, Sealed, layout, payload_of, typed_key
from .jax_seam import is_symbolic_dim
from .payload_leaves import ARRAYS, PLAIN_TYPES, enum_label, leaf_json, leaf_value, refusal

_NUMBER = (int, np.ndarray)
_KINDS: dict[Any, tuple[type, ...]] = {
    None: (types.NoneType,),
    types.NoneType: (types.NoneType,),
    bool: (bool, np.ndarray),
    int: _NUMBER,
    float: (float, *_NUMBER),
    complex: (complex, float, *_NUMBER),
    str: (str,),
    bytes: (bytes,),
    tuple: (tuple,),
    np.dtype: (np.dtype,),
}


class Annotation(NamedTuple):
    """A parsed annotation.

    Attributes:
      text: the annotation as an error prints it.
      kinds: kinds of plain values that it admits; None if it admits all, as `Any` does.
      classes: the enums, dataclasses and ops that it names, by their names.
      sole: the class, if the annotation is only one class.
    """

    text: str
    kinds: frozenset[type] | None
    classes: dict[str, type]
    sole: type | None


def read_annotations(cls: type) -> dict[str, Annotation]:
    """The annotation of every field of a dataclass; an unreadable annotation names no class.

    Example:
      >>> @dataclasses.dataclass
      ... class Window:
      ...     width: int | None
      >>> sorted(kind.__name__ for kind in read_annotations(Window)["width"].kinds)
      ['NoneType', 'int', 'ndarray']
    """
    names = [f.name for f in dataclasses.fields(cls)]
    try:
        hints = typing.get_type_hints(cls)
    except Exception as error:  # an annotation may be any expression
        return dict.fromkeys(names, Annotation(f"that cannot be read ({error})", None, {}, None))
    return {name: _read(hints.get(name, Any)) for name in names}


def _read(hint: object) -> Annotation:
    kinds = [_kinds(part) for part in _alternatives(hint)]
    known = (
        None if None in kinds else frozenset(kind for admitted in kinds for kind in admitted or ())
    )
    classes = {cls.__name__: cls for cls in _classes(hint)}
    text = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
    return Annotation(text, known, classes, hint if _is_value_class(hint) else None)


def _alternatives(hint: object) -> Iterator[Any]:
    """The members of a union and of its inner unions; for another annotation only itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _alternatives(part)
    else:
        yield hint


def _kinds(hint: object) -> tuple[type, ...] | None:
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type):
        return None
    if issubclass(origin, np.ndarray | np.generic | jax.Array):
        return (np.ndarray,)
    return () if _is_value_class(origin) else _KINDS.get(origin)


def _classes(hint: object) -> Iterator[type]:
    todo: list[Any] = [hint]
    seen: list[Any] = []
    while todo:
        part = todo.pop()
        if any(part is other for other in seen):  # a type alias may name itself
            continue
        seen.append(part)
        todo += typing.get_args(part)
        origin = typing.get_origin(part) or part
        if _is_value_class(origin):
            yield origin
        elif isinstance(part, enum.Enum):  # in a Literal
            yield type(part)
        elif not isinstance(part, type):  # a NewType, a type alias
            todo += [
                getattr(part, name)
                for name in ("__supertype__", "__value__")
                if hasattr(part, name)
            ]


def _is_value_class(hint: object) -> TypeGuard[type]:
    """Whether it is an enum, a dataclass, or a sealed class, which may have no fields."""
    return isinstance(hint, type) and (
        issubclass(hint, enum.Enum) or dataclasses.is_dataclass(hint) or hasattr(hint, "typed_key")
    )


_CLASSLESS = PLAIN_TYPES | {float, complex}


class Field(NamedTuple):
    """A field of a payload class.

    Attributes:
      plain: types of values that the annotation admits directly.
      rebuilds: whether its class has a `__post_init__`, which may replace the annotated class by a
        subclass.
    """

    name: str
    where: str
    init: bool
    annotation: Annotation
    plain: frozenset[type]
    rebuilds: bool


@functools.lru_cache(maxsize=1024)
def _fields(cls: type) -> tuple[Field, ...]:
    made: list[Field] = []
    wheres = dict(layout(cls).fields)
    annotations = read_annotations(cls) if wheres else {}
    rebuilds = getattr(cls, "__post_init__", None) not in (None, Sealed.__post_init__)
    for f in dataclasses.fields(cls) if wheres else ():
        kinds = annotations[f.name].kinds
        plain = _CLASSLESS if kinds is None else _CLASSLESS & kinds
        made.append(Field(f.name, wheres[f.name], f.init, annotations[f.name], plain, rebuilds))
    return tuple(made)


def require_annotated(value: Sealed) -> None:
    """Refuse an op with a field value that its annotation does not admit, because it could not be
    read back from text.

    Raises:
      InvalidConfig: the text names the field and its annotation.
    """
    cls: Any = type(value)
    for field in _fields(cls):
        held = getattr(value, field.name)
        if type(held) not in field.plain:
            _require_admitted(held, field.where, field)


def _require_admitted(value: object, where: str, field: Field) -> None:
    """Refuse a value whose kind, or a class in it, is not in the annotation."""
    _require_classes(value, where, field)
    kinds, kind = field.annotation.kinds, type(value)
    if (
        kinds is None
        or kind in kinds
        or hasattr(kind, "__dataclass_fields__")
        or isinstance(value, (enum.Enum, Sealed))
    ):
        return
    family: type = (
        np.dtype
        if isinstance(value, np.dtype)
        else np.ndarray
        if isinstance(value, ARRAYS)
        else kind
    )
    if family in kinds or (int in kinds and is_symbolic_dim(value)):
        return
    raise InvalidConfig(
        where=where,
        given=f"{value!r} of type {kind.__name__}",
        needed=f"a value of its annotation, {field.annotation.text}",
        fix="Pass such a value, or widen the annotation, because text is read back by it.",
    )


def _require_classes(value: object, where: str, field: Field) -> None:
    kind = type(value)
    if type(value) is tuple:
        for i, item in enumerate(value):
            if type(item) not in _CLASSLESS:
                _require_classes(item, f"{where}[{i}]", field)
    elif (
        isinstance(value, Sealed)
        and not dataclasses.is_dataclass(value)
        and not vars(value).keys() <= set(CACHED)
    ):
        raise refusal(value, where)  # a graph, a rule set
    elif isinstance(value, Sealed | enum.Enum):
        _class_in_text(kind, where, field)
    elif dataclasses.is_dataclass(kind):
        _class_in_text(kind, where, field)
        for f in _fields(kind):
            _require_admitted(getattr(value, f.name), f"{where}.{f.name}", f)


def _class_in_text(kind: type, where: str, field: Field) -> Any:
    """The class that text names for a value: its own, or the annotated base if `__post_init__`
    makes the subclass again.
    """
    classes = field.annotation.classes
    if classes.get(kind.__name__) is kind:
        return kind
    if field.rebuilds and hasattr(kind, "__dataclass_fields__"):
        for base in kind.__mro__[1:]:
            if (
                classes.get(base.__name__) is base
                and getattr(base, "__dataclass_fields__", {}).keys()
                == kind.__dataclass_fields__.keys()
            ):
                return base
    raise InvalidConfig(
        where=where,
        given=f"a value of class {kind.__qualname__} under the annotation {field.annotation.text}",
        needed="an annotation that names the class, because text is read back only into classes "
        "that annotations name",
        fix=f"Annotate the field with {kind.__name__}, alone or in a union or a tuple[...], in a "
        f"scope where annotations find it.",
    )


def payload_json(value: object) -> str:
    """The payload as canonical JSON text, which an exported program stores beside a family_id.

    Floats and complex numbers are written as C99 hexadecimal text, arrays and bytes as base64, so
    that no bit is lost. If an annotation names more than one class, the text names the class of the
    value.

    Raises:
      InvalidConfig: a value that no payload may hold, or of a class that the annotation of its
        field does not name.

    Example:
      >>> payload_json((1, 1.0, None))
      '[1,{"float":"0x1.0000000000000p+0"},null]'
    """
    return json.dumps(_plain(value, "payload", None), sort_keys=True, separators=(",", ":"))


def _plain(value: Any, where: str, field: Field | None) -> Any:
    kind: Any = type(value)
    if kind is tuple:
        return [_plain(item, where, field) for item in value]
    if isinstance(value, enum.Enum):
        label = enum_label(value, where)
        return {
            "enum": label if _goes_without_saying(kind, where, field) else [kind.__name__, label]
        }
    is_written = dataclasses.is_dataclass(kind) or (
        isinstance(value, Sealed) and vars(value).keys() <= set(CACHED)
    )
    if not is_written or isinstance(value, type):
        return leaf_json(value, where)
    plain = {f.name: _plain(getattr(value, f.name), f.where, f) for f in _fields(kind)}
    if field is None or _goes_without_saying(kind, where, field):
        return plain
    return {"of": [_class_in_text(kind, where, field).__name__, plain]}


def _goes_without_saying(kind: type, where: str, field: Field | None) -> bool:
    """Whether the annotation alone determines the class."""
    return field is None or _class_in_text(kind, where, field) is field.annotation.sole


def from_payload_json(text: str, cls: type) -> Any:
    """An instance of a payload class from the text of `payload_json`; every field is checked by
    constructing it.

    Only classes that the annotations of `cls` name are constructed. Symbolic dimensions become new
    symbols of one scope.

    Raises:
      InvalidConfig: the text is not JSON, or does not belong to that class.

    Example:
      >>> import dataclasses
      >>> @dataclasses.dataclass(frozen=True)
      ... class Window:
      ...     width: int
      ...     scale: float
      >>> from_payload_json(payload_json(Window(3, 0.5)), Window)
      Window(width=3, scale=0.5)
    """
    try:
        made = _made(json.loads(text), cls, jax.export.SymbolicScope())
        if (
            payload_json(made) != text
        ):  # another spelling or a repeated key: each payload has only one text
            raise ValueError("payload_json writes this payload in another way")
    except TenferroError:
        raise
    except (
        Exception
    ) as error:  # any exception: nesting that is too deep, an author's own checks, ...
        raise InvalidConfig(
            where=payload_of(cls),
            given=f"{repr(text)[:200]}: {type(error).__name__}: {error}",
            needed=f"JSON with the fields "
            f"{[f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []}",
            fix="Pass the text that payload_json wrote for this version of the class.",
        ) from error
    return made


def _made(plain: object, cls: type, scope: jax.export.SymbolicScope) -> Any:
    """An instance of a payload class from its fields."""
    fields = _fields(cls)
    names = {f.name for f in fields}
    if not isinstance(plain, dict) or plain.keys() != names:
        raise ValueError(
            f"{list(plain) if isinstance(plain, dict) else type(plain).__name__} where "
            f"{sorted(names)} are needed"
        )
    values = {f.name: _restored(plain[f.name], f, scope) for f in fields}
    made = cls(**{f.name: values[f.name] for f in fields if f.init})
    for f in fields:
        _require_admitted(getattr(made, f.name), f.where, f)
        if not f.init and typed_key(getattr(made, f.name)) != typed_key(values[f.name]):
            raise ValueError(f"{f.name} is computed, and is {getattr(made, f.name)!r}")
    return made


def _restored(plain: object, field: Field, scope: jax.export.SymbolicScope) -> Any:
    annotation = field.annotation
    if annotation.sole is not None and not issubclass(annotation.sole, enum.Enum):
        return _made(plain, annotation.sole, scope)
    if isinstance(plain, list):
        return tuple(_restored(item, field, scope) for item in plain)
    if not isinstance(plain, dict):
        return leaf_value(plain, scope)
    ((tag, value),) = plain.items()
    if tag == "of":
        name, fields = value
        return _made(fields, annotation.classes[name], scope)
    if tag == "enum":
        cls: Any = annotation.sole
        if isinstance(value, list):
            name, value = value
            cls = annotation.classes[name]
        return (
            cls(value)
            if issubclass(cls, enum.Flag) and type(value) is int
            else cls.__members__[value]
        )
    return leaf_value(plain, scope)
