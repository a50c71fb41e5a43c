"""docs/spec/transforms.md, written from the matrix that the tests sweep.

python -m tests.transform_page      write the page
"""

import inspect
import pathlib

from tenferro_jax.extension.carrier import Extension

from .cases import CASES, KINDS
from .transforms.limitations import LIMITATIONS
from .transforms.matrix import REFUSALS, TRANSFORMS, refusal_of

PAGE = pathlib.Path(__file__).parent.parent / "docs/spec/transforms.md"
HEAD = """# Transforms

Which JAX transforms work on which kinds of extension ops. Of {pairs} pairs of {transforms} transforms and {kinds} kinds {yes} work; the others are the
limitations below. `make test-all` compares every op of every kind with NumPy and finite differences under every transform, and
checks the error of each limitation; `make test` does so for two kinds under each transform.

The transforms: {names}.

`python -m tests.transform_page` writes this page from the tests' own list.
"""


def summary(op):
    """The first sentence of an op's docstring, without a period."""
    return " ".join(inspect.getdoc(op).split("\n\n")[0].split()).split(". ")[0].rstrip(".")


def kind_row(kind):
    """A kind with its ops."""
    ops = {Extension.of(case.op).op for case in CASES if case.kind == kind}
    docs = sorted({f"{type(op).__name__}: {summary(op)}" for op in ops})
    return f"| {kind} | {'; '.join(docs)} |"


def refused(gap):
    """Under which transforms a limitation is met, and by which kinds."""
    found = [refusal for refusal in REFUSALS if refusal.limitation is gap]
    transforms = dict.fromkeys(name for refusal in found for name in refusal.transforms)
    kinds = dict.fromkeys(name for refusal in found for name in refusal.kinds)
    others = [kind for kind in KINDS if kind not in kinds]
    of = "; ".join(kinds) if len(kinds) <= len(others) else "all but " + "; ".join(others)
    return f"{'; '.join(transforms)} | {of if others else 'all'}"


def page():
    """The whole page."""
    pairs = [(transform, kind) for transform in TRANSFORMS for kind in KINDS]
    lines = [
        HEAD.format(
            pairs=len(pairs),
            transforms=len(TRANSFORMS),
            kinds=len(KINDS),
            yes=sum(refusal_of(*pair) is None for pair in pairs),
            names="; ".join(TRANSFORMS),
        ),
        "## Limitations",
        "",
        "| limitation | reason | what you get, what to do | transforms | kinds |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {gap.subject} | {gap.reason} | {gap.instead} | {refused(gap)} |" for gap in LIMITATIONS
    ]
    lines += ["", "## Kinds", "", "| kind | tested with |", "|---|---|", *map(kind_row, KINDS), ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page())
