"""The walk from the last step of a plan to the first, which finds assignments: for the cells of a
value, for samples, or for the best ones, many at once. And the entries of tables at assignments.
Their programs do not grow with the plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Plan
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    ShardingRule,
    apply,
    extension_op,
    require_equal,
)

from ..step.einsum_op import widened
from ..step.native.library import ROWS, native
from .loops import at_places, cut_all, joined
from .plan_rows import LANES, contracted, layout, strides
from .plan_text import labels_of

STEPS_OF_A_TURN = 16
"""The most steps of equal depth that are walked in one turn."""


class Place(NamedTuple):
    """Where the walks are: for some steps each walk at a cell, (steps, walks).

    Attributes:
      candidates: how many each cell has, (steps, 1).
      single: whether the step has one operand, (steps, 1).
      draw: how many steps before it contract, (steps,).
      own: the place of the cell in the buffer of `plan_rows.layout`.
      bases: those of the operands' cells, without the contracted labels.
      axes: (steps, axes, 1) of the contracted labels: strides in both operands and in the
        candidates, and the size.
    """

    candidates: jax.Array
    single: jax.Array
    draw: jax.Array
    own: jax.Array
    bases: tuple[jax.Array, jax.Array]
    axes: tuple[jax.Array, ...]

    def digits(self, candidate: jax.Array) -> jax.Array:
        """The index of each contracted label at a candidate: (steps, axes, walks)."""
        return candidate[..., None, :] // self.axes[2] % self.axes[3]

    def operands(self, candidate: jax.Array) -> list[jax.Array]:
        """The places of both operands at a candidate of each step."""
        moved = self.digits(candidate)
        return [
            base + (moved * stride).sum(1, dtype=jnp.int32)
            for base, stride in zip(self.bases, self.axes, strict=False)
        ]


Choose = Callable[[Place, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def walk(plan: Plan, choose: Choose, walks: int, ranks: Sequence[int] = ()) -> jax.Array:
    """The labels that each walk chooses: int32 (labels that the output lacks, sorted; walks).

    Args:
      choose: (place, ranks there) -> the candidate of each walk, and its ranks in both operands.
      walks: how many; if the value has labels, one for each of its cells.
      ranks: of each walk in the last step. Without any, ranks have no entries, and steps that
        contract nothing are passed over.
    """
    sizes, places, first = dict(plan.sizes), layout(plan), len(plan.terms)
    known = plan.equation.output + labels_of(plan)
    ids = {label: i for i, label in enumerate(known)}
    nowhere = len(known), first + len(plan.steps)  # rows that are written in vain
    draws = itertools.accumulate((bool(contracted(x)) for x in plan.steps), initial=0)
    depths, rows = [0] * nowhere[1], []
    for i, (step, draw) in reversed(list(enumerate(zip(plan.steps, draws, strict=False)))):
        for j in step.operands:
            depths[j] = depths[first + i] + 1
        rest = contracted(step)
        if not rest and not len(ranks):
            continue
        left, right = (strides(term, sizes) for term in (step.terms * 2)[:2])
        own, choice = strides(step.result, sizes), strides(rest, sizes)
        one, two = (step.operands * 2)[:2]
        head = [math.prod(map(sizes.__getitem__, rest)), one == two, draw]
        head += [places[first + i], places[one], places[two]]
        head += [first + i, one, nowhere[1] if one == two else two]
        cells = [(ids[x], own[x], left.get(x, 0), right.get(x, 0)) for x in step.result]
        axes = [(ids[x], left.get(x, 0), right.get(x, 0), choice[x], sizes[x]) for x in rest]
        rows.append((depths[first + i], head, cells, axes))
    shape = [sizes[label] for label in plan.equation.output]
    own_labels = _cells(shape)
    zeros = jnp.zeros((len(known) + 1 - len(shape), walks), jnp.int32)
    labels = jnp.concatenate([*own_labels, zeros])
    if not rows:
        return labels[len(shape) : -1]
    # Steps of one depth do not depend on each other: turns take some of them together. A turn may
    # reach into the next depth; what it finds there comes to be overwritten.
    rows.sort(key=lambda row: row[0])
    count = max(1, min(STEPS_OF_A_TURN, LANES // max(walks, 1)))
    levels = [row[0] for row in rows]
    ends = [*(i for i in range(1, len(levels)) if levels[i] != levels[i - 1]), len(levels)]
    spans = itertools.pairwise([0, *ends])
    starts = np.array([i for low, high in spans for i in range(low, high, count)], np.int32)
    most = max(len(row[2]) for row in rows), max(len(row[3]) for row in rows)
    table = np.array(
        [
            [
                *head,
                *itertools.chain(*cells, *[(nowhere[0], 0, 0, 0)] * (most[0] - len(cells))),
                *itertools.chain(*axes, *[(nowhere[0], 0, 0, 1, 1)] * (most[1] - len(axes))),
            ]
            for _, head, cells, axes in rows
        ],
        np.int32,
    )
    table = np.pad(table, ((0, count), (0, 0)), mode="edge")

    def turn(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        labels, rank = state
        rows = lax.dynamic_slice_in_dim(jnp.asarray(table), jnp.asarray(starts)[i], count)
        candidates, single, draw, *bases = (rows[:, j] for j in range(6))
        number, one, two = (rows[:, j] for j in range(6, 9))
        cells = rows[:, 9 : 9 + 4 * most[0]].reshape(count, most[0], 4)
        axes = rows[:, 9 + 4 * most[0] :].reshape(count, most[1], 5)
        at = at_places(labels, cells[..., 0])
        own, left, right = (
            base[:, None] + (at * cells[..., j, None]).sum(1, dtype=jnp.int32)
            for j, base in enumerate(bases, 1)
        )
        moved = tuple(axes[..., j, None] for j in range(1, 5))
        place = Place(candidates[:, None], single[:, None] > 0, draw, own, (left, right), moved)
        chosen, *both = choose(place, at_places(rank, number))
        labels = labels.at[axes[..., 0]].set(place.digits(chosen))
        return labels, rank.at[jnp.concatenate([one, two])].set(jnp.concatenate(both))

    rank = jnp.zeros((nowhere[1] + 1, len(ranks)), jnp.int32)
    rank = rank.at[nowhere[1] - 1].set(jnp.asarray(ranks, jnp.int32))
    labels, _ = lax.fori_loop(np.int32(0), np.int32(len(starts)), turn, (labels, rank))
    return labels[len(shape) : -1]


def _cells(shape: Sequence[int]) -> list[jax.Array]:
    """The index along each axis of the cells of a value: (1, cells)."""
    axes = range(len(shape))
    return [lax.broadcasted_iota(jnp.int32, shape, i).reshape(1, math.prod(shape)) for i in axes]


def coordinates(plan: Plan, winners: jax.Array) -> jax.Array:
    """The assignments that follow from the winners of `search`: int32 (labels that the output
    lacks, sorted; *shape of the value).
    """
    shape = [dict(plan.sizes)[label] for label in plan.equation.output]
    found = walk(plan, lambda place, rank: (winners[place.own], rank, rank), math.prod(shape))
    return found.reshape(len(found), *shape)


def entries(plan: Plan, labels: jax.Array, tables: Sequence[jax.Array]) -> jax.Array:
    """(tables, *shape of the value): the entries of the operands at the assignments of
    `coordinates`.
    """
    return at_places(joined(tables), _entry_places(plan, labels))


def add_entries(plan: Plan, labels: jax.Array, values: jax.Array) -> list[jax.Array]:
    """The transpose of `entries`: tables of zeros to whose entries the values are added; 16 bits in
    float32.
    """
    sizes, places = dict(plan.sizes), layout(plan)[: 1 + len(plan.terms)]
    shapes = [[sizes[label] for label in term] for term in plan.terms]
    wide = widened(values)
    flat = (
        jnp.zeros(places[-1], wide.dtype)
        .at[_entry_places(plan, labels)]
        .add(wide, mode="promise_in_bounds")
    )
    return cut_all(flat.astype(values.dtype), places[:-1], shapes)


def _entry_places(plan: Plan, labels: jax.Array) -> jax.Array:
    """The places in the flat tables: (tables, *shape of the value)."""
    sizes, output, places = dict(plan.sizes), plan.equation.output, layout(plan)
    shape, cells = labels.shape[1:], math.prod(labels.shape[1:])
    ids = {label: i for i, label in enumerate([*output, *labels_of(plan)])}
    zero = jnp.zeros((1, cells), jnp.int32)
    whole = jnp.concatenate([*_cells(shape), labels.reshape(len(labels), cells), zero])
    terms = [strides(term, sizes) for term in plan.terms]
    rank = max(map(len, terms))
    table = jnp.array(
        [
            [(start, 0), *((ids[x], own[x]) for x in own), *[(0, 0)] * (rank - len(own))]
            for start, own in zip(places, terms, strict=False)
        ],
        jnp.int32,
    )
    moved = at_places(whole, table[:, 1:, 0]) * table[:, 1:, 1, None]
    return (table[:, 0, :1] + moved.sum(1, dtype=jnp.int32)).reshape(len(terms), *shape)


# --- the rows of an array of labels, each as an array of its own ----------------------------------

WORTH_THE_OP = 8
"""The number of rows from which the op is used. XLA fuses a few slices with what takes them."""


@extension_op(package="tenferro-ext-tropical", name="rows", version=1)
class Rows(ExtensionOp):
    """The rows of an int32 array, an output for each.

    XLA CPU compiles a function for every slice that a program returns, 2 ms each, and a network
    has a row for each label. The kernel copies them in one call. The op has no derivative.

    Attributes:
      count: the number of rows, at least 1.
    """

    count: int

    input_count = 1

    def __post_init__(self) -> None:
        if type(self.count) is not int or self.count < 1:
            raise InvalidConfig(
                where=f"{self.family_id}, field count",
                given=repr(self.count),
                needed="an integer of at least 1",
            )

    @property
    def output_count(self) -> int:
        """One for each row."""
        return self.count

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        (labels,) = inputs
        if labels.dtype != np.int32:
            raise DTypeError(where=self.family_id, given=str(labels), needed="int32")
        if not labels.shape:
            raise ShapeError(where=self.family_id, given=str(labels), needed="an axis of rows")
        require_equal(labels.shape[0], self.count)
        return [TensorMeta(labels.dtype, labels.shape[1:])] * self.count

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return ShardingRule(f"row ... -> {', '.join(['...'] * self.count)}", whole=("row",))

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        (labels,) = inputs
        shape = labels.shape[1:]
        starts = [i * math.prod(shape) for i in range(self.count)]
        return cut_all(labels.reshape(-1), starts, [shape] * self.count)

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        (axis,) = in_axes
        return (self, (axis - 1,) * self.count) if axis else None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Rows of three labels."""
        return [[np.arange(3 * self.count, dtype=np.int32).reshape(self.count, 3)]]


def _declines(op: Rows, labels: TensorMeta) -> str:
    """Why XLA cuts the rows, or "" if the library does."""
    if not all(isinstance(size, int) for size in labels.shape):
        return "sizes are symbolic"
    return native().problem


def _run(op: Rows, labels: jax.Array) -> tuple[jax.Array, ...]:
    rows = [jax.ShapeDtypeStruct(labels.shape[1:], labels.dtype)] * op.count
    return tuple(jax.ffi.ffi_call(ROWS, rows, vmap_method="sequential")(labels))


Rows.runtimes = ExtensionRuntimeSet(Kernel(Rows.family_id, "cpu", _run, _declines, "native"))


def rows_of(labels: jax.Array) -> Sequence[jax.Array]:
    """The rows of an array; of a concrete one without a program for each."""
    if not isinstance(labels, jax.core.Tracer):
        place = labels.sharding if labels.committed else None
        if isinstance(place, jax.NamedSharding):
            place = jax.NamedSharding(place.mesh, jax.P(*place.spec[1:]))
        return jax.device_put(list(np.asarray(labels)), place)
    if len(labels) < WORTH_THE_OP:
        return list(labels)
    return apply(Rows(len(labels)), labels)
