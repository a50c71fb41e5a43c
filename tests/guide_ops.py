"""Check every op that the guides make, at the arguments of its first call there; print what fails.

python -m tests.guide_ops [name of a guide ...]
"""

import contextlib
import io
import sys

import jax
import numpy as np

import tenferro_jax as tj
from tenferro_jax.extension import primitive
from tenferro_jax.extension.function_extension import FunctionExtension

from .run_docs import BLOCK, ROOT

MOST = 64
"""Entries of an array: of larger ones a check takes too long."""
ON_PURPOSE = {
    "extension_rules guide.twice_too_much.v1 linear_transpose",
    "extension_rules guide.twice_too_much.v1 vjp",
    "reverse_rule guide.clipped.v1 linear_in_cotangent",
}
"""What the guides say of their own ops, and `check` finds."""


@contextlib.contextmanager
def recording(calls):
    """What runs inside adds to `calls` the arguments of the first call of each op."""
    known = primitive.apply

    def apply(op, *arrays, **options):
        sizes = [size for x in arrays for size in np.shape(x)]
        if not getattr(op, "stage", "") and all(isinstance(size, int) for size in sizes):
            calls.setdefault(op, (arrays, options))
        return known(op, *arrays, **options)

    places = [m for m in list(sys.modules.values()) if getattr(m, "apply", None) is known]
    for module in places:
        module.apply = apply
    try:
        yield
    finally:
        for module in places:
            module.apply = known


def like(array, rng):
    """Values for an array that was traced."""
    if not isinstance(array, jax.core.Tracer):
        return np.asarray(array)
    if jax.numpy.issubdtype(array.dtype, jax.numpy.inexact):
        return rng.uniform(0.2, 0.9, array.shape).astype(array.dtype)
    return np.zeros(array.shape, array.dtype)


def author(op):
    """The module of the author."""
    is_function = isinstance(op, FunctionExtension)
    return op.function.source.__module__ if is_function else type(op).__module__


def checked(path):
    """For each op of a page its family and its report."""
    calls, space = {}, {"__name__": path.stem}
    with recording(calls), contextlib.redirect_stdout(io.StringIO()):
        for kind, body in BLOCK.findall(path.read_text()):
            if kind == "python":
                exec(compile(body, str(path), "exec"), space)
    rng = np.random.default_rng(0)
    for op, (arrays, options) in calls.items():
        own = author(op) in (path.stem, "__main__") or op.family_id.startswith("guide.")
        if own and all(np.size(x) <= MOST for x in arrays):
            yield op.family_id, tj.check(op, *(like(x, rng) for x in arrays), **options)


def main(names):
    count, found = 0, set()
    for path in sorted((ROOT / "docs/guides").glob("*.md")):
        if names and path.stem not in names:
            continue
        for family, report in checked(path):
            count += 1
            failures = {f"{path.stem} {family} {f.check}" for f in report.failures}
            if failures - ON_PURPOSE:
                print(path.stem, report, sep="\n")
            found |= failures
    wrong = sorted(found - ON_PURPOSE if names else found ^ ON_PURPOSE)
    print(f"{count} ops, {len(wrong)} findings that the guides do not say", *wrong, sep="\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
