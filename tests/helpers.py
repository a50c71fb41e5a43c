"""A class of an op or a rule, and a refusal, in one statement each."""

from __future__ import annotations

import dataclasses
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import pytest

import tenferro_jax as tj
from tenferro_jax.extension import ExtensionOp

NUMBERS = itertools.count()


def made(
    name: str, base: type = ExtensionOp, /, fields: Mapping[str, Any] | None = None, **members: Any
) -> Any:
    """A class below `base` with these members, as a class statement makes it; with fields, a frozen
    dataclass.
    """
    members["__module__"] = sys._getframe(1).f_globals["__name__"]
    if fields is None:
        return type(name, (base,), members)
    cls = dataclasses.make_dataclass(
        name, fields.items(), bases=(base,), namespace=members, frozen=True
    )
    cls.__module__ = members["__module__"]  # Python 3.12 writes the module of this function
    return cls


def ends_in(
    calls: Callable[[], Any] | Iterable[Callable[[], Any]],
    kind: type[BaseException] | tuple[type[BaseException], ...],
    match: str | None = None,
) -> Any:
    """Each call ends in an error of this kind, with `match` in its text; what pytest knows of the
    last one.
    """
    for call in [calls] if callable(calls) else calls:
        with pytest.raises(kind, match=match) as error:
            call()
    return error


def each_ends_in(*refusals: tuple[Any, ...]) -> None:
    """Every refusal, a tuple of what `ends_in` takes."""
    for refusal in refusals:
        ends_in(*refusal)


def fresh(function: Callable[..., Any], **options: Any) -> Any:
    """The function as an op of a family that no other test has."""
    return tj.op(f"test-package.op_{next(NUMBERS)}.v1", **options)(function)


def throw(error: BaseException) -> Any:
    """Raises it, where a lambda is needed."""
    raise error
