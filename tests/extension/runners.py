"""The ways to run one extension call."""

import jax
import numpy as np

from tenferro_jax import trace
from tenferro_jax.engine import Engine
from tenferro_jax.extension import apply
from tenferro_jax.extension.kernels import NO_RUNTIMES

from ..extension_ops import RULES


def runners(op, *xs, rules=RULES, runtimes=NO_RUNTIMES):
    """(name, thunk) of the same call eagerly, jitted, vmapped, in scan, cond and checkpoint."""
    call = lambda *xs: apply(op, *xs, rules=rules, runtimes=runtimes)
    batch = [np.stack([x, x]) for x in xs]
    yield from (
        ("eager", lambda: call(*xs)),
        ("jit", lambda: jax.jit(call)(*xs)),
        ("vmap", lambda: jax.vmap(call)(*batch)),
        ("scan", lambda: jax.lax.scan(lambda c, x: (c, call(*x)), 0, tuple(batch))),
        ("cond", lambda: jax.lax.cond(True, call, lambda *xs: call(*xs), *xs)),
        ("checkpoint", lambda: jax.checkpoint(call)(*xs)),
    )


def ways(call, *xs):
    """(name, thunk) of one function eagerly, in a user's jit and in an Engine; each waits for its
    results.
    """
    yield from (
        ("eager", lambda: jax.block_until_ready(call(*xs))),
        ("jit", lambda: jax.block_until_ready(jax.jit(call)(*xs))),
        ("engine", lambda: jax.block_until_ready(Engine().eval(trace(call, *xs), *xs))),
    )
