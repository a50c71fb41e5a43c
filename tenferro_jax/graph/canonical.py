"""Typed keys as bytes: equal keys give equal bytes and different keys different ones, in every process."""

from __future__ import annotations

import json
from typing import Any

import jax

from ..jax_seam import is_symbolic_dim
from ..payload import Sealed
from ..payload_text import int_json


def canonical_bytes(value: Sealed) -> bytes:
    """The typed key of an op, a graph or another sealed value as canonical JSON.

    Classes and kernels are written by module and name, symbolic dimensions and pytrees by their text.

    Example:
      >>> from tenferro_jax.ops.structural import Transpose
      >>> canonical_bytes(Transpose((1, 0)))
      b'[{"class":"tenferro_jax.ops.structural.Transpose"},["integers",[1,0]]]'
    """
    return json.dumps(_plain(value.typed_key), separators=(",", ":"), sort_keys=True).encode()


def _plain(key: Any) -> Any:
    if isinstance(key, int) and not isinstance(key, bool):
        return int_json(key)
    if key is None or isinstance(key, bool | str):
        return key
    if isinstance(key, tuple):
        return [_plain(item) for item in key]
    if isinstance(key, Sealed):
        return _plain(key.typed_key)
    if isinstance(key, type):
        return {"class": f"{key.__module__}.{key.__qualname__}"}
    if isinstance(key, frozenset):
        return sorted(map(str, key))
    if isinstance(key, bytes):
        return {"bytes": key.hex()}
    if is_symbolic_dim(key):
        return {"dimension": str(key)}
    if isinstance(key, jax.tree_util.PyTreeDef):
        return {"tree": str(key)}
    if callable(key):  # a kernel
        return {"kernel": f"{key.__module__}.{getattr(key, '__qualname__', type(key).__qualname__)}"}
    return {"dtype": str(key)}
