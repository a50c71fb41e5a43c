"""What a reader pays for the house, in figures with their budgets. `python -m tests.house` prints
them and fails where one is above its budget, and so does `tests/test_floors.py`.

A docstring, a comment, a name, a field, an import and a file cost nothing.
"""

from __future__ import annotations

import ast
import collections
import functools
import itertools
import json
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator

ROOT = pathlib.Path(__file__).parent.parent
PACKAGES = ("tenferro_jax", "ext_tropical")

# A statement that holds more expressions than this is read twice; so is a function with more.
DENSE, LONG = 25, 300
LONG_TEST_FILE = 600
MANY_ARGUMENTS = 5
SEVERAL_MEANINGS = 3

# The doors from which pages may import: the two packages, the rooms for authors, and a room for each
# subject.
DOORS = (
    *(f"tenferro_jax.{room}" for room in ("errors", "extension", "ops", "testing")),
    *(f"ext_tropical.{room}" for room in ("einsums", "models", "sequences", "graphs", "semirings")),
)

COMPREHENSIONS = ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
COMPOUND = (
    ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.If | ast.For | ast.While | ast.With
    | ast.Try | ast.Raise
)  # fmt: skip

# How a name shows that its value is a bool. A slice or a product with such a value chooses
# between two things without saying so.
OF_A_BOOL = re.compile(
    r"\b(is|has|with|wants|can|detailed|affine|local)(_\w+)?\b|\bnot\b|[=!<>]=|[<>]"
)


def sources(*folders: str) -> list[pathlib.Path]:
    """The Python files of some folders."""
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


@functools.cache
def parsed(path: pathlib.Path) -> ast.Module:
    return ast.parse(path.read_text())


def nodes_of(folder: str) -> Iterator[ast.AST]:
    """Everything in the files of a folder, but the texts of docstrings."""
    for path in sources(folder):
        nodes = [*ast.walk(parsed(path))]
        texts = {id(node.value) for node in nodes if is_docstring(node)}
        yield from (node for node in nodes if id(node) not in texts)


# --- kinds of nodes -------------------------------------------------------------------------------


def is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_code(node: ast.AST) -> bool:
    """Whether a node is an expression or a statement, and no docstring and no import."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return False
    return isinstance(node, ast.expr | ast.stmt) and not is_docstring(node)


def is_simple(node: ast.AST) -> bool:
    """Whether a node is a statement without statements inside, and no docstring."""
    return isinstance(node, ast.stmt) and not isinstance(node, COMPOUND) and not is_docstring(node)


def expressions(node: ast.AST) -> int:
    return sum(isinstance(inside, ast.expr) for inside in ast.walk(node))


def is_dense(node: ast.AST) -> bool:
    return is_simple(node) and expressions(node) > DENSE


def is_long(node: ast.AST) -> bool:
    return isinstance(node, ast.FunctionDef) and expressions(node) > LONG


def is_nested(node: ast.AST) -> bool:
    """Whether a node is a comprehension with another one inside."""
    if not isinstance(node, COMPREHENSIONS):
        return False
    inside = itertools.chain.from_iterable(map(ast.walk, ast.iter_child_nodes(node)))
    return any(isinstance(other, COMPREHENSIONS) for other in inside)


def is_choice_by_number(node: ast.AST) -> bool:
    """Whether a bool is a factor of a tuple, a list or a text, or an index or the bound of one."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        sides = [node.left, node.right]
        return any(map(_is_sequence, sides)) and any(map(_is_a_bool, sides))
    if not isinstance(node, ast.Subscript) or isinstance(node.ctx, ast.Store):
        return False
    if isinstance(node.slice, ast.Slice):
        return any(_has_a_bool(bound) for bound in (node.slice.lower, node.slice.upper))
    return _is_a_bool(node.slice)


def _is_sequence(node: ast.expr) -> bool:
    is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
    return is_text or isinstance(node, ast.Tuple | ast.List | ast.ListComp)


