"""docs/spec/transforms.md, written from the matrix that the tests sweep.

python -m tests.transform_page      write the page
"""

import inspect
import pathlib

from tenferro_jax.extension.carrier import Extension

from .cases import CASES, KINDS
from .transforms.limitations import LIMITATIONS
from .transforms.matrix import TRANSFORMS, refusal_of

PAGE = pathlib.Path(__file__).parent.parent / "docs/spec/transforms.md"
HEAD = """# Transforms

This page shows which JAX transforms work on which kinds of extension ops. For every *yes* `make test-all` compares every op of
the kind with NumPy and finite differences; for every other pair it checks that the error of its limitation is raised. `make test` and
`make test-slow` do so for a part of the ops: one for each way to carry out a call, with every transform. There are {pairs} pairs
of {transforms} transforms and {kinds} kinds; {yes} of them work.

This page is written by `python -m tests.transform_page` from the tests' own list.
"""


def summary(op):
    """The first paragraph of an op's docstring."""
    return " ".join(inspect.getdoc(op).split("\n\n")[0].split())


def kind_row(kind):
    """A kind with its ops."""
    ops = {Extension.of(case.op).op for case in CASES if case.kind == kind}
    docs = sorted({f"{type(op).__name__}: {summary(op)}" for op in ops})
    return f"| {kind} | {'; '.join(docs)} |"


def cell(transform, kind):
    """yes, or the number of the limitation."""
    refusal = refusal_of(transform, kind)
    return (
        "yes" if refusal is None else f"[{LIMITATIONS.index(refusal.limitation) + 1}](#limitations)"
    )


def page():
    """The whole page."""
    rows = [[cell(transform, kind) for kind in KINDS] for transform in TRANSFORMS]
    cells = [c for row in rows for c in row]
    lines = [
        HEAD.format(
            pairs=len(cells), transforms=len(TRANSFORMS), kinds=len(KINDS), yes=cells.count("yes")
        )
    ]
    lines += [f"| transform | {' | '.join(KINDS)} |", "|---" * (len(KINDS) + 1) + "|"]
    lines += [f"| {transform} | {' | '.join(row)} |" for transform, row in zip(TRANSFORMS, rows)]
    lines += [
        "",
        "## Limitations",
        "",
        "| | limitation | reason | what you get, what to do |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| {i} | {gap.subject} | {gap.reason} | {gap.instead} |"
        for i, gap in enumerate(LIMITATIONS, 1)
    ]
    lines += ["", "## Kinds", "", "| kind | tested with |", "|---|---|", *map(kind_row, KINDS), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
