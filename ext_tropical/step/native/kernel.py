"""The native kernel of the einsum: which calls it serves, and the call."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta, Unsupported

from ...algebra.selective import max_mul, max_plus, min_plus
from ..einsum_op import TropicalEinsum, widened
from ..served import not_served
from .library import TARGET, native

ALGEBRAS = {max_plus: 0, min_plus: 1, max_mul: 2}
"""The semirings, as the library numbers them."""

DTYPES = ("float64", "float32", "int32")
"""What the library computes in; 16-bit floats are computed in float32."""

CELLS = 256
"""Cells of a batch entry from which on the library is the faster route: fewer do not fill its blocks of registers."""


def declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the library does."""
    return not_served(op, metas, ALGEBRAS, DTYPES, CELLS) or native().problem


def run(op: TropicalEinsum, *operands: Any, instructions: str = "") -> tuple[Any, ...]:
    """Value, and winner if the op returns it.

    Args:
      op: the step.
      *operands: two arrays.
      instructions: those of the library to use; by default the widest of this machine.

    Cost: time b m n k, once; memory of at most 1.2 MB a thread, which keeps it.
    """
    if native().problem:
        raise Unsupported(
            where=f"{op.family_id}, native kernel",
            given=native().problem,
            needed="the library",
            fix="Build it, or call by TROPICAL_RUNTIMES.",
        )
    layout, dtype = op.layout, operands[0].dtype
    sizes = layout.equation.sizes([x.shape for x in operands], op.family_id)
    batch, contracted, rows, columns = layout.extents(sizes)
    arrays = [widened(x) for x in operands]
    strides = layout.strides([x.shape for x in arrays])
    if None in strides:
        turned = layout.matrices(*arrays)
        dense = [(contracted * own, own, 1) for own in (rows, columns)]
        arrays = [x if s else m for x, m, s in zip(arrays, turned, strides, strict=True)]
        strides = [s or d for s, d in zip(strides, dense, strict=True)]
    cells = (batch, rows, columns)
    outs = [jax.ShapeDtypeStruct(cells, arrays[0].dtype), jax.ShapeDtypeStruct(cells, jnp.int32)][: op.output_count]
    attributes = {"lhs": strides[0], "rhs": strides[1], "sizes": (batch, contracted, rows, columns)}
    value, *winner = jax.ffi.ffi_call(TARGET, outs, vmap_method="sequential")(
        *arrays,
        algebra=np.int64(ALGEBRAS[op.algebra]),
        instructions=instructions,
        **{name: np.asarray(numbers, np.int64) for name, numbers in attributes.items()},
    )
    return tuple(layout.tensor(x, sizes) for x in (value.astype(dtype), *winner))
