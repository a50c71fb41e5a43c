"""The identity of a value is its canonical text; frozen values with such an identity.

In Python `1 == 1.0 == True` and `0.0 == -0.0`, so a cache with such values as keys would run the
wrong program. The text of two values is equal if and only if types and bits are equal, also for
NaN. What a text can only name (classes, symbolic dimensions, sealed values) is held beside it.

Payloads may hold None, bool, int, float, complex, str, bytes, enum members, dtypes, tuples,
symbolic dimensions, arrays (copied and made read-only) and frozen dataclasses of these. Anything
else is refused.
"""

from __future__ import annotations

import abc
import dataclasses
import enum
import functools
import json
import types
from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple, Self

import jax
import numpy as np

from .errors import InvalidConfig
from .jax_seam import is_symbolic_dim
from .payload_leaves import (
    LEAF_TEXTS,
    array_digest,
    array_text,
    dtype_name,
    enum_label,
    integers_text,
    is_plain_array,
    is_plain_dtype,
    refusal,
)

CACHED = ("_key", "_hash", "_carrier")  # attributes that are stored on a sealed object
_INTEGERS = frozenset({int})


def typed_key(value: object) -> Hashable:
    """A hashable key that is equal for two payload values if and only if type and bits are equal:
    their text, and what the text only names.

    Raises:
      InvalidConfig: for a value that no payload may hold.

    Example:
      >>> nan = float("nan")
      >>> pairs = ((1, 1.0), (0.0, -0.0), (nan, nan))
      >>> [typed_key(a) == typed_key(b) for a, b in pairs]
      [False, False, True]
    """
    writer = Writer()
    return writer.text(value, "payload"), *writer.held


class Writer:
    """Writes values as canonical JSON text, and refuses those that no payload may hold.

    Args:
      array: the text of an array; by default a digest stands for the elements.

    Attributes:
      held: what the text only names, in its order.
    """

    def __init__(self, array: Callable[[np.ndarray], str] | None = None):
        self.array = array or _digest_text
        self.held: list[Hashable] = []

    def text(self, value: object, where: str) -> str:
        """The text of a value.

        Raises:
          InvalidConfig: a value that no payload may hold; `where` is its name.
        """
        kind: Any = type(value)
        if kind in LEAF_TEXTS:
            return LEAF_TEXTS[kind](value)
        if isinstance(value, tuple) and kind is tuple:
            if _INTEGERS.issuperset(map(type, value)):  # axes and shapes, which most tuples are
                return integers_text(value)
            items = [self.text(x, f"{where}[{i}]") for i, x in enumerate(value)]
            return f"[{','.join(items)}]"
        if isinstance(value, Sealed):
            return self.sealed(value, where)
        if isinstance(value, enum.Enum):
            self.held.append(kind)
            name, label = self.name(kind, where), json.dumps(enum_label(value, where))
            return f'{{"enum":{label if name is None else f"[{json.dumps(name)},{label}]"}}}'
        if is_plain_array(value):
            return self.array(value)
        if isinstance(value, np.dtype) and is_plain_dtype(value):
            return f'{{"dtype":"{dtype_name(value)}"}}'
        if is_symbolic_dim(value):
            self.held.append(value)
            return f'{{"dimension":{json.dumps(str(value))}}}'
        if hasattr(kind, "__dataclass_fields__"):
            _require_frozen(kind, where)
            return self.instance(value, where)
        raise refusal(value, where)

    def sealed(self, value: Sealed, where: str) -> str:
        """The text of a sealed value, which has an identity of its own."""
        self.held.append(value)
        return '{"sealed":null}'

    def instance(self, value: object, where: str) -> str:
        """The text of a dataclass."""
        kind: Any = type(value)
        self.held.append(kind)
        name, told = self.name(kind, where), self.fields(value, where)
        return told if name is None else f'{{"of":[{json.dumps(name)},{told}]}}'

    def fields(self, value: object, where: str) -> str:
        """The text of the fields of a value."""
        cls: Any = type(value)
        places = layout(cls).places
        told = [key + self.field(value, name, f"{where}.{name}") for name, _, key in places]
        return f"{{{','.join(told)}}}"

    def field(self, owner: object, name: str, where: str) -> str:
        """The text of one field."""
        return self.text(getattr(owner, name), where)

    def name(self, kind: type, where: str) -> str | None:
        """The name of a class in text, or None if it goes without saying."""
        return kind.__name__


def _digest_text(array: np.ndarray) -> str:
    return array_text(array, array_digest(array).hex())


