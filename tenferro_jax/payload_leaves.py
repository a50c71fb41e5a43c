"""The leaves of payloads: their text, their bytes and their names.

Leaves are None, bool, int, float, complex, str, bytes, enum members, dtypes, symbolic dimensions
and arrays; payloads are leaves, tuples and frozen dataclasses of them.
"""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import json
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

import jax
import numpy as np

from .errors import InvalidConfig

CLOSED_LIST = (
    "None, bool, int, float, complex, str, bytes, enum member, dtype, tuple, symbolic "
    "dimension, array, frozen dataclass"
)
ARRAYS = (np.ndarray, np.generic)
_LARGE = 2**2048  # Python's own limit on decimal text is never below
_NAN = struct.pack("<d", math.nan)


def refusal(value: object, where: str) -> InvalidConfig:
    """The error for a value that no payload may hold."""
    kind = type(value)
    if isinstance(value, jax.core.Tracer):
        return InvalidConfig(
            where=where,
            given=f"a traced value {value.dtype}{list(value.shape)}",
            needed=f"a value that is known when the op is made, one of: {CLOSED_LIST}",
            fix="Make it an input of the op: of a function, a parameter by position. Under jax.jit "
            "static_argnames keeps an argument a value.",
        )
    return InvalidConfig(
        where=where,
        given=f"{value!r} of type {kind.__module__}.{kind.__qualname__}",
        needed=f"one of: {CLOSED_LIST}",
        fix="Pass tensors as inputs of the op, a list as a tuple, jax.numpy.float32 as "
        "numpy.dtype('float32'); dtypes are boolean or numeric, in native byte order.",
    )


def enum_label(member: enum.Enum, where: str) -> str:
    """The name of an enum member; a combination of flags has none."""
    if member.name in type(member).__members__:
        return member.name
    raise refusal(member, where)


@functools.lru_cache(maxsize=256)
def is_plain_dtype(dtype: np.dtype) -> bool:
    """Whether the name of a dtype identifies it: a boolean or numeric dtype that JAX knows, in
    native byte order, or JAX's float0.
    """
    if not dtype.isnative or dtype.kind == "m" or dtype.type in (np.longdouble, np.clongdouble):
        return False
    return (
        dtype.kind == "b"
        or dtype == jax.dtypes.float0
        or bool(jax.dtypes.issubdtype(dtype, np.number))
    )


def is_plain_array(value: object) -> TypeGuard[np.ndarray]:
    """Whether a value is a NumPy array or number of a plain dtype, and not of a subclass, which may
    hold more.
    """
    return (
        isinstance(value, ARRAYS)
        and type(value) in (np.ndarray, value.dtype.type)
        and is_plain_dtype(value.dtype)
    )


def dtype_name(dtype: np.dtype) -> str:
    """The name of a plain dtype."""
    return "float0" if dtype == jax.dtypes.float0 else dtype.name


def named_dtype(name: object) -> Any:
    """The plain dtype of a name; ValueError or TypeError for any other text, another spelling
    included.
    """
    dtype: np.dtype = np.dtype(jax.dtypes.float0 if name == "float0" else str(name))
    if not is_plain_dtype(dtype) or dtype_name(dtype) != name:
        raise ValueError(f"{name!r} instead of the name of a plain dtype")
    return dtype


def float_text(value: float) -> str:
    """The bits of a float as C99 hexadecimal text; for a NaN other than Python's own with all 64
    bits.

    Example:
      >>> float_text(0.5), float_text(math.nan), float_text(-math.nan)
      ('0x1.0000000000000p-1', 'nan', 'nan(0xfff8000000000000)')
    """
    if value == value:
        return value.hex()
    bits = struct.pack("<d", value)
    return "nan" if bits == _NAN else f"nan(0x{bits[::-1].hex()})"


def read_float(text: str) -> float:
    """The float that `float_text` wrote."""
    if not text.startswith("nan("):
        return float.fromhex(text)
    value: float = struct.unpack(">d", bytes.fromhex(text[6:-1]))[0]
    return value


