"""Assignments that follow from the winners of a plan, and the entries there, as programs whose size
does not grow with the plan.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum import Plan

from ..step.einsum_op import widened
from .loops import at_places, cut_all, joined
from .plan_rows import LANES, contracted, layout, strides


def coordinates(plan: Plan, winners: jax.Array) -> jax.Array:
    """The assignments that follow from winners, read backwards from the last step.

    Returns:
      int32 (contracted labels, *shape of the value): the labels in alphabetical order.
    """
    sizes, places, output = dict(plan.sizes), layout(plan), plan.equation.output
    shape = [sizes[label] for label in output]
    if not any(map(contracted, plan.steps)):
        return jnp.zeros((0, *shape), jnp.int32)
    ids = {label: i for i, label in enumerate(output)}
    found = []
    depths = [0] * (len(plan.terms) + len(plan.steps))
    for i, step in reversed(list(enumerate(plan.steps))):
        own = strides(step.result, sizes)
        for label, divisor in strides(contracted(step), sizes).items():
            found.append((depths[len(plan.terms) + i], label, places.winners[i], divisor, own))
        for j in step.operands:
            depths[j] = depths[len(plan.terms) + i] + 1
    found.sort(key=lambda each: each[0])
    ids |= {each[1]: i for i, each in enumerate(found, len(output))}
    rank = max((len(each[-1]) for each in found), default=0)
    rows = []
    for _, label, base, divisor, own in found:
        axes = [(ids[x], stride) for x, stride in own.items()] + [(0, 0)] * (rank - len(own))
        rows.append([base, divisor, sizes[label], *(x for axis in axes for x in axis)])
    count = max(1, min(16, LANES // math.prod(shape)))  # rows of a turn
    levels = [each[0] for each in found]
    bounds = [0, *(i for i in range(1, len(levels)) if levels[i] != levels[i - 1]), len(levels)]
    turns = [i for low, high in itertools.pairwise(bounds) for i in range(low, high, count)]
    table = np.array(rows, np.int32).reshape(len(rows), 3 + 2 * rank)
    table = np.pad(table, ((0, count), (0, 0)), mode="edge")
    starts = np.array(turns, np.int32)

    def turn(i: jax.Array, known: jax.Array) -> jax.Array:
        start = jnp.asarray(starts)[i]
        rows = lax.dynamic_slice_in_dim(jnp.asarray(table), start, count)
        base, divisor, size = (rows[:, j, None] for j in range(3))
        axes = rows[:, 3:].reshape(count, rank, 2)
        place = base + (at_places(known, axes[..., 0]) * axes[..., 1, None]).sum(1, dtype=jnp.int32)
        winner = at_places(winners, place)
        new = lax.rem(
            lax.div(winner, jnp.broadcast_to(divisor, winner.shape)),
            jnp.broadcast_to(size, winner.shape),
        )
        return lax.dynamic_update_slice_in_dim(known, new, start + len(output), 0)

    zeros = jnp.zeros((len(rows) + count, math.prod(shape)), jnp.int32)
    known = jnp.concatenate([*_own(shape), zeros])
    if turns:
        known = lax.fori_loop(np.int32(0), np.int32(len(turns)), turn, known)
    order = jnp.array([ids[label] for label in sorted(each[1] for each in found)], jnp.int32)
    return at_places(known, order).reshape(len(rows), *shape)


def _own(shape: Sequence[int]) -> list[jax.Array]:
    """The index along each axis of the cells of a value: (1, cells)."""
    axes = range(len(shape))
    return [lax.broadcasted_iota(jnp.int32, shape, i).reshape(1, math.prod(shape)) for i in axes]


def entries(
    plan: Plan, labels: jax.Array, tables: Sequence[jax.Array], active: Sequence[int]
) -> jax.Array:
    """(tables, *shape of the value): the entries of the operands with the numbers `active` at the
    assignments of `coordinates`.
    """
    return at_places(joined(tables), _entry_places(plan, labels, active))


def add_entries(
    plan: Plan, labels: jax.Array, values: jax.Array, active: Sequence[int]
) -> list[jax.Array]:
    """The transpose of `entries`: tables of zeros to whose entries the values are added; 16 bits in
    float32.
    """
    sizes = dict(plan.sizes)
    shapes = [[sizes[label] for label in plan.terms[i]] for i in active]
    ends = list(itertools.accumulate(map(math.prod, shapes), initial=0))
    wide = widened(values)
    flat = (
        jnp.zeros(ends[-1], wide.dtype)
        .at[_entry_places(plan, labels, active)]
        .add(wide, mode="promise_in_bounds")
    )
    return cut_all(flat.astype(values.dtype), ends[:-1], shapes)


def _entry_places(plan: Plan, labels: jax.Array, active: Sequence[int]) -> jax.Array:
    """The places in the flat tables: (tables, *shape of the value)."""
    sizes, output = dict(plan.sizes), plan.equation.output
    shape, cells = labels.shape[1:], math.prod(labels.shape[1:])
    ids = {label: i for i, label in enumerate([*output, *sorted(set(sizes) - set(output))])}
    zero = jnp.zeros((1, cells), jnp.int32)
    whole = jnp.concatenate([*_own(shape), labels.reshape(len(labels), cells), zero])
    terms = [strides(plan.terms[i], sizes) for i in active]
    rank, rows, start = max(map(len, terms)), [], 0
    for i, own in zip(active, terms, strict=True):
        axes = [(ids[x], stride) for x, stride in own.items()]
        rows.append([(start, 0), *axes, *[(0, 0)] * (rank - len(axes))])
        start += math.prod(sizes[label] for label in plan.terms[i])
    table = jnp.array(rows, jnp.int32)
    moved = at_places(whole, table[:, 1:, 0]) * table[:, 1:, 1, None]
    return (table[:, 0, :1] + moved.sum(1, dtype=jnp.int32)).reshape(len(rows), *shape)
