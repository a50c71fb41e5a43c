"""What a node of a pytree class holds: the names of its children and of its static data, and that data as JSON."""

from __future__ import annotations

import dataclasses
from typing import Any, NoReturn

from jax.tree_util import default_registry

from ..errors import PayloadError, Unsupported
from .field_json import field_json, field_value


def is_namedtuple(cls: Any) -> bool:
    """Whether JAX takes a class for a pytree because it is a namedtuple."""
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")


def known_fields(cls: Any) -> list[list[str]] | None:
    """The names of the children and of the static data, in order; None where the author's code says what they are."""
    if is_namedtuple(cls):
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
    named = [list(children), list(static) if isinstance(static, tuple) else [None]]
    found, own = [*named[0], *named[1]], [field.name for field in dataclasses.fields(cls)]
    return named if all(name in own and found.count(name) == 1 for name in found) else None


def require_fields(cls: type, name: str, fields: Any) -> None:
    """Refuse a class whose fields are not those that a file names.

    Raises:
      Unsupported: the text has both.
    """
    if fields != known_fields(cls):
        raise Unsupported(
            where=f"pytree class {name}",
            given=f"fields {fields!r:.500}",
            needed=f"{known_fields(cls)}: children, then static data, as the class has them here",
            fix="Read it with the release of the class's package that wrote it.",
        )


def fields_of(cls: type, static: Any, count: int) -> list[list[str]] | None:
    """The fields of a class; ValueError where a node of it has not as many."""
    known = known_fields(cls)
    if known is not None:
        fits = static is None if is_namedtuple(cls) else isinstance(static, tuple) and len(static) == len(known[1])
        if count != len(known[0]) or not fits:  # JAX reads beyond the end of too few
            raise ValueError(f"{count} children and the static data {static!r:.100} for the fields {known}")
    return known


def static_json(static: Any, where: str) -> Any:
    """Static data as JSON.

    Raises:
      PayloadError: it is something else than None, numbers, text, bytes, dtypes and tuples of them.
    """

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


def static_value(plain: Any) -> Any:
    """The static data that `static_json` wrote; an Exception of Python's for other JSON."""

    def refused(_: Any) -> NoReturn:
        raise ValueError("static data with an array, a graph or a dimension")

    return field_value(plain, refused, refused, refused)
