"""Hypothesis: a function that may reuse its argument's buffer runs faster, since it needs no fresh memory.

python -m benchmarks.donation [--size 2048]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .measure import header

CASES: dict[str, Callable[[Any], Any]] = {
    "sin(x) + 1": lambda x: jnp.sin(x) + 1.0,
    "x + x.sum(0)": lambda x: x + x.sum(0)[None],
    "x @ x": lambda x: x @ x,
}


def main(size: int = 2048, repeats: int = 25) -> dict[str, float]:
    """Print the table; returns for each case the ratio of medians, donated over kept."""
    print(header((__doc__ or "").splitlines()[0]))
    print(f"{'float32':>14} |       kept |    donated | donated/kept")
    ratios = {}
    start = jnp.ones((size, size), jnp.float32)
    for name, fn in CASES.items():
        programs = [jax.jit(fn, donate_argnums=donated).lower(start).compile() for donated in ((), (0,))]
        seconds: list[list[float]] = [[], []]
        for _ in range(repeats):
            for program, kept in zip(programs, seconds, strict=True):
                x = jax.block_until_ready(start + 0.0)  # a donated array is gone after the call
                begin = time.perf_counter()
                jax.block_until_ready(program(x))
                kept.append(time.perf_counter() - begin)
        plain, donated = map(statistics.median, seconds)
        ratios[name] = donated / plain
        print(f"{name:>14} | {plain * 1e3:7.2f} ms | {donated * 1e3:7.2f} ms | {ratios[name]:5.2f}")
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=2048)
    main(parser.parse_args().size)
