"""Typed identity of payloads.

Python says `1 == 1.0 == True` and `0.0 == -0.0`; a cache keyed by such values runs the wrong program. Here every value
that can be part of an op's payload gets a key that differs whenever type or bits differ, and equals itself even for
NaN. The leaves are a closed list: None, bool, int, float, complex, str, bytes, enum members, dtypes, tuples, symbolic
dimensions, arrays (copied and made read-only) and frozen dataclasses of these. Anything else is refused, and so is what
could not be read back from text: an enum member or a dataclass that the annotation of its field does not name.
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
import types
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import jax
import jax.export
import numpy as np

from .annotation import Annotation, read_annotations
from .errors import PayloadError, TenferroError
from .jax_seam import is_symbolic_dim

_PLAIN = frozenset({type(None), bool, int, str, bytes})
_INTEGERS = frozenset({int})
_CACHED = ("_key", "_hash", "_carrier")  # what we store on a sealed object ourselves
CLOSED_LIST = "None, bool, int, float, complex, str, bytes, enum member, dtype, tuple, symbolic dimension, array, frozen dataclass"
_ARRAYS = (np.ndarray, np.generic)
_LONG = 2048  # bits; Python's own limit on decimal text is never below
_PLAIN_ARRAYS = "Use a plain numpy.ndarray or a dtype: boolean or numeric, known to JAX, in native byte order."


def typed_key(value: Any) -> Hashable:
    """A hashable key that is equal for two payload values exactly when type and bits are equal.

    Raises:
      PayloadError: for a value outside the closed list.

    Example:
      >>> typed_key(1) == typed_key(1.0), typed_key(0.0) == typed_key(-0.0), typed_key(float("nan")) == typed_key(float("nan"))
      (False, False, True)
    """
    return _key(value, "payload")


class _Field(NamedTuple):
    """A field of a payload class.

    Attributes:
      plain: types that need no second look.
      rebuilds: whether its class has a `__post_init__` that may put a subclass in place of the class that is annotated.
    """

    name: str
    where: str
    init: bool
    annotation: Annotation
    plain: frozenset[type]
    rebuilds: bool


class _Layout(NamedTuple):
    """The fields of a payload class, what an instance of a Sealed one may have as attributes, whether annotations bind."""

    fields: tuple[_Field, ...]
    allowed: frozenset[str]
    is_read_back: bool


def _key(value: Any, where: str, field: _Field | None = None) -> Hashable:
    """The typed key; with a field, classes are those that its annotation names."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return kind, value
    if kind is float:
        return kind, _bits(value)
    if kind is complex:
        return kind, _bits(value.real) + _bits(value.imag)
    if kind is tuple:
        if _is_integers(value):
            return "integers", value  # the name tells it from a tuple that holds True or 1.0
        return kind, tuple(_key(item, f"{where}[{i}]", field) for i, item in enumerate(value))
    if isinstance(value, Sealed):
        if field is not None:
            if not dataclasses.is_dataclass(value) and not vars(value).keys() <= set(_CACHED):  # a graph, a rule set
                raise _refusal(value, where)
            _class_in_text(kind, where, field)
        return value.typed_key
    if isinstance(value, enum.Enum):
        if field is not None:
            _class_in_text(kind, where, field)
        return kind, _label(value, where)
    if isinstance(value, np.dtype):
        if not _is_plain_dtype(value):
            raise _refusal(value, where, _PLAIN_ARRAYS)
        return np.dtype, _name(value)
    if isinstance(value, _ARRAYS):
        if not _is_plain_dtype(value.dtype) or kind not in (np.ndarray, value.dtype.type):
            raise _refusal(value, where, _PLAIN_ARRAYS)
        return np.ndarray, _name(value.dtype), value.shape, _digest(value)
    if is_symbolic_dim(value):
        return "dimension", value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        if field is None:
            return kind, tuple((f.name, _key(getattr(value, f.name), f"{where}.{f.name}")) for f in _layout(kind).fields)
        _class_in_text(kind, where, field)
        return kind, tuple((f.name, _field_key(getattr(value, f.name), f"{where}.{f.name}", f)) for f in _layout(kind).fields)
    raise _refusal(value, where)


