"""Payloads as canonical JSON text, which is stored beside a family_id, and back.

The annotations of the fields tell how to read the text: only classes that they name are
constructed. So an op may hold only values that the annotations of its fields admit.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import json
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeGuard

import jax
import numpy as np

from .dimensions import read_dimension
from .errors import InvalidConfig, TenferroError
from .identity import CACHED, Sealed, Writer, payload_of
from .jax_seam import is_symbolic_dim
from .payload_leaves import ARRAYS, array_bytes, array_text, read_array, read_value, refusal


class Annotation(NamedTuple):
    """The parsed annotation of a field.

    Attributes:
      text: the annotation as an error prints it.
      kinds: kinds of plain values that it admits; None if it admits all, as `Any` does.
      classes: the enums, dataclasses and ops that it names, by their names.
      sole: the class, if the annotation is only one class.
      init: whether `__init__` takes the field.
      rebuilds: whether the class of the field has a `__post_init__`, which may replace the
        annotated class by a subclass.
    """

    text: str
    kinds: frozenset[type] | None = None
    classes: dict[str, type] = {}  # noqa: RUF012 (never changed)
    sole: type | None = None
    init: bool = True
    rebuilds: bool = False


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


@functools.lru_cache(maxsize=1024)
def annotations_of(cls: type) -> dict[str, Annotation]:
    """The annotation of every field of a payload class; an unreadable one names no class.

    Example:
      >>> @dataclasses.dataclass
      ... class Window:
      ...     width: int | None
      >>> sorted(kind.__name__ for kind in annotations_of(Window)["width"].kinds)
      ['NoneType', 'int', 'ndarray']
    """
    if not dataclasses.is_dataclass(cls):
        return {}
    rebuilds = getattr(cls, "__post_init__", None) not in (None, Sealed.__post_init__)
    try:
        hints = typing.get_type_hints(cls)
        read = {f.name: _read(hints.get(f.name, Any)) for f in dataclasses.fields(cls)}
    except Exception as error:  # an annotation may be any expression
        unknown = Annotation(f"that cannot be read ({error})")
        read = {f.name: unknown for f in dataclasses.fields(cls)}
    return {
        f.name: read[f.name]._replace(init=f.init, rebuilds=rebuilds)
        for f in dataclasses.fields(cls)
    }


def _read(hint: object) -> Annotation:
    is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    kinds = [_kinds(part) for part in (typing.get_args(hint) if is_union else (hint,))]
    known = (
        None if None in kinds else frozenset(kind for admitted in kinds for kind in admitted or ())
    )
    classes = {cls.__name__: cls for cls in _classes(hint)}
    text = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
    return Annotation(text, known, classes, hint if _is_value_class(hint) else None)


def _kinds(hint: object) -> tuple[type, ...] | None:
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type):
        return None
    if issubclass(origin, np.ndarray | np.generic | jax.Array):
        return (np.ndarray,)
    return () if _is_value_class(origin) else _KINDS.get(origin)


def _classes(hint: object) -> Iterator[type]:
    todo: list[Any] = [hint]
    while todo:
        part = todo.pop()
        todo += typing.get_args(part)
        origin = typing.get_origin(part) or part
        if _is_value_class(origin):
            yield origin
        elif isinstance(part, enum.Enum):  # in a Literal
            yield type(part)


def _is_value_class(hint: object) -> TypeGuard[type]:
    """Whether it is an enum, a dataclass, or a sealed class, which may have no fields."""
    return isinstance(hint, type) and (
        issubclass(hint, enum.Enum) or dataclasses.is_dataclass(hint) or issubclass(hint, Sealed)
    )


class PayloadWriter(Writer):
    """Writes payloads, and refuses those that could not be read back by their annotations."""

    _annotation: Annotation | None = None  # of the field that is being written

    def sealed(self, value: Sealed, where: str) -> str:
        """The text of an op, a semiring or another sealed value of fields alone."""
        if dataclasses.is_dataclass(value) or vars(value).keys() <= set(CACHED):
            return self.instance(value, where)
        raise refusal(value, where)  # a graph, a rule set

    def field(self, owner: object, name: str, where: str) -> str:
        """The text of one field, whose value its annotation admits."""
        cls: Any = type(owner)
        value, annotation = getattr(owner, name), annotations_of(cls)[name]
        outer, self._annotation = self._annotation, annotation
        text = self.text(value, where)
        self._annotation = outer
        kinds, kind = annotation.kinds, type(value)
        if kinds is None or kind in kinds or _is_value_class(kind):
            return text
        family = np.dtype if isinstance(value, np.dtype) else np.ndarray
        if isinstance(value, (np.dtype, *ARRAYS)) and family in kinds:
            return text
        if is_symbolic_dim(value) and int in kinds:
            return text
        raise InvalidConfig(
            where=where,
            given=f"{value!r} of type {kind.__name__}",
            needed=f"a value of its annotation, {annotation.text}",
            fix="Pass such a value, or widen the annotation, because text is read back by it.",
        )

    def name(self, kind: type, where: str) -> str | None:
        """The name of the class of a value, if the annotation alone does not decide it: its own, or
        that of the annotated base if `__post_init__` makes the subclass again.
        """
        annotation = self._annotation
        if annotation is None:
            return None
        for cls in kind.__mro__ if annotation.rebuilds else (kind,):
            if annotation.classes.get(cls.__name__) is cls and (
                cls is kind or annotations_of(cls).keys() == annotations_of(kind).keys()
            ):
                return None if cls is annotation.sole else cls.__name__
        raise InvalidConfig(
            where=where,
            given=f"a value of class {kind.__qualname__} under the annotation {annotation.text}",
            needed="an annotation that names the class, because text is read back only into "
            "classes that annotations name",
            fix=f"Annotate the field with {kind.__name__}, alone or in a union or a tuple[...], in "
            f"a scope where annotations find it.",
        )


def _whole_text(array: np.ndarray) -> str:
    return array_text(array, base64.b64encode(array_bytes(array)).decode())


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
    return PayloadWriter(_whole_text).text(value, "payload")


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
    scope = jax.export.SymbolicScope()

    def made(plain: object, cls: type) -> Any:
        fields = annotations_of(cls)
        if not isinstance(plain, dict) or plain.keys() != fields.keys():
            raise ValueError(f"{plain!r:.200} where {sorted(fields)} are needed")
        values = {name: value(plain[name], field) for name, field in fields.items()}
        return cls(**{name: values[name] for name, field in fields.items() if field.init})

    def value(plain: object, field: Annotation) -> Any:
        sole: Any = field.sole
        if sole is not None and not issubclass(sole, enum.Enum):
            return made(plain, sole)

        def member(label: object) -> Any:
            kind, name = sole, label
            if isinstance(label, list):
                kind, name = field.classes[label[0]], label[1]
            return kind.__members__[name]

        return read_value(
            plain,
            {
                "of": lambda said: made(said[1], field.classes[said[0]]),
                "enum": member,
                "array": read_array,
                "dimension": lambda text: read_dimension(text, scope),
            },
        )

    try:
        found = made(json.loads(text), cls)
        # Another spelling, a repeated key, a computed field with another value.
        if (written := payload_json(found)) != text:
            raise ValueError(f"payload_json writes {written:.200}")
    except TenferroError:
        raise
    except Exception as error:  # nesting that is too deep, an author's own checks, ...
        raise InvalidConfig(
            where=payload_of(cls),
            given=f"{repr(text)[:200]}: {type(error).__name__}: {error}",
            needed=f"JSON with the fields {list(annotations_of(cls))}",
            fix="Pass the text that payload_json wrote for this version of the class.",
        ) from error
    return found
