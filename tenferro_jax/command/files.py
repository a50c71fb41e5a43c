"""Shared by the commands: output, `package.module:name` targets, and files of both kinds."""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TextIO

import jax
import numpy as np

from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.function_op import FunctionOp
from ..extension.registry import ExtensionFactory, lookup_extension_factory, register_extension
from ..graph.graph import Graph
from ..graph.printing import leaf_names, plain
from ..io.container import GRAPH_MAGIC
from ..io.exported import ExportedProgram, load_exported
from ..io.wire import load_graph

_ARRAY = re.compile(r"(?P<dtype>\w+)\[(?P<sizes>[\d,\s]*)\]")


def imported(target: str) -> Any:
    """The object of package.module:name."""
    module, _, name = target.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except (Exception, SystemExit) as error:  # the module is the user's
        raise InvalidConfig(
            where="target",
            given=f"{target!r}: {type(error).__name__}: {error}",
            needed="package.module:name of a module that can be imported here",
        ) from error
    return found


def named_op(target: str) -> ExtensionOp:
    """The op that a target names: itself, its class's or factory's default, or a
    function's result.
    """
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        factory = lookup_extension_factory(getattr(found, "family_id", ""))
        factory = factory or ExtensionFactory(found)
        found = _called(factory.instantiate_default, target) or _called(found, target)
    elif callable(found) and not isinstance(found, FunctionOp):
        found = _called(found, target)
    if isinstance(found, FunctionOp):
        found = _called(found.op, target)
    if isinstance(found, ExtensionFactory):
        found = _called(found.instantiate_default, target)
    if not isinstance(found, ExtensionOp):
        raise InvalidConfig(
            where=target,
            given=repr(found),
            needed="an extension op, its class, or a function that returns one",
        )
    return found


def register(target: str) -> None:
    """Register families: that of an op class or a factory, or those of a function that registers
    them.

    Raises:
      InvalidConfig: the target is another object, or fails.
    """
    found = imported(target)
    if isinstance(found, type) and issubclass(found, ExtensionOp):
        found = ExtensionFactory(found)
    elif callable(found):
        found = _called(found, target)
        if not isinstance(found, ExtensionFactory):
            return  # the function has registered its families
    if not isinstance(found, ExtensionFactory):
        raise InvalidConfig(
            where="--register",
            given=f"{target!r}: {found!r}",
            needed="an op class, a factory, or a function without arguments that registers "
            "families",
        )
    if lookup_extension_factory(found.family_id) is None:
        register_extension(found)


def _called(make: Callable[[], object], target: str) -> object:
    """The result of a user's function."""
    try:
        return make()
    except (Exception, SystemExit) as error:
        raise InvalidConfig(
            where=target,
            given=f"{type(error).__name__}: {error}",
            needed="a class or function that makes an op without arguments",
            fix="Give the payload fields defaults, or name an op object.",
        ) from error


def random_array(text: str, rng: np.random.Generator) -> Any:
    """An array like "float64[3,4]": normal floats, integers and booleans of 0 and 1."""
    found = _ARRAY.fullmatch(text.strip())
    try:
        if found is None:
            raise TypeError("no dtype with sizes in brackets")
        dtype = jax.numpy.dtype(found["dtype"])
        shape = tuple(int(size) for size in found["sizes"].split(",") if size.strip())
        if dtype.kind in "OSUMm":
            raise TypeError("no numeric dtype")
        if dtype.kind in "biu":
            return rng.integers(0, 2, size=shape).astype(dtype)
        made = rng.normal(size=shape)
        return (made + 1j * rng.normal(size=shape) if dtype.kind == "c" else made).astype(dtype)
    except (TypeError, ValueError, MemoryError) as error:
        raise InvalidConfig(
            where="--input",
            given=f"{text!r}: {error}",
            needed="a dtype and sizes, such as float64[3,4] or int32[]",
            fix="Quote it for the shell.",
        ) from error


OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


def show(text: str, stream: TextIO | None = None) -> None:
    """Print text that the terminal can show, without control characters; quiet if the reader has
    closed the pipe.
    """
    stream, text = stream or sys.stdout, plain(text, kept="\n\t")
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        with open(
            os.devnull, "w"
        ) as nowhere:  # otherwise the interpreter reports an error when it ends
            os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """On stderr, how long a step took."""
    start = time.perf_counter()
    yield
    show(f"{name}: {time.perf_counter() - start:.2f} s", sys.stderr)


def add_file(parser: argparse.ArgumentParser, others: str = "") -> None:
    """Options for the file and for reading it."""
    text = f"a graph or an exported program{others}"
    parser.add_argument("file", metavar="TARGET" if others else "FILE", help=text)
    parser.add_argument(
        "--trusted",
        action="store_true",
        help="read an exported program without a footer or with a damaged one too; have installed "
        "packages register the extensions of a graph, as run and explain always do",
    )
    parser.add_argument(
        "--register",
        action="append",
        default=[],
        metavar="package.module:name",
        help="an op class, a factory, or a function that registers families, to read extensions "
        "back with where no installed package publishes them",
    )


def read(chosen: argparse.Namespace, *, skip_missing: bool = False) -> Graph | ExportedProgram:
    """The content of the chosen file: a graph or, by its first bytes, a program.

    Installed packages register the families of a graph; if placeholders are enough, only if the
    file is trusted.
    """
    for target in chosen.register:
        register(target)
    with open(chosen.file, "rb") as file:
        is_graph = file.read(len(GRAPH_MAGIC)) == GRAPH_MAGIC
    if is_graph:
        trusted = chosen.trusted or not skip_missing
        return load_graph(chosen.file, skip_missing_extensions=skip_missing, trusted=trusted)
    return load_exported(pathlib.Path(chosen.file), trusted=chosen.trusted)


def require_writable(option: str, path: str, *read: str) -> None:
    """Refuse a missing folder, and a file that the command also reads, under any of its names.

    Raises:
      InvalidConfig: the folder is missing, or both are the same file.
    """
    target = pathlib.Path(path)
    if not target.parent.is_dir():
        raise InvalidConfig(
            where=option,
            given=path,
            needed="a file in an existing folder",
            fix="Make the folder first.",
        )
    for other in map(pathlib.Path, read):
        if target.exists() and other.exists() and target.samefile(other):
            alias = "" if os.fspath(other) == path else f" as {other}"
            raise InvalidConfig(
                where=option,
                given=f"{path}, which is an input file{alias}",
                needed="another file",
            )


def named(tree: jax.tree_util.PyTreeDef, leaves: Sequence[object], root: str) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as "args[0]['w']"."""
    return dict(zip(leaf_names(tree, root), leaves, strict=True))


def inputs(found: Graph | ExportedProgram) -> dict[str, Any]:
    """The inputs by name: dtypes and shapes."""
    if isinstance(found, Graph):
        return dict(zip(found.input_names, found.input_metas, strict=True))
    args = arguments(found, list(found.exported.in_avals))
    return named(jax.tree.structure(args), jax.tree.leaves(args), "args")


def outputs(found: Graph | ExportedProgram) -> dict[str, Any]:
    """The outputs by name: dtypes and shapes."""
    if isinstance(found, Graph):
        return named(found.out_tree, found.output_metas, "out")
    return named(found.exported.out_tree, found.exported.out_avals, "out")


def arguments(found: Graph | ExportedProgram, leaves: list[object]) -> tuple[Any, ...]:
    """The leaves nested as arguments."""
    if isinstance(found, Graph):
        return jax.tree.unflatten(found.in_tree, leaves)
    args, _ = jax.tree.unflatten(found.exported.in_tree, leaves)
    return args
