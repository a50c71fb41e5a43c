"""How much the tests notice: a seeded sample of small mistakes in the code, and which tier of the tests tells of each.

    python -m tests.mutants RESULTS [--count 150] [--seed 0] [--seconds 600] [--tier quick]

RESULTS is a file of JSON lines, one a mutant, kept outside the repository: a run that was stopped goes on where it was. The first run
writes RESULTS.coverage, which test files read which lines of the code, by one run of the quick tests of each file.
Each mutant is made in a copy of the repository, so that the tree stays as it is. Run one at a time, on a quiet machine; then the same
RESULTS with --tier all: those that the quick tests let live are tried with every test of the same files.
"""

from __future__ import annotations

import argparse
import ast
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
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).parent.parent
MUTATED = (
    *("tenferro_jax/extension", "tenferro_jax/graph", "tenferro_jax/ad.py", "tenferro_jax/io"),
    *("ext_tropical/step", "ext_tropical/network"),
)
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Is: ast.IsNot,
    ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.FloorDiv: ast.Mult,
    ast.And: ast.Or, ast.Or: ast.And, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
RUNNER = """
import json, os, sys, threading
root, out = sys.argv[1] + os.sep, sys.argv[2]
seen = set()
def trace(frame, event, arg):
    name = frame.f_code.co_filename
    if not name.startswith(root) or os.sep + "tests" + os.sep in name: return None
    def lines(frame, event, arg):
        if event == "line": seen.add((name[len(root):], frame.f_lineno))
        return lines
    return lines
threading.settrace(trace); sys.settrace(trace)
import pytest
code = pytest.main(sys.argv[3:])
sys.settrace(None)
json.dump(sorted(seen), open(out, "w"))
sys.exit(code)
"""


def mutations(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """(the node, what is done to it) for every mistake that can be made in a module; texts and annotations are left as they are."""
    kept = {id(part) for node in ast.walk(tree) for part in _never_run(node)}
    for node in ast.walk(tree):
        if id(node) in kept or any(id(part) in kept for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr)):
            continue
        if isinstance(node, ast.Compare | ast.BinOp | ast.BoolOp) and type(_operator(node)) in SWAPS:
            yield node, "swap"
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
            yield node, "drop"
        elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int):
            yield node, "change"
        elif isinstance(node, ast.IfExp):
            yield node, "turn"
        elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
            yield node, "return None"
        elif isinstance(node, ast.Assign | ast.AugAssign | ast.Raise) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)):
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


def mutated(source: str, number: int) -> tuple[str, int, str]:
    """(the module with its mutation of this number, its line, what was done)."""
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
    return text, old.lineno, f"{kind}: {ast.unparse(old)[:80]} -> {ast.unparse(node)[:80]}"


class _Replace(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return ast.copy_location(self.new, node) if node is self.old else super().visit(node)


def sample(count: int, seed: int) -> list[tuple[str, int]]:
    """So many (file, number of the mutation), every mutation as likely as any other."""
    everything = [
        (path.relative_to(ROOT).as_posix(), number)
        for place in MUTATED
        for path in sorted((ROOT / place).rglob("*.py") if (ROOT / place).is_dir() else [ROOT / place])
        for number, _ in enumerate(mutations(ast.parse(path.read_text())))
    ]
    return random.Random(seed).sample(everything, count)


def told_by(folder: pathlib.Path, tests: list[str], tier: str, seconds: float) -> str | None:
    """The first of these files that fails, or how else the run ended; None where every test passed."""
    marks = ["-m", "not slow"] if tier == "quick" else []
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-rfE", "-p", "no:xdist", *marks, *tests]
    environment = os.environ | {"PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return "the time limit"
    if done.returncode in (0, 5):
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    return found[1] if found else f"exit code {done.returncode}"


def copied(folder: pathlib.Path) -> pathlib.Path:
    """The repository without what is built from it but the native kernels."""
    unwanted = shutil.ignore_patterns(".git", ".venv*", "__pycache__", "build", "site", "demo_out")
    return pathlib.Path(shutil.copytree(ROOT, folder / "repository", ignore=unwanted))


def coverage(repository: pathlib.Path, kept: pathlib.Path) -> dict[str, dict[str, list[int]]]:
    """{test file: {file of the code: lines that it runs}} by the quick tests; kept from run to run, file by file."""
    found = json.loads(kept.read_text()) if kept.exists() else {}
    (repository / "_runner.py").write_text(RUNNER)
    for path in sorted((repository / "tests").rglob("test_*.py")):
        name = path.relative_to(repository).as_posix()
        if name in found:
            continue
        lines = repository / "_lines.json"
        lines.unlink(missing_ok=True)
        command = [sys.executable, "_runner.py", str(repository), str(lines), "-q", "-p", "no:xdist", "-m", "not slow", name]
        subprocess.run(command, cwd=repository, env=os.environ | {"PYTHONPATH": str(repository)}, capture_output=True, check=False)
        found[name] = {}
        for file, line in json.loads(lines.read_text()) if lines.exists() else []:
            found[name].setdefault(file, []).append(line)
        kept.write_text(json.dumps(found))
    return found


def judged(repository: pathlib.Path, file: str, number: int, reach: dict[str, dict[str, list[int]]], tier: str, seconds: float) -> dict:
    """What became of one mutant: its line, what was done, and the test that told of it, if any did."""
    source = (ROOT / file).read_text()
    text, line, what = mutated(source, number)
    share = {name: len(files[file]) / sum(map(len, files.values())) for name, files in reach.items() if file in files}
    tests = sorted([name for name in share if line in reach[name][file]] or share, key=lambda name: -share[name])
    (repository / file).write_text(text)
    try:
        killer = told_by(repository, tests, tier, seconds) if tests else None
    finally:
        (repository / file).write_text(source)
    return {"file": file, "number": number, "line": line, "what": what, "tier": tier, "tests": len(tests), "killed by": killer}


def main() -> None:
    """Judge the mutants that RESULTS does not have yet, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=pathlib.Path)
    parser.add_argument("--count", type=int, default=150)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=600, help="the most that the tests of one mutant may take")
    parser.add_argument("--tier", choices=["quick", "all"], default="quick")
    arguments = parser.parse_args()
    rows = [json.loads(row) for row in arguments.results.read_text().splitlines()] if arguments.results.exists() else []
    judged_already = {(row["file"], row["number"]) for row in rows if row["tier"] == arguments.tier}
    killed = {(row["file"], row["number"]) for row in rows if row["killed by"]}
    with tempfile.TemporaryDirectory() as folder:
        repository = copied(pathlib.Path(folder))
        reach = coverage(repository, arguments.results.with_suffix(".coverage"))
        for file, number in sample(arguments.count, arguments.seed):
            if (file, number) in judged_already | killed:
                continue
            row = judged(repository, file, number, reach, arguments.tier, arguments.seconds)
            rows.append(row)
            with arguments.results.open("a") as results:
                results.write(json.dumps(row) + "\n")
            print(f"{row['file']}:{row['line']}  {row['what']}  {row['killed by'] or 'LIVES'}", flush=True)
    quick = {(row["file"], row["number"]) for row in rows if row["killed by"] and row["tier"] == "quick"}
    killed = {(row["file"], row["number"]) for row in rows if row["killed by"]}
    print(f"{arguments.count} mutants: the quick tests tell of {len(quick)}, all tests of {len(killed)} of those judged")


if __name__ == "__main__":
    main()
