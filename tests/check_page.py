"""The lists of checks in docs/spec/checks.md, written from the kit.

python -m tests.check_page      write the list into the page
"""

import inspect
import pathlib

from tenferro_jax.conformance.checks import CHECKS, FUNCTION_CHECKS

PAGE = pathlib.Path(__file__).parent.parent / "docs/spec/checks.md"
FUNCTIONS = "## The checks of a function\n"
OPS = "## The checks of an op\n"
AFTER = "## What it generates"


def listed():
    """A row for each check of ops: its law, name, clauses, and what it does."""
    rows = [
        f"| {check.law} | `{check.name}` | {', '.join(check.clauses)} | "
        f"{' '.join(inspect.getdoc(check.run).split())} |"
        for check in CHECKS
    ]
    written = (
        "Written by `python -m tests.check_page` from the kit; the clauses are those of "
        "[the contract](extension_op.md)."
    )
    return "\n".join(
        [
            "",
            written,
            "",
            "| law | check | clauses | what it does |",
            "|---|---|---|---|",
            *rows,
            "",
        ]
    )


def of_functions():
    """A row for each check of functions."""
    rows = [
        f"| `{check.name}` | {' '.join(inspect.getdoc(check.run).split())} |"
        for check in FUNCTION_CHECKS
    ]
    return "\n".join(["", "| check | what it does |", "|---|---|", *rows, "", ""])


def page():
    """The page as it stands, with the lists as they should be."""
    text, heading, _ = PAGE.read_text().partition(OPS)
    before, first, rest = text.partition(FUNCTIONS)
    return before + first + of_functions() + AFTER + rest.partition(AFTER)[2] + heading + listed()


if __name__ == "__main__":
    PAGE.write_text(page())
