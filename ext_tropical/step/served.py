"""Which steps a kernel that searches candidates could serve, by what it computes in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import jax.export

from tenferro_jax.extension import TensorMeta

from ..algebra.semiring import SelectiveSemiring
from .einsum_op import TropicalEinsum, work_dtype


def not_served(
    op: TropicalEinsum,
    metas: Sequence[TensorMeta],
    semirings: Collection[SelectiveSemiring],
    dtypes: Collection[str],
    is_for_xla: Callable[[int, int, int, int], bool],
) -> str:
    """Why XLA computes a step, or "" if a kernel for these semirings and dtypes may.

    Args:
      op: the step.
      metas: of its operands.
      semirings: what the kernel has.
      dtypes: names of what it computes in; 16-bit floats are computed in float32.
      is_for_xla: of the sizes of batch, contracted, rows and columns, whether XLA's one reduction does as well.
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
    return "one reduction does it" if is_for_xla(*op.layout.extents(sizes)) else ""
