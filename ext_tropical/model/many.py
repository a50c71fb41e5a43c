"""Many assignments of a network, samples or the best ones, in slices where its plan has them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.extension import apply

from ..algebra.semiring import SemiringKey
from ..algebra.shipped import LogSumExp
from ..network.network_best import NetworkBest
from ..network.network_op import TropicalNetwork
from ..network.network_samples import NetworkSamples
from ..network.plan_text import PlanOp, steps_of
from ..network.rows import rows_of
from ..network.tropical_slices import Sums, TropicalPlan, joined_sums
from ..step.einsum_op import widened


def samples(
    plan: TropicalPlan,
    tables: Sequence[jax.Array],
    key: jax.Array,
    shape: Sequence[int],
    temperature: float,
) -> dict[str | int, jax.Array]:
    """Independent samples of the labels of a plan: int32 of a shape each; -1 if the value is not
    finite.
    """
    text = steps_of(plan.plan).text
    op, semiring = NetworkSamples(temperature, text), LogSumExp(temperature)
    tables = list(map(widened, tables))
    size = (op.draws, math.prod(shape))

    def drawn(key: jax.Array, tables: Sequence[jax.Array]) -> jax.Array:
        (labels,) = apply(op, *tables, jax.random.uniform(key, size, tables[0].dtype))
        return labels

    def joined(state: tuple[Sums, jax.Array], i: jax.Array) -> tuple[Any, None]:
        """A slice takes the place of those before with the probability of its share."""
        sums, labels = state
        start = plan.start(i)
        own = plan.parts(plan.plan.terms, tables, start)
        (value,) = apply(TropicalNetwork(SemiringKey.of(semiring), text), *own)
        first, second = jax.random.split(jax.random.fold_in(key, i))
        largest, total = joined_sums(semiring, sums, (value, jnp.ones_like(value)))
        share = semiring.share(value, largest) / total
        takes = jax.random.uniform(second, size[1:], value.dtype) < share
        return (
            (largest, total),
            jnp.where(takes, moved(op, drawn(first, own), start), labels),
        ), None

    if plan.slices == 1:
        labels = drawn(key, tables)
    else:
        nothing = jnp.full((len(op.steps.contracted), size[1]), -1, jnp.int32)
        zero = jnp.zeros((), tables[0].dtype)
        before = (zero - jnp.inf, zero), nothing
        (_, labels), _ = lax.scan(joined, before, jnp.arange(plan.slices, dtype=jnp.int32))
    rows = rows_of(labels.reshape(-1, *shape))
    return dict(zip(op.steps.contracted, rows, strict=True))


def best_ways(
    plan: TropicalPlan, tables: Sequence[jax.Array], count: int
) -> tuple[jax.Array, dict[str | int, jax.Array]]:
    """The greatest values of distinct assignments, (count,), and their labels; -inf and -1 where
    there are fewer.
    """
    op = NetworkBest(steps_of(plan.plan).text, count)

    def joined(state: tuple[jax.Array, jax.Array], i: jax.Array) -> tuple[Any, None]:
        start = plan.start(i)
        values, labels = apply(op, *plan.parts(plan.plan.terms, tables, start))
        values = jnp.concatenate([state[0], values])
        labels = jnp.concatenate([state[1], moved(op, labels, start)], 1)
        values, order = lax.top_k(values, count)
        return (values, labels[:, order]), None

    if plan.slices == 1:
        values, labels = apply(op, *tables)
    else:
        nothing = jnp.full((len(op.steps.contracted), count), -1, jnp.int32)
        before = jnp.full(count, -jnp.inf, tables[0].dtype), nothing
        (values, labels), _ = lax.scan(joined, before, jnp.arange(plan.slices, dtype=jnp.int32))
    return values, dict(zip(op.steps.contracted, rows_of(labels), strict=True))


def moved(op: PlanOp, labels: jax.Array, start: Mapping[str, jax.Array]) -> jax.Array:
    """Labels of a slice as labels of the whole; -1 stays."""
    rows = jnp.stack([start[label] for label in op.steps.contracted])
    return jnp.where(labels < 0, labels, labels + rows[:, None])
