"""Samples of a network, in slices where its plan has them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.extension import apply

from ..algebra.semiring import SemiringKey
from ..algebra.shipped import LogSumExp
from ..network.network_op import TropicalNetwork
from ..network.network_samples import NetworkSamples
from ..network.plan_text import steps_of
from ..network.slice_loop import part, start_of
from ..network.tropical_plan import TropicalPlan
from ..step.einsum_op import widened


def samples(
    plan: TropicalPlan,
    tables: Sequence[jax.Array],
    key: jax.Array,
    shape: Sequence[int],
    temperature: float,
) -> dict[str, jax.Array]:
    """Independent samples of the labels of a plan: int32 of a shape each; -1 if the value is not
    finite.
    """
    text = steps_of(plan.plan).text
    op = NetworkSamples(temperature, text)
    tables = list(map(widened, tables))
    size = (op.draws, math.prod(shape))

    def drawn(key: jax.Array, tables: Sequence[jax.Array]) -> jax.Array:
        (labels,) = apply(op, *tables, jax.random.uniform(key, size, tables[0].dtype))
        return labels

    def joined(i: jax.Array, state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """A slice takes the place of the ones before with the probability of its share."""
        total, labels = state
        start = start_of(plan, i)
        own = part(plan, plan.plan.terms, tables, start)
        (value,) = apply(TropicalNetwork(SemiringKey.of(LogSumExp(temperature)), text), *own)
        first, second = jax.random.split(jax.random.fold_in(key, i))
        here = drawn(first, own) + jnp.stack([start[x] for x in op.steps.contracted])[:, None]
        both = LogSumExp(temperature).plus(total, value)
        takes = jax.random.uniform(second, size[1:], value.dtype) < jnp.exp(
            (value - both) / temperature
        )
        return both, jnp.where(takes, here, labels)

    if plan.slices == 1:
        labels = drawn(key, tables)
    else:
        nothing = jnp.full((len(op.steps.contracted), size[1]), -1, jnp.int32)
        before = jnp.asarray(-jnp.inf, tables[0].dtype), nothing
        _, labels = lax.fori_loop(jnp.int32(0), jnp.int32(plan.slices), joined, before)
    rows = labels.reshape(-1, *shape)
    return {label: rows[i] for i, label in enumerate(op.steps.contracted)}
