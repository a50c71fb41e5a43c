"""The leaves of payloads: their identity, bytes and text.

Leaves are None, bool, int, float, complex, str, bytes, enum members, dtypes, symbolic dimensions
and arrays; payloads are leaves, tuples and frozen dataclasses of them.
"""

from __future__ import annotations

import base64
import enum
import functools
import hashlib
import math
import struct
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from .dimensions import read_dimension
from .errors import InvalidConfig
from .jax_seam import is_symbolic_dim

CLOSED_LIST = (
    "None, bool, int, float, complex, str, bytes, enum member, dtype, tuple, symbolic "
    "dimension, array, frozen dataclass"
)
PLAIN_TYPES = frozenset({type(None), bool, int, str, bytes})
ARRAYS = (np.ndarray, np.generic)
_LONGEST = 2048  # bits; Python's own limit on decimal text is never below
_NAN = struct.pack("<d", math.nan)
PLAIN_ARRAYS = (
    "Use a plain numpy.ndarray or a dtype: boolean or numeric, known to JAX, in native byte order."
)


def enum_label(member: enum.Enum, where: str) -> str | int:
    """The name of an enum member, the number of a combination of flags."""
    if member.name in type(member).__members__:
        return member.name
    if isinstance(member, enum.Flag):
        return int(member.value)
    raise refusal(member, where, "Use a declared member.")


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


def dtype_name(dtype: np.dtype) -> str:
    """The name of a plain dtype."""
    return "float0" if dtype == jax.dtypes.float0 else dtype.name


def named_dtype(name: object) -> Any:
    """The plain dtype of a name; ValueError for any other text, another spelling included."""
    try:
        dtype: np.dtype = np.dtype(jax.dtypes.float0 if name == "float0" else str(name))
    except TypeError as error:
        raise ValueError(f"{name!r} instead of the name of a plain dtype") from error
    if not is_plain_dtype(dtype) or dtype_name(dtype) != name:
        raise ValueError(f"{name!r} instead of the name of a plain dtype")
    return dtype


def float_bits(value: float) -> bytes:
    """The IEEE bytes."""
    return struct.pack("<d", value)


def float_text(value: float) -> str:
    """The bits of a float as C99 hexadecimal text; for a NaN other than Python's own with all 64
    bits.

    Example:
      >>> float_text(0.5), float_text(math.nan), float_text(-math.nan)
      ('0x1.0000000000000p-1', 'nan', 'nan(0xfff8000000000000)')
    """
    return (
        value.hex()
        if value == value or float_bits(value) == _NAN
        else f"nan(0x{float_bits(value)[::-1].hex()})"
    )


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
    limits: Any = jax.numpy.iinfo if jax.dtypes.issubdtype(dtype, np.integer) else jax.numpy.finfo
    return int(2 ** limits(dtype).bits - 1)


def array_digest(array: np.ndarray | np.generic) -> bytes:
    """A digest that distinguishes arrays of the same dtype and shape."""
    return hashlib.sha256(array_bytes(array)).digest()


def _names_dtype(kind: type) -> bool:
    """Whether a value is a scalar class of a plain dtype, such as jax.numpy.float32."""
    try:
        return is_plain_dtype(np.dtype(kind)) and dtype_name(np.dtype(kind)) == kind.__name__
    except TypeError:
        return False


def refusal(value: object, where: str, fix: str = "") -> InvalidConfig:
    """The error for a value that no payload may hold."""
    hint: dict[type, str] = {
        list: "Use a tuple.",
        dict: "Use a frozen dataclass or a tuple of pairs.",
        set: "Use a sorted tuple.",
    }
    kind = type(value)
    if isinstance(value, type) and not fix:
        fix = (
            f"For the dtype pass jax.numpy.dtype({value.__name__!r})."
            if _names_dtype(value)
            else "Pass a value, or an enum member."
        )
    return InvalidConfig(
        where=where,
        given=f"{value!r} of type {kind.__module__}.{kind.__qualname__}",
        needed=f"one of: {CLOSED_LIST}",
        fix=fix
        or hint.get(
            kind, "Pass tensors as inputs of the op; everything else must be of this list."
        ),
    )


def leaf_json(value: Any, where: str) -> Any:
    """A leaf as JSON with its type. Enum members need a class and are not written here.

    Raises:
      InvalidConfig: a value that no payload may hold.
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
        return {
            "array": [
                dtype_name(value.dtype),
                list(value.shape),
                base64.b64encode(array_bytes(value)).decode(),
            ]
        }
    if is_symbolic_dim(value):
        return {"dimension": str(value)}
    raise refusal(value, where)


def int_json(value: int) -> Any:
    """An int as JSON; ints beyond Python's limit for decimal text become hexadecimal text."""
    return value if value.bit_length() <= _LONGEST else {"int": hex(value)}


def leaf_value(plain: object, scope: Any) -> Any:
    """The leaf that `leaf_json` wrote; raises a Python exception for anything else. Symbols are
    those of the scope.
    """
    if not isinstance(plain, dict):
        if isinstance(plain, float | list):
            raise ValueError(f"{plain!r:.100}, which no leaf is written as")
        return plain
    ((tag, value),) = plain.items()
    return read_dimension(value, scope) if tag == "dimension" else _DECODERS[tag](value)


def _array(parts: tuple[str, list[int], str]) -> np.ndarray:
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
