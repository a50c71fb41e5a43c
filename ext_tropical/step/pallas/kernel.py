"""The GPU kernel of the einsum: which calls it serves, and the call."""

from __future__ import annotations

from typing import Any

from tenferro_jax import TensorMeta, Unsupported

from ..einsum_op import TropicalEinsum, widened
from ..served import not_served
from .backend import backend, problem
from .search import EXTREMES, contract

DTYPES = ("float32", "int32")
"""What it computes in; 16-bit floats are computed in float32. The copy engine knows no float64."""


def declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the kernel does."""
    return not_served(op, metas, EXTREMES, DTYPES) or problem()


def run(op: TropicalEinsum, *operands: Any, interpret: Any = None) -> tuple[Any, ...]:
    """Value, and winner if the op returns it.

    Args:
      op: the step.
      *operands: two arrays.
      interpret: as for `search.contract`.

    Cost: time b m n k; memory of both operands, turned, and of the results.
    """
    if backend().problem:
        raise Unsupported(
            where=f"{op.family_id}, GPU kernel",
            given=backend().problem,
            needed="Pallas with Mosaic GPU",
            fix="Install a newer JAX, or call by TROPICAL_RUNTIMES.",
        )
    layout, dtype = op.layout, operands[0].dtype
    sizes = layout.equation.sizes([x.shape for x in operands], op.family_id)
    matrices = layout.matrices(*map(widened, operands))
    value, *winner = contract(op.algebra, *matrices, with_winner=op.output_count == 2, interpret=interpret)
    return tuple(layout.tensor(x, sizes) for x in (value.astype(dtype), *winner))