def _field_key(value: Any, where: str, field: _Field) -> Hashable:
    """The typed key of a value that its field's annotation admits."""
    key = _key(value, where, field)
    kinds, kind = field.annotation.kinds, type(value)
    if kinds is None or kind in kinds or hasattr(kind, "__dataclass_fields__") or isinstance(value, (enum.Enum, Sealed)):
        return key
    family: type = np.dtype if isinstance(value, np.dtype) else np.ndarray if isinstance(value, _ARRAYS) else kind
    if family in kinds or (int in kinds and is_symbolic_dim(value)):
        return key
    raise PayloadError(
        where=where,
        given=f"{value!r} of type {kind.__name__}",
        needed=f"a value of its annotation, {field.annotation.text}",
        fix="Pass one, or widen the annotation: what is written as text is read back by it.",
    )


def _class_in_text(kind: Any, where: str, field: _Field) -> Any:
    """The class as which text names a value: its own, or the base that is annotated where `__post_init__` turns it back."""
    classes = field.annotation.classes
    if classes.get(kind.__name__) is kind:
        return kind
    if field.rebuilds and hasattr(kind, "__dataclass_fields__"):
        for base in kind.__mro__[1:]:
            if classes.get(base.__name__) is base and getattr(base, "__dataclass_fields__", {}).keys() == kind.__dataclass_fields__.keys():
                return base
    raise PayloadError(
        where=where,
        given=f"a value of class {kind.__qualname__} under the annotation {field.annotation.text}",
        needed="an annotation that names the class, because text is read back into classes that annotations name and no others",
        fix=f"Annotate the field with {kind.__name__}, alone or in a union or a tuple[...], in a scope where annotations find it.",
    )


def _label(member: enum.Enum, where: str) -> str | int:
    """The name of an enum member, the number of a combination of flags."""
    if member.name in type(member).__members__:
        return member.name
    if isinstance(member, enum.Flag):
        return int(member.value)
    raise _refusal(member, where, "Use a declared member.")


@functools.lru_cache(maxsize=256)
def _is_plain_dtype(dtype: Any) -> bool:
    """Whether its name says all of it: a boolean or numeric dtype that JAX knows, in native byte order, or JAX's float0."""
    if not dtype.isnative or dtype.kind == "m" or dtype.type in (np.longdouble, np.clongdouble):
        return False
    return dtype.kind == "b" or dtype == jax.dtypes.float0 or bool(jax.dtypes.issubdtype(dtype, np.number))


def _name(dtype: Any) -> str:
    """The name of a plain dtype."""
    return "float0" if dtype == jax.dtypes.float0 else dtype.name


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


def _refusal(value: Any, where: str, fix: str = "") -> PayloadError:
    hint: dict[type, str] = {list: "Use a tuple.", dict: "Use a frozen dataclass or a tuple of pairs.", set: "Use a sorted tuple."}
    kind = type(value)
    fix = fix or hint.get(kind, "Tensors are inputs of the op, everything else belongs in the closed list.")
    given = f"{value!r} of type {kind.__module__}.{kind.__qualname__}"
    return PayloadError(where=where, given=given, needed=f"one of: {CLOSED_LIST}", fix=fix)


def _read_only(leaf: Any) -> Any:
    """An array leaf as a copy that nobody can make writeable, because bytes are below it; other leaves as they are."""
    if type(leaf) in _PLAIN or isinstance(leaf, enum.Enum):  # most leaves; to ask for jax.Array takes longer
        return leaf
    if not (type(leaf) is np.ndarray or isinstance(leaf, jax.Array)) or isinstance(leaf, jax.core.Tracer):
        return leaf
    try:
        array = np.asarray(leaf)
    except (TypeError, RuntimeError):  # a key array; one that was deleted or is on other hosts: the closed list refuses them
        return leaf
    return np.ndarray(array.shape, array.dtype, array.tobytes()) if _is_plain_dtype(array.dtype) else leaf


