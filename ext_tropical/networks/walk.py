"""The walk from the last step of a plan to the first, which finds assignments: for the cells of a
value, for samples, or for the best ones, many at once. And the entries of tables at assignments.
Their programs do not grow with the plan. The entries are a linear op, of which the derivatives of a
network in a selective semiring consist.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import (
    LinearInput,
    ShardingRule,
    apply,
    extension_op,
)
from tenferro_jax.extension.sharding import Shard
from tenferro_jax.plans import Equation, Plan
from tenferro_jax.shapes import Shaped

from ..arguments import widened
from ..steps.cut import cut_all
from ..tangents import filled
from .loops import at_places, joined
from .plan_rows import (
    LANES,
    Axis,
    Integers,
    Row,
    axes_of,
    both,
    choices,
    contracted,
    layout,
    packed,
    padded,
    ranks,
    row_major,
)
from .plan_text import labels_of
from .question import TABLES, Asked, Axes, Question, at_linear, factor_of, kernels, split_along

STEPS_OF_A_TURN = 16
"""The most steps of equal depth that are walked in one turn."""


class LabelAxes(NamedTuple):
    """Axes of a row, for whose labels walks know an index. The axes that it lacks move nothing, and
    have the number of a label that is written in vain, whose index is always 0.

    Attributes:
      labels: (axes,), the numbers of the labels.
      extents: (axes, 1).
      own: (axes, 1), the strides of a row-major array of these axes.
      strides: (axes, arrays read).
    """

    labels: Integers
    extents: Integers
    own: Integers
    strides: Integers


class WalkColumns(NamedTuple):
    """What walks need of a row.

    Attributes:
      candidates: how many each cell has.
      is_single: whether the step has one operand.
      draw: how many steps before it contract.
      number: of the result among all values.
      left, right: of the operands; the right one of a single step is written in vain.
      write: where the result begins in the buffer of `plan_rows.layout`.
      bases: (2,), where the operands begin.
      of_cell: the axes of the result.
      of_candidate: the axes that are contracted.
    """

    candidates: Integers
    is_single: Integers
    draw: Integers
    number: Integers
    left: Integers
    right: Integers
    write: Integers
    bases: Integers
    of_cell: LabelAxes
    of_candidate: LabelAxes


class Place(NamedTuple):
    """Where the walks are: for some steps each walk at a cell, (steps, walks).

    Attributes:
      step: the columns of the steps.
      own: the place of the cell in the buffer of `plan_rows.layout`.
      bases: those of the operands' cells, without the contracted labels.
    """

    step: WalkColumns
    own: jax.Array
    bases: Sequence[jax.Array]

    def digits(self, candidate: jax.Array) -> jax.Array:
        """The index of each contracted label at a candidate: (steps, axes, walks)."""
        axes = self.step.of_candidate
        return candidate[..., None, :] // axes.own % axes.extents

    def operands(self, candidate: jax.Array) -> list[jax.Array]:
        """The places of both operands at a candidate of each step."""
        return _moved(self.bases, self.digits(candidate), self.step.of_candidate)


def _moved(bases: Sequence[jax.Array], index: jax.Array, axes: LabelAxes) -> list[jax.Array]:
    """The place in each array read, at an index of each axis."""
    return [
        base + (index * axes.strides[..., read, None]).sum(1, dtype=jnp.int32)
        for read, base in enumerate(bases)
    ]


class Choice(NamedTuple):
    """What walks choose, (steps, walks).

    Attributes:
      candidate: its number.
      left, right: its rank in both operands, with the axis of ranks.
    """

    candidate: jax.Array
    left: jax.Array
    right: jax.Array


def walk(
    plan: Plan,
    choose: Callable[[Place, jax.Array], Choice],
    walks: int,
    ranks: Sequence[int] = (),
) -> jax.Array:
    """The labels that each walk chooses: int32 (labels that the output lacks, sorted; walks).

    Args:
      choose: (place, ranks there) -> the choice of each walk.
      walks: how many; if the value has labels, one for each of its cells.
      ranks: of each walk in the last step. Without any, ranks have no entries, and steps that
        contract nothing are passed over.
    """
    sizes, output = dict(plan.sizes), plan.equation.output
    in_vain = jnp.zeros((1, walks), jnp.int32)
    wanted = jnp.zeros((len(labels_of(plan)), walks), jnp.int32)
    labels = jnp.concatenate([*_cells([sizes[label] for label in output]), wanted, in_vain])
    rows = [row for row in choices(plan) if len(ranks) or not row.is_plain]
    if rows:
        labels = _followed(plan, rows, choose, labels, jnp.asarray(ranks, jnp.int32))
    return labels[len(output) : -1]


def _followed(
    plan: Plan,
    rows: Sequence[Row],
    choose: Callable[[Place, jax.Array], Choice],
    labels: jax.Array,
    ranks: jax.Array,
) -> jax.Array:
    """The index of each label in each walk, which goes along the rows."""
    # Steps of one level do not depend on each other: turns take some of them together. A turn may
    # reach into the next level; what it finds there comes to be overwritten.
    count = max(1, min(STEPS_OF_A_TURN, LANES // max(labels.shape[1], 1)))
    starts: list[int] = []
    for _, level in itertools.groupby(range(len(rows)), lambda i: rows[i].level):
        starts += [*level][::count]
    flat, unpacked = packed(_walk_columns(plan, rows))
    flat = np.pad(flat, ((0, count), (0, 0)), mode="edge")

    def turn(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        labels, rank = state
        start = jnp.asarray(np.array(starts, np.int32))[i]
        step = unpacked(lax.dynamic_slice_in_dim(jnp.asarray(flat), start, count))
        index = at_places(labels, step.of_cell.labels)
        own = step.write + (index * step.of_cell.own).sum(1, dtype=jnp.int32)
        bases = _moved([base[:, None] for base in step.bases.T], index, step.of_cell)
        place = Place(step, own, bases)
        choice = choose(place, at_places(rank, step.number[:, 0]))
        labels = labels.at[step.of_candidate.labels].set(place.digits(choice.candidate))
        operands = jnp.concatenate([step.left, step.right])[:, 0]
        return labels, rank.at[operands].set(jnp.concatenate([choice.left, choice.right]))

    count_of_values = len(plan.terms) + len(plan.steps)
    rank = jnp.zeros((count_of_values + 1, len(ranks)), jnp.int32)  # one is written in vain
    rank = rank.at[count_of_values - 1].set(ranks)
    return lax.fori_loop(np.int32(0), np.int32(len(starts)), turn, (labels, rank))[0]


def _walk_columns(plan: Plan, rows: Sequence[Row]) -> list[WalkColumns]:
    """The columns of each row."""
    first, found = len(plan.terms), []
    no_value = first + len(plan.steps)
    draws = [0, *itertools.accumulate(bool(contracted(step)) for step in plan.steps)]
    numbers = _label_numbers(plan)
    most_of_cells, most_of_candidates = ranks(rows)
    for row in rows:
        left, right = both(plan.steps[row.number].operands)
        cells = padded(row.cells, most_of_cells, 2)
        candidates = padded(row.candidates, most_of_candidates, 2)
        columns = WalkColumns(
            candidates=row.counts[1],
            is_single=row.is_single,
            draw=draws[row.number],
            number=first + row.number,
            left=left,
            right=no_value if row.is_single else right,
            write=row.write,
            bases=np.array(row.bases),
            of_cell=_label_axes(cells, numbers, 2),
            of_candidate=_label_axes(candidates, numbers, 2),
        )
        found.append(columns)
    return found


def _label_numbers(plan: Plan) -> dict[str, int]:
    """The numbers of labels: first those of the output, then those of an assignment."""
    return {label: i for i, label in enumerate(plan.equation.output + labels_of(plan))}


def _label_axes(axes: Sequence[Axis], numbers: Mapping[str, int], arrays: int) -> LabelAxes:
    """Padded axes, of a number of arrays read. No label has the number behind all others."""
    labels = [numbers.get(axis.label, len(numbers)) for axis in axes]
    extents = np.array([axis.extent for axis in axes], np.int64)
    strides = np.array([axis.strides for axis in axes], np.int64)
    own = row_major(axes)
    return LabelAxes(
        labels=np.array(labels, np.int64),
        extents=extents[:, None],
        own=own[:, None],
        strides=strides.reshape(len(axes), arrays),  # also of no axes
    )


def _cells(shape: Sequence[int]) -> list[jax.Array]:
    """The index along each axis of the cells of a value: (1, cells)."""
    cells = math.prod(shape)
    return [lax.broadcasted_iota(jnp.int32, shape, i).reshape(1, cells) for i in range(len(shape))]


def coordinates(plan: Plan, winners: jax.Array) -> jax.Array:
    """The assignments that follow from the winners of `search`: int32 (labels that the output
    lacks, sorted; *shape of the value).
    """
    shape = [dict(plan.sizes)[label] for label in plan.equation.output]

    def choose(place: Place, rank: jax.Array) -> Choice:
        return Choice(winners[place.own], rank, rank)

    found = walk(plan, choose, math.prod(shape))
    return found.reshape(len(found), *shape)


# --- the entries of tables at assignments --------------------------------------------------------


def _entry_places(plan: Plan, labels: jax.Array) -> jax.Array:
    """The places in the flat tables: (tables, *shape of the value)."""
    sizes, shape, numbers = dict(plan.sizes), labels.shape[1:], _label_numbers(plan)
    cells, rank = math.prod(shape), max(map(len, plan.terms))
    in_vain = jnp.zeros((1, cells), jnp.int32)
    known = jnp.concatenate([*_cells(shape), labels.reshape(len(labels), cells), in_vain])
    tables = []
    for term in plan.terms:
        own = axes_of(dict.fromkeys(term), sizes, [term])
        tables.append(_label_axes(padded(own, rank, 1), numbers, 1))
    flat, unpacked = packed(tables)
    axes = unpacked(jnp.asarray(flat))
    starts = jnp.array(layout(plan)[:-1], jnp.int32)
    (places,) = _moved([starts[:, None]], at_places(known, axes.labels), axes)
    return places.reshape(len(starts), *shape)


@extension_op(package="tenferro-ext-tropical", name="network_entries", version=1)
class NetworkEntries(Question):
    """The entries of tables at an assignment of labels, or their sum; or the transpose of that.

    Inputs are the labels, int32 (contracted labels in sorted order, *shape of the value), then the
    tables; outputs an array (tables, *shape), or their sum (*shape). Transposed, inputs are the
    labels and such an array, outputs the tables, to whose entries it is added.

    Attributes:
      terms: the labels of the tables, with a comma between.
      output: the labels of the value.
      sizes: (label, size) of every label of the network.
      is_sum: whether the entries of all tables are added.
      is_transposed: whether this is the transpose.
    """

    terms: str
    output: str
    sizes: tuple[tuple[str, int], ...]
    is_sum: bool = False
    is_transposed: bool = False

    def __post_init__(self) -> None:
        known = dict(self.sizes)
        unknown = sorted(set(self.terms.replace(",", "") + self.output) - set(known))
        if (
            unknown
            or len(set(self.output)) < len(self.output)
            or len(known) < len(self.sizes)
            or not all(type(size) is int and size > 0 for size in known.values())
        ):
            raise InvalidConfig(
                where=self.family_id,
                given=f"terms {self.terms!r}, output {self.output!r}, sizes {self.sizes!r}",
                needed="for each label one size, a positive number and not a symbolic one; and no "
                "label twice in the output",
            )

    @property
    def asked(self) -> Asked:
        """The sum or the entries, or the transpose of that."""
        if self.is_transposed:
            return Asked.ADD_TOTAL if self.is_sum else Asked.ADD_ENTRIES
        return Asked.TOTAL if self.is_sum else Asked.ENTRIES

    @property
    def network(self) -> Plan:
        """The labels, as a plan without steps."""
        terms = tuple(self.terms.split(","))
        return Plan(Equation(self.terms, terms, self.output), terms, self.sizes, ())

    def planned(self, inputs: Sequence[Shaped]) -> Plan:
        """The same: the sizes are known."""
        return self.network

    @property
    def about(self) -> Sequence[int]:
        """All tables."""
        return range(len(self.network.terms))

    def extents(self, inputs: Sequence[TensorMeta]) -> dict[str, int]:
        """The number of tables."""
        return {TABLES: len(self.network.terms)}

    def shapes(self, side: Sequence[Axes]) -> list[tuple[int, ...]]:
        """The shapes of arrays that are no labels."""
        sizes = {**dict(self.sizes), **self.extents(())}
        return [tuple(map(sizes.__getitem__, axes)) for axes in side]

    def dtype(self, inputs: Sequence[TensorMeta]) -> np.dtype:
        """That of the tables."""
        labels, *given = inputs
        if (
            labels.dtype != np.int32
            or len({m.dtype for m in given}) != 1
            or not jnp.issubdtype(given[0].dtype, jnp.floating)
        ):
            raise DTypeError(
                where=self.family_id,
                given=", ".join(map(str, inputs)),
                needed="int32 labels, and one floating dtype for all else",
            )
        return given[0].dtype

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return split_along(self.output, *self.arrays, self._on_device)

    def _on_device(self, shard: Shard, labels: jax.Array, *given: jax.Array) -> Sequence[jax.Array]:
        own = dict(zip(self.output, labels.shape[1:], strict=True))
        sizes = tuple((label, own.get(label, size)) for label, size in self.sizes)
        outs = apply(dataclasses.replace(self, sizes=sizes), labels, *given)
        if not self.is_transposed:
            return outs
        # Labels of the value that no table has: a device adds its part of the rows.
        gone = [factor_of(label) for label in self.output if label not in self.terms]
        return [shard.merged("sum", x, gone) for x in outs]

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        labels, *given = inputs
        places = _entry_places(plan, labels)
        if not self.is_transposed:
            found = at_places(joined(given), places)
            return (jnp.sum(found, 0) if self.is_sum else found,)
        added = widened(jnp.broadcast_to(given[0], places.shape))  # 16 bits are added in float32
        *starts, end = layout(plan)
        flat = jnp.zeros(end, added.dtype).at[places].add(added, mode="promise_in_bounds")
        return cut_all(flat.astype(given[0].dtype), starts, self.shapes(plan.terms))

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        return apply(self, primals[0], *filled(primals[1:], tangents[1:]))

    def transpose_rule(
        self,
        cotangents: Sequence[jax.Array | None],
        inputs: Sequence[jax.Array | LinearInput],
    ) -> Sequence[jax.Array | None]:
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        dtype = next(c.dtype for c in cotangents if c is not None)
        like = [jax.ShapeDtypeStruct(x, dtype) for x in self.shapes(self.arrays.outputs)]
        labels = cast(jax.Array, inputs[0])
        found = apply(swapped, labels, *filled(like, cotangents))
        return at_linear([None, *found], inputs)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Labels in range, and normal numbers."""
        rng = np.random.default_rng(0)
        (shape,) = self.shapes([self.output])
        sizes = [n for label, n in sorted(self.sizes) if label not in self.output]
        labels = np.array([rng.integers(0, n, shape) for n in sizes], np.int32)
        given = self.shapes(self.arrays.inputs[1:])
        return [[labels.reshape(-1, *shape), *(rng.normal(size=shape) for shape in given)]]


NetworkEntries.runtimes = kernels(NetworkEntries.family_id)
