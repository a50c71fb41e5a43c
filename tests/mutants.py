"""How much the quick tests notice: a seeded sample of small mistakes in the code, and which test tells
of each.

    pip install -e '.[mutants]'
    python -m tests.mutants RESULTS.jsonl [--count 150] [--seed 0] [--seconds 600] [--draw EARLIER.jsonl]

RESULTS.jsonl has a line for each mutant and is kept outside the repository: a run that was stopped
goes on where it was. The first run runs the quick tests once under coverage and keeps, beside the
results, which test runs which line. A mutant is judged by the tests that run its line, in a copy of the
repository, so that the tree stays as it is.

After a change of the code, `--draw RESULTS.jsonl` judges the mistakes of an earlier draw again: each is
found by its function and by what was done there, whatever file the function is in now; one whose code
is gone is counted as gone. Those that a test told of come first, judged by that test before all others.
"""

from __future__ import annotations

import argparse
import ast
import collections
import copy
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import NamedTuple
from xml.etree import ElementTree

import coverage

ROOT = pathlib.Path(__file__).parent.parent
MUTATED = ("tenferro_jax", "ext_tropical")
# So that a mutant takes minutes: what these let live may be told of by another test.
MOST_TESTS = 1000
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add,
    ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """(the node, what is done to it) for every mistake that can be made in a module; texts and
    annotations are left as they are.
    """
    kept = {id(part) for node in ast.walk(tree) for part in _never_run(node)}
    for node in ast.walk(tree):
        if id(node) in kept or any(
            id(part) in kept for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)
        ):
            continue
        if (
            isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp)
            and type(_operator(node)) in SWAPS
        ):
            yield node, "swap"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield node, "drop"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
            yield node, "change"
        elif isinstance(node, ast.IfExp):
            yield node, "turn"
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield node, "return None"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise) or (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        ):
            yield node, "delete"


def _never_run(node: ast.AST) -> Iterator[ast.AST]:
    """Annotations and what only type checkers read, with all that is in them."""
    roots: list[ast.AST | None] = []
    if isinstance(node, ast.arg | ast.AnnAssign):
        roots.append(node.annotation)
    elif isinstance(node, ast.FunctionDef):
        roots.append(node.returns)
    elif (isinstance(node, ast.Call) and ast.unparse(node.func) == "TypeVar") or (
        isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ):
        roots.append(node)
    for root in roots:
        if root is not None:
            yield from ast.walk(root)


def _operator(node: ast.Compare | ast.BinOp | ast.BoolOp) -> ast.AST:
    return node.ops[0] if isinstance(node, ast.Compare) else node.op


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def mutated(source: str, number: int) -> tuple[str, range, str]:
    """(the module with its mutation of this number, the lines of it, what was done)."""
    tree = ast.parse(source)
    node, kind = list(mutations(tree))[number]
    old = copy.deepcopy(node)
    if kind == "swap" and isinstance(node, ast.Compare):
        node.ops[0] = SWAPS[type(node.ops[0])]()
    elif kind == "swap" and isinstance(node, ast.BinOp | ast.BoolOp):
        node.op = SWAPS[type(node.op)]()
    elif isinstance(node, ast.Constant):
        node.value = not node.value if isinstance(node.value, bool) else node.value + 1
    elif isinstance(node, ast.IfExp):
        node.body, node.orelse = node.orelse, node.body
    elif kind == "return None" and isinstance(node, ast.Return):
        node.value = ast.Constant(None)
    else:
        new = node.operand if isinstance(node, ast.UnaryOp) else ast.Pass()
        tree = _Replace(node, new).visit(tree)
        node = new
    text = ast.unparse(ast.fix_missing_locations(tree))
    return (
        text,
        range(old.lineno, old.end_lineno + 1),
        f"{kind}: {ast.unparse(old)[:80]} -> {ast.unparse(node)[:80]}",
    )


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else super().visit(node)


class Mistake(NamedTuple):
    """A mutation: of this file the one with this number; and what finds it again in changed code."""

    file: str
    number: int
    function: str
    what: str
    occurrence: int


def mistakes() -> list[Mistake]:
    """Every one that can be made."""
    found = []
    for path in (path for place in MUTATED for path in sorted((ROOT / place).rglob("*.py"))):
        file, tree = path.relative_to(ROOT).as_posix(), ast.parse(path.read_text())
        functions = {
            id(part): node.name
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.ClassDef)
            for part in ast.walk(node)
            if part is not node
        }  # the innermost: ast.walk comes to it last
        seen: collections.Counter[tuple[str, str]] = collections.Counter()
        for number, (node, kind) in enumerate(mutations(tree)):
            place = functions.get(id(node), ""), f"{kind}: {ast.unparse(node)}"
            found.append(Mistake(file, number, *place, seen[place]))
            seen[place] += 1
    return found


def sample(count: int, seed: int) -> list[Mistake]:
    """So many, each as likely as any other."""
    return random.Random(seed).sample(mistakes(), count)


def again(draw: pathlib.Path) -> tuple[dict[Mistake, str], int]:
    """The mistakes of an earlier draw in the code of now, each with the test that told of it or "",
    and how many are gone with their code.
    """
    rows = [json.loads(row) for row in draw.read_text().splitlines()]
    rows.sort(key=lambda row: not row.get("killed by"))
    drawn = {
        Mistake(**{n: row[n] for n in Mistake._fields}): row.get("killed by") or "" for row in rows
    }
    now: dict[tuple[str, str], list[Mistake]] = collections.defaultdict(list)
    for mistake in mistakes():
        now[mistake.function, mistake.what].append(mistake)
    found = {}
    for old, test in drawn.items():
        same = now[old.function, old.what]
        here = [m for m in same if m.file == old.file] or same
        for m in [m for m in here if m.occurrence == old.occurrence][:1] or here[:1]:
            found[m] = test
    return found, len(drawn) - len(found)


