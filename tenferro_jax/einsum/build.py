"""Plan -> arrays: the steps of an einsum as a JAX function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..dimensions import SymDim
from ..ops.contraction import DotGeneral
from ..ops.fields import Precision
from ..ops.indexing import Gather
from .plan import Plan, Step

Sizes = Mapping[str, SymDim]


def run_plan(plan: Plan, operands: Sequence[jax.Array], precision: Precision = None, sums: np.dtype | None = None) -> jax.Array:
    """The einsum of arrays by a plan.

    Args:
      plan: from `plan_einsum`.
      operands: arrays of one dtype, of the shapes that were planned for.
      precision: the field of DotGeneral.
      sums: the dtype of products and sums, that of the operands or a wider one; None for theirs.

    Returns:
      The result. Of booleans the sum is or, the product and.
    """
    sizes = dict(plan.sizes)
    values = [
        x.reshape(tuple(sizes[label] for label in term)) if len(term) < x.ndim else x for x, term in zip(operands, plan.terms, strict=True)
    ]
    labels = list(plan.terms)
    for step in plan.steps:
        inputs = [values[i] for i in step.operands]
        if len(inputs) == 1:
            values.append(_reduced(inputs[0], step.terms[0], step.result, sizes, sums))
        else:
            values.append(_contracted(inputs, step, sizes, precision, sums))
        labels.append(step.result)
    return _transposed(values[-1], labels[-1], plan.equation.output)


def _transposed(x: jax.Array, labels: str, wanted: str) -> jax.Array:
    return x if labels == wanted else x.transpose(tuple(map(labels.index, wanted)))


def _converted(x: jax.Array, dtype: np.dtype | None) -> jax.Array:
    return x if dtype is None else x.astype(dtype)


def _reduced(x: jax.Array, term: str, result: str, sizes: Sizes, sums: np.dtype | None) -> jax.Array:
    """Diagonals of repeated labels, sums over labels that the result lacks."""
    for label in dict.fromkeys(term):
        if term.count(label) > 1:
            x, term = _diagonal(x, term, label, sizes)
    axes = tuple(i for i, label in enumerate(term) if label not in result)
    if axes:
        x = _converted(x, sums)
        x = x.any(axes) if jnp.issubdtype(x.dtype, jnp.bool_) else x.sum(axes, dtype=x.dtype)
    return _transposed(x, "".join(label for label in term if label in result), result)


def _diagonal(x: jax.Array, term: str, label: str, sizes: Sizes) -> tuple[jax.Array, str]:
    """The entries whose indices on all axes of a label agree, along a new first axis: one gather, of as many entries."""
    axes = tuple(i for i, other in enumerate(term) if other == label)
    rest = tuple(i for i in range(len(term)) if i not in axes)
    indices = lax.broadcasted_iota(jnp.int32, (sizes[label], len(axes)), 0)
    slices = tuple(1 if i in axes else sizes[other] for i, other in enumerate(term))
    gather = Gather(tuple(range(1, len(rest) + 1)), axes, axes, slices)
    return gather.apply(x, indices), label + "".join(term[i] for i in rest)


def _contracted(operands: Sequence[jax.Array], step: Step, sizes: Sizes, precision: Precision, sums: np.dtype | None) -> jax.Array:
    left, right = step.terms
    shared = [label for label in left if label in right]
    contracted = [label for label in shared if label not in step.result]
    mixed = operands[0].dtype != operands[1].dtype  # one of them is a sum
    operands = [_converted(x, sums if mixed or not contracted else None) for x in operands]
    dtype = operands[0].dtype
    if not contracted:
        x, y = (_spread(x, term, step.result, sizes) for x, term in zip(operands, step.terms, strict=True))
        return x & y if jnp.issubdtype(dtype, jnp.bool_) else x * y
    batch = [label for label in shared if label in step.result]
    (lhs_contracting, lhs_batch), (rhs_contracting, rhs_batch) = (
        [tuple(map(term.index, group)) for group in (contracted, batch)] for term in step.terms
    )
    accumulation = None if sums == dtype else sums
    dot = DotGeneral(lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, precision, accumulation)
    return dot.apply(*operands)


def _spread(x: jax.Array, term: str, result: str, sizes: Sizes) -> jax.Array:
    """A factor with all axes of the product."""
    ordered = "".join(label for label in result if label in term)
    shape = tuple(sizes[label] for label in result)
    return lax.broadcast_in_dim(_transposed(x, term, ordered), shape, tuple(map(result.index, ordered)))
