"""The labels of one step: in batched matrices and back, and on several devices.

Both operands take the same form (batch, contracted, own): the left one's own labels are the rows,
the right one's the columns, of the result (batch, rows, columns). A single operand is a left one.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from opt_einsum import get_symbol

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig, ShapeError
from tenferro_jax.extension import ExtensionOp, ShardingRule, require_equal
from tenferro_jax.extension.sharding import Shard
from tenferro_jax.plans import Equation, parse_equation

from ..semirings.semiring import SelectiveSemiring

MOST_CONTRACTED = 2**31 - 1
Op = TypeVar("Op", bound=ExtensionOp)


@dataclasses.dataclass(frozen=True)
class MatmulLayout:
    """The roles of an equation's labels, each a string of labels in a fixed order.

    Attributes:
      equation: the parsed equation.
      batch: labels in both operands and the output; a single operand has none.
      rows: labels only in the left operand and the output.
      columns: labels only in the right operand and the output.
      contracted: labels in every operand and not in the output, in order of first appearance, the
        winner's row-major order.
    """

    equation: Equation
    batch: str
    rows: str
    columns: str
    contracted: str

    def matrices(self, *operands: jax.Array) -> list[jax.Array]:
        """The operands as (batch, contracted, rows) and (batch, contracted, columns)."""
        return [self.operand(x, number) for number, x in enumerate(operands)]

    def operand(self, x: jax.Array, number: int) -> jax.Array:
        """The operand of a number as (batch, contracted, own)."""
        labels, own = self.equation.inputs[number], (self.rows, self.columns)[number]
        if self.contracted_last[number]:  # XLA undoes this where a reduction reads it in this order
            return jnp.swapaxes(grouped(labels, x, (self.batch, own, self.contracted)), 1, 2)
        return grouped(labels, x, (self.batch, self.contracted, own))

    @property
    def contracted_last(self) -> tuple[bool, ...]:
        """For each operand, whether its last label is a contracted one."""
        return tuple(
            labels[-1:] in self.contracted and bool(labels) for labels in self.equation.inputs
        )

    def extents(self, sizes: Mapping[str, int]) -> list[int]:
        """The sizes of batch, contracted, rows and columns."""
        return [
            product(sizes, labels)
            for labels in (self.batch, self.contracted, self.rows, self.columns)
        ]

    def strides(self, shape: Sequence[int], number: int) -> tuple[int, ...] | None:
        """For the operand of a number in memory, the distance in entries of neighbours in batch,
        contracted and own; None if there is none.

        There is one if the labels of each group are adjacent in the operand, in the group's order.
        """
        labels = self.equation.inputs[number]
        groups = (self.batch, self.contracted, (self.rows, self.columns)[number])
        if not all(group in labels for group in groups):
            return None
        return tuple(
            math.prod(shape[labels.index(group) + len(group) :]) if group else 0 for group in groups
        )

    def tensor(self, matrix: jax.Array, sizes: Mapping[str, int]) -> jax.Array:
        """A (batch, rows, columns) array in the shape and order of the equation's output."""
        labels = self.batch + self.rows + self.columns
        each = matrix.reshape([*map(sizes.__getitem__, labels)])
        return jnp.transpose(each, [*map(labels.index, self.equation.output)])

    def matrix(self, tensor: jax.Array) -> jax.Array:
        """The inverse of `tensor`."""
        return grouped(self.equation.output, tensor, (self.batch, self.rows, self.columns))


def grouped(labels: str, x: jax.Array, groups: Sequence[str]) -> jax.Array:
    """An array with an axis for each group of its labels."""
    sizes = dict(zip(labels, x.shape, strict=True))
    ordered = jnp.transpose(x, [*map(labels.index, "".join(groups))])
    return ordered.reshape([product(sizes, group) for group in groups])


def ungrouped(labels: str, x: jax.Array, sizes: Mapping[str, int], wanted: str) -> jax.Array:
    """An array of the wanted labels, of one whose axes are groups of them, in this order."""
    each = x.reshape([*map(sizes.__getitem__, labels)])
    return jnp.transpose(each, [*map(labels.index, wanted)])


def product(sizes: Mapping[str, int], labels: Iterable[str]) -> int:
    """The product of some labels' sizes; 1 for none."""
    return math.prod((sizes[label] for label in labels), start=1)


def matmul_layout(text: str) -> MatmulLayout:
    """Sort the labels of one contraction step into batch, rows, columns and contracted.

    Raises:
      InvalidConfig: the equation cannot be read, or is not a step: more than two operands, a label
        twice in one operand, or a label that neither the other operand nor the output has.

    Example:
      >>> layout = matmul_layout("bij,bjk->bik")
      >>> layout.batch, layout.rows, layout.columns, layout.contracted
      ('b', 'i', 'k', 'j')
      >>> matmul_layout("ijk->ki").contracted
      'j'
    """
    return _sorted(parse_equation(text))


