"""Arrays in .npy and .npz files. NumPy writes a dtype that it does not know, such as bfloat16, without its name.

In an .npz such an array `x` is written as bytes without a type, with its dtype's name as text in `x.dtype` beside it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import InvalidConfig
from ..io.replacing import replace_file
from ..payload_leaves import dtype_name, named_dtype


def is_named_by_numpy(dtype: object) -> bool:
    """Whether .npy files keep the name of this dtype."""
    return isinstance(dtype, np.dtype) and dtype.isbuiltin == 1


def load(path: str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file; of an .npz those in it by name, each of its own dtype.

    Args:
      path: the file; an .npy whose dtype NumPy has forgotten is read as "bfloat16:x.npy", which names it.

    Raises:
      InvalidConfig: the file holds something else, or an array whose dtype nothing names.
      OSError: the file cannot be read.
    """
    named, dtype, path = _named(path)
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            held = found if isinstance(found, np.ndarray) else dict(found)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise InvalidConfig(
            where="--input",
            given=f"{path}: {error}",
            needed=".npy or .npz of numbers",
            fix="Write it with numpy.save; with .view(numpy.uint8) where NumPy does not know the dtype.",
        ) from error
    if isinstance(held, np.ndarray):
        return _restored(held, dtype if named else held.dtype, path)
    if named:
        raise InvalidConfig(where="--input", given=f"a dtype for all of {path}", needed="one for one .npy", fix="Drop the dtype.")
    texts = {name: str(array) for name, array in held.items() if array.dtype.kind == "U" and name.removesuffix(".dtype") in held}
    return {
        name: _restored(array, _dtype(texts[f"{name}.dtype"], path) if f"{name}.dtype" in texts else array.dtype, f"{name} in {path}")
        for name, array in held.items()
        if name not in texts
    }


def save(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to an .npz, or one to an .npy; a file that is there is replaced when all is written."""
    content = io.BytesIO()
    if not path.endswith(".npz"):
        (array,) = arrays.values()
        np.save(content, array)
        replace_file(path, content.getbuffer())
        return
    written: dict[str, Any] = {}
    for name, array in arrays.items():
        if is_named_by_numpy(array.dtype):
            written[name] = array
        else:
            written[name], written[f"{name}.dtype"] = array.view(f"V{array.dtype.itemsize}"), np.array(dtype_name(array.dtype))
    np.savez(content, **written)
    replace_file(path, content.getbuffer())


def _named(text: str) -> tuple[bool, Any, str]:
    """Whether a dtype is named before the path, that dtype, and the path."""
    name, colon, path = text.partition(":")
    try:
        return (True, named_dtype(name), path) if colon else (False, None, text)
    except ValueError:  # a path with a colon in it
        return False, None, text


def _dtype(name: str, path: str) -> Any:
    try:
        return named_dtype(name)
    except ValueError as error:
        raise InvalidConfig(
            where="--input", given=f"{path}: {error}", needed="dtypes that JAX knows", fix="Write the file again."
        ) from error


def _restored(array: np.ndarray, dtype: np.dtype[Any], where: str) -> np.ndarray:
    """The array under the dtype that was named for its bytes."""
    if array.dtype.kind == "V" and dtype == array.dtype:
        raise InvalidConfig(
            where="--input",
            given=f"{where}: an array of {array.dtype.itemsize}-byte elements without the name of their dtype",
            needed="the name, which .npy files forget where NumPy does not know the dtype",
            fix="Name it before an .npy, as in bfloat16:x.npy; in an .npz as text beside the array x, under x.dtype.",
        )
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "Vu" or array.dtype.itemsize != dtype.itemsize:
        given, needed = f"{where}: {array.dtype}, named {dtype_name(dtype)}", "that dtype, or bytes without a type"
        raise InvalidConfig(where="--input", given=given, needed=needed)
    return array.view(dtype)
