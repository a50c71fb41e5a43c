"""One contraction step as an extension op: two operands, or the reduction of one."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    extension_op,
    require_equal,
)
from tenferro_jax.extension.sharding import Shard

from ..arguments import one_dtype, widened, work_dtype
from ..native.library import in_program, native, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey, as_selective
from ..semirings.shipped import or_and
from ..tangents import tangent_of
from .at_winner import entries_at
from .kernels import mosaic, selection
from .layout import EinsumOp, best_of_devices, matmul_layout, merged_in_blocks
from .weighted_sum import Place, WeightedSum


class Outputs(enum.Enum):
    """The outputs of the op."""

    VALUE = "value"
    VALUE_AND_WINNER = "value_and_winner"


class Ties(enum.Enum):
    """How the derivative is shared if several candidates are best."""

    FIRST = "first"
    SPLIT = "split"


@extension_op(package="tenferro-ext-tropical", name="einsum", version=1)
class TropicalEinsum(OfSemiring, EinsumOp):
    """out[batch, rows, columns] = best over contracted of times(lhs[...], rhs[...]), or of the
    entries of a single operand.

    Attributes:
      semiring: a registered selective semiring, or its key.
      equation: one or two operands, no label twice in one; with two operands every label is in at
        least two of lhs, rhs, output.
      outputs: the value, or value and winner.
      ties: whether the first winner takes the whole derivative or all winners of a cell have equal
        shares.
    """

    semiring: SemiringKey
    equation: str
    outputs: Outputs = Outputs.VALUE
    ties: Ties = Ties.FIRST

    def __post_init__(self) -> None:
        super().__post_init__()
        as_selective(self.algebra, f"{self.family_id}, field semiring")
        for name, kind in (("outputs", Outputs), ("ties", Ties)):
            if not isinstance(getattr(self, name), kind):
                raise InvalidConfig(
                    where=f"{self.family_id}, field {name}",
                    given=repr(getattr(self, name)),
                    needed=f"a member of {kind.__name__}",
                    fix=f"Pass one of {', '.join(map(str, kind))}.",
                )
        matmul_layout(self.equation)

    @property
    def output_count(self) -> int:
        """1, or 2 with the winner."""
        return 2 if self.outputs is Outputs.VALUE_AND_WINNER else 1

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype = one_dtype(
            f"{self.family_id} {self.equation!r}", self.algebra, [m.dtype for m in inputs]
        )
        value = TensorMeta(dtype, self.counted_shape(inputs))
        if self.outputs is Outputs.VALUE:
            return [value]
        return [value, TensorMeta(np.dtype("int32"), value.shape)]

    def on_device(self, shard: Shard, *pieces: jax.Array) -> Sequence[jax.Array]:
        contracted = self.layout.contracted
        if not set(contracted) & set(shard.axes):
            return apply(self, *pieces)

        def best(*own: jax.Array) -> Sequence[jax.Array]:
            return best_of_devices(self.algebra, shard, apply(self, *own), contracted)

        # In the wide dtype: values that are rounded before they are merged would be equal.
        wide = [*map(widened, pieces)]
        outs = outputs_of(self, wide)
        value, *winner = merged_in_blocks(best, self.layout.equation, outs, wide)
        return value.astype(pieces[0].dtype), *winner

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        outs = selection.contract(
            self.algebra,
            self.layout.matrices(*map(widened, inputs)),
            with_winner=self.output_count == 2,
            contracted_last=self.layout.contracted_last,
        )
        return self.tensors(inputs, outs)

    def differentiable_form(self) -> ExtensionOp:
        """This op with the winner as second output, if the derivative follows the winner."""
        if self.ties is Ties.SPLIT:
            return self
        return dataclasses.replace(self, outputs=Outputs.VALUE_AND_WINNER)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The tangent of times at the winner, whose operands and tangents are gathered there.

        JAX transposes the gather to a scatter-add. Both are standard ops and linear in the
        tangents, so every order works. docs/maths/tropical.md derives it.
        """
        shapes = [x.shape for x in primals]
        sizes = self.layout.equation.sizes(shapes, self.family_id, require_equal)
        if any(selection.is_size(sizes[label], 0) for label in self.layout.contracted):
            return (None,) * self.output_count  # no winner, no derivative
        if self.ties is Ties.SPLIT:
            return (self._shared(primals, outputs[0], tangents), None)[: self.output_count]

        def entry(i: int, x: Any) -> jax.Array:
            # the transpose adds in the wide dtype, because 16 bits would saturate
            return entries_at(self.equation, tuple(Place)[i], widened(x), outputs[1])

        def product(*entries: jax.Array) -> jax.Array:
            return functools.reduce(self.algebra.times, entries)

        entries = list(itertools.starmap(entry, enumerate(primals)))
        moved = [t if t is None else entry(i, t) for i, t in enumerate(tangents)]
        return tangent_of(product, entries, moved).astype(outputs[0].dtype), None

    def _shared(
        self,
        operands: Sequence[jax.Array],
        value: jax.Array,
        tangents: Sequence[jax.Array | None],
    ) -> jax.Array:
        """The mean of the tangents of all winners of each cell.

        This takes two sums over all candidates for one active operand, and one more for another;
        each searches the best candidate.
        """
        inputs = [*map(widened, operands), widened(value)]
        count = WeightedSum(self.semiring, self.equation)
        (total,) = apply(count, *inputs)
        return (count.of_tangents(inputs, tangents) / total).astype(value.dtype)

    def tensors(
        self,
        operands: Sequence[jax.Array],
        matrices: Sequence[Any],
    ) -> tuple[jax.Array, ...]:
        """The outputs, of value and perhaps winner as (batch, rows, columns)."""
        sizes = self.layout.equation.sizes([x.shape for x in operands], self.family_id)
        value, *winner = (self.layout.tensor(matrix, sizes) for matrix in matrices)
        return value.astype(operands[0].dtype), *winner


