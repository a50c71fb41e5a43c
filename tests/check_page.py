"""The list of checks in docs/spec/checks.md, written from the kit.

python -m tests.check_page      write the list into the page
"""

import inspect
import pathlib

from tenferro_jax.testing.checks import CHECKS, FUNCTION_CHECKS

PAGE = pathlib.Path(__file__).parent.parent / "docs/spec/checks.md"
LIST = "## The list\n"


def told(check):
    """What a check does, in one line."""
    return " ".join(inspect.getdoc(check.run).split())


def listed():
    """The checks of functions by their names, then a row for each check."""
    names = ", ".join(f"`{check.name}`" for check in FUNCTION_CHECKS)
    ops = {check.name: told(check) for check in CHECKS}
    rows = [f"| `{check.name}` | {', '.join(check.clauses)} | {told(check)} |" for check in CHECKS]
    rows += [
        f"| `{check.name}` of a function | | {told(check)} |"
        for check in FUNCTION_CHECKS
        if told(check) != ops.get(check.name)
    ]
    return f"""
A function has the checks {names}. An op has all. The clauses are those of
[the contract](extension_op.md). `python -m tests.check_page` writes this list from the kit.

| check | clauses | what it does |
|---|---|---|
{chr(10).join(rows)}
"""


def page():
    """The page as it stands, with the list as it should be."""
    before, heading, _ = PAGE.read_text().partition(LIST)
    return before + heading + listed()


if __name__ == "__main__":
    PAGE.write_text(page())
