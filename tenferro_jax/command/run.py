"""python -m tenferro_jax run FILE --input x.npy -o out.npz

NumPy writes a dtype that it does not know, such as bfloat16, without its name. In an .npz such an
array `x` is written as untyped bytes, with the name of its dtype as text in `x.dtype`.
"""

from __future__ import annotations

import argparse
import io
import sys
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ..engine.engine import Engine
from ..errors import InvalidConfig, Unsupported, counted
from ..graph.graph import Graph
from ..io.container import replace_file
from ..io.exported import ExportedProgram
from ..payload_leaves import dtype_name, named_dtype
from ..shapes import Shaped, TensorMeta, as_operand, is_key, meta_of
from .files import (
    OK,
    add_file,
    arguments,
    inputs,
    named,
    outputs,
    read,
    require_writable,
    show,
    timed,
)


def is_named_by_numpy(dtype: object) -> bool:
    """Whether .npy files keep the name of this dtype."""
    return isinstance(dtype, np.dtype) and dtype.isbuiltin == 1


def load(path: str) -> np.ndarray | dict[str, np.ndarray]:
    """The array of an .npy file; or the arrays of an .npz by name, each with its own dtype.

    Args:
      path: the file; for an .npy without the name of its dtype, "bfloat16:x.npy" gives it.

    Raises:
      InvalidConfig: the file has other content, or an array without the name of its dtype.
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
            fix="Write the file with numpy.save; if NumPy does not know the dtype, save "
            "x.view(numpy.uint8).",
        ) from error
    if isinstance(held, np.ndarray):
        return _restored(held, dtype if named else held.dtype, path)
    if named:
        raise InvalidConfig(
            where="--input",
            given=f"a dtype for all of {path}",
            needed="a dtype only for a single .npy",
        )
    texts = {
        name: str(array)
        for name, array in held.items()
        if array.dtype.kind == "U" and name.removesuffix(".dtype") in held
    }
    return {
        name: _restored(
            array,
            _dtype(texts[f"{name}.dtype"], path) if f"{name}.dtype" in texts else array.dtype,
            f"{name} in {path}",
        )
        for name, array in held.items()
        if name not in texts
    }


def save(path: str, arrays: Mapping[str, np.ndarray]) -> None:
    """Write arrays by name to an .npz, or one to an .npy; an existing file is replaced after
    everything is written.
    """
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
            written[name], written[f"{name}.dtype"] = (
                array.view(f"V{array.dtype.itemsize}"),
                np.array(dtype_name(array.dtype)),
            )
    np.savez(content, **written)
    replace_file(path, content.getbuffer())


def _named(text: str) -> tuple[bool, Any, str]:
    """Whether a dtype is given before the path, that dtype, and the path."""
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
            where="--input", given=f"{path}: {error}", needed="dtypes that JAX knows"
        ) from error


def _restored(array: np.ndarray, dtype: np.dtype, where: str) -> np.ndarray:
    """The array with the dtype that was given for its bytes."""
    if array.dtype.kind == "V" and dtype == array.dtype:
        raise InvalidConfig(
            where="--input",
            given=f"{where}: an array of {array.dtype.itemsize}-byte elements without the name of "
            f"their dtype",
            needed="the name of the dtype; an .npy does not keep it if NumPy does not know the "
            "dtype",
            fix="For an .npy write bfloat16:x.npy; in an .npz store the name as text under "
            "x.dtype, beside the array x.",
        )
    if array.dtype == dtype:
        return array
    if array.dtype.kind not in "Vu" or array.dtype.itemsize != dtype.itemsize:
        raise InvalidConfig(
            where="--input",
            given=f"{where}: {array.dtype}, named {dtype_name(dtype)}",
            needed="that dtype, or untyped bytes",
        )
    return array.view(dtype)


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = (
        "Run a file on arrays; stdout says what came out, stderr how long it "
        "took. Random keys come out as their data."
    )
    add_file(parser)
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="[NAME=][DTYPE:]x.npy",
        help="an array, in the order of the inputs or by the name that inspect shows; or an .npz "
        "of several by name. A dtype that NumPy does not know is named: bfloat16:x.npy",
    )
    text = "where results go: .npz by name, or .npy where there is one"
    parser.add_argument("-o", "--output", metavar="out.npz", help=text)
    parser.set_defaults(run=run)


def run(chosen: argparse.Namespace) -> int:
    """Run a file and write its results."""
    with timed("read"):
        found = read(chosen)
    if isinstance(found, ExportedProgram) and found.exported.nr_devices > 1:
        raise Unsupported(
            where="run",
            given=f"a program for {found.exported.nr_devices} devices",
            needed="a program for 1 device, because a command runs on one",
            fix="Call the program in Python, on arrays that are spread over that many devices.",
        )
    if chosen.output:
        _require_output(chosen, list(outputs(found).values()))
    declared = inputs(found)
    given = _bound(chosen.input, declared)
    for name, meta in declared.items():
        _require_dtype(name, given[name], meta)
    args = arguments(found, [as_operand(given[name], f"--input {name}") for name in declared])
    with timed("compile"):
        if isinstance(found, Graph):
            compiled: Any = Engine().compile(found.bound_to(*args))
        else:
            compiled = jax.jit(found.call).lower(*args).compile()
    with timed("run"):
        result = jax.block_until_ready(compiled(*args))
    results = named(jax.tree.structure(result), jax.tree.leaves(result), "out")
    for name, leaf in results.items():
        array = np.asarray(jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf)
        results[name] = array
        show(f"{name}  {meta_of(array)}{f' = {array}' if array.size == 1 else ''}")
    if chosen.output:
        save(chosen.output, results)
        show(f"wrote {chosen.output}", sys.stderr)
    return OK


def _bound(texts: list[str], declared: Mapping[str, object]) -> dict[str, np.ndarray]:
    """An array for each input: by name, or in order."""
    given: dict[str, np.ndarray] = {}
    unnamed: list[np.ndarray] = []
    for text in texts:
        name, equals, path = text.rpartition("=")
        found = load(path)
        if isinstance(found, np.ndarray) and not equals:
            unnamed.append(found)
            continue
        arrays = {name: found} if isinstance(found, np.ndarray) else found
        if twice := given.keys() & arrays.keys():
            raise InvalidConfig(
                where="--input",
                given=f"{', '.join(sorted(twice))} twice",
                needed="one array for each input",
            )
        given.update(arrays)
    free = [name for name in declared if name not in given]
    given.update(zip(free, unnamed, strict=False))
    unknown = [name for name in given if name not in declared]
    unknown += ["one more"] * (len(unnamed) - len(free))
    missing = [name for name in declared if name not in given]
    if unknown or missing:
        raise InvalidConfig(
            where="--input",
            given=", ".join(unknown) if unknown else f"nothing for {', '.join(missing)}",
            needed=", ".join(f"{name} {meta}" for name, meta in declared.items()) or "none",
        )
    return given


def _require_dtype(name: str, array: np.ndarray, meta: TensorMeta) -> None:
    """Refuse numbers of another precision, as NumPy writes float64 by default."""
    if is_key(meta.dtype) or array.dtype == meta.dtype:
        return
    raise InvalidConfig(
        where=f"--input {name}",
        given=f"{meta_of(array)}",
        needed=f"{meta}",
        fix=f"Write the file with numpy.save(path, x.astype('{dtype_name(meta.dtype)}')).",
    )


def _require_output(chosen: argparse.Namespace, results: Sequence[Shaped]) -> None:
    """Check the output path before anything runs: .npz, or for a single result .npy if that keeps
    its dtype.
    """
    path = chosen.output
    given = [text.rpartition("=")[2] for text in chosen.input]
    read = [*given, *(text.partition(":")[2] for text in given)]
    require_writable("--output", path, chosen.file, *read)
    if path.endswith(".npz"):
        return
    if not path.endswith(".npy") or len(results) != 1:
        raise InvalidConfig(
            where="--output",
            given=f"{path} for {counted(len(results), 'result')}",
            needed=".npz, or .npy for one result",
        )
    (dtype,) = (result.dtype for result in results)
    if not is_key(dtype) and not is_named_by_numpy(dtype):
        raise InvalidConfig(
            where="--output",
            given=f"{path} for {dtype}",
            needed=".npz, which keeps the name of the dtype; .npy does not",
        )
