"""Typed identity of payloads.

Python says `1 == 1.0 == True` and `0.0 == -0.0`; a cache keyed by such values runs the wrong program. Here every value
that can be part of an op's payload gets a key that differs whenever type or bits differ, and equals itself even for
NaN. The leaves are a closed list: None, bool, int, float, complex, str, bytes, enum members, dtypes, tuples, symbolic
dimensions, arrays (copied and made read-only) and frozen dataclasses of these. Anything else is refused.
"""

from __future__ import annotations

import base64
import dataclasses
import enum
import functools
import hashlib
import json
import math
import struct
import typing
from collections.abc import Callable, Hashable
from typing import Any

import jax
import jax.export
import numpy as np

from .errors import PayloadError, TenferroError
from .jax_seam import is_symbolic_dim

_PLAIN = (type(None), bool, int, str, bytes)
_INTEGERS = frozenset({int})
_CACHED = ("_key", "_hash", "_carrier")  # what we store on a sealed object ourselves
CLOSED_LIST = "None, bool, int, float, complex, str, bytes, enum member, dtype, tuple, symbolic dimension, array, frozen dataclass"


def typed_key(value: Any) -> Hashable:
    """A hashable key that is equal for two payload values exactly when type and bits are equal.

    Raises:
      PayloadError: for a value outside the closed list.

    Example:
      >>> typed_key(1) == typed_key(1.0), typed_key(0.0) == typed_key(-0.0), typed_key(float("nan")) == typed_key(float("nan"))
      (False, False, True)
    """
    return _key(value, "payload")


def _key(value: Any, where: str) -> Hashable:
    kind = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, _bits(value)
    if kind is complex:
        return kind, _bits(value.real) + _bits(value.imag)
    if kind is tuple:
        if _is_integers(value):
            return "integers", value  # the name tells it from a tuple that holds True or 1.0
        return kind, tuple(_key(item, f"{where}[{i}]") for i, item in enumerate(value))
    if isinstance(value, Sealed):
        return value.typed_key
    if isinstance(value, enum.Enum):
        return kind, value.name
    if isinstance(value, np.dtype):
        return np.dtype, value.name
    if isinstance(value, np.ndarray | np.generic) and not value.dtype.hasobject:
        return np.ndarray, value.dtype.name, value.shape, _digest(value)
    if is_symbolic_dim(value):
        return "dimension", value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        _require_frozen(kind, where)
        return kind, tuple((f.name, _key(getattr(value, f.name), f"{where}.{f.name}")) for f in dataclasses.fields(value))
    raise _refusal(value, where)


def _is_integers(value: Any) -> bool:
    """Whether it is a tuple of Python's ints alone, as axes and shapes are: its own typed key."""
    return type(value) is tuple and set(map(type, value)) <= _INTEGERS


def _bits(value: float) -> bytes:
    """The IEEE bytes; every NaN is one."""
    return struct.pack("<d", value if value == value else math.nan)


def _digest(array: np.ndarray | np.generic) -> bytes:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).digest()


def _require_frozen(cls: Any, where: str) -> None:
    if not cls.__dataclass_params__.frozen:
        raise PayloadError(
            where=where,
            given=f"a mutable dataclass {cls.__name__}",
            needed="a value that cannot change after it was hashed",
            fix="Write @dataclass(frozen=True).",
        )


def _refusal(value: Any, where: str) -> PayloadError:
    hint: dict[type, str] = {list: "Use a tuple.", dict: "Use a frozen dataclass or a tuple of pairs.", set: "Use a sorted tuple."}
    kind = type(value)
    fix = hint.get(kind, "Tensors are inputs of the op, everything else belongs in the closed list.")
    given = f"{value!r} of type {kind.__module__}.{kind.__qualname__}"
    return PayloadError(where=where, given=given, needed=f"one of: {CLOSED_LIST}", fix=fix)


def _read_only(leaf: Any) -> Any:
    """An array leaf as a read-only copy; other leaves as they are."""
    if not isinstance(leaf, np.ndarray | jax.Array) or isinstance(leaf, jax.core.Tracer) or leaf.dtype == object:
        return leaf
    try:
        copy = np.array(leaf)
    except TypeError:  # a key array, which the closed list refuses
        return leaf
    copy.setflags(write=False)
    return copy


def _family_hint(cls: type) -> str:
    family_id = getattr(cls, "family_id", None)
    return f" (family_id {family_id})" if isinstance(family_id, str) else ""


def _payload_of(cls: type) -> str:
    return f"{cls.__name__} payload" + _family_hint(cls)


@functools.lru_cache(maxsize=1024)
def _layout(cls: type) -> tuple[tuple[tuple[str, str], ...], frozenset[str]]:
    """(name, what an error calls it) of each field of a Sealed class, and every attribute that an instance may have."""
    where = _payload_of(cls)
    fields: tuple[tuple[str, str], ...] = ()
    if dataclasses.is_dataclass(cls):
        _require_frozen(cls, where)
        fields = tuple((f.name, f"{where}, field {f.name}") for f in dataclasses.fields(cls))
    return fields, frozenset({*(name for name, _ in fields), *_CACHED})


