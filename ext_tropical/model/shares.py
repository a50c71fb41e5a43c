"""The shares of the entries of tables in the partition function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from tenferro_jax.einsum.spread import on_automatic_axes
from tenferro_jax.extension import apply

from ..algebra.shipped import LogSumExp
from ..network.log_derivatives import NetworkShares
from ..network.network_op import is_network
from ..network.plan_text import steps_of
from ..network.steps import Mode
from ..step.einsum_op import widened

if TYPE_CHECKING:
    from .network import Network


def shares(net: Network, active: Sequence[int], temperature: float) -> Sequence[jax.Array]:
    """Of the entries of some tables, by their increasing numbers: the derivative of T times the log
    of the partition function. One op gives it where one op gives the value; `jax.grad` takes 200 us
    a table.
    """
    plan, tables = net.plan(), list(map(widened, net.tables))
    if plan.slices == 1 and is_network(plan.plan, tables, Mode(LogSumExp(temperature))):
        op = NetworkShares(temperature, steps_of(plan.plan).text, tuple(active), True)
        one = np.ones((), tables[0].dtype)
        return on_automatic_axes(lambda *tables: apply(op, *tables, one))(*tables)

    def slopes(*tables: jax.Array) -> Sequence[jax.Array]:
        def total(own: Sequence[jax.Array]) -> jax.Array:
            every = list(tables)
            for i, x in zip(active, own, strict=True):
                every[i] = x
            return temperature * net.like(net.scopes, every).log_partition(temperature=temperature)

        return jax.grad(total)([tables[i] for i in active])

    return on_automatic_axes(slopes)(*tables)
