"""What the annotation of a dataclass field admits: kinds of self-describing values, and classes that can be named in text."""

from __future__ import annotations

import dataclasses
import enum
import types
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np

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
    """An annotation that was read.

    Attributes:
      text: the annotation as an error prints it.
      kinds: kinds of plain values that it admits; None where it says nothing of them, as `Any` does.
      classes: the enums, dataclasses and ops that it names, anywhere in it, by their names.
      sole: the class, where the annotation is one class and nothing else.
    """

    text: str
    kinds: frozenset[type] | None
    classes: dict[str, type]
    sole: type | None


def read_annotations(cls: Any) -> dict[str, Annotation]:
    """The annotation of every field of a dataclass; one that cannot be read names no class.

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
    except Exception as error:  # any expression may stand there
        return dict.fromkeys(names, Annotation(f"that cannot be read ({error})", None, {}, None))
    return {name: _read(hints.get(name, Any)) for name in names}


def _read(hint: Any) -> Annotation:
    kinds = [_kinds(part) for part in _alternatives(hint)]
    known = None if None in kinds else frozenset(kind for admitted in kinds for kind in admitted or ())
    classes = {cls.__name__: cls for cls in _classes(hint)}
    text = getattr(hint, "__name__", str(hint)) if isinstance(hint, type) else str(hint)
    return Annotation(text, known, classes, hint if _is_value_class(hint) else None)


def _alternatives(hint: Any) -> Iterator[Any]:
    """The members of a union, of unions in it too; another annotation alone."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        for part in typing.get_args(hint):
            yield from _alternatives(part)
    else:
        yield hint


def _kinds(hint: Any) -> tuple[type, ...] | None:
    origin = typing.get_origin(hint) or hint
    if not isinstance(origin, type):
        return None
    if issubclass(origin, np.ndarray | np.generic | jax.Array):
        return (np.ndarray,)
    return () if _is_value_class(origin) else _KINDS.get(origin)


def _classes(hint: Any) -> Iterator[type]:
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
            todo += [getattr(part, name) for name in ("__supertype__", "__value__") if hasattr(part, name)]


def _is_value_class(hint: Any) -> bool:
    """Whether it is an enum, a dataclass, or a sealed class, which may have no fields."""
    return isinstance(hint, type) and (issubclass(hint, enum.Enum) or dataclasses.is_dataclass(hint) or hasattr(hint, "typed_key"))