def payload_of(cls: type) -> str:
    """The name of the payload of a class in errors."""
    family_id = getattr(cls, "family_id", None)
    return f"{cls.__name__} payload" + (
        f" (family_id {family_id})" if isinstance(family_id, str) else ""
    )


class Layout(NamedTuple):
    """The fields of a payload class in the order of their text, each with its name in errors and
    its key in JSON; and the attributes that an instance may have.
    """

    places: tuple[tuple[str, str, str], ...]
    allowed: frozenset[str]


@functools.lru_cache(maxsize=1024)
def layout(cls: type) -> Layout:
    """The layout of a payload class."""
    where = payload_of(cls)
    names: list[str] = []
    if hasattr(cls, "__dataclass_fields__"):
        _require_frozen(cls, where)
        names = sorted(f.name for f in dataclasses.fields(cls))
    allowed = frozenset({*names, *CACHED})
    if issubclass(cls, Sealed):
        slots = {
            name
            for base in cls.__mro__
            for name, member in vars(base).items()
            if isinstance(member, types.MemberDescriptorType)
        }
        _require_fields_alone(cls, slots - allowed)
    places = ((name, f"{where}, field {name}", f"{json.dumps(name)}:") for name in names)
    return Layout(tuple(places), allowed)


def _require_frozen(cls: Any, where: str) -> None:
    """Refuse a dataclass whose instances can change."""
    if not cls.__dataclass_params__.frozen:
        raise InvalidConfig(
            where=where,
            given=f"a mutable dataclass {cls.__name__}",
            needed="an immutable value",
            fix="Write @dataclass(frozen=True).",
        )


def _require_fields_alone(cls: type, others: set[str]) -> None:
    """Refuse attributes other than the fields."""
    if others:
        raise InvalidConfig(
            where=payload_of(cls),
            given=f"state outside the dataclass fields: {', '.join(sorted(others))}",
            needed="every attribute declared as a field, because the fields define the op",
            fix=f"Decorate {cls.__name__} with @dataclass(frozen=True) and declare the fields.",
        )


def _read_only(leaf: object) -> Any:
    """An array leaf as a copy that cannot be made writeable, because it is a view of bytes; other
    leaves unchanged.

    A NumPy number becomes an array without axes, as when it is read from text.
    """
    # The test for jax.Array is slow, and most leaves are none.
    if type(leaf) in LEAF_TEXTS or isinstance(leaf, enum.Enum | jax.core.Tracer):
        return leaf
    if isinstance(leaf, jax.Array):
        try:
            leaf = np.asarray(leaf)
        except (TypeError, RuntimeError):  # a key array; one that was deleted or is on other hosts
            return leaf
    if not is_plain_array(leaf):
        return leaf
    array = np.asarray(leaf)
    return np.ndarray(array.shape, array.dtype, array.tobytes())


class Sealing(abc.ABCMeta):
    """Makes the identity of an object when it is complete: after its `__init__` and whatever its
    class, a base or a mixin does in `__post_init__`.
    """

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """The object with its identity."""
        made = type.__call__(cls, *args, **kwargs)
        made._seal()
        return made

    # That of abc is slower, and no class is registered as one of a base that it does not have.
    __instancecheck__ = type.__instancecheck__


