"""Hypothesis: jax.grad of the blocked max-plus matmul is at least 50 times faster than of the naive
broadcast-add-max.

The naive form's gradient compares every candidate with the maximum and divides ties: it goes
through all m k n candidates several times in memory. Ours searches twice and scatters at the
winners.

    python -m benchmarks.gradient_of_matmul [--sizes 256 512 1024]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import tropical_einsum

from .measure import header, time_jitted


def ours(a: jax.Array, b: jax.Array) -> jax.Array:
    """The extension."""
    return tropical_einsum("ij,jk->ik", a, b)


def naive(a: jax.Array, b: jax.Array) -> jax.Array:
    """What JAX users write without it."""
    return jnp.max(a[:, :, None] + b[None, :, :], axis=1)


def gradient(f: Callable[[jax.Array, jax.Array], jax.Array]) -> Callable[..., Any]:
    """The gradient of the sum of f's result with respect to both operands."""
    return jax.grad(lambda a, b: f(a, b).sum(), argnums=(0, 1))


def main(sizes: list[int], repeats: int = 5) -> list[float]:
    """Print the table; returns the ratios of the gradients' medians, naive over ours."""
    print(header(__doc__))
    print(
        f"{'float32':>16} | {'ours: compile, run (low-high)':^42} | "
        f"{'naive: compile, run (low-high)':^42} | naive/ours"
    )
    ratios = []
    for n in sizes:
        rng = np.random.default_rng(0)
        a, b = (jnp.asarray(rng.normal(size=(n, n)), jnp.float32) for _ in range(2))
        for name, mine, peer in (
            ("value", ours, naive),
            ("gradient", gradient(ours), gradient(naive)),
        ):
            timings = (
                time_jitted(mine, a, b, repeats=repeats),
                time_jitted(peer, a, b, repeats=max(1, repeats // 2)),
            )
            cells = [
                f"{t.compile:5.2f} s {t.median * 1e3:9.2f} ms "
                f"({t.low * 1e3:.1f}-{t.high * 1e3:.1f})"
                for t in timings
            ]
            ratio = timings[1].median / timings[0].median
            print(f"{n:>5}^3 {name:>9} | {cells[0]:>42} | {cells[1]:>42} | {ratio:9.1f}")
            if name == "gradient":
                ratios.append(ratio)
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 512, 1024])
    main(parser.parse_args().sizes)
