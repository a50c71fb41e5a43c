"""The walk from the last step of a plan to the first, which finds assignments: for the cells of a
value, for samples, or for the best ones, many at once. And the entries of tables at assignments.
Their programs do not grow with the plan. The entries are a linear op, of which the derivatives of a
network in a selective semiring consist.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
from .plan_rows import LANES, contracted, layout, strides
from .plan_text import labels_of
from .question import TABLES, Asked, Axes, Question, factor_of, kernels, split_along

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
        head = [
            *(math.prod(map(sizes.__getitem__, rest)), one == two, draw),
            *(places[first + i], places[one], places[two]),
            *(first + i, one, nowhere[1] if one == two else two),
        ]
        cells = [(ids[x], own[x], left.get(x, 0), right.get(x, 0)) for x in step.result]
        axes = [(ids[x], left.get(x, 0), right.get(x, 0), choice[x], sizes[x]) for x in rest]
        rows.append((depths[first + i], head, cells, axes))
    shape = [sizes[label] for label in plan.equation.output]
    zeros = jnp.zeros((len(known) + 1 - len(shape), walks), jnp.int32)
    labels = jnp.concatenate([*_cells(shape), zeros])
    if not rows:
        return labels[len(shape) : -1]
    # Steps of one depth do not depend on each other: turns take some of them together. A turn may
    # reach into the next depth; what it finds there comes to be overwritten.
    rows.sort(key=lambda row: row[0])
    count = max(1, min(STEPS_OF_A_TURN, LANES // max(walks, 1)))
    levels = itertools.groupby(range(len(rows)), lambda i: rows[i][0])
    starts = np.array([i for _, level in levels for i in [*level][::count]], np.int32)
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
        candidates, single, draw, *bases, number, one, two = (rows[:, j] for j in range(9))
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


# --- the entries of tables at assignments --------------------------------------------------------


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
        return [tuple(sizes[x] for x in axes) for axes in side]

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
    ) -> Sequence[Any]:
        swapped = dataclasses.replace(self, is_transposed=not self.is_transposed)
        some: Any = next(c for c in cotangents if c is not None)
        like = [jax.ShapeDtypeStruct(x, some.dtype) for x in self.shapes(self.arrays[1])]
        labels: Any = inputs[0]
        found = apply(swapped, labels, *filled(like, cotangents))
        return [
            x if isinstance(y, LinearInput) else None
            for x, y in zip((None, *found), inputs, strict=True)
        ]

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Labels in range, and normal numbers."""
        rng = np.random.default_rng(0)
        (shape,) = self.shapes([self.output])
        sizes = [n for label, n in sorted(self.sizes) if label not in self.output]
        labels = np.array([rng.integers(0, n, shape) for n in sizes], np.int32)
        given = self.shapes(self.arrays[0][1:])
        return [[labels.reshape(-1, *shape), *(rng.normal(size=shape) for shape in given)]]


NetworkEntries.runtimes = kernels(NetworkEntries.family_id)
