"""docs/spec/ops.md, written from the docstrings of the ops, which own these facts.

python -m tests.op_page      write the page
"""

import collections
import dataclasses
import inspect
import pathlib
import re

import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops import logic
from tenferro_jax.ops.vocabulary import ROOMS, VOCABULARY

PAGE = pathlib.Path(__file__).parent.parent / "docs/spec/ops.md"
HEAD = """# Standard ops

The {count} ops of graphs are in `tenferro_jax.ops.vocabulary.VOCABULARY`. For example `Transpose((1, 0)).apply(x)`, with the class from
`tenferro_jax.ops.structural`, is `x.T`: `permutation` is its field, which a graph stores as payload, and `x` its input. `help(op)` has an
example of each.

Elementwise ops do not broadcast or convert; two inputs have one dtype and one shape. What an op needs stands in italics; if that is not met,
recording the op raises an `InvalidConfig` that names the op. The gradient is JAX's, with t for a tangent: "linear" is its own derivative,
"none" passes no tangent, and "refused" raises if a tangent arrives. [Automatic differentiation](autodiff.md) has ties and kinks.

`python -m tests.op_page` writes this page.
"""
# What the head says of all elementwise ops of two inputs.
SAME = "both inputs have one dtype and one shape, which is the output's."

# Ops that tenferro-rs or JAX has and this project does not, and what to use instead.
LIMITATIONS = (
    (
        "NaryEinsum (tenferro-rs)",
        "`tenferro_jax.einsum`, which records DotGeneral and similar ops",
    ),
    (
        "FullPivLuSolve (tenferro-rs): XLA has no full pivoting",
        "`Solve`, or `Qr(pivoting=True)`",
    ),
    (
        "DynamicTruncate (tenferro-rs): XLA has no shape that depends on a value",
        "a mask by `Select` over `Iota`",
    ),
    (
        "GatherDynamicSliceSizes (tenferro-rs)",
        "`Gather` of a static or symbolic size, then a mask",
    ),
    (
        "eps of Svd and Eigh (tenferro-rs)",
        "perturb the matrix: gradients at repeated values are infinite or NaN",
    ),
    (
        "scatter with a function (JAX `scatter_apply`)",
        "add, subtract, multiply, min, max or set",
    ),
    (
        "schur, hessenberg, tridiagonal, geqrf, geqp3, ormqr, cholesky_update, symmetric_product: "
        "no derivative in JAX",
        "an extension op",
    ),
    ("rng_uniform: not a function of its inputs", "jax.random with keys"),
    ("callbacks, ffi_call, pallas_call: no identity, one platform", "an extension op"),
    (
        "collectives, shard_map, shardings, `lax.platform_dependent`: a graph does not say where "
        "it runs",
        "these around `graph.to_jax()`; jnp's own choices of Pallas kernels are traced",
    ),
    ("`device_put` and `jax.debug.print`", "they are dropped; the value is kept"),
    ("ragged_dot, scaled_matmul", "not yet there"),
    ("custom derivatives beyond the third order", "trace the derivative of the function"),
    ("accuracy tolerances of elementwise functions", "AccuracyMode"),
)


def graph(fn):
    """The graph of a function of float64 scalars."""
    builder = GraphBuilder()
    inputs = [
        builder.input(TensorMeta(np.dtype("float64"), ())) for _ in inspect.signature(fn).parameters
    ]
    outs = builder.inline(fn, *inputs)
    return builder.build(outs if isinstance(outs, tuple) else [outs])


NAMES = {
    "np": np,
    "jnp": jnp,
    "graph": graph,
    "Direction": logic.Direction,
    **{op.__name__: op for op in VOCABULARY},
}


def facts(op):
    """(semantics, constraints, gradient, example) of an op, from its docstring and those of its
    bases.
    """
    body, example = inspect.getdoc(op).split("\nExample: ")
    body, gradient = body.split("\nGradient: ")
    head = re.split(r"(?=\bC\d: )", body, maxsplit=1)
    inherited = [
        m
        for base in reversed(op.__mro__[1:])
        for m in re.findall(r"C\d: .*", vars(base).get("__doc__") or "", re.DOTALL)
    ]
    own = head[1] if len(head) > 1 else ""
    numbered = {
        m[:2]: m
        for part in (*inherited, own)
        for m in re.split(r"\s*(?=\bC\d: )", part.strip())
        if m
    }
    join = lambda s: " ".join(s.split())
    return (
        join(head[0]),
        join(" ".join(numbered[k] for k in sorted(numbered))),
        join(gradient),
        join(example),
    )


def _escaped(found):
    """Code as it is; outside of it two stars are no emphasis."""
    return found[1] or r"\*\*"


def needs(op):
    """The constraints of an op without their numbers, and without what the head says of all."""
    return re.sub(r"C\d: ", "", facts(op)[1].replace("C1: " + SAME, "")).strip()


def shared(ops):
    """What most ops of a room need, if each needs something; else ""."""
    (most, count), *_ = collections.Counter(map(needs, ops)).most_common()
    return most if 2 * count > len(ops) and all(map(needs, ops)) else ""


def row(op, known):
    """One table row: the op with its fields, what it computes and needs, its gradient; without the
    needs that are known.
    """
    semantics, _, gradient, _ = facts(op)
    fields = ", ".join(f.name for f in dataclasses.fields(op))
    needed = "" if needs(op) == known else f" *{needs(op)}*"
    cells = [
        re.sub(r"(`.*?`)|\*\*", _escaped, cell).replace("|", "\\|")
        for cell in (semantics, needed, gradient)
    ]
    return f"| `{op.__name__}({fields})` | {cells[0]}{cells[1]} | {cells[2]} |"


def room(title, ops):
    """The ops about one subject."""
    known = shared(ops)
    said = f"Needs, unless stated otherwise: *{known}*\n\n" if known else ""
    head = f"## {title}\n\n{said}| op | what it computes, *needs* | gradient |\n|---|---|---|\n"
    return head + "\n".join(row(op, known) for op in ops) + "\n"


def page():
    """The whole page."""
    parts = [HEAD.format(count=len(VOCABULARY)), *(room(*item) for item in ROOMS.items())]
    missing = "\n".join("| " + " | ".join(limitation) + " |" for limitation in LIMITATIONS)
    parts.append(
        "## What is not there\n\nUnless stated otherwise `trace` raises `Unsupported` with the source "
        f"line.\n\n| subject | instead |\n|---|---|\n{missing}\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
