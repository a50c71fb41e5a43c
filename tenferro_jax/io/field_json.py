"""Payload fields of standard ops as JSON and back, and checks of values in JSON. All names are
looked up in the tables of this module.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import Unsupported
from ..graph.graph import Graph
from ..jax_seam import is_symbolic_dim
from ..ops.indexing import OutOfBounds
from ..ops.logic import Direction
from ..ops.op import StdTensorOp
from ..ops.vocabulary import VOCABULARY
from ..payload_leaves import ARRAYS, dtype_name, enum_label, leaf_json, leaf_value, named_dtype

OPS: Mapping[str, type[StdTensorOp]] = {cls.__name__: cls for cls in VOCABULARY}
_ENUMS: Mapping[str, Any] = {
    cls.__name__: cls for cls in (Direction, OutOfBounds, jax.lax.AccuracyMode)
}
_GENERATORS = ("threefry2x32", "rbg", "unsafe_rbg")

Number = Callable[[Any], int]
"""The number of the record of a tensor or a graph."""


@functools.cache
def _key_dtypes() -> dict[str, Any]:
    """The dtypes of random keys by the names of their generators."""
    return {
        f"key<{name}>": jax.eval_shape(lambda name=name: jax.random.key(0, impl=name)).dtype
        for name in _GENERATORS
    }


def value_dtype_name(dtype: object, where: str) -> str:
    """The name of the dtype of a value in a graph, keys included.

    Raises:
      Unsupported: a key generator that is not one of JAX's own.
    """
    if isinstance(dtype, np.dtype):
        return dtype_name(dtype)
    for name, known in _key_dtypes().items():
        if known == dtype:
            return name
    raise Unsupported(
        where=f"to_wire, {where}", given=str(dtype), needed=f"a key of {', '.join(_GENERATORS)}"
    )


def value_dtype(name: object) -> Any:
    """The dtype of a name; ValueError for other text."""
    return (
        _key_dtypes()[name]
        if isinstance(name, str) and name in _key_dtypes()
        else named_dtype(name)
    )


def field_json(
    value: object,
    where: str,
    tensor: Number,
    graph: Number,
    dimension: Callable[[object], object],
) -> Any:
    """A field as JSON: leaves as in payload text; arrays, graphs and dimensions by the given
    functions.

    Raises:
      InvalidConfig: a value that no standard op holds.
    """
    if type(value) is tuple:
        return [field_json(item, where, tensor, graph, dimension) for item in value]
    if isinstance(value, Graph):
        return {"graph": graph(value)}
    if isinstance(value, ARRAYS):
        return {"tensor": tensor(value)}
    if isinstance(value, enum.Enum) and _ENUMS.get(type(value).__name__) is type(value):
        return {"enum": [type(value).__name__, enum_label(value, where)]}
    return {"dimension": dimension(value)} if is_symbolic_dim(value) else leaf_json(value, where)


def field_value(
    plain: object,
    tensor: Callable[[object], object],
    graph: Callable[[object], object],
    dimension: Callable[[object], object],
) -> Any:
    """The field that `field_json` wrote; raises a Python exception for other JSON."""
    if isinstance(plain, list):
        return tuple(field_value(item, tensor, graph, dimension) for item in plain)
    if not isinstance(plain, dict):
        return leaf_value(plain, None)
    ((tag, value),) = plain.items()
    match tag:
        case "tensor":
            return tensor(value)
        case "graph":
            return graph(value)
        case "enum":
            name, label = value
            return _ENUMS[name].__members__[label]
        case "dimension":
            return dimension(value)
        case "array":
            raise ValueError("an array in the text")
    return leaf_value(plain, None)


def no_float(text: str) -> None:
    """Refuse a float: a parser of JSON calls it."""
    raise ValueError(f"the number {text:.100}, which no writer writes")


def as_list(value: object) -> list[Any]:
    """The value, which must be a list."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r:.100} instead of a list")
    return value


def natural(value: object) -> int:
    """The value, which must be a non-negative number."""
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r:.100} instead of a non-negative number")
    return value


def index_among(number: object, among: Sequence[object]) -> int:
    """The number of an earlier definition."""
    found = natural(number)
    if found >= len(among):
        raise ValueError(f"{number} among {len(among)} that are defined")
    return found


def depth_of(value: object) -> int:
    """The depth of brackets in a JSON value."""
    depth, level = 0, [value]
    while level:
        depth += 1
        level = [
            item
            for v in level
            if isinstance(v, list | dict)
            for item in (v.values() if isinstance(v, dict) else v)
        ]
        level = [item for item in level if isinstance(item, list | dict)]
    return depth
