"""Plan -> standard ops, through the Builder protocol: the same code runs on arrays and records tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..ops.arithmetic import Mul
from ..ops.builder import Builder
from ..ops.contraction import DotGeneral
from ..ops.conversion import Convert
from ..ops.indexing import Gather
from ..ops.logic import And
from ..ops.reduction import ReduceOr, ReduceSum
from ..ops.source import Iota
from ..ops.structural import BroadcastInDim, Reshape, Transpose
from .plan import Plan, Step


def build_einsum(plan: Plan, builder: Builder, operands: Sequence[Any], precision: Any = None, sums: Any = None) -> Any:
    """Emit the steps of a plan.

    Args:
      plan: from `plan_einsum`.
      builder: where to emit.
      operands: values of one dtype, of the shapes that were planned for.
      precision: the field of DotGeneral.
      sums: the dtype of products and sums, that of the operands or a wider one; None for theirs.

    Returns:
      The builder's value of the result. Of booleans the sum is or, the product and.
    """
    sizes = dict(plan.sizes)
    values = [
        _reshaped(builder, x, tuple(sizes[label] for label in term)) if len(term) < len(x.shape) else x
        for x, term in zip(operands, plan.terms, strict=True)
    ]
    labels = list(plan.terms)
    for step in plan.steps:
        inputs = [values[i] for i in step.operands]
        if len(inputs) == 1:
            values.append(_reduced(builder, inputs[0], step.terms[0], step.result, sizes, sums))
        else:
            lhs, rhs = inputs
            values.append(_contracted(builder, (lhs, rhs), step, sizes, precision, sums))
        labels.append(step.result)
    return _transposed(builder, values[-1], labels[-1], plan.equation.output)


def _reshaped(builder: Builder, x: Any, shape: tuple[Any, ...]) -> Any:
    return builder.add(Reshape(shape), x)[0]


def _transposed(builder: Builder, x: Any, labels: str, wanted: str) -> Any:
    return x if labels == wanted else builder.add(Transpose(tuple(map(labels.index, wanted))), x)[0]


def _converted(builder: Builder, x: Any, dtype: Any) -> Any:
    return x if dtype is None or x.dtype == dtype else builder.add(Convert(dtype), x)[0]


def _reduced(builder: Builder, x: Any, term: str, result: str, sizes: Mapping[str, Any], sums: Any) -> Any:
    """Diagonals of repeated labels, sums over labels that the result lacks."""
    for label in dict.fromkeys(term):
        if term.count(label) > 1:
            x, term = _diagonal(builder, x, term, label, sizes)
    axes = tuple(i for i, label in enumerate(term) if label not in result)
    if axes:
        x = _converted(builder, x, sums)
        (x,) = builder.add(ReduceOr(axes) if x.dtype.kind == "b" else ReduceSum(axes), x)
    return _transposed(builder, x, "".join(label for label in term if label in result), result)


def _diagonal(builder: Builder, x: Any, term: str, label: str, sizes: Mapping[str, Any]) -> tuple[Any, str]:
    """The entries whose indices on all axes of a label agree, along a new first axis: one gather, of as many entries."""
    axes = tuple(i for i, other in enumerate(term) if other == label)
    rest = tuple(i for i in range(len(term)) if i not in axes)
    (indices,) = builder.add(Iota(np.dtype("int32"), (sizes[label], len(axes)), 0))
    slices = tuple(1 if i in axes else sizes[other] for i, other in enumerate(term))
    gather = Gather(tuple(range(1, len(rest) + 1)), axes, axes, slices)
    return builder.add(gather, x, indices)[0], label + "".join(term[i] for i in rest)


def _contracted(builder: Builder, operands: tuple[Any, Any], step: Step, sizes: Mapping[str, Any], precision: Any, sums: Any) -> Any:
    left, right = step.terms
    shared = [label for label in left if label in right]
    contracted = [label for label in shared if label not in step.result]
    mixed = operands[0].dtype != operands[1].dtype  # one of them is a sum
    operands = tuple(_converted(builder, x, sums if mixed or not contracted else None) for x in operands)
    dtype = operands[0].dtype
    if not contracted:
        factors = [_spread(builder, x, term, step.result, sizes) for x, term in zip(operands, step.terms, strict=True)]
        return builder.add(And() if dtype.kind == "b" else Mul(), *factors)[0]
    batch = [label for label in shared if label in step.result]
    contracting, batched = ([tuple(map(term.index, group)) for term in (left, right)] for group in (contracted, batch))
    accumulation = None if sums is None or sums == dtype else sums
    op = DotGeneral(contracting[0], contracting[1], batched[0], batched[1], precision, accumulation)
    return builder.add(op, *operands)[0]


def _spread(builder: Builder, x: Any, term: str, result: str, sizes: Mapping[str, Any]) -> Any:
    """A factor with all axes of the product."""
    ordered = "".join(label for label in result if label in term)
    x = _transposed(builder, x, term, ordered)
    if ordered == result:
        return x
    return builder.add(BroadcastInDim(tuple(sizes[label] for label in result), tuple(map(result.index, ordered))), x)[0]