def is_step(text: str) -> bool:
    """Whether an equation is one contraction step without changes.

    Raises:
      InvalidConfig: it cannot be read, for another reason than an ellipsis.
    """
    if "." in text:
        return False
    equation = parse_equation(text)
    return _problem(equation) is None and bool(_sorted(equation).contracted)


@functools.lru_cache(maxsize=1024)
def _sorted(equation: Equation) -> MatmulLayout:
    problem = _problem(equation)
    if problem is not None:
        column, given, fix = problem
        raise InvalidConfig(
            where=f"equation of a tropical step, character {column}",
            given=given,
            needed="one or two operands, no label twice in one, and with two each label in at "
            "least two of lhs, rhs and output",
            fix=f"{fix}\n  {equation.text}\n  {' ' * column}^",
        )
    output, left = equation.output, equation.inputs[0]
    contracted = "".join(label for label in left if label not in output)
    if len(equation.inputs) == 1:
        return MatmulLayout(equation, batch="", rows=output, columns="", contracted=contracted)
    right = equation.inputs[1]
    batch = "".join(label for label in output if label in left and label in right)
    rows = "".join(label for label in output if label not in right)
    columns = "".join(label for label in output if label not in left)
    return MatmulLayout(equation, batch=batch, rows=rows, columns=columns, contracted=contracted)


def _problem(equation: Equation) -> tuple[int, str, str] | None:
    """(character, problem, advice) if an equation is not a step."""
    text, terms = equation.text, equation.inputs
    if len(terms) > 2:
        return (
            0,
            f"{len(terms)} operands",
            "tropical_einsum takes any number; a step contracts two.",
        )
    for i, term in enumerate(terms):
        for label in term:
            if term.count(label) > 1:
                return (
                    text.index(label),
                    f"label {label!r} twice in operand {i}",
                    "Take the diagonal first, as tropical_einsum does.",
                )
            if len(terms) == 2 and label not in terms[1 - i] and label not in equation.output:
                return (
                    text.index(label),
                    f"label {label!r} in operand {i} alone",
                    "Reduce that operand first, as tropical_einsum does.",
                )
    return None


def unused_label(terms: Sequence[str]) -> str:
    """A label that no term has."""
    return next(c for c in map(get_symbol, itertools.count()) if c not in "".join(terms))


@functools.lru_cache(maxsize=4096)
def step_op(kind: Callable[..., Op], *fields: object) -> Op:
    """The op of a step, of this class and with these fields; made once for each payload."""
    return kind(*fields)


class StepOp(ExtensionOp):
    """An op of the equation of one contraction step."""

    equation: str

    @property
    def layout(self) -> MatmulLayout:
        """The roles of the labels."""
        return matmul_layout(self.equation)

    @property
    def operand_count(self) -> int:
        """1 or 2."""
        return len(self.layout.equation.inputs)

    input_count = operand_count

    def counted_shape(self, inputs: Sequence[TensorMeta]) -> tuple[int, ...]:
        """The shape of the output.

        Raises:
          ShapeError: the operands do not fit, or more is contracted than an int32 counts.
        """
        sizes = self.layout.equation.sizes([m.shape for m in inputs], self.family_id, require_equal)
        contracted = product(sizes, self.layout.contracted)
        if isinstance(contracted, int) and contracted > MOST_CONTRACTED:
            raise ShapeError(
                where=f"{self.family_id} {self.equation!r}",
                given=f"{contracted} contracted entries",
                needed=f"at most {MOST_CONTRACTED}, the range of an int32 winner",
                fix="Split the contraction.",
            )
        return tuple(map(sizes.__getitem__, self.layout.equation.output))

    def mapped(self, in_axes: Sequence[int | None], axis: int) -> str:
        """The equation with a label for the axis of a batch, which the output has at `axis`."""
        equation = self.layout.equation
        label = unused_label(equation.inputs)

        def with_label(term: str, at: int | None) -> str:
            return term if at is None else term[:at] + label + term[at:]

        terms = map(with_label, equation.inputs, in_axes)
        return f"{','.join(terms)}->{with_label(equation.output, axis)}"

    @property
    def example_sizes(self) -> dict[str, int]:
        """2, 3, 4, ... for the labels in their order."""
        labels = dict.fromkeys("".join(self.layout.equation.inputs))
        return dict(zip(labels, range(2, 2 + len(labels)), strict=True))

    def example_shapes(self, terms: Iterable[str]) -> list[list[int]]:
        """The shapes of arrays with these labels."""
        return [list(map(self.example_sizes.__getitem__, term)) for term in terms]


