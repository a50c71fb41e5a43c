"""The kernels of the einsum for all platforms, and the calls that each accepts."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence

import jax
import jax.export
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.extension import (
    ExtensionRuntimeSet,
    Kernel,
)

from ..algebra.shipped import min_max, or_and
from .at_winner import LEAST_CELLS, AtWinner
from .einsum_op import TropicalEinsum, widened, work_dtype
from .kernels.mosaic import contract, problem
from .kernels.selection import UNROLLED_ENTRIES, fits_one_reduction
from .layout import product
from .native.library import AT_WINNER, TARGET, native


def _not_served(
    op: TropicalEinsum,
    metas: Sequence[TensorMeta],
    dtypes: Collection[str],
    is_reduced: Callable[[int, int, int, int], bool],
) -> str:
    """Why XLA computes a step, or "" if a kernel for these dtypes may. Kernels have the semirings
    of this package, which have numbers.

    Args:
      op: the step.
      metas: of its operands.
      dtypes: names of the dtypes of the kernel; 16-bit floats are computed in float32.
      is_reduced: whether XLA's one reduction is faster than the kernel, by the sizes of batch,
        contracted, rows and columns.
    """
    work = work_dtype(metas[0].dtype).name
    if op.algebra.native_number is None:
        return f"it lacks {op.algebra!r}"
    if len(metas) == 1:
        return "one reduction does it"
    if work not in dtypes:
        return f"it computes in {', '.join(dtypes)}"
    if any(jax.export.is_symbolic_dim(size) for meta in metas for size in meta.shape):
        return "sizes are symbolic"
    sizes = op.layout.equation.sizes([meta.shape for meta in metas], op.family_id)
    if 0 in sizes.values():
        return "there is nothing to search"
    return "one reduction does it" if is_reduced(*op.layout.extents(sizes)) else ""


_NATIVE_DTYPES = ("float64", "float32", "int32", "bool")
"""The dtypes of the library; 16-bit floats are computed in float32."""

NATIVE_CANDIDATES = 1 << 10
"""Up to this number of candidates XLA's one reduction is faster than a call of the library."""


def _is_reduced(batch: int, contracted: int, rows: int, columns: int) -> bool:
    return (
        contracted <= UNROLLED_ENTRIES or batch * contracted * rows * columns <= NATIVE_CANDIDATES
    )


def _is_reduced_or_dot(batch: int, contracted: int, rows: int, columns: int) -> bool:
    return rows * columns == 1 or _is_reduced(batch, contracted, rows, columns)


def native_declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the library does."""
    is_reduced = fits_one_reduction if op.algebra == or_and else _is_reduced
    if op.algebra == min_max:  # of one row and one column, XLA takes half as long
        is_reduced = _is_reduced_or_dot
    declined = _not_served(op, metas, _NATIVE_DTYPES, is_reduced)
    return declined or native().problem


def run_native(
    op: TropicalEinsum,
    *operands: jax.Array,
    instructions: str = "",
) -> tuple[jax.Array, ...]:
    """Value, and winner if the op returns it.

    Args:
      op: the step.
      *operands: two arrays.
      instructions: the instruction set to use; by default the widest of this machine.

    Cost: time b m n k, once; memory of at most 4 MB for each thread, which the thread keeps.
    """
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
    outs = [jax.ShapeDtypeStruct(cells, arrays[0].dtype), jax.ShapeDtypeStruct(cells, jnp.int32)][
        : op.output_count
    ]
    attributes = {"lhs": strides[0], "rhs": strides[1], "sizes": (batch, contracted, rows, columns)}
    value, *winner = jax.ffi.ffi_call(TARGET, outs, vmap_method="sequential")(
        *arrays,
        algebra=np.int64(op.algebra.native_number),  # type: ignore[arg-type]
        instructions=instructions,
        **{name: np.asarray(numbers, np.int64) for name, numbers in attributes.items()},
    )
    return tuple(layout.tensor(x, sizes) for x in (value.astype(dtype), *winner))


def adding_declines(op: AtWinner, *metas: TensorMeta) -> str:
    """Why XLA computes a sum at winners, or "" if the library does."""
    if op.summed is None:
        return "XLA gathers"
    if metas[0].dtype.name not in ("float32", "float64"):
        return "it adds float32 and float64"
    if any(jax.export.is_symbolic_dim(size) for size in metas[0].shape):
        return "sizes are symbolic"
    sizes = op.sizes([meta.shape for meta in metas])
    entries = product(sizes, op.layout.equation.inputs[op.axis])
    few = max(math.prod(metas[0].shape), entries) < LEAST_CELLS
    return f"there are fewer than {LEAST_CELLS} cells and entries" if few else native().problem


def add_native(op: AtWinner, cells: jax.Array, winner: jax.Array) -> tuple[jax.Array]:
    """The sum of the cells at each entry of the operand, in the order of the cells.

    Cost: time b m n + b k (m or n); memory of at most 1 MB for each thread, which the thread keeps.
    """
    layout, sizes = op.layout, op.sizes([cells.shape, winner.shape])
    term = layout.equation.inputs[op.axis]
    shapes = [[sizes[label] for label in labels] for labels in layout.equation.inputs]
    batch, contracted, *own = layout.extents(sizes)
    strides = layout.strides(shapes)[op.axis]
    dense = (batch, own[op.axis], contracted)
    result = jax.ShapeDtypeStruct(shapes[op.axis] if strides else dense, cells.dtype)
    found = jax.ffi.ffi_call(AT_WINNER, result, vmap_method="sequential")(
        *map(layout.matrix, (cells, winner)),
        to_rows=op.axis == 0,
        sizes=np.asarray((batch, contracted, *own), np.int64),
        strides=np.asarray(strides or (contracted * dense[1], 1, contracted), np.int64),
    )
    if strides:
        return (found,)
    labels = layout.batch + (layout.rows, layout.columns)[op.axis] + layout.contracted
    return (
        jnp.transpose(
            found.reshape([sizes[label] for label in labels]),
            [labels.index(label) for label in term],
        ),
    )


_GPU_DTYPES = ("float32", "int32")
"""The dtypes of the GPU kernel; 16-bit floats are computed in float32. The copy engine does not
support float64.
"""


def gpu_declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the kernel does."""
    return _not_served(op, metas, _GPU_DTYPES, fits_one_reduction) or problem()


def run_gpu(
    op: TropicalEinsum,
    *operands: jax.Array,
    interpret: object = None,
) -> tuple[jax.Array, ...]:
    """Value, and winner if the op returns it.

    Args:
      op: the step.
      *operands: two arrays.
      interpret: as for `mosaic.contract`.

    Cost: time b m n k; memory of both operands, transposed, and of the results.
    """
    layout, dtype = op.layout, operands[0].dtype
    sizes = layout.equation.sizes([x.shape for x in operands], op.family_id)
    matrices = layout.matrices(*map(widened, operands))
    value, *winner = contract(
        op.algebra, *matrices, with_winner=op.output_count == 2, interpret=interpret
    )
    return tuple(layout.tensor(x, sizes) for x in (value.astype(dtype), *winner))


TropicalEinsum.runtimes = ExtensionRuntimeSet(
    Kernel(TropicalEinsum.family_id, "cpu", run_native, native_declines, "native"),
    Kernel(TropicalEinsum.family_id, "cuda", run_gpu, gpu_declines, "pallas"),
)

AtWinner.runtimes = ExtensionRuntimeSet(
    Kernel(AtWinner.family_id, "cpu", add_native, adding_declines, "native")
)