def array_bytes(array: np.ndarray | np.generic) -> Any:
    """The elements of an array in row-major order, as bytes; they are not copied if the array is in
    this order.

    Unused bits of a byte are 0, and a boolean is 0 or 1, so equal elements have equal bytes.
    """
    flat = np.ascontiguousarray(array).reshape(-1)
    if not flat.nbytes:
        return b""
    content: np.ndarray = flat.view(np.uint8)
    if not is_normal(flat):
        content = (
            (content != 0).astype(np.uint8)
            if flat.dtype.kind == "b"
            else content & greatest_byte(flat.dtype)
        )
    return content.data


def is_normal(array: np.ndarray) -> bool:
    """Whether all unused bits of the bytes are 0."""
    most = greatest_byte(array.dtype)
    return most == 255 or not array.size or bool(array.view(np.uint8).max() <= most)


@functools.lru_cache(maxsize=256)
def greatest_byte(dtype: np.dtype) -> int:
    """The greatest byte that an element may have: 1 for booleans, 15 for elements of 4 bits."""
    if dtype.kind == "b":
        return 1
    if dtype.itemsize != 1 or dtype.kind in "iu":
        return 255
    limits = jax.numpy.iinfo if jax.dtypes.issubdtype(dtype, np.integer) else jax.numpy.finfo
    return int(2 ** limits(dtype).bits - 1)


def array_digest(array: np.ndarray | np.generic) -> bytes:
    """A digest that distinguishes arrays of the same dtype and shape."""
    return hashlib.sha256(array_bytes(array)).digest()


def array_text(array: np.ndarray | np.generic, content: str) -> str:
    """An array as JSON text: dtype, shape, and text that tells its elements."""
    shape = ",".join(map(str, array.shape))
    return f'{{"array":["{dtype_name(array.dtype)}",[{shape}],"{content}"]}}'


def _int_text(value: int) -> str:
    return repr(value) if -_LARGE < value < _LARGE else f'{{"int":"{value:#x}"}}'


def integers_text(values: tuple[int, ...]) -> str:
    """A tuple of ints as JSON text."""
    small = not values or (max(values) < _LARGE and min(values) > -_LARGE)
    return f"[{','.join(map(repr if small else _int_text, values))}]"


LEAF_TEXTS: Mapping[type, Callable[[Any], str]] = {
    type(None): lambda value: "null",
    bool: lambda value: "true" if value else "false",
    int: _int_text,
    str: json.dumps,
    float: lambda value: f'{{"float":"{float_text(value)}"}}',
    complex: lambda value: f'{{"complex":["{float_text(value.real)}","{float_text(value.imag)}"]}}',
    bytes: lambda value: f'{{"bytes":"{base64.b64encode(value).decode()}"}}',
}
"""The JSON text of a leaf of each of Python's own types."""


def read_array(parts: tuple[str, list[int], str]) -> np.ndarray:
    """The array that `array_text` wrote with its elements in base64."""
    name, shape, data = parts
    content = _read_bytes(data)
    array = np.ndarray(tuple(shape), named_dtype(name), content)
    if array.nbytes != len(content):
        raise ValueError(f"{len(content)} bytes for an array of shape {shape}")
    return array


def _read_bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


_READERS: Mapping[str, Callable[[Any], Any]] = {
    "int": lambda text: int(text, 16),
    "float": read_float,
    "complex": lambda parts: complex(*map(read_float, parts)),
    "bytes": _read_bytes,
    "dtype": named_dtype,
}


def read_value(plain: object, tags: Mapping[str, Callable[[Any], Any]]) -> Any:
    """The payload that a JSON value says, with a function for each further kind of leaf; raises a
    Python exception for anything else.
    """
    if isinstance(plain, list):
        return tuple(read_value(item, tags) for item in plain)
    if isinstance(plain, float):
        raise ValueError(f"{plain!r}, which no leaf is written as")
    if not isinstance(plain, dict):
        return plain
    ((tag, value),) = plain.items()
    return tags[tag](value) if tag in tags else _READERS[tag](value)
