"""Answers by one op for the whole plan, or for each of its slices: samples, the best assignments,
shares of entries.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.plans import Plan

from ..arguments import widened
from ..einsums.slices import TropicalPlan, joined_sums
from ..networks.log_derivatives import NetworkShares, with_others
from ..networks.many import NetworkBest, NetworkSamples
from ..networks.plan_text import labels_of, text_of
from ..networks.value import TropicalNetwork, is_network
from ..semirings.registered import SemiringKey
from ..semirings.semiring import Semiring
from ..semirings.shipped import LogSumExp
from ..steps.evaluate import Mode
from ..steps.labels import Labels
from .factors import Factors

State: TypeAlias = tuple[Any, jax.Array]
"""What the slices before have: their sums, or the best values; and labels."""

Moved: TypeAlias = Callable[[jax.Array], jax.Array]
"""Makes the labels of a slice those of the whole; -1 stays."""


def samples(
    plan: TropicalPlan,
    tables: Sequence[jax.Array],
    key: jax.Array,
    shape: Sequence[int],
    temperature: float,
) -> Labels:
    """Independent samples of the labels of a plan: int32 of a shape each; -1 if the value is not
    finite.
    """
    text, semiring = text_of(plan.plan), LogSumExp(temperature)
    op = NetworkSamples(temperature, text)
    value_op = TropicalNetwork(SemiringKey.of(semiring), text)
    tables = list(map(widened, tables))
    dtype, size = tables[0].dtype, (op.draws, math.prod(shape))

    def drawn(key: jax.Array, *tables: jax.Array) -> jax.Array:
        (labels,) = apply(op, *tables, jax.random.uniform(key, size, dtype))
        return labels

    def slice_of(state: State, i: jax.Array, own: Sequence[jax.Array], moved: Moved) -> State:
        """A slice takes the place of those before with the probability of its share."""
        sums, labels = state
        (value,) = apply(value_op, *own)
        first, second = jax.random.split(jax.random.fold_in(key, i))
        largest, total = joined_sums(semiring, sums, (value, jnp.ones_like(value)))
        share = semiring.share(value, largest) / total
        takes = jax.random.uniform(second, size[1:], dtype) < share
        return (largest, total), jnp.where(takes, moved(drawn(first, *own)), labels)

    if plan.slices == 1:
        labels = drawn(key, *tables)
    else:
        nothing = (jnp.asarray(-jnp.inf, dtype), jnp.zeros((), dtype)), _nowhere(plan, size[1])
        _, labels = _in_slices(plan, tables, slice_of, nothing)
    return _named(plan, labels.reshape(-1, *shape))


def best_ways(
    plan: TropicalPlan, tables: Sequence[jax.Array], count: int
) -> tuple[jax.Array, Labels]:
    """The greatest values of distinct assignments, (count,), and their labels; -inf and -1 where
    there are fewer.
    """
    op = NetworkBest(text_of(plan.plan), count)

    def slice_of(state: State, i: jax.Array, own: Sequence[jax.Array], moved: Moved) -> State:
        values, labels = apply(op, *own)
        values = jnp.concatenate([state[0], values])
        labels = jnp.concatenate([state[1], moved(labels)], 1)
        values, order = lax.top_k(values, count)
        return values, labels[:, order]

    if plan.slices == 1:
        values, labels = apply(op, *tables)
    else:
        nothing = jnp.full(count, -jnp.inf, tables[0].dtype), _nowhere(plan, count)
        values, labels = _in_slices(plan, tables, slice_of, nothing)
    return values, _named(plan, labels)


def _in_slices(
    plan: TropicalPlan,
    tables: Sequence[jax.Array],
    slice_of: Callable[[State, jax.Array, Sequence[jax.Array], Moved], State],
    state: State,
) -> State:
    """The state after all slices, of which `slice_of` gets the number and the tables."""

    def turn(state: State, i: jax.Array) -> tuple[State, None]:
        start = plan.start(i)
        rows = jnp.stack([start[label] for label in labels_of(plan.plan)])

        def moved(labels: jax.Array) -> jax.Array:
            return jnp.where(labels < 0, labels, labels + rows[:, None])

        return slice_of(state, i, plan.parts(plan.plan.terms, tables, start), moved), None

    return lax.scan(turn, state, jnp.arange(plan.slices, dtype=jnp.int32))[0]


def _nowhere(plan: TropicalPlan, count: int) -> jax.Array:
    return jnp.full((len(labels_of(plan.plan)), count), -1, jnp.int32)


def _named(plan: TropicalPlan, labels: jax.Array) -> Labels:
    return Labels.of_rows(labels_of(plan.plan), labels)


def plan_of_one_op(net: Factors, semiring: Semiring) -> Plan | None:
    """The plan of the value under a semiring, if one op computes it."""
    plan = net.plan()
    is_whole = plan.slices == 1
    return plan.plan if is_whole and is_network(plan.plan, net.tables, Mode(semiring)) else None


def shares(net: Factors, active: Sequence[int], temperature: float) -> Sequence[jax.Array]:
    """Of the entries of some tables, by their increasing numbers: the derivative of T times the log
    of the partition function. One op gives it where one op gives the value; `jax.grad` takes 200 us
    a table.
    """
    semiring, tables = LogSumExp(temperature), list(map(widened, net.tables))
    if plan := plan_of_one_op(net, semiring):
        op = NetworkShares(temperature, text_of(plan), tuple(active), True)
        one = np.ones((), tables[0].dtype)
        return on_automatic_axes(lambda *tables: apply(op, *tables, one))(*tables)

    def slopes(*tables: jax.Array) -> Sequence[jax.Array]:
        def total(own: Sequence[jax.Array]) -> jax.Array:
            return net.like(net.scopes, with_others(tables, active, own)).contracted(semiring)

        return jax.grad(total)([tables[i] for i in active])

    return on_automatic_axes(slopes)(*tables)
