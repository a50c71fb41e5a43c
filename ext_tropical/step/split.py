"""The derivative of a selective step that all winners of a cell share equally."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from tenferro_jax.extension import Builder

from .einsum_op import TropicalEinsum, widened, work_dtype
from .weighted_sum import Place, WeightedSum


def split_tangent(op: TropicalEinsum, builder: Builder, operands: Sequence[Any], value: Any, tangents: Sequence[Any]) -> Any:
    """Emit the tangent of a step's value: the mean over the winners of each cell.

    Args:
      op: the step; what it returns beside the value is not needed.
      builder: where to emit.
      operands: of the step.
      value: what the step gave.
      tangents: of the operands, None where inactive, not all None.

    Returns:
      The tangent, in the dtype of the value; None, a zero, where nothing is contracted.

    Cost: two sums over all candidates for one active operand, one more for another, each with a search for the best.
    """
    sizes = dict(zip(op.layout.equation.inputs[0], operands[0].shape, strict=True))
    if any(isinstance(sizes[label], int) and sizes[label] == 0 for label in op.layout.contracted):
        return None
    dtype, work = value.dtype, work_dtype(value.dtype)
    if dtype != work:
        operands, tangents = ([None if x is None else builder.inline(widened, x) for x in xs] for xs in (operands, tangents))
        value = builder.inline(widened, value)
    count = WeightedSum(op.semiring, op.equation)
    sums = [builder.add(count, *operands, value)[0]]
    for place, tangent in zip(Place, tangents, strict=False):
        if tangent is not None:
            partial = place.value[0] if len(operands) == 2 else ""
            sums += builder.add(dataclasses.replace(count, places=(place,), partial=partial), *operands, value, tangent)
    return builder.inline(lambda count, *moved: (functools.reduce(jnp.add, moved) / count).astype(dtype), *sums)
