"""docs/spec/ops.md, written from the docstrings of the ops, which own these facts.

python -m tests.op_page      write the page
"""

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

This page lists the {count} ops of `tenferro_jax.ops.vocabulary`. Each is a frozen dataclass with one definition in JAX; its inference
and derivative follow from it. Its fields are its payload. Layout is row-major. Elementwise ops do not broadcast or convert.

*Payload* lists the fields; *n* is the number of inputs and outputs, `any` if it depends on the payload or the call.
C1, C2, ... are constraints: if one does not hold, recording the op in a graph raises an `InvalidConfig`, which may be a `ShapeError` or a
`DTypeError`, that names the op. *Gradient* is JAX's derivative of the op, with t for a tangent: a "linear" op is its own derivative
in both modes, "refused" means that JAX raises an error if an active tangent reaches the op, "none" that no tangent passes.
[Automatic differentiation](autodiff.md) has the conventions at ties and kinks. The tests run every example; there `graph(f)` is
the graph of `f` on float64 scalars.

This page is written by `python -m tests.op_page` from the docstrings of the ops.
"""

LIMITATIONS = (
    (
        "NaryEinsum (tenferro-rs)",
        "it is a plan of several contractions",
        "`tenferro_jax.einsum(equation, *tensors)` records DotGeneral and similar ops",
    ),
    (
        "FullPivLuSolve (tenferro-rs)",
        "XLA has no LU with full pivoting",
        "`Solve` (partial pivoting), or `Qr(pivoting=True)`",
    ),
    (
        "DynamicTruncate (tenferro-rs)",
        "XLA has no shape that depends on a value",
        "mask with `Select` over `Iota`, or slice outside the graph",
    ),
    (
        "GatherDynamicSliceSizes (tenferro-rs)",
        "XLA has no slice size that depends on a value",
        "`Gather` with static or symbolic sizes, then mask",
    ),
    (
        "eps of Svd and Eigh (tenferro-rs)",
        "JAX's derivatives are not regularised",
        "gradients at repeated values are infinite or NaN; perturb the matrix",
    ),
    (
        "scatter with a function (JAX `scatter_apply`)",
        "no named combination",
        "`Unsupported`; use add, subtract, multiply, min, max or set",
    ),
    (
        "schur, hessenberg, tridiagonal, geqrf, geqp3, ormqr, cholesky_update, symmetric_product",
        "no op in tenferro-rs and no derivative in JAX",
        "`Unsupported`",
    ),
    (
        "rng_uniform",
        "its result is not a function of its inputs",
        "`Unsupported`; use keys: jax.random",
    ),
    (
        "collectives (psum, all_gather, axis_index, ...), shard_map",
        "a graph does not say how or where it runs",
        "`Unsupported`; put shard_map around `graph.to_jax()`",
    ),
    (
        "callbacks, ffi_call, pallas_call",
        "they have no identity and do not run on other platforms",
        "`Unsupported`; write an extension op",
    ),
    (
        "platform_index: lax.platform_dependent with branches for cpu, cuda, rocm or tpu",
        "a graph does not say how or where it runs",
        "`Unsupported`; put it outside the graph, or into the lowering of an extension op. jnp's "
        "own choices for Pallas kernels are traced",
    ),
    (
        "`jax.debug.print` inside a traced function",
        "a graph has no effects",
        "the print is dropped; print outside the graph",
    ),
    ("ragged_dot, scaled_matmul", "not yet in the vocabulary", "`Unsupported`"),
    (
        "explicit shardings inside a traced function",
        "a graph does not say how or where it runs",
        "`Unsupported`; shard the arguments",
    ),
    (
        "placements (`device_put`) inside a traced function",
        "a graph does not say how or where it runs",
        "the value is kept, the placement is dropped",
    ),
    (
        "custom derivatives beyond the third order",
        "each order needs a separate graph",
        "`Unsupported` when the fourth derivative is taken; trace the derivative of the function",
    ),
    (
        "accuracy tolerances of elementwise functions",
        "only AccuracyMode can be a payload",
        "`Unsupported` from `trace`",
    ),
)
"""Ops that tenferro-rs or JAX has and this project does not: subject, reason, what to do
instead.
"""


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
    text = inspect.getdoc(op)
    body, example = text.split("\nExample: ")
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


def count(number):
    """A number of inputs or outputs; any where the payload or the call decides."""
    return str(number) if isinstance(number, int) else "any"


def _escaped(found):
    """Code as it is; outside of it two stars are no emphasis."""
    return found[1] or r"\*\*"


def row(op):
    """One table row."""
    semantics, constraints, gradient, example = facts(op)
    fields = ", ".join(f.name for f in dataclasses.fields(op)) or "-"
    cells = (
        op.__name__,
        fields,
        f"{count(op.input_count)} → {count(op.output_count)}",
        *(
            re.sub(r"(`.*?`)|\*\*", _escaped, cell)
            for cell in (semantics, constraints or "-", gradient)
        ),
        f"`{example}`",
    )
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page():
    """The whole page."""
    parts = [HEAD.format(count=len(VOCABULARY))]
    for title, ops in ROOMS.items():
        parts.append(
            f"## {title}\n\n| op | payload | n | semantics | constraints | gradient | example "
            f"|\n|---|---|---|---|---|---|---|"
        )
        parts[-1] += "\n" + "\n".join(map(row, ops)) + "\n"
    parts.append("## What is not there\n\n| subject | reason | instead |\n|---|---|---|")
    parts[-1] += (
        "\n" + "\n".join("| " + " | ".join(limitation) + " |" for limitation in LIMITATIONS) + "\n"
    )
    return "\n".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page())
