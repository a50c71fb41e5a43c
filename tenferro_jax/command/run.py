"""python -m tenferro_jax run FILE --input x.npy -o out.npz"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from ..engine.engine import Engine
from ..engine.progress import Progress
from ..errors import DuplicateBinding, InvalidConfig, UnboundPlaceholder, UnexpectedBinding, Unsupported
from ..graph.graph import Graph
from ..io.program import ExportedProgram
from ..meta import as_operand, is_key, meta_of
from .array_files import is_named_by_numpy, load, save
from .files import add_file, arguments, inputs, named, outputs, read, require_folder, require_unread
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
        help="an array, in the order of the inputs or by the name that inspect shows; or an .npz of several by name. "
        "A dtype that NumPy does not know is named: bfloat16:x.npy",
    )
    parser.add_argument("-o", "--output", metavar="out.npz", help="where results go: .npz by name, or .npy where there is one")
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
    declared = inputs(found)
    if chosen.output:
        _require_output(chosen, outputs(found))
    given = _bound(chosen.input, declared)
    args = arguments(found, [as_operand(given[name], f"--input {name}") for name in declared])
    with timed("compile"):
        compiled = _compiled(found, args)
    with timed("run"):
        result = jax.block_until_ready(compiled(*args))
    leaves = [jax.random.key_data(leaf) if is_key(leaf.dtype) else leaf for leaf in jax.tree.leaves(result)]
    results = {name: np.asarray(leaf) for name, leaf in named(jax.tree.structure(result), leaves, "out").items()}
    for name, array in results.items():
        show(f"{name}  {meta_of(array)}{f' = {array}' if array.size == 1 else ''}")
    if chosen.output:
        save(chosen.output, results)
        show(f"wrote {chosen.output}", sys.stderr)
    return OK


def _compiled(found: Graph | ExportedProgram, args: tuple[Any, ...]) -> Callable[..., Any]:
    if isinstance(found, Graph):
        return Engine(progress=_tell).compile(found.bound_to(*args))
    return jax.jit(found.call).lower(*args).compile()


def _tell(event: Progress) -> None:
    show(f"  {event.phase} {event.number + 1} of {event.total}: {event.seconds:.2f} s", sys.stderr)


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
            fix = "Leave one out."
            raise DuplicateBinding(where="--input", given=f"{', '.join(sorted(twice))} twice", needed="one array each", fix=fix)
        given.update(arrays)
    free = [name for name in declared if name not in given]
    given.update(zip(free, unnamed, strict=False))
    unknown = [name for name in given if name not in declared] + ["one more"] * (len(unnamed) - len(free))
    missing = [name for name in declared if name not in given]
    if unknown or missing:
        kind = UnexpectedBinding if unknown else UnboundPlaceholder
        what = ", ".join(unknown) if unknown else f"nothing for {', '.join(missing)}"
        raise kind(where="--input", given=what, needed=", ".join(f"{n} {a}" for n, a in declared.items()) or "none")
    return given


def _require_output(chosen: argparse.Namespace, results: Mapping[str, Any]) -> None:
    """Before anything runs: results go to .npz, one alone to .npy too if that keeps its dtype, and never over what was read."""
    path, dtypes = pathlib.Path(chosen.output), [np.dtype("uint32") if is_key(value.dtype) else value.dtype for value in results.values()]
    require_folder("--output", chosen.output)
    if not chosen.output.endswith((".npz", ".npy")) or (path.suffix == ".npy" and len(dtypes) != 1):
        needed = ".npz, or .npy for one result"
        raise InvalidConfig(where="--output", given=f"{chosen.output} for {len(dtypes)} results", needed=needed)
    if path.suffix == ".npy" and not is_named_by_numpy(dtypes[0]):
        needed = ".npz, in which its name is written: .npy files forget it"
        raise InvalidConfig(where="--output", given=f"{path} for a result of {dtypes[0]}", needed=needed)
    given = [text.rpartition("=")[2] for text in chosen.input]
    require_unread("--output", chosen.output, chosen.file, *given, *(text.partition(":")[2] for text in given))
