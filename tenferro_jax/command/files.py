"""A file on the command line: read by what it is, and its inputs and outputs by name."""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import jax

from ..errors import InvalidConfig
from ..graph.graph import Graph
from ..io.container import MAGIC
from ..io.loading import load_exported
from ..io.program import ExportedProgram
from ..io.wire import load_graph
from .naming import register

TRUSTED = (
    "read an exported program without a footer or with a damaged one too; have installed packages register the extensions "
    "of a graph, as run and explain always do"
)


def add_file(parser: argparse.ArgumentParser) -> None:
    """The file, and what reading it may need."""
    parser.add_argument("file", metavar="FILE", help="a graph or an exported program")
    parser.add_argument("--trusted", action="store_true", help=TRUSTED)
    add_register(parser)


def add_register(parser: argparse.ArgumentParser) -> None:
    """The families that reading may need."""
    parser.add_argument(
        "--register",
        action="append",
        default=[],
        metavar="package.module:name",
        help="an op class, a factory, or a function that registers families, to read extensions back with where no installed "
        "package publishes them",
    )


def read(chosen: argparse.Namespace, *, skip_missing_extensions: bool = False) -> Graph | ExportedProgram:
    """What is in the file that was chosen, told by its first bytes: a graph, or else an exported program.

    Installed packages register the families of a graph; where placeholders do, only if the file is trusted.
    """
    register_all(chosen)
    with open(chosen.file, "rb") as file:
        is_graph = file.read(len(MAGIC)) == MAGIC
    if is_graph:
        trusted = chosen.trusted or not skip_missing_extensions
        return load_graph(chosen.file, skip_missing_extensions=skip_missing_extensions, trusted=trusted)
    return load_exported(pathlib.Path(chosen.file), trusted=chosen.trusted)


def register_all(chosen: argparse.Namespace) -> None:
    """Make the families known that the command line names."""
    for target in chosen.register:
        register(target)


def require_unread(option: str, path: str, *read: str) -> None:
    """Refuse to write over a file that the command reads, under whatever name: another path, a symbolic or a hard link.

    Raises:
      InvalidConfig: the two are one file.
    """
    target = pathlib.Path(path)
    for other in map(pathlib.Path, read):
        if target.exists() and other.exists() and target.samefile(other):
            given = f"{path}, which is read" + ("" if os.fspath(other) == path else f" as {other}")
            raise InvalidConfig(where=option, given=given, needed="another file", fix="Write to a path of its own.")


def require_folder(option: str, path: str) -> None:
    """Refuse a name in a folder that is not there.

    Raises:
      InvalidConfig: there is no such folder.
    """
    if not pathlib.Path(path).parent.is_dir():
        raise InvalidConfig(where=option, given=path, needed="a file in a folder that is there", fix="Make the folder first.")


def digest(path: str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named(tree: Any, leaves: Sequence[Any], root: str) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as "args[0]['w']"."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, range(len(leaves))))
    return {root + jax.tree_util.keystr(path): leaves[i] for path, i in paths}


def inputs(found: Graph | ExportedProgram) -> dict[str, Any]:
    """What it takes, by name: dtypes and shapes."""
    if isinstance(found, Graph):
        return dict(zip(found.input_names, found.input_metas, strict=True))
    args, _ = jax.tree.unflatten(found.exported.in_tree, list(found.exported.in_avals))
    return named(jax.tree.structure(args), jax.tree.leaves(args), "args")


def outputs(found: Graph | ExportedProgram) -> dict[str, Any]:
    """What it gives, by name: dtypes and shapes."""
    if isinstance(found, Graph):
        return named(found.out_tree, found.output_metas, "out")
    return named(found.exported.out_tree, found.exported.out_avals, "out")


def arguments(found: Graph | ExportedProgram, leaves: list[Any]) -> tuple[Any, ...]:
    """The leaves nested as arguments."""
    if isinstance(found, Graph):
        return jax.tree.unflatten(found.in_tree, leaves)
    args, _ = jax.tree.unflatten(found.exported.in_tree, leaves)
    return args