class Sealed(metaclass=Sealing):
    """A frozen value with typed identity: base of ops, rules and graphs.

    A subclass is a `@dataclass(frozen=True)` whose fields are the payload, or a plain class without
    state. Arrays in the fields, also inside tuples and dataclasses, are copied and made read-only
    when the object is made: after the `__post_init__` of a subclass, which may call
    `super().__post_init__()` and need not.

    Two values are equal if class, types and bits are equal, whatever `__eq__` a subclass, its
    decorator or a mixin writes. A copy is the value itself; a value from a pickle is sealed again.
    """

    _key: Hashable = None
    _hash: int = 0
    _writer: Callable[[], Writer] = Writer
    """What makes the writer of the fields."""

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        for name in (
            "__eq__",
            "__hash__",
        ):  # in the class itself, because @dataclass writes its own if the class has none
            setattr(cls, name, vars(Sealed)[name])

    def __post_init__(self, *init_only: object) -> None:
        if init_only:
            raise InvalidConfig(
                where=payload_of(type(self)),
                given="a field annotated with InitVar",
                needed="fields that the op keeps, because text and copies are turned into an op "
                "by its fields",
                fix="Make it an ordinary field, or compute the fields before you make the op.",
            )

    def __setattr__(self, name: str, value: object) -> None:
        if self._key is not None:
            raise AttributeError(f"{type(self).__name__} is immutable; cannot set {name}")
        object.__setattr__(self, name, value)

    def _seal(self) -> None:
        """Make the identity from the fields. Classes that hold more than fields override it."""
        cls = type(self)
        places, allowed = layout(cls)
        if not vars(self).keys() <= allowed:
            _require_fields_alone(cls, vars(self).keys() - allowed)
        writer = self._writer()
        texts: list[str] = []
        for name, where, _ in places:
            value = getattr(self, name)
            is_integers = type(value) is tuple and _INTEGERS.issuperset(map(type, value))
            if not is_integers and type(value) not in LEAF_TEXTS:
                sealed = map_leaves(value, _read_only, into_sealed=False)
                if sealed is not value:
                    object.__setattr__(self, name, sealed)
            texts.append(writer.field(self, name, where))
        self._set_key((cls, *([",".join(texts)] if texts else []), *writer.held))

    def _set_key(self, key: Hashable) -> None:
        object.__setattr__(self, "_key", key)
        object.__setattr__(self, "_hash", hash(key))

    @property
    def typed_key(self) -> Hashable:
        """The identity: the class, the text of the fields, and what the text only names."""
        if self._key is None:  # asked before the object is complete
            self._seal()
        return self._key

    def is_of_another_class(self) -> bool:
        """Whether the class was exchanged, as IPython's autoreload does with objects of a module
        that was edited; the identity is then that of the earlier class.
        """
        key: Any = self.typed_key
        return key[0] is not type(self)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Sealed) and self.typed_key == other.typed_key)

    def __hash__(self) -> int:
        if self._key is None:
            self._seal()
        return self._hash

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> Any:
        cls = type(self)
        state = vars(self) | {name: getattr(self, name) for name, *_ in layout(cls).places}
        return _unpickled, (cls, {name: held for name, held in state.items() if name not in CACHED})


def _unpickled(cls: type[Sealed], state: dict[str, object]) -> Sealed:
    """A sealed value with the attributes from a pickle; it is sealed again, because the hash of
    text differs in each process.
    """
    made = object.__new__(cls)
    for name, value in state.items():
        object.__setattr__(made, name, value)
    made._seal()
    return made


def map_leaves(value: Any, change: Callable[[object], object], *, into_sealed: bool = True) -> Any:
    """A payload value with every leaf replaced through `change`; the same object when nothing
    changed.

    Objects that define `map_leaves` (graphs, carriers) do this themselves. With `into_sealed=False`
    sealed values stay unchanged; otherwise graphs in graphs would be copied again at every level.

    Example:
      >>> map_leaves((1, (2, None)), lambda leaf: 10 if leaf == 2 else leaf)
      (1, (10, None))
    """
    if type(value) is tuple:
        items = tuple(map_leaves(item, change, into_sealed=into_sealed) for item in value)
        return value if all(a is b for a, b in zip(items, value, strict=True)) else items
    if not into_sealed and isinstance(value, Sealed):
        return value
    if hasattr(value, "map_leaves") and not isinstance(value, type):
        return value.map_leaves(change)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        changed = {}
        for f in dataclasses.fields(value):
            item = getattr(value, f.name)
            mapped = map_leaves(item, change, into_sealed=into_sealed)
            if mapped is not item:
                changed[f] = mapped
        return _replaced(value, changed) if changed else value
    return change(value)


def _replaced(value: Any, changed: dict[dataclasses.Field[object], object]) -> Any:
    """A dataclass with some fields changed. A sealed one computes its computed fields again."""
    made = dataclasses.replace(value, **{f.name: item for f, item in changed.items() if f.init})
    for f, item in changed.items():
        if not f.init and not isinstance(made, Sealed):
            object.__setattr__(made, f.name, item)
    return made


def static_keys(tree: jax.tree_util.PyTreeDef) -> Iterator[Any]:
    """A key for the keys and static data of a tree that is equal if types and bits are equal; JAX
    finds 1 equal to True.
    """
    kind, static = tree.node_data() or (None, None)
    if kind is dict:
        static = tuple(key for key in (static or ()) if type(key) not in (str, int)) or None
    if static is not None:
        try:
            yield typed_key(static)
        except InvalidConfig:  # no payload may hold it: compared as JAX does
            yield type(static)
    for child in tree.children():
        yield from static_keys(child)
