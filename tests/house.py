"""The size of the house, in figures: `python -m tests.house`, before and after a change that is to
make it smaller.
"""

from __future__ import annotations

import ast
import collections
import functools
import importlib
import pathlib

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("tenferro_jax", "ext_tropical")
DOORS = ("tenferro_jax", "tenferro_jax.extension", "ext_tropical")


def sources(*folders: str) -> list[pathlib.Path]:
    """The Python files of some folders."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def statements(paths: list[pathlib.Path]) -> int:
    """How many statements Python finds in them."""
    return sum(isinstance(node, ast.stmt) for path in paths for node in ast.walk(parsed(path)))


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


def table() -> list[tuple[str, str]]:
    """(what is counted, the figure)."""
    house = sources(*PACKAGES)
    names = collections.Counter(path.name for path in house if path.name != "__init__.py")
    lines = {path: path.read_text().splitlines() for path in house}
    longest = max(lines, key=lambda path: len(lines[path]))
    errors = [
        n for n in ast.walk(parsed(ROOT / "tenferro_jax/errors.py")) if isinstance(n, ast.ClassDef)
    ]
    of_any, every = parameters(house)
    return [
        (
            "statements in " + " + ".join(PACKAGES),
            " + ".join(str(statements(sources(package))) for package in PACKAGES),
        ),
        ("files", str(len(house))),
        ("file names that occur twice", str(sum(count > 1 for count in names.values()))),
        *(
            (f"names that {door} exports", str(len(importlib.import_module(door).__all__)))
            for door in DOORS
        ),
        ("error classes", str(len(errors))),
        (
            "parameters with Any in the annotation",
            f"{of_any} of {every}, {100 * of_any / every:.0f} %",
        ),
        (
            "lines of more than 100 columns",
            str(sum(len(line) > 100 for text in lines.values() for line in text)),
        ),
        ("longest file", f"{len(lines[longest])} lines, {longest.relative_to(ROOT)}"),
        ("statements in tests", str(statements(sources("tests")))),
        ("words in docs, README and benchmarks", str(words())),
    ]


if __name__ == "__main__":
    for what, figure in table():
        print(f"{what:45} {figure}")