def _family_hint(cls: type) -> str:
    family_id = getattr(cls, "family_id", None)
    return f" (family_id {family_id})" if isinstance(family_id, str) else ""


def _payload_of(cls: type) -> str:
    return f"{cls.__name__} payload" + _family_hint(cls)


@functools.lru_cache(maxsize=1024)
def _layout(cls: Any) -> _Layout:
    """The layout of a payload class."""
    where = _payload_of(cls)
    # Only a family's payload is written as text; a standard op looks at its fields itself.
    is_read_back = isinstance(getattr(cls, "family_id", None), str)
    fields: tuple[_Field, ...] = ()
    if dataclasses.is_dataclass(cls):
        _require_frozen(cls, where)
        annotations = read_annotations(cls)
        rebuilds = getattr(cls, "__post_init__", None) not in (None, Sealed.__post_init__)
        for f in dataclasses.fields(cls):
            kinds = annotations[f.name].kinds if is_read_back else None
            plain = _PLAIN if kinds is None else _PLAIN & kinds
            fields += (_Field(f.name, f"{where}, field {f.name}", f.init, annotations[f.name], plain, rebuilds),)
    allowed = frozenset({*(f.name for f in fields), *_CACHED})
    if issubclass(cls, Sealed):
        slots = {name for base in cls.__mro__ for name, member in vars(base).items() if isinstance(member, types.MemberDescriptorType)}
        _require_fields_alone(cls, slots - allowed)
    return _Layout(fields, allowed, is_read_back)


def _require_fields_alone(cls: type, others: set[str]) -> None:
    """Refuse attributes beside the fields."""
    if others:
        raise PayloadError(
            where=_payload_of(cls),
            given=f"state outside the dataclass fields: {', '.join(sorted(others))}",
            needed="every attribute declared as a field, because the fields are the identity",
            fix=f"Decorate {cls.__name__} with @dataclass(frozen=True) and declare the fields.",
        )


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
        fields, allowed, is_read_back = _layout(cls)
        state = vars(self)
        if not state.keys() <= allowed:
            _require_fields_alone(cls, set(state) - allowed)
        keys: list[Hashable] = []
        for field in fields:
            value = getattr(self, field.name)
            kind = type(value)
            if kind in field.plain:
                keys.append((kind, value))
                continue
            if kind is not float and not _is_integers(value):
                sealed = map_leaves(value, _read_only)
                if sealed is not value:
                    object.__setattr__(self, field.name, sealed)
                    value = sealed
            keys.append(_field_key(value, field.where, field) if is_read_back else _key(value, field.where))
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
        changed = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            mapped = map_leaves(item, change)
            if mapped is not item:
                changed[f] = mapped
        return _replaced(value, changed) if changed else value
    return change(value)


def _replaced(value: Any, changed: dict[Any, Any]) -> Any:
    """A dataclass with some fields changed. A sealed one makes its computed fields anew."""
    made = dataclasses.replace(value, **{f.name: item for f, item in changed.items() if f.init})
    for f, item in changed.items():
        if not f.init and not isinstance(made, Sealed):
            object.__setattr__(made, f.name, item)
    return made


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


