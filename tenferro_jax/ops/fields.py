"""The types that fields of standard ops may have, each with an annotation, and the check of an op's
fields.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import types
import typing
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import jax
import numpy as np

from ..jax_seam import is_symbolic_dim
from ..payload_leaves import ARRAYS

Admits = Callable[[object], bool]


def _is_size(value: object) -> bool:
    return type(value) is int or is_symbolic_dim(value)


def _is_precision(value: object) -> bool:
    names = (value,) if type(value) is str else value
    return value is None or (type(names) is tuple and all(type(name) is str for name in names))


def _is_scalar(value: object) -> bool:
    return type(value) in (types.NoneType, bool, int, float, complex) or (
        isinstance(value, ARRAYS) and value.shape == ()
    )


Size = Annotated[Any, _is_size]
"""An int, or a symbolic dimension."""
DType = Annotated[Any, lambda value: isinstance(value, np.dtype)]
Array = Annotated[Any, lambda value: isinstance(value, ARRAYS)]
Scalar = Annotated[Any, _is_scalar]
"""A number, an array of shape (), or None."""
Precision = Annotated[Any, _is_precision]
"""Names of lax.Precision, the name of a lax.DotAlgorithmPreset, or None."""
Accuracy = Annotated[Any, lambda value: value is None or isinstance(value, jax.lax.AccuracyMode)]
Body = Annotated[Any, lambda value: hasattr(value, "output_metas")]
"""A graph. This layer calls it on arrays, counts its outputs and reads its metas."""


class _Kind(NamedTuple):
    field: str
    annotation: str
    admits: Admits


def wrong_field(op: object) -> tuple[str, str] | None:
    """The first field of an op that does not fit its annotation, and what the annotation needs; or
    None.

    Example:
      >>> from tenferro_jax.ops.reduction import CumSum
      >>> wrong_field(CumSum(0, reverse="false"))
      ("reverse='false'", 'reverse of type bool')
    """
    cls: Any = type(op)
    for kind in _kinds_of(cls):
        value = getattr(op, kind.field)
        if not kind.admits(value):
            return f"{kind.field}={value!r:.200}", f"{kind.field} of type {kind.annotation}"
    return None


@functools.cache
def _kinds_of(cls: type) -> tuple[_Kind, ...]:
    if not dataclasses.is_dataclass(cls):
        return ()
    hints = typing.get_type_hints(cls, include_extras=True)
    return tuple(
        _Kind(f.name, str(f.type), _admits(hints[f.name])) for f in dataclasses.fields(cls)
    )


def _admits(hint: type) -> Admits:
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        admits: Admits = args[1]
        return admits
    if origin in (typing.Union, types.UnionType):
        choices = tuple(map(_admits, args))
        return lambda value: any(admits(value) for admits in choices)
    if origin is tuple and args[1:] == (...,):
        item = _admits(args[0])
        return lambda value: type(value) is tuple and all(map(item, value))
    if origin is tuple:
        items = tuple(map(_admits, args))

        def admits_tuple(value: object) -> bool:
            if type(value) is not tuple or len(value) != len(items):
                return False
            return all(admits(item) for admits, item in zip(items, value, strict=True))

        return admits_tuple
    if issubclass(hint, enum.Enum):
        return lambda value: isinstance(value, hint)
    if hint not in (bool, int, float, str, types.NoneType):
        raise TypeError(f"{hint} is not a type of field")
    return lambda value: type(value) is hint
