"""A file on the command line: read by what it is, described as a pair of names and arrays."""

from __future__ import annotations

import argparse
import hashlib
import pathlib
from typing import Any

import jax

from ..io.loading import load_exported
from ..io.program import ExportedProgram
from .naming import register


def add_file(parser: argparse.ArgumentParser) -> None:
    """The file, and what reading it may need."""
    parser.add_argument("file", metavar="FILE", help="an exported program")
    parser.add_argument("--trusted", action="store_true", help="read a file without a footer or with a damaged one too")
    add_register(parser)


def add_register(parser: argparse.ArgumentParser) -> None:
    """The families that reading may need."""
    parser.add_argument(
        "--register",
        action="append",
        default=[],
        metavar="package.module:name",
        help="an op class, a factory, or a function that registers families, to read extensions back with",
    )


def read(chosen: argparse.Namespace) -> ExportedProgram:
    """The program in the file that was chosen."""
    register_all(chosen)
    return load_exported(pathlib.Path(chosen.file), trusted=chosen.trusted)


def register_all(chosen: argparse.Namespace) -> None:
    """Make the families known that the command line names."""
    for target in chosen.register:
        register(target)


def digest(path: str) -> str:
    """SHA-256 of a file, in hexadecimal."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def named(tree: Any, leaves: Any, root: str) -> dict[str, Any]:
    """The leaves of a tree by their paths, such as "args[0]['w']"."""
    paths, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(tree, list(leaves)))
    return {root + jax.tree_util.keystr(path): leaf for path, leaf in paths}


def inputs(program: ExportedProgram) -> dict[str, Any]:
    """What the program takes, by name: shapes and dtypes."""
    args, _ = jax.tree.unflatten(program.exported.in_tree, list(program.exported.in_avals))
    return named(jax.tree.structure(args), jax.tree.leaves(args), "args")


def outputs(program: ExportedProgram) -> dict[str, Any]:
    """What the program gives, by name: shapes and dtypes."""
    return named(program.exported.out_tree, program.exported.out_avals, "out")