def _is_a_bool(node: ast.expr) -> bool:
    """Whether an expression is a bool, as far as its form or its name shows."""
    if isinstance(node, ast.Compare | ast.BoolOp):
        return True
    if isinstance(node, ast.UnaryOp):
        return isinstance(node.op, ast.Not)
    named = isinstance(node, ast.Name | ast.Attribute | ast.Call)
    return named and bool(OF_A_BOOL.search(ast.unparse(node).rpartition(".")[2]))


def _has_a_bool(node: ast.expr | None) -> bool:
    return node is not None and any(
        isinstance(inside, ast.expr) and _is_a_bool(inside) for inside in ast.walk(node)
    )


def is_record_by_position(node: ast.AST) -> bool:
    """Whether a class is called with many arguments by position."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
        return False
    is_class = node.func.id.lstrip("_")[:1].isupper()
    has_stars = any(isinstance(given, ast.Starred) for given in node.args)
    return is_class and not has_stars and len(node.args) >= MANY_ARGUMENTS


def is_local_of_any(node: ast.AST) -> bool:
    """Whether a node declares a variable of the type Any."""
    if not isinstance(node, ast.AnnAssign) or node.value is None:
        return False
    return isinstance(node.annotation, ast.Name) and node.annotation.id == "Any"


# --- figures --------------------------------------------------------------------------------------


def count(kind: Callable[[ast.AST], bool], folder: str) -> int:
    return sum(map(kind, nodes_of(folder)))


def dense_of_1000(folder: str) -> float:
    """How many of 1,000 simple statements are dense."""
    return round(1000 * count(is_dense, folder) / count(is_simple, folder), 1)


def parameters_of_any() -> int:
    """How many of 1,000 annotated parameters have Any in their annotation."""
    annotations = []
    for package in PACKAGES:
        for node in nodes_of(package):
            if isinstance(node, ast.arg) and node.annotation is not None:
                annotations.append(ast.unparse(node.annotation))
    return round(1000 * sum("Any" in text for text in annotations) / len(annotations))


def top_names() -> dict[str, set[pathlib.Path]]:
    """The files that define each name at their top."""
    found: dict[str, set[pathlib.Path]] = collections.defaultdict(set)
    for path in sources(*PACKAGES):
        for statement in parsed(path).body:
            for name in _defined(statement):
                found[name].add(path)
    return found


def _defined(statement: ast.stmt) -> list[str]:
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    if isinstance(statement, ast.AnnAssign):
        return [statement.target.id] if isinstance(statement.target, ast.Name) else []
    if isinstance(statement, ast.Assign):
        return [target.id for target in statement.targets if isinstance(target, ast.Name)]
    return []


def meanings() -> list[str]:
    """The names that several files define at their top."""
    special = {"__all__"}
    return sorted(
        name
        for name, paths in top_names().items()
        if len(paths) >= SEVERAL_MEANINGS and name not in special
    )


def pages() -> list[pathlib.Path]:
    """Those that users read: README.md, docs/ and those of the benchmarks."""
    return [
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *ROOT.glob("benchmarks/*.md"),
    ]


def words(*paths: pathlib.Path) -> int:
    return sum(len(path.read_text().split()) for path in paths)


def below_a_door() -> list[str]:
    """The names that pages and examples import from below a door, each once."""
    doors = "|".join(map(re.escape, DOORS))
    imported = re.compile(
        rf"^\s*from (?!(?:{doors}) )((?:tenferro_jax|ext_tropical)\.[\w.]+) import ([^\n]+)$",
        re.MULTILINE,
    )
    found = set()
    for page in [*pages(), *(ROOT / "docs" / "examples").rglob("*.py")]:
        for module, names in imported.findall(page.read_text()):
            found.update(
                f"{module}.{name}" for name in re.findall(r"\w+", names.partition(" as ")[0])
            )
    return sorted(found)


@functools.cache
def figures() -> dict[str, float]:
    """What is counted in the files."""
    errors = parsed(ROOT / "tenferro_jax/errors.py")
    files = collections.Counter(p.name for p in sources(*PACKAGES) if p.name != "__init__.py")
    test_files = [
        path for path in sources("tests") if len(path.read_text().splitlines()) > LONG_TEST_FILE
    ]
    test_statements = count(is_simple, "tests")
    found: dict[str, float] = {}
    for package in PACKAGES:
        found |= {
            f"nodes of code in {package}": count(is_code, package),
            f"dense of 1,000 simple statements in {package}": dense_of_1000(package),
            f"comprehensions in comprehensions in {package}": count(is_nested, package),
            f"long functions in {package}": count(is_long, package),
            f"choices by a bool as a number in {package}": count(is_choice_by_number, package),
            f"records of five and more by position in {package}": count(
                is_record_by_position, package
            ),
            f"locals typed Any in {package}": count(is_local_of_any, package),
        }
    return found | {
        "dense of 1,000 simple statements in tests": dense_of_1000("tests"),
        "nodes of a simple statement in tests": round(
            sum(expressions(node) for node in nodes_of("tests") if is_simple(node))
            / test_statements,
            1,
        ),
        "test files above 600 lines": len(test_files),
        "names that pages import from below a door": len(below_a_door()),
        "names of three and more meanings": len(meanings()),
        "file names that occur twice": sum(number > 1 for number in files.values()),
        "error classes": sum(isinstance(node, ast.ClassDef) for node in ast.walk(errors)),
        "parameters of 1,000 with Any in the annotation": parameters_of_any(),
        "words in docs, README and benchmarks": words(*pages()),
        "words in README.md": words(ROOT / "README.md"),
        "words in docs/limits.md": words(ROOT / "docs/limits.md"),
    }


def lengths_of_ways() -> dict[str, float]:
    """How many functions the first calls of eight doors enter, in a process of their own."""
    command = [sys.executable, "-m", "tests.ways", "--json"]
    ours = {name: text for name, text in os.environ.items() if not name.startswith(("JAX", "XLA"))}
    made = subprocess.run(command, cwd=ROOT, env=ours, check=True, capture_output=True, text=True)
    found = json.loads(made.stdout)
    return {f"functions entered first by {name}": count for name, count in found.items()}


# Each is the figure of 2026-11-29, and may only fall. Words have no room above it either.
BUDGETS: dict[str, float] = {
    "nodes of code in tenferro_jax": 82_618,
    "dense of 1,000 simple statements in tenferro_jax": 6.2,
    "comprehensions in comprehensions in tenferro_jax": 6,
    "long functions in tenferro_jax": 3,
    "choices by a bool as a number in tenferro_jax": 0,
    "records of five and more by position in tenferro_jax": 0,
    "locals typed Any in tenferro_jax": 46,
    "nodes of code in ext_tropical": 86_536,
    "dense of 1,000 simple statements in ext_tropical": 5.3,
    "comprehensions in comprehensions in ext_tropical": 10,
    "long functions in ext_tropical": 6,
    "choices by a bool as a number in ext_tropical": 1,
    "records of five and more by position in ext_tropical": 0,
    "locals typed Any in ext_tropical": 15,
    "dense of 1,000 simple statements in tests": 37.5,
    "nodes of a simple statement in tests": 10.9,
    "test files above 600 lines": 1,
    "names that pages import from below a door": 0,
    "names of three and more meanings": 28,
    "file names that occur twice": 0,
    "error classes": 15,
    "parameters of 1,000 with Any in the annotation": 25,
    "words in docs, README and benchmarks": 47_100,
    "words in README.md": 450,
    "words in docs/limits.md": 900,
}
WAYS: dict[str, float] = {
    "functions entered first by an op under jit(grad)": 109,
    "functions entered first by an op with defvjp under jit(grad)": 148,
    "functions entered first by tropical_einsum of three": 151,
    "functions entered first by tropical_einsum_with_argmax of three": 176,
    "functions entered first by Network.best": 167,
    "functions entered first by Network.marginals": 150,
    "functions entered first by load_graph": 138,
    "functions entered first by Chain.best": 117,
}


if __name__ == "__main__":
    budgets, found = BUDGETS | WAYS, figures() | lengths_of_ways()
    for what, figure in found.items():
        print(f"{what:65} {figure:8,} of {budgets.get(what, 0):,}")
    sys.exit(any(figure > budgets.get(what, 0) for what, figure in found.items()))