def told_by(
    tests: list[str], repository: pathlib.Path, environment: dict[str, str], seconds: float
) -> str | None:
    """The first of these tests that fails, or how else they ended; None where every test passed."""
    if not tests:
        return None
    (repository / "_tests.txt").write_text("\n".join(tests))
    options = ["-q", "-x", "-rfE", "-p", "no:xdist", "-p", "no:cov", "@_tests.txt"]
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options],
            cwd=repository,
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {done.returncode}"


def _environment(repository: pathlib.Path, results: pathlib.Path) -> dict[str, str]:
    """That of a run in this copy: no bytecode is kept, and what one mutant's tests compile the next
    one's need not.
    """
    compiled = str(results.with_suffix(".compiled").resolve())
    cache = {
        "JAX_COMPILATION_CACHE_DIR": compiled,
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    cache |= {"JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}
    return os.environ | cache | {"PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1"}


def copied(folder: pathlib.Path) -> pathlib.Path:
    """The repository without what is built from it but the native kernels."""
    unwanted = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", "site", "demo_out")
    return pathlib.Path(shutil.copytree(ROOT, folder / "repository", ignore=unwanted))


class Reach:
    """Which quick tests run which lines; by one run under coverage, kept beside the results."""

    def __init__(self, repository: pathlib.Path, results: pathlib.Path):
        data, times = results.with_suffix(".coverage"), results.with_suffix(".xml")
        if not times.exists():
            options = ["-n", "auto", "-m", "not slow", f"--junitxml={times.resolve()}"]
            options += ["--cov=tenferro_jax", "--cov=ext_tropical", "--cov-context=test"]
            environment = _environment(repository, results) | {"COVERAGE_FILE": str(data.resolve())}
            command = [sys.executable, "-m", "pytest", *options, "--cov-report="]
            subprocess.run(command, cwd=repository, env=environment, check=False)
        cases = ElementTree.parse(times).iter("testcase")
        self.passed = {_node(case) for case in cases if not len(case)}
        self.data = coverage.CoverageData(str(data))
        self.data.read()
        self.files = {
            name.rsplit("/repository/", 1)[1]: name for name in self.data.measured_files()
        }
        self.lines = collections.Counter(
            test
            for name in self.files.values()
            for tests in self.data.contexts_by_lineno(name).values()
            for test in _tests(tests)
        )

    def tests(self, file: str, lines: range) -> list[str]:
        """Those that run one of these lines, or the file where it runs as the module is imported;
        first those that run the least else.
        """
        by_line = self.data.contexts_by_lineno(self.files[file]) if file in self.files else {}
        here = _tests(context for line in lines for context in by_line.get(line, ()))
        here = here or _tests(context for contexts in by_line.values() for context in contexts)
        return sorted(here & self.passed, key=lambda test: (self.lines[test], test))[:MOST_TESTS]


def _tests(contexts: Iterable[str]) -> set[str]:
    """The tests of contexts of coverage, which name their phases too; of an import there is none."""
    return {context.rsplit("|", 1)[0] for context in contexts if context}


def _node(case: ElementTree.Element) -> str:
    """The name by which pytest runs a test, of its line in a report."""
    return case.attrib["classname"].replace(".", "/") + ".py::" + case.attrib["name"]


def judged(
    mistake: Mistake,
    before: str,
    repository: pathlib.Path,
    reach: Reach,
    arguments: argparse.Namespace,
) -> dict:
    """What became of one mutant: its line, what was done, and the test that told of it, if any did;
    the test that told of it before comes first, in whatever file it is now.
    """
    file = mistake.file
    source = (ROOT / file).read_text()
    text, lines, done = mutated(source, mistake.number)
    name = before.partition("::")[2]
    same = [test for test in reach.passed if name and test.partition("::")[2] == name]
    tests = [*([before] if before in same else same[:1]), *reach.tests(file, lines)]
    environment = _environment(repository, arguments.results)
    (repository / file).write_text(text)
    try:
        killer = told_by(tests, repository, environment, arguments.seconds)
    finally:
        (repository / file).write_text(source)
    found = {"tests": len(tests), "killed by": killer}
    return mistake._asdict() | {"line": lines.start, "done": done} | found


def main() -> None:
    """Judge the mutants that RESULTS does not have yet, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=600, help="the most that the tests of one mutant may take"
    )
    parser.add_argument("--draw", type=pathlib.Path, help="results of another state of the code")
    arguments = parser.parse_args()
    drawn, gone = (
        again(arguments.draw)
        if arguments.draw
        else (dict.fromkeys(sample(arguments.count, arguments.seed), ""), 0)
    )
    arguments.results.touch()
    rows = [json.loads(row) for row in arguments.results.read_text().splitlines()]
    done = {(row["file"], row["number"]) for row in rows}
    with tempfile.TemporaryDirectory() as folder, arguments.results.open("a") as results:
        repository = copied(pathlib.Path(folder))
        reach = Reach(repository, arguments.results)
        for mistake, before in drawn.items():
            if (mistake.file, mistake.number) in done:
                continue
            row = judged(mistake, before, repository, reach, arguments)
            rows.append(row)
            print(json.dumps(row), file=results, flush=True)
            told = row["killed by"] or "LIVES"
            print(f"{row['file']}:{row['line']}  {row['done']}  {told}", flush=True)
    killed = sum(bool(row["killed by"]) for row in rows)
    print(f"{len(drawn)} mistakes, and {gone} whose code is gone: tests tell of {killed}")


if __name__ == "__main__":
    main()
