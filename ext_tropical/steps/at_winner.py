"""The entries of an operand at the winners of a step, and the transpose, which adds cotangents
there: what the derivative of `TropicalEinsum` is made of.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    apply,
    extension_op,
)
from tenferro_jax.extension.sharding import Shard
from tenferro_jax.plans import Equation

from ..arguments import are_numbers
from ..native.library import in_program, native, unserved
from .kernels.selection import UNROLLED_ENTRIES
from .layout import StepOp, among_own, factors_of, matmul_layout, product, ungrouped
from .weighted_sum import Place

LEAST_CELLS = 1 << 13
"""The number of cells, or entries of the operand, from which a derivative uses the op. Below, XLA
fuses the standard ops with others, and a kernel is not faster.
"""


@extension_op(package="tenferro-ext-tropical", name="at_winner", version=1)
class AtWinner(StepOp):
    """result[cell] = operand[at the cell's winner]; or the transpose, the sum at each entry of an
    operand of the cells that it wins.

    Inputs are the operand, or in the transpose an array of the result's labels; and the winners. A
    winner is the row-major index of the contracted labels; the transpose leaves out cells whose
    winner is no such index.

    Attributes:
      equation: of the step, as in the einsum ops.
      place: which operand, LHS or RHS.
      summed: for the transpose, the sizes of the contracted labels in their order.
    """

    equation: str
    place: Place = Place.LHS
    summed: tuple[int, ...] | None = None

    input_count = 2

    def __post_init__(self) -> None:
        layout = matmul_layout(self.equation)
        places = tuple(Place)[: len(layout.equation.inputs)]
        sizes = (1,) * len(layout.contracted) if self.summed is None else self.summed
        if (
            self.place not in places
            or len(sizes) != len(layout.contracted)
            or min(sizes, default=1) < 1
        ):
            raise InvalidConfig(
                where=f"{self.family_id} {self.equation!r}",
                given=f"place {self.place!r}, summed {self.summed!r}",
                needed=f"one of {', '.join(map(str, places))}, and a positive size for each of "
                f"the contracted labels {layout.contracted!r}, or None",
            )

    @property
    def axis(self) -> int:
        """The number of the operand."""
        return tuple(Place).index(self.place)

    def sizes(self, shapes: Sequence[Sequence[int]]) -> Mapping[str, int]:
        """The size of every label of the operand and of the result."""
        equation, known = self.layout.equation, list(shapes)
        terms: tuple[str, ...] = (equation.inputs[self.axis], equation.output)
        if self.summed is not None:
            terms = (equation.output, equation.output, self.layout.contracted)
            known.append(self.summed)
        return Equation(self.equation, terms, equation.output).sizes(known, self.family_id)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        x, winner = inputs
        if self.summed is None:
            return (at_winner(self, x, winner),)
        sizes = self.sizes([x.shape, winner.shape])
        shape = [*map(sizes.__getitem__, self.layout.equation.inputs[self.axis])]
        gather = dataclasses.replace(self, summed=None)
        entries = jax.ShapeDtypeStruct(shape, x.dtype)
        return jax.linear_transpose(lambda y: at_winner(gather, y, winner), entries)(x)

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        equation = self.layout.equation
        ends = [equation.inputs[self.axis], equation.output]
        source, target = ends if self.summed is None else ends[::-1]
        return ShardingRule(
            factors_of([source, equation.output], [target]), on_device=self._on_device
        )

    def _on_device(self, shard: Shard, x: jax.Array, winner: jax.Array) -> Sequence[jax.Array]:
        """Each device has the entries of its winners; the others are zero there."""
        contracted, equation = self.layout.contracted, self.layout.equation
        own = among_own(winner, contracted, shard)
        if self.summed is None:
            (found,) = apply(self, x, jnp.maximum(own, 0))
            return (shard.merged("sum", jnp.where(own < 0, 0, found), contracted),)
        sizes = tuple(shard.sizes[label] for label in contracted)
        (found,) = apply(dataclasses.replace(self, summed=sizes), x, own)
        others = [f for f in equation.output if f not in equation.inputs[self.axis]]
        return (shard.merged("sum", found, others),)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Linear in the first input."""
        (along,) = (t for t in tangents if t is not None)
        return apply(self, along, primals[1])

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[Any]:
        """The transpose, which is of this family."""
        given: Any = (*inputs, *cotangents)
        x, winner, cotangent = given
        sizes = self.sizes([x.meta.shape, winner.shape])
        contracted = tuple(map(sizes.__getitem__, self.layout.contracted))
        form = dataclasses.replace(self, summed=contracted if self.summed is None else None)
        return *apply(form, cotangent, winner), None

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        first, cells = in_axes
        if first is None or cells is None or (self.summed is not None and first != cells):
            return None
        own = first if self.summed is None else 0
        added = [own * (i == self.axis) for i in range(self.operand_count)]
        form = dataclasses.replace(self, equation=self.mapped(added, cells))
        return form, (cells if self.summed is None else own,)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Entries of 2, 3, 4, ... for the labels in their order, and winners among them."""
        sizes = self.example_sizes | dict(zip(self.layout.contracted, self.summed or ()))
        rng, equation = np.random.default_rng(0), self.layout.equation
        term = equation.inputs[self.axis] if self.summed is None else equation.output
        entries = rng.normal(size=[*map(sizes.__getitem__, term)])
        cells = [*map(sizes.__getitem__, equation.output)]
        count = product(sizes, self.layout.contracted)
        return [[entries, rng.integers(0, count, cells, np.int32)]]


def at_winner(op: AtWinner, x: jax.Array, winner: jax.Array) -> jax.Array:
    """What the op that is no transpose computes, in standard ops; sizes may be symbolic."""
    layout, sizes = op.layout, op.sizes([x.shape, winner.shape])
    numbers = lax.GatherDimensionNumbers(
        offset_dims=(),
        collapsed_slice_dims=(1,),
        start_index_map=(1,),
        operand_batching_dims=(0, 2),
        start_indices_batching_dims=(0, op.axis + 1),
    )
    matrix, at = layout.operand(x, op.axis), layout.matrix(winner)[..., None]
    return layout.tensor(
        lax.gather(matrix, at, numbers, (1, 1, 1), mode="promise_in_bounds"), sizes
    )


def entries_at(equation: str, place: Place, x: jax.Array, winner: jax.Array) -> jax.Array:
    """The entries of an operand at the winners, by the op where it is worth a call. Among few
    contracted entries each is compared with the winner: its transpose is a sum, not a scatter.
    """
    op = AtWinner(equation, place)
    layout, sizes = op.layout, op.sizes([x.shape, winner.shape])
    count = product(sizes, layout.contracted)
    if isinstance(count, int) and count <= UNROLLED_ENTRIES:
        matrix, at = layout.operand(x, op.axis), layout.matrix(winner)
        spread = [jnp.expand_dims(matrix[:, t], 2 - op.axis) for t in range(count)]
        found = jnp.broadcast_to(spread[0], at.shape)
        for t, entry in enumerate(spread[1:], 1):
            found = jnp.where(at == t, entry, found)
        return layout.tensor(found, sizes)
    large = are_numbers([x, winner]) and max(x.size, winner.size) >= LEAST_CELLS
    return apply(op, x, winner)[0] if large else at_winner(op, x, winner)


# --- the native CPU kernel ------------------------------------------------------------------------


def adding_declines(op: AtWinner, *metas: TensorMeta) -> str:
    """Why XLA computes a sum at winners, or "" if the library does."""
    if op.summed is None:
        return "XLA gathers"
    if problem := unserved(metas[:1], metas[0].dtype, ("float32", "float64")):
        return problem
    entries = product(op.sizes([meta.shape for meta in metas]), op.layout.equation.inputs[op.axis])
    few = max(math.prod(metas[0].shape), entries) < LEAST_CELLS
    return f"there are fewer than {LEAST_CELLS} cells and entries" if few else native().problem


def add_native(op: AtWinner, cells: jax.Array, winner: jax.Array) -> tuple[jax.Array]:
    """The sum of the cells at each entry of the operand, in the order of the cells.

    Cost: time b m n + b k (m or n); memory of at most 1 MB for each thread, which the thread keeps.
    """
    layout, sizes = op.layout, op.sizes([cells.shape, winner.shape])
    term = layout.equation.inputs[op.axis]
    shape = tuple(map(sizes.__getitem__, term))
    batch, contracted, rows, columns = layout.extents(sizes)
    own = (rows, columns)[op.axis]
    strides = layout.strides(shape, op.axis)
    result = TensorMeta(cells.dtype, shape if strides else (batch, own, contracted))
    extents = np.asarray((batch, contracted, rows, columns), np.int64)
    places = np.asarray(strides or (contracted * own, 1, contracted), np.int64)
    arrays, to_rows = [layout.matrix(cells), layout.matrix(winner)], op.axis == 0
    (found,) = in_program(
        "at_winner",
        [result],
        arrays,
        "sequential",
        to_rows=to_rows,
        sizes=extents,
        strides=places,
    )
    if strides:
        return (found,)
    labels = layout.batch + (layout.rows, layout.columns)[op.axis] + layout.contracted
    return (ungrouped(labels, found, sizes, term),)


AtWinner.runtimes = ExtensionRuntimeSet(
    Kernel(AtWinner.family_id, "cpu", add_native, adding_declines, name="native")
)
