"""The list of checks in docs/guides/check_an_extension.md, written from the kit.

python -m tests.check_page      write the list into the page
"""

import inspect
import pathlib

from tenferro_jax.conformance.examination import CHECKS

PAGE = pathlib.Path(__file__).parent.parent / "docs/guides/check_an_extension.md"
HEADING = "## The checks\n"


def listed():
    """A row for each check: its law, name, clauses, and what it does."""
    rows = [
        f"| {check.law} | `{check.name}` | {', '.join(check.clauses)} | "
        f"{' '.join(inspect.getdoc(check.run).split())} |"
        for check in CHECKS
    ]
    written = (
        "Written by `python -m tests.check_page` from the kit; the clauses are those of "
        "[the contract](../spec/extension_op.md)."
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


def page():
    """The page as it stands, with the list as it should be."""
    text, heading, _ = PAGE.read_text().partition(HEADING)
    return text + heading + listed()


if __name__ == "__main__":
    PAGE.write_text(page())
