"""A walk from the last step of a plan to the first, for many assignments at once, as one loop."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.einsum import Plan

from .loops import at_places
from .plan_rows import contracted, layout, strides


class Place(NamedTuple):
    """Where the walks are: at a cell of a step each.

    Attributes:
      candidates: how many each cell has.
      single: whether the step has one operand.
      own: the place of the cell in the buffer of `plan_rows.layout`.
      bases: those of the operands' cells, without the contracted labels.
      axes: for each contracted label its row in the labels, its strides in both operands and in the
        candidates, its size.
    """

    candidates: jax.Array
    single: jax.Array
    own: jax.Array
    bases: tuple[jax.Array, jax.Array]
    axes: jax.Array

    def digits(self, candidate: jax.Array) -> jax.Array:
        """The index of each contracted label at a candidate."""
        divisor, size = (self.axes[:, i].reshape(-1, *[1] * candidate.ndim) for i in (3, 4))
        return candidate[None] // divisor % size

    def operands(self, candidate: jax.Array) -> list[jax.Array]:
        """The places of both operands at one candidate for all walks."""
        moved = self.digits(candidate)
        return [
            base + (moved * self.axes[:, i]).sum(dtype=jnp.int32)
            for i, base in enumerate(self.bases, 1)
        ]


State = tuple[jax.Array, jax.Array]
"""The labels that are known, and the ranks."""
Choose = Callable[[Place, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def walked(
    plan: Plan, steps: Sequence[int], choose: Choose, last: jax.Array, given: jax.Array
) -> jax.Array:
    """The labels of each walk: int32 (labels in sorted order, walks).

    Args:
      plan: without output labels.
      steps: the numbers of the steps to visit; all that contract are among them.
      choose: (place, rank of each walk, a row of `given`) -> the candidate of each walk, and its
        ranks in both operands.
      last: the ranks in the last step.
      given: a row for each of the steps.
    """
    sizes, places, count = dict(plan.sizes), layout(plan).values, len(last)
    ids = {label: i for i, label in enumerate(sorted(sizes))}
    nowhere = len(sizes), len(places)  # rows that are written in vain
    rows = []
    for i in steps:
        step, number = plan.steps[i], len(plan.terms) + i
        rest = contracted(step)
        left, right = (strides(term, sizes) for term in (step.terms * 2)[:2])
        own, choice = strides(step.result, sizes), strides(rest, sizes)
        first, second = (step.operands * 2)[:2]
        candidates = math.prod(map(sizes.__getitem__, rest))
        head = [candidates, first == second, places[number], places[first], places[second]]
        head += [number, first, nowhere[1] if first == second else second]
        cells = [(ids[x], own[x], left.get(x, 0), right.get(x, 0)) for x in step.result]
        axes = [(ids[x], left.get(x, 0), right.get(x, 0), choice[x], sizes[x]) for x in rest]
        rows.append((head, cells, axes))
    if not rows:
        return jnp.zeros((len(sizes), count), jnp.int32)
    ranks = [max(len(row[i]) for row in rows) for i in (1, 2)]
    empty = (nowhere[0], 0, 0, 0), (nowhere[0], 0, 0, 1, 1)
    width = len(rows[0][0])
    table = jnp.array(
        [
            [
                *head,
                *itertools.chain(*cells, *[empty[0]] * (ranks[0] - len(cells))),
                *itertools.chain(*axes, *[empty[1]] * (ranks[1] - len(axes))),
            ]
            for head, cells, axes in reversed(rows)
        ],
        jnp.int32,
    )

    def visited(state: State, row: tuple[jax.Array, jax.Array]) -> tuple[State, Any]:
        labels, rank = state
        candidates, single, *bases = row[0][:5]
        number, first, second = row[0][5:width]
        cells = row[0][width : width + 4 * ranks[0]].reshape(ranks[0], 4)
        axes = row[0][width + 4 * ranks[0] :].reshape(ranks[1], 5)
        known = at_places(labels, cells[:, 0])
        own, left, right = (
            base + (known * cells[:, i, None]).sum(0, dtype=jnp.int32)
            for i, base in enumerate(bases, 1)
        )
        place = Place(candidates, single > 0, own, (left, right), axes)
        chosen, *both = choose(place, at_places(rank, number), row[1])
        labels = labels.at[axes[:, 0]].set(place.digits(chosen))
        return (labels, rank.at[jnp.stack([first, second])].set(jnp.stack(both))), None

    labels = jnp.zeros((nowhere[0] + 1, count), jnp.int32)
    rank = jnp.zeros((nowhere[1] + 1, count), jnp.int32).at[len(places) - 2].set(last)
    (labels, _), _ = lax.scan(visited, (labels, rank), (table, given[::-1]))
    return labels[:-1]
