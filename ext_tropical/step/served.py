"""Which steps a kernel that searches candidates could serve, by what it computes in."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import jax.export

from tenferro_jax import TensorMeta

from ..algebra.semiring import SelectiveSemiring
from .einsum_op import TropicalEinsum, work_dtype
from .kernels.choose import fits_one_reduction


def not_served(
    op: TropicalEinsum,
    metas: Sequence[TensorMeta],
    semirings: Collection[SelectiveSemiring],
    dtypes: Collection[str],
    min_cells: int = 1,
) -> str:
    """Why XLA computes a step, or "" if a kernel for these semirings and dtypes may.

    Args:
      op: the step.
      metas: of its operands.
      semirings: what the kernel has.
      dtypes: names of what it computes in; 16-bit floats are computed in float32.
      min_cells: cells of a batch entry from which on the kernel is the faster route.
    """
    work = work_dtype(metas[0].dtype).name
    if op.algebra not in semirings:
        return f"it has {', '.join(map(repr, semirings))}"
    if len(metas) == 1:
        return "one reduction does it"
    if work not in dtypes:
        return f"it computes in {', '.join(dtypes)}"
    if any(jax.export.is_symbolic_dim(size) for meta in metas for size in meta.shape):
        return "sizes are symbolic"
    sizes = op.layout.equation.sizes([meta.shape for meta in metas], op.family_id)
    if 0 in sizes.values():
        return "there is nothing to search"
    batch, contracted, rows, columns = op.layout.extents(sizes)
    if fits_one_reduction(batch, contracted, rows, columns):
        return "one reduction does it"
    return f"there are fewer than {min_cells} cells a batch entry" if rows * columns < min_cells else ""
