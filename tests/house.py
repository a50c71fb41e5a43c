"""The size of the house, in figures with their budgets: `python -m tests.house` fails where one is
above its budget, and so does `tests/test_floors.py`.
"""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import pathlib
import sys

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("tenferro_jax", "ext_tropical")
DOORS = ("tenferro_jax", "tenferro_jax.extension", "ext_tropical")


def sources(*folders: str) -> list[pathlib.Path]:
    """The Python files of some folders."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def nodes(paths: list[pathlib.Path]) -> int:
    """How many expressions and statements a reader reads in them; docstrings and imports are free."""
    found = [node for path in paths for node in ast.walk(parsed(path)) if is_code(node)]
    return len(found)


def is_code(node: ast.AST) -> bool:
    """Whether a node is an expression or a statement, and no docstring and no import."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return False
    return isinstance(node, ast.expr | ast.stmt)


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def words() -> int:
    """How many words the pages have: docs/, README.md and those of the benchmarks."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("benchmarks/*.md")]
    return sum(len(page.read_text().split()) for page in pages)


def parameters(paths: list[pathlib.Path]) -> tuple[int, int]:
    """How many annotated parameters have Any in their annotation, and how many there are."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    found = [
        a
        for p in paths
        for f in ast.walk(parsed(p))
        if isinstance(f, functions)
        for a in ast.walk(f.args)
    ]
    annotations = [
        a.annotation for a in found if isinstance(a, ast.arg) and a.annotation is not None
    ]
    return sum("Any" in ast.unparse(annotation) for annotation in annotations), len(annotations)


@functools.cache
def figures() -> dict[str, int]:
    """What is counted."""
    house = sources(*PACKAGES)
    names = collections.Counter(path.name for path in house if path.name != "__init__.py")
    errors = parsed(ROOT / "tenferro_jax/errors.py")
    of_any, every = parameters(house)
    doors = {
        f"names at the door of {door}": len(importlib.import_module(door).__all__) for door in DOORS
    }
    return {
        **{f"nodes of code in {package}": nodes(sources(package)) for package in PACKAGES},
        "file names that occur twice": sum(count > 1 for count in names.values()),
        **doors,
        "error classes": sum(isinstance(node, ast.ClassDef) for node in ast.walk(errors)),
        "parameters of 1,000 with Any in the annotation": round(1000 * of_any / every),
        "words in docs, README and benchmarks": words(),
        "words in docs/limits.md": len((ROOT / "docs/limits.md").read_text().split()),
    }


BUDGETS = {
    "nodes of code in tenferro_jax": 85_000,
    "nodes of code in ext_tropical": 58_000,
    "file names that occur twice": 0,
    "names at the door of tenferro_jax": 24,
    "names at the door of tenferro_jax.extension": 12,
    "names at the door of ext_tropical": 26,
    "error classes": 15,
    "parameters of 1,000 with Any in the annotation": 30,
    "words in docs, README and benchmarks": 48_000,
    "words in docs/limits.md": 900,
}
"""A change that makes the house smaller lowers its budget; one that needs more says what it replaces.
"""


if __name__ == "__main__":
    found = figures()
    for what, figure in found.items():
        print(f"{what:50} {figure:7,} of {BUDGETS[what]:,}")
    sys.exit(any(figure > BUDGETS[what] for what, figure in found.items()))