class Sealed:
    """A frozen value with typed identity: base of ops, rules and graphs.

    A subclass is a `@dataclass(frozen=True)` whose fields are the payload, or a plain class without state. Arrays in
    the fields, also inside tuples and dataclasses, are copied and made read-only when the object is made. A subclass
    that writes its own `__post_init__` calls `super().__post_init__()` last.
    """

    _key: Hashable = None
    _hash: int = 0

    def __post_init__(self) -> None:
        self._seal()

    def __setattr__(self, name: str, value: Any) -> None:
        if self._key is not None:
            raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")
        object.__setattr__(self, name, value)

    def _seal(self) -> None:
        cls: Any = type(self)
        fields, allowed = _layout(cls)
        state = vars(self)
        if not state.keys() <= allowed:
            raise PayloadError(
                where=_payload_of(cls),
                given=f"state outside the dataclass fields: {', '.join(sorted(set(state) - allowed))}",
                needed="every attribute declared as a field, because the fields are the identity",
                fix=f"Decorate {cls.__name__} with @dataclass(frozen=True) and declare the fields.",
            )
        keys = []
        for name, where in fields:
            value = getattr(self, name)
            if type(value) not in _PLAIN and not _is_integers(value):
                sealed = map_leaves(value, _read_only)
                if sealed is not value:
                    object.__setattr__(self, name, sealed)
                    value = sealed
            keys.append(_key(value, where))
        self._set_key((cls, *keys))

    def _set_key(self, key: Hashable) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    @property
    def typed_key(self) -> Hashable:
        """The identity: the class and the typed keys of all fields."""
        if self._key is None:
            self._seal()
        return self._key

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sealed) and self.typed_key == other.typed_key)

    def __hash__(self) -> int:
        if self._key is None:
            self._seal()
        return self._hash


def map_leaves(value: Any, change: Callable[[Any], Any]) -> Any:
    """A payload value with every leaf replaced through `change`; the same object when nothing changed.

    Objects that define `map_leaves` themselves (graphs, carriers) are asked.

    Example:
      >>> map_leaves((1, (2, None)), lambda leaf: 10 if leaf == 2 else leaf)
      (1, (10, None))
    """
    if type(value) is tuple:
        items = tuple(map_leaves(item, change) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if hasattr(value, "map_leaves") and not isinstance(value, type):
        return value.map_leaves(change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
        changed = {name: map_leaves(field, change) for name, field in fields.items()}
        return value if all(changed[name] is fields[name] for name in fields) else dataclasses.replace(value, **changed)
    return change(value)


def payload_json(value: Any) -> str:
    """The payload as canonical JSON text: what an exported program carries beside a family_id.

    Floats and complex numbers are written as C99 hexadecimal text, arrays and bytes as base64, so that no bit is lost.

    Example:
      >>> payload_json((1, 1.0, None))
      '[1,{"float":"0x1.0000000000000p+0"},null]'
    """
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _plain(value: Any) -> Any:
    kind = type(value)
    if kind in (type(None), bool, int, str):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is tuple:
        return [_plain(item) for item in value]
    if isinstance(value, enum.Enum):
        return {"enum": value.name}
    if isinstance(value, np.dtype):
        return {"dtype": value.name}
    if isinstance(value, np.ndarray | np.generic):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [value.dtype.name, list(value.shape), data]}
    if is_symbolic_dim(value):
        return {"dimension": str(value)}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, Sealed):  # a class without state
        return {}
    raise _refusal(value, "payload")


def from_payload_json(text: str, cls: type) -> Any:
    """An instance of a dataclass from what `payload_json` wrote of one; every field is checked by being constructed.

    Raises:
      PayloadError: the text is no JSON, or its fields are not those of the class.

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
        return _restored(json.loads(text), cls)
    except TenferroError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise PayloadError(
            where=f"payload of {cls.__name__}",
            given=f"{text[:200]!r}: {type(error).__name__}: {error}",
            needed=f"JSON with the fields {[f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []}",
            fix="Read it with the version of the package that wrote it.",
        ) from error


def _restored(plain: Any, hint: Any) -> Any:
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint[plain["enum"]]
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        hints = typing.get_type_hints(hint)
        names = {f.name for f in dataclasses.fields(hint)}
        if set(plain) != names:
            raise ValueError(f"fields {sorted(plain)} where {sorted(names)} are needed")
        return hint(**{name: _restored(plain[name], hints.get(name)) for name in names})
    if isinstance(plain, list):
        return tuple(_restored(item, None) for item in plain)
    if isinstance(plain, dict):
        ((tag, value),) = plain.items()
        return _DECODERS[tag](value)
    if isinstance(hint, type) and not dataclasses.is_dataclass(hint) and hint in (int, str, bool) and type(plain) is not hint:
        raise ValueError(f"{plain!r} where {hint.__name__} is needed")
    return plain


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": np.dtype,
    "array": lambda parts: np.frombuffer(base64.b64decode(parts[2], validate=True), np.dtype(parts[0])).reshape(parts[1]),
    "dimension": lambda text: jax.export.symbolic_shape(text)[0],
}
