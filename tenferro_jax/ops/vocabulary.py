"""The closed list of standard ops, module by module, and named sets of them. The tests sweep this list."""

from __future__ import annotations

import dataclasses
from types import ModuleType

from . import (
    analytic,
    arithmetic,
    contraction,
    control,
    conversion,
    cumulative,
    diagonal,
    indexing,
    linalg,
    logic,
    random,
    reduction,
    sorting,
    source,
    special,
    structural,
    window,
)
from .op import StdTensorOp

Ops = tuple[type[StdTensorOp], ...]


@dataclasses.dataclass(frozen=True)
class Limitation:
    """Something that this release does not do: errors cite it and the docs print it.

    Attributes:
      subject: what is missing: an op of tenferro-rs, a JAX primitive, a combination.
      reason: why it is missing.
      instead: the result or error, and a way around.
    """

    subject: str
    reason: str
    instead: str


def _ops_of(room: ModuleType) -> Ops:
    """The op classes of a module, in its order; classes that start with an underscore are shared bases."""
    return tuple(
        c
        for c in vars(room).values()
        if isinstance(c, type) and c.__module__ == room.__name__ and "__dataclass_fields__" in vars(c) and c.__name__[0] != "_"
    )


ARITHMETIC = _ops_of(arithmetic)
ANALYTIC = _ops_of(analytic)
SPECIAL = _ops_of(special)
LOGIC = _ops_of(logic)
CONVERSION = _ops_of(conversion)
SOURCES = _ops_of(source)
STRUCTURAL = _ops_of(structural)
DIAGONAL = _ops_of(diagonal)
CONTRACTION = _ops_of(contraction)
REDUCTION = _ops_of(reduction)
CUMULATIVE = _ops_of(cumulative)
WINDOW = _ops_of(window)
SORTING = _ops_of(sorting)
INDEXING = _ops_of(indexing)
LINALG = _ops_of(linalg)
RANDOM = _ops_of(random)
CONTROL = _ops_of(control)

WITH_BODIES = (*CONTROL, reduction.Reduce, window.ReduceWindow)
"""Ops whose payload holds graphs."""

ELEMENTWISE = (*ARITHMETIC, *ANALYTIC, *SPECIAL, *LOGIC, *CONVERSION)

ROOMS: dict[str, Ops] = {
    "Arithmetic": ARITHMETIC,
    "Analytic": ANALYTIC,
    "Special functions": SPECIAL,
    "Comparison, selection, logic": LOGIC,
    "Conversion": CONVERSION,
    "Sources, gradient, compiler": SOURCES,
    "Structural": STRUCTURAL,
    "Diagonal": DIAGONAL,
    "Contraction": CONTRACTION,
    "Reduction": REDUCTION,
    "Cumulative": CUMULATIVE,
    "Window": WINDOW,
    "Sorting": SORTING,
    "Indexing": INDEXING,
    "Linear algebra": LINALG,
    "Random bits": RANDOM,
    "Control flow": CONTROL,
}

VOCABULARY = tuple(op for ops in ROOMS.values() for op in ops)
"""Every standard op."""

LIMITATIONS = (
    Limitation(
        "NaryEinsum (tenferro-rs)",
        "it is a plan of several contractions",
        "`tenferro_jax.einsum(equation, *tensors)` records DotGeneral and similar ops",
    ),
    Limitation("FullPivLuSolve (tenferro-rs)", "XLA has no LU with full pivoting", "`Solve` (partial pivoting), or `Qr(pivoting=True)`"),
    Limitation(
        "DynamicTruncate (tenferro-rs)",
        "XLA has no shape that depends on a value",
        "mask with `Select` over `Iota`, or slice outside the graph",
    ),
    Limitation(
        "GatherDynamicSliceSizes (tenferro-rs)",
        "XLA has no slice size that depends on a value",
        "`Gather` with static or symbolic sizes, then mask",
    ),
    Limitation(
        "eps of Svd and Eigh (tenferro-rs)",
        "JAX's derivatives are not regularised",
        "gradients at repeated values are infinite or NaN; perturb the matrix",
    ),
    Limitation(
        "scatter with a function (JAX `scatter_apply`)",
        "no named combination",
        "`Unsupported`; use add, subtract, multiply, min, max or set",
    ),
    Limitation(
        "schur, hessenberg, tridiagonal, geqrf, geqp3, ormqr, cholesky_update, symmetric_product",
        "no op in tenferro-rs and no derivative in JAX",
        "`Unsupported`",
    ),
    Limitation("rng_uniform", "its result is not a function of its inputs", "`Unsupported`; use keys: jax.random"),
    Limitation(
        "collectives (psum, all_gather, axis_index, ...), shard_map",
        "a graph does not say how or where it runs",
        "`Unsupported`; put shard_map around `graph.to_jax()`",
    ),
    Limitation(
        "callbacks, ffi_call, pallas_call",
        "they have no identity and do not run on other platforms",
        "`Unsupported`; write an extension op",
    ),
    Limitation(
        "platform_index: lax.platform_dependent with branches for cpu, cuda, rocm or tpu",
        "a graph does not say how or where it runs",
        "`Unsupported`; put it outside the graph, or into the lowering of an extension op. jnp's own choices for Pallas kernels are traced",
    ),
    Limitation("`jax.debug.print` inside a traced function", "a graph has no effects", "the print is dropped; print outside the graph"),
    Limitation("ragged_dot, scaled_matmul", "not yet in the vocabulary", "`Unsupported`"),
    Limitation(
        "explicit shardings inside a traced function", "a graph does not say how or where it runs", "`Unsupported`; shard the arguments"
    ),
    Limitation(
        "placements (`device_put`) inside a traced function",
        "a graph does not say how or where it runs",
        "the value is kept, the placement is dropped",
    ),
    Limitation(
        "custom derivatives beyond the third order",
        "each order needs a separate graph",
        "`Unsupported` when the fourth derivative is taken; trace the derivative of the function",
    ),
    Limitation("accuracy tolerances of elementwise functions", "only AccuracyMode can be a payload", "`Unsupported` from `trace`"),
)
"""Ops that tenferro-rs or JAX has and this project does not. `docs/spec/ops.md` prints them."""