def _plain(value: Any, where: str, field: _Field | None) -> Any:
    kind: Any = type(value)
    if kind is int:
        return int_json(value)
    if kind in (type(None), bool, str):
        return value
    if kind is float:
        return {"float": value.hex()}
    if kind is complex:
        return {"complex": [value.real.hex(), value.imag.hex()]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is tuple:
        return [_plain(item, where, field) for item in value]
    if isinstance(value, enum.Enum):
        label = _label(value, where)
        return {"enum": label if _goes_without_saying(kind, where, field) else [kind.__name__, label]}
    if isinstance(value, np.dtype):
        return {"dtype": _name(value)}
    if isinstance(value, _ARRAYS):
        data = base64.b64encode(np.ascontiguousarray(value).tobytes()).decode()
        return {"array": [_name(value.dtype), list(value.shape), data]}
    if is_symbolic_dim(value):
        return {"dimension": str(value)}
    is_written = dataclasses.is_dataclass(kind) or (isinstance(value, Sealed) and vars(value).keys() <= set(_CACHED))
    if not is_written or isinstance(value, type):
        raise _refusal(value, where)
    plain = {f.name: _plain(getattr(value, f.name), f.where, f) for f in _layout(kind).fields}
    if field is None or _goes_without_saying(kind, where, field):
        return plain
    return {"of": [_class_in_text(kind, where, field).__name__, plain]}


def int_json(value: int) -> Any:
    """An int as JSON; one that is longer than Python reads and writes in decimal goes as hexadecimal text."""
    return value if value.bit_length() <= _LONG else {"int": hex(value)}


def _goes_without_saying(kind: type, where: str, field: _Field | None) -> bool:
    """Whether the annotation alone says which class is meant."""
    return field is None or _class_in_text(kind, where, field) is field.annotation.sole


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
        return _made(json.loads(text), cls, jax.export.SymbolicScope())
    except TenferroError:
        raise
    except Exception as error:  # whatever a text may lead to, too deep a nesting and an author's own checks among it
        raise PayloadError(
            where=_payload_of(cls),
            given=f"{repr(text)[:200]}: {type(error).__name__}: {error}",
            needed=f"JSON with the fields {[f.name for f in dataclasses.fields(cls)] if dataclasses.is_dataclass(cls) else []}",
            fix="Pass what payload_json wrote of this class, as it was in that version of its package.",
        ) from error


def _made(plain: Any, cls: Any, scope: Any) -> Any:
    """An instance of a payload class from its fields."""
    fields = _layout(cls).fields
    names = {f.name for f in fields}
    if not isinstance(plain, dict) or plain.keys() != names:
        raise ValueError(f"{list(plain) if isinstance(plain, dict) else type(plain).__name__} where {sorted(names)} are needed")
    values = {f.name: _restored(plain[f.name], f, scope) for f in fields}
    made = cls(**{f.name: values[f.name] for f in fields if f.init})
    for f in fields:
        key = _field_key(getattr(made, f.name), f.where, f)
        if not f.init and key != _field_key(values[f.name], f.where, f):
            raise ValueError(f"{f.name} is computed, and is {getattr(made, f.name)!r}")
    return made


def _restored(plain: Any, field: _Field, scope: Any) -> Any:
    annotation = field.annotation
    if annotation.sole is not None and not issubclass(annotation.sole, enum.Enum):
        return _made(plain, annotation.sole, scope)
    if isinstance(plain, list):
        return tuple(_restored(item, field, scope) for item in plain)
    if not isinstance(plain, dict):
        return plain
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
    if tag == "dimension":
        (dimension,) = jax.export.symbolic_shape(value, scope=scope)
        return dimension
    return _DECODERS[tag](value)


def _dtype(name: Any) -> Any:
    dtype = np.dtype(jax.dtypes.float0 if name == "float0" else name)
    if not _is_plain_dtype(dtype) or _name(dtype) != name:
        raise ValueError(f"{name!r} where the name of a plain dtype is needed")
    return dtype


def _array(parts: Any) -> Any:
    name, shape, data = parts
    array = np.ndarray(tuple(shape), _dtype(name), base64.b64decode(data, validate=True))
    if array.nbytes != len(array.base):  # type: ignore[arg-type]
        raise ValueError(f"{len(array.base)} bytes for an array of shape {shape}")  # type: ignore[arg-type]
    return array


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": float.fromhex,
    "complex": lambda parts: complex(*map(float.fromhex, parts)),
    "bytes": lambda text: base64.b64decode(text, validate=True),
    "dtype": _dtype,
    "array": _array,
}
