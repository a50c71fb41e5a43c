"""Payloads as canonical JSON text and back: what travels beside a family_id."""

from __future__ import annotations

import base64
import dataclasses
import enum
import json
from collections.abc import Callable, Mapping
from typing import Any

import jax.export
import numpy as np

from .closed_list import ARRAYS, array_bytes, dtype_name, enum_label, float_text, is_plain_dtype, named_dtype, read_float, refusal
from .dimension_text import read_dimension
from .errors import PayloadError, TenferroError
from .jax_seam import is_symbolic_dim
from .payload import CACHED, Field, Sealed, class_in_text, field_key, layout, payload_of

_LONGEST = 2048  # bits; Python's own limit on decimal text is never below


def payload_json(value: Any) -> str:
    """The payload as canonical JSON text: what an exported program carries beside a family_id.

    Floats and complex numbers are written as C99 hexadecimal text, arrays and bytes as base64, so that no bit is lost.
    Where an annotation names more than one class, the text names the one.

    Raises:
      PayloadError: a value outside the closed list, or of a class that the annotation of its field does not name.

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
        return {"enum": label if _goes_without_saying(kind, where, field) else [kind.__name__, label]}
    is_written = dataclasses.is_dataclass(kind) or (isinstance(value, Sealed) and vars(value).keys() <= set(CACHED))
    if not is_written or isinstance(value, type):
        return leaf_json(value, where)
    plain = {f.name: _plain(getattr(value, f.name), f.where, f) for f in layout(kind).fields}
    if field is None or _goes_without_saying(kind, where, field):
        return plain
    return {"of": [class_in_text(kind, where, field).__name__, plain]}


def leaf_json(value: Any, where: str) -> Any:
    """A leaf of the closed list as JSON that says what it is; enum members are no leaves, they need a class.

    Raises:
      PayloadError: a value outside the closed list.
    """
    kind: Any = type(value)
    if kind is int:
        return int_json(value)
    if kind in (type(None), bool, str):
        return value
    if kind is float:
        return {"float": float_text(value)}
    if kind is complex:
        return {"complex": [float_text(value.real), float_text(value.imag)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if isinstance(value, np.dtype) and is_plain_dtype(value):
        return {"dtype": dtype_name(value)}
    if isinstance(value, ARRAYS) and is_plain_dtype(value.dtype):
        return {"array": [dtype_name(value.dtype), list(value.shape), base64.b64encode(array_bytes(value)).decode()]}
    if is_symbolic_dim(value):
        return {"dimension": str(value)}
    raise refusal(value, where)


def int_json(value: int) -> Any:
    """An int as JSON; one that is longer than Python reads and writes in decimal goes as hexadecimal text."""
    return value if value.bit_length() <= _LONGEST else {"int": hex(value)}


def _goes_without_saying(kind: type, where: str, field: Field | None) -> bool:
    """Whether the annotation alone says which class is meant."""
    return field is None or class_in_text(kind, where, field) is field.annotation.sole


def from_payload_json(text: str, cls: type) -> Any:
    """An instance of a payload class from what `payload_json` wrote of one; every field is checked by being constructed.

    Classes that the annotations of `cls` name are constructed, and no others. Symbolic dimensions are new symbols of one
    scope.

    Raises:
      PayloadError: the text is no JSON, or not of that class.

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
        if payload_json(made) != text:  # another spelling, a key twice: one payload has one text
            raise ValueError("payload_json writes this payload in another way")
    except TenferroError:
        raise
    except Exception as error:  # whatever a text may lead to, too deep a nesting and an author's own checks among it
        raise PayloadError(
            where=payload_of(cls),
            given=f"{repr(text)[:200]}: {type(error).__name__}: {error}",
            needed=f"JSON with the fields {[f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []}",
            fix="Pass what payload_json wrote of this class, as it was in that version of its package.",
        ) from error
    return made


def _made(plain: Any, cls: Any, scope: Any) -> Any:
    """An instance of a payload class from its fields."""
    fields = layout(cls).fields
    names = {f.name for f in fields}
    if not isinstance(plain, dict) or plain.keys() != names:
        raise ValueError(f"{list(plain) if isinstance(plain, dict) else type(plain).__name__} where {sorted(names)} are needed")
    values = {f.name: _restored(plain[f.name], f, scope) for f in fields}
    made = cls(**{f.name: values[f.name] for f in fields if f.init})
    for f in fields:
        key = field_key(getattr(made, f.name), f.where, f)
        if not f.init and key != field_key(values[f.name], f.where, f):
            raise ValueError(f"{f.name} is computed, and is {getattr(made, f.name)!r}")
    return made


def _restored(plain: Any, field: Field, scope: Any) -> Any:
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
        return cls(value) if issubclass(cls, enum.Flag) and type(value) is int else cls.__members__[value]
    return leaf_value(plain, scope)


def leaf_value(plain: Any, scope: Any) -> Any:
    """The leaf that `leaf_json` wrote; an Exception of Python's for anything else. Symbols are those of the scope."""
    if not isinstance(plain, dict):
        if isinstance(plain, float | list):
            raise ValueError(f"{plain!r:.100}, which no leaf is written as")
        return plain
    ((tag, value),) = plain.items()
    return read_dimension(value, scope) if tag == "dimension" else _DECODERS[tag](value)


def _array(parts: Any) -> Any:
    name, shape, data = parts
    content = base64.b64decode(data, validate=True)
    array = np.ndarray(tuple(shape), named_dtype(name), content)
    if array.nbytes != len(content):
        raise ValueError(f"{len(content)} bytes for an array of shape {shape}")
    return array


_DECODERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": read_float,
    "complex": lambda parts: complex(*map(read_float, parts)),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": named_dtype,
    "array": _array,
}
