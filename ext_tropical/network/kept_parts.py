"""The result of a slice, and files of finished slices."""

from __future__ import annotations

import hashlib
import os
import pathlib
import tempfile
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tenferro_jax.einsum.slices import SlicedPlan
from tenferro_jax.errors import InvalidConfig


class SlicePart(NamedTuple):
    """The result of one slice: NumPy arrays alone, which every engine can send and store.

    Attributes:
      number: of the slice.
      value: of the slice's part of the output, in the dtype of the operands.
      labels: for each contracted label the index of the first best assignment of this slice, int32;
        empty if they were not asked for.
    """

    number: int
    value: np.ndarray
    labels: Mapping[str, np.ndarray]


def path_of(
    keep: str | os.PathLike[str], number: int, how: Sequence[bytes], read: Sequence[np.ndarray]
) -> pathlib.Path:
    """The file of a slice in a folder, which is made; its name has the digest of all that the slice
    depends on.

    Raises:
      InvalidConfig: there cannot be such a folder.
    """
    try:
        if keep == "":
            raise ValueError("empty")
        folder = pathlib.Path(keep)
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, TypeError, ValueError) as error:
        raise InvalidConfig(
            where="run of a plan, keep", given=f"{keep!r}: {error}", needed="a folder"
        ) from error
    digest = hashlib.sha256()
    for part in (*how, *(np.ascontiguousarray(x).tobytes() for x in read)):
        digest.update(len(part).to_bytes(8) + part)
    return folder / f"{number}-{digest.hexdigest()[:32]}.npz"


def read_by(plan: SlicedPlan, number: int, arrays: Sequence[jax.Array]) -> list[np.ndarray]:
    """The entries of the operands that a slice reads."""
    at = dict.fromkeys(dict(plan.whole), slice(None))
    for label, (count, length) in reversed(plan.sliced.items()):
        start, number = number % count * length, number // count
        at[label] = slice(start, start + length)
    return [
        np.asarray(x)[tuple(at[label] for label in term)]
        for x, term in zip(arrays, plan.plan.terms, strict=True)
    ]


def read_part(path: pathlib.Path, number: int, dtype: np.dtype) -> SlicePart | None:
    """The part in a file; None if there is none, or not a whole one."""
    try:
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as held:
            labels = {name[1:]: held[name] for name in held.files if name != "value"}
            return SlicePart(int(number), held["value"].view(dtype), labels)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile):
        return None


def write_part(path: pathlib.Path, part: SlicePart) -> None:
    """Write a part: the file is whole or not there, whoever else writes it. A RuntimeWarning says
    if it could not be written.
    """
    value, temporary = part.value, ""
    if value.dtype.itemsize == 2:
        value = value.view(np.uint16)  # NumPy does not know bfloat16
    arrays: Any = {f"@{label}": index for label, index in part.labels.items()}
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
            temporary = file.name
            np.savez(file, value=value, **arrays)
        os.replace(temporary, path)
    except OSError as error:
        if temporary:
            pathlib.Path(temporary).unlink(missing_ok=True)
        warnings.warn(
            f"slice {part.number} is not kept, but returned: {error}", RuntimeWarning, stacklevel=3
        )