class EinsumOp(StepOp):
    """An op that computes a step: every output has the labels of the output."""

    algebra: ClassVar[Any]
    on_device: ClassVar[Any] = None
    """See `ShardingRule`; None where contracted labels stay whole."""

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        equation = self.layout.equation
        factors = factors_of(equation.inputs, [equation.output] * self.output_count)
        return ShardingRule(factors, on_device=self.on_device)

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        form = dataclasses.replace(self, equation=self.mapped(in_axes, 0))  # type: ignore[type-var]
        return form, (0,) * self.output_count

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Operands without ties, of 2, 3, 4, ... for the labels in their order."""
        rng, shapes = np.random.default_rng(0), self.example_shapes(self.layout.equation.inputs)
        arrays = [rng.normal(size=shape) for shape in shapes]
        return [[x > 0 for x in arrays] if self.algebra.dtypes == ("bool",) else arrays]


# --- a step on several devices: winners among the entries of one and among all, the best of all ---


def factors_of(terms: Sequence[Sequence[str]], outputs: Sequence[Sequence[str]]) -> str:
    """The factors of a sharding rule: the labels, or names, of each axis."""
    return " -> ".join(", ".join(map(" ".join, side)) for side in (terms, outputs))


MERGED_BLOCKS = 4
"""In so many blocks devices compute and merge values of LARGE_BYTES each: beside what is merged a
device then holds what a block needs. Few, because each is a reduction between devices.
"""
LARGE_BYTES = 1 << 20


def merged_in_blocks(
    fn: Callable[..., Sequence[jax.Array]],
    equation: Equation,
    outs: Sequence[TensorMeta],
    pieces: Sequence[jax.Array],
) -> Sequence[jax.Array]:
    """fn(*pieces), whose results devices merge, block by block along the longest output label.

    Args:
      fn: a function of operands.
      equation: of the pieces, and of each result.
      outs: of the whole results.
      pieces: of this device.
    """
    whole = outs[0]
    if math.prod(whole.shape) * whole.dtype.itemsize < LARGE_BYTES:
        return fn(*pieces)
    length = max(whole.shape)
    axis, size = whole.shape.index(length), -(-length // MERGED_BLOCKS)
    label = equation.output[axis]

    def cut(x: jax.Array, term: str, i: jax.Array) -> jax.Array:
        # The last block begins earlier if needed: it computes some cells again.
        if label not in term:
            return x
        return lax.dynamic_slice_in_dim(x, i * size, size, term.index(label))

    def next_block(i: jax.Array, found: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        own = (cut(x, term, i) for x, term in zip(pieces, equation.inputs, strict=True))
        pairs = zip(found, fn(*own), strict=True)
        return tuple(lax.dynamic_update_slice_in_dim(x, new, i * size, axis) for x, new in pairs)

    nothing = tuple(jnp.zeros(meta.shape, meta.dtype) for meta in outs)
    return lax.fori_loop(0, -(-length // size), next_block, nothing)


def best_of_devices(
    semiring: SelectiveSemiring, shard: Shard, outs: Sequence[jax.Array], contracted: str
) -> tuple[jax.Array, ...]:
    """The best value of all devices; with winners the first entry among all that has it.

    Args:
      semiring: the algebra.
      shard: of this device.
      outs: this device's values, and perhaps winners.
      contracted: the contracted labels, of which some are split.

    Cost: a reduction between devices for values, and one for winners; without a
      `reduction` the values are gathered.
    """
    value, *winner = outs
    if semiring.reduction:
        best = shard.merged(semiring.reduction, value, contracted)
    else:
        axes = tuple(name for label in contracted for name in shard.axes.get(label, ()))
        best = semiring.best(lax.all_gather(value, axes), 0)
    if not winner:
        return (best,)
    wins = (value == best) | (value != value)
    first = jnp.where(wins, among_all(winner[0], contracted, shard), MOST_CONTRACTED)
    return best, shard.merged("min", first, contracted)


def among_all(winner: jax.Array, labels: str, shard: Shard) -> jax.Array:
    """The row-major index over all entries of a device's winners."""
    index, stride = jnp.zeros_like(winner), 1
    for label in reversed(labels):
        size = shard.sizes[label]
        index = index + (winner % size + shard.start(label)) * stride
        winner, stride = winner // size, stride * shard.whole(label)
    return index


def among_own(winner: jax.Array, labels: str, shard: Shard) -> jax.Array:
    """The row-major index over this device's entries of winners among all; -1 where another device
    has the entry.
    """
    index, stride, here = jnp.zeros_like(winner), 1, winner >= 0
    for label in reversed(labels):
        own, whole = shard.sizes[label], shard.whole(label)
        at = winner % whole - shard.start(label)
        here &= (at >= 0) & (at < own)
        index = index + at * stride
        winner, stride = winner // whole, stride * own
    return jnp.where(here, index, -1)
