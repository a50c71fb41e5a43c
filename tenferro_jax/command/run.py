"""python -m tenferro_jax run FILE --input x.npy -o out.npz"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping
from typing import Any

import jax
import numpy as np

from ..engine.engine import Engine
from ..errors import DuplicateBinding, InvalidConfig, UnboundPlaceholder, UnexpectedBinding, Unsupported
from ..graph.graph import Graph
from ..io.program import ExportedProgram
from ..shapes import as_operand, is_key, meta_of
from .array_files import is_named_by_numpy, load, save
from .files import add_file, arguments, inputs, named, outputs, read, require_writable
from .screen import OK, show, timed


def add(parser: argparse.ArgumentParser) -> None:
    """Options."""
    parser.description = "Run a file on arrays; stdout says what came out, stderr how long it took. Random keys come out as their data."
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
            needed="one for 1 device, where a command runs",
            fix="Call it in Python, on arrays that lie on so many.",
        )
    if chosen.output:
        _require_output(chosen, list(outputs(found).values()))
    declared = inputs(found)
    given = _bound(chosen.input, declared)
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


def _bound(texts: list[str], declared: Mapping[str, Any]) -> dict[str, np.ndarray]:
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
            what = f"{', '.join(sorted(twice))} twice"
            raise DuplicateBinding(where="--input", given=what, needed="one array each")
        given.update(arrays)
    free = [name for name in declared if name not in given]
    given.update(zip(free, unnamed, strict=False))
    unknown = [name for name in given if name not in declared]
    unknown += ["one more"] * (len(unnamed) - len(free))
    missing = [name for name in declared if name not in given]
    if unknown or missing:
        kind = UnexpectedBinding if unknown else UnboundPlaceholder
        what = ", ".join(unknown) if unknown else f"nothing for {', '.join(missing)}"
        needed = ", ".join(f"{name} {meta}" for name, meta in declared.items()) or "none"
        raise kind(where="--input", given=what, needed=needed)
    return given


def _require_output(chosen: argparse.Namespace, results: list[Any]) -> None:
    """Before anything runs: results go to .npz, one alone to .npy too if that keeps its dtype."""
    path = chosen.output
    given = [text.rpartition("=")[2] for text in chosen.input]
    read = [*given, *(text.partition(":")[2] for text in given)]
    require_writable("--output", path, chosen.file, *read)
    if path.endswith(".npz"):
        return
    if not path.endswith(".npy") or len(results) != 1:
        text = f"{path} for {len(results)} results"
        raise InvalidConfig(where="--output", given=text, needed=".npz, or .npy for one result")
    (dtype,) = (result.dtype for result in results)
    if not is_key(dtype) and not is_named_by_numpy(dtype):
        needed = ".npz, in which its name is written: .npy files forget it"
        raise InvalidConfig(where="--output", given=f"{path} for {dtype}", needed=needed)
