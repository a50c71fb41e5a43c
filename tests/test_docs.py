"""The docs hold: every block and docstring example runs and prints what the page says; pages and
code name the same things.
"""

import dataclasses
import importlib
import inspect
import re

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import errors
from tenferro_jax.ops.vocabulary import VOCABULARY

from . import check_page, op_page, run_docs
from .helpers import python
from .house import ROOT


@pytest.mark.slow
@pytest.mark.parametrize("part", ["pages", "docstrings"])
def test_every_example_runs_and_prints_what_is_written(part):
    printed = python("-m", "tests.run_docs", part)
    found = re.match(r"(\d+) blocks, (\d+) examples, 0 problems", printed)
    blocks, examples = map(int, found.groups())
    assert (blocks >= 13, examples >= 70) == (part == "pages", part == "docstrings")


@pytest.mark.slow
def test_the_code_of_the_guides_runs_twice_in_one_process():
    printed = python("-m", "tests.run_docs", "guides")
    assert re.match(r"\d\d\d blocks, 0 examples, 0 problems", printed), printed


@pytest.mark.slow
def test_check_finds_in_the_ops_of_the_guides_what_the_guides_say():
    printed = python("-m", "tests.guide_ops", is_silent=False)
    count = int(re.search(r"^(\d+) ops, 0 findings", printed, re.MULTILINE)[1])
    assert count >= 15


def test_the_op_page_says_what_the_vocabulary_says():
    assert op_page.PAGE.read_text() == op_page.page(), "run python -m tests.op_page"


def test_the_page_of_checks_lists_those_of_the_kit():
    assert check_page.PAGE.read_text() == check_page.page(), "run python -m tests.check_page"


@pytest.mark.few(31)
@pytest.mark.parametrize("op", VOCABULARY, ids=lambda op: op.__name__)
def test_the_example_of_an_op(op):
    semantics, constraints, gradient, example = op_page.facts(op)
    assert all((semantics, gradient, example.startswith((op.__name__, "RandomUnwrap", "abs"))))
    fields = {f.name for f in dataclasses.fields(op)} - {"dtype"}
    takes_all = op.input_count in (0, None) or (op.input_count == 1 and not fields)
    assert constraints or takes_all, "C1 says what it refuses"
    if " = " not in example:
        assert np.all(eval(example, op_page.NAMES | {"jax": jax}))
        return
    got, want = (eval(part, op_page.NAMES | {"jax": jax}) for part in example.split(" = "))
    if want is None:
        assert got is None
        return
    for g, w in zip(got, want) if isinstance(got, tuple | list) else [(got, want)]:
        np.testing.assert_allclose(np.asarray(g), np.asarray(w), rtol=2e-4, atol=1e-12)


def test_the_error_page_names_every_class():
    rows = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    classes = [
        n
        for n, c in vars(errors).items()
        if inspect.isclass(c) and issubclass(c, errors.TenferroError)
    ]
    assert rows == classes


def test_one_page_says_which_names_are_public():
    page = (ROOT / "docs/reference/names.md").read_text()
    ours, packages = page.split("| package |")
    named = re.findall(r"`(\w+)`", ours.partition("| for |")[2])
    assert len(named) == len(set(named))
    classes = {name for name, x in vars(errors).items() if isinstance(x, type)}
    assert set(named) == set(tj.__all__) - classes | {"TenferroError"}
    rows = re.findall(r"^\| `(tenferro_jax[\w.]*)` \| (.*) \|$", packages, re.MULTILINE)
    assert len(rows) == 5
    for package, text in rows:
        names = set(re.findall(r"`(\w+)`", text))
        assert names == set(importlib.import_module(package).__all__) - set(tj.__all__)


WRITTEN = re.compile(
    r"\b(from (?:tenferro_jax|ext_tropical)[\w.]* import (?:\([^)]*\)|\w[^\S\n\w,]*(?:[\w, ]*\w)?)"
    r"|import (?:tenferro_jax|ext_tropical)\.[\w.]+)"
)
PATH = re.compile(r"(?<![\w/.-])(?:tenferro_jax|ext_tropical|tj)(?:\.[A-Za-z_]\w*)+(?!\w*[/*-])")


def imports_of_pages():
    """Every import of this library and every name of it with its path, in a block or in a line."""
    for path in run_docs.pages():
        text = path.read_text()
        for line in dict.fromkeys(WRITTEN.findall(text)):
            yield pytest.param(line, id=f"{path.stem}: {line}")
        for name in dict.fromkeys(PATH.findall(text)):
            # Not files, a group and a program, which imports what it draws with.
            if not name.endswith((".py", ".cc", ".md", ".extensions", ".demo")):
                full = re.sub("^tj\\b", "tenferro_jax", name)
                line = f"import pkgutil; pkgutil.resolve_name({full!r})"
                yield pytest.param(line, id=f"{path.stem}: {name}")


@pytest.mark.parametrize("line", list(imports_of_pages()))
def test_what_a_page_imports_is_there(line):
    exec(line, {})


def test_every_dependency_has_a_reason():
    names = re.findall(r'"([a-zA-Z_-]+)[>=]=', (ROOT / "pyproject.toml").read_text())
    reasons = (ROOT / "docs/design/dependencies.md").read_text()
    used = set(names)
    assert len(used) > 10
    assert not {name for name in used if name not in reasons}


@pytest.mark.parametrize(
    "page",
    sorted(
        p.relative_to(ROOT).as_posix() for p in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    ),
)
def test_links_lead_somewhere(page):
    path = ROOT / page
    for target in re.findall(
        r"\]\(([^)#:]+)\)", re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    ):
        assert (path.parent / target).exists(), target


def test_the_first_screen_of_the_readme():
    lines = (ROOT / "README.md").read_text().splitlines()
    first = lines[: lines.index("## Tropical tensors")]
    assert len(first) <= 37
    assert "make demo" in "\n".join(first)
    assert "make test" in "\n".join(first)


@pytest.mark.parametrize("path", [ROOT / "docs/tour.md", *(ROOT / "docs/guides").glob("*.md")])
def test_a_guide_is_short(path):
    """Three screens of 50 lines at 100 columns."""
    text = re.sub("```mermaid.*?```", "a picture", path.read_text(), flags=re.DOTALL)
    lines = text.splitlines()
    shown = sum(max(1, -(-len(line) // 100)) for line in lines)
    assert shown <= 150, f"{path.name}: {shown}"