# --- the kernels for all platforms, and the calls that each accepts -------------------------------


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
    if op.algebra.native_number is None:
        return f"it lacks {op.algebra!r}"
    if len(metas) == 1:
        return "one reduction does it"
    if problem := unserved(metas, work_dtype(metas[0].dtype), dtypes):
        return problem
    sizes = op.layout.equation.sizes([meta.shape for meta in metas], op.family_id)
    if 0 in sizes.values():
        return "there is nothing to search"
    return "one reduction does it" if is_reduced(*op.layout.extents(sizes)) else ""


NATIVE_CANDIDATES = 1 << 10  # up to so many XLA's one reduction is faster than the library


def _is_reduced(batch: int, contracted: int, rows: int, columns: int) -> bool:
    return (
        contracted <= selection.UNROLLED_ENTRIES
        or batch * contracted * rows * columns <= NATIVE_CANDIDATES
    )


def native_declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the library does."""
    is_reduced = selection.fits_one_reduction if op.algebra == or_and else _is_reduced
    return (
        _not_served(op, metas, ("float64", "float32", "int32", "bool"), is_reduced)
        or native().problem
    )


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
    layout = op.layout
    sizes = layout.equation.sizes([x.shape for x in operands], op.family_id)
    batch, contracted, rows, columns = layout.extents(sizes)
    arrays = [widened(x) for x in operands]
    strides = [layout.strides(x.shape, i) for i, x in enumerate(arrays)]
    if None in strides:
        turned = layout.matrices(*arrays)
        dense = [(contracted * own, own, 1) for own in (rows, columns)]
        arrays = [x if s else m for x, m, s in zip(arrays, turned, strides, strict=True)]
        strides = [s or d for s, d in zip(strides, dense, strict=True)]
    cells = (batch, rows, columns)
    outs = [TensorMeta(arrays[0].dtype, cells), TensorMeta(np.dtype("int32"), cells)]
    lhs, rhs = np.asarray(strides[0], np.int64), np.asarray(strides[1], np.int64)
    extents = np.asarray((batch, contracted, rows, columns), np.int64)
    found = in_program(
        "einsum",
        outs[: op.output_count],
        arrays,
        "sequential",
        algebra=np.int64(op.algebra.native_number),
        instructions=instructions,
        lhs=lhs,
        rhs=rhs,
        sizes=extents,
    )
    return op.tensors(operands, found)


def gpu_declines(op: TropicalEinsum, *metas: TensorMeta) -> str:
    """Why XLA computes a step, or "" if the kernel does."""
    return (
        # the copy engine does not support float64
        _not_served(op, metas, ("float32", "int32"), selection.fits_one_reduction)
        or mosaic.problem()
    )


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
    matrices, with_winner = op.layout.matrices(*map(widened, operands)), op.output_count == 2
    found = mosaic.contract(op.algebra, *matrices, with_winner=with_winner, interpret=interpret)
    return op.tensors(operands, found)


TropicalEinsum.runtimes = ExtensionRuntimeSet(
    Kernel(TropicalEinsum.family_id, "cpu", run_native, native_declines, name="native"),
    Kernel(TropicalEinsum.family_id, "cuda", run_gpu, gpu_declines, name="pallas"),
)
