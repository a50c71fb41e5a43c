"""A file on the command line: read by what it is, and its inputs and outputs by name."""

from __future__ import annotations

import argparse
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
from .targets import register


def add_file(parser: argparse.ArgumentParser, others: str = "") -> None:
    """The file, and what reading it may need."""
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
    """What is in the file that was chosen, told by its first bytes: a graph, or else a program.

    Installed packages register the families of a graph; where placeholders do, only if the file
    is trusted.
    """
    for target in chosen.register:
        register(target)
    with open(chosen.file, "rb") as file:
        is_graph = file.read(len(MAGIC)) == MAGIC
    if is_graph:
        trusted = chosen.trusted or not skip_missing
        return load_graph(chosen.file, skip_missing_extensions=skip_missing, trusted=trusted)
    return load_exported(pathlib.Path(chosen.file), trusted=chosen.trusted)


def require_writable(option: str, path: str, *read: str) -> None:
    """Refuse a folder that is not there, and a file that the command reads under whatever name.

    Raises:
      InvalidConfig: there is no such folder, or the two are one file.
    """
    target = pathlib.Path(path)
    if not target.parent.is_dir():
        needed = "a file in a folder that is there"
        raise InvalidConfig(where=option, given=path, needed=needed, fix="Make the folder first.")
    for other in map(pathlib.Path, read):
        if target.exists() and other.exists() and target.samefile(other):
            alias = "" if os.fspath(other) == path else f" as {other}"
            given = f"{path}, which is read{alias}"
            raise InvalidConfig(where=option, given=given, needed="another file")


def named(tree: jax.tree_util.PyTreeDef, leaves: Sequence[Any], root: str) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as "args[0]['w']"."""
    numbered = jax.tree.unflatten(tree, range(len(leaves)))
    paths, _ = jax.tree_util.tree_flatten_with_path(numbered)
    return {root + jax.tree_util.keystr(path): leaves[i] for path, i in paths}


def inputs(found: Graph | ExportedProgram) -> dict[str, Any]:
    """What it takes, by name: dtypes and shapes."""
    if isinstance(found, Graph):
        return dict(zip(found.input_names, found.input_metas, strict=True))
    args = arguments(found, list(found.exported.in_avals))
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
