"""The shares of the entries of tables in the partition function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from tenferro_jax.extension import apply

from ..algebra.shipped import LogSumExp
from ..network.log_derivatives import NetworkShares
from ..network.network_op import is_network
from ..network.plan_text import steps_of
from ..network.steps import Mode
from ..step.einsum_op import widened

if TYPE_CHECKING:
    from .network import Network


def shares(net: Network, count: int, temperature: float) -> Sequence[jax.Array]:
    """Of the entries of the last tables, so many: the derivative of T times the log of the
    partition function. One op gives it where one op gives the value; `jax.grad` takes 200 us a
    table.
    """
    plan, tables = net.plan(), list(map(widened, net.tables))
    first = len(tables) - count
    if plan.slices == 1 and is_network(plan.plan, tables, Mode(LogSumExp(temperature))):
        text = steps_of(plan.plan).text
        op = NetworkShares(temperature, text, tuple(range(first, len(tables))), True)
        return apply(op, *tables, jnp.ones((), tables[0].dtype))

    def total(*last: jax.Array) -> jax.Array:
        whole = net.like(net.scopes, (*net.tables[:first], *last))
        return temperature * whole.log_partition(temperature=temperature)

    return jax.grad(total, tuple(range(count)))(*tables[first:])
