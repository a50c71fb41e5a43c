"""Hypothesis: tracing a graph and compiling it costs no more a node than jit of the same function.

The function is an unrolled chain of elementwise ops on 8 numbers, so that nothing but the number of ops counts.

    python -m benchmarks.compile_time [--ops 1000 5000]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax import Progress, compile_std_to_exec, trace

from .measure import header

OPS: tuple[Callable[[Any], Any], ...] = (jnp.sin, lambda x: x * x, lambda x: x + x, lambda x: -x)


def chain(ops: int) -> Callable[[Any], Any]:
    """A function of so many elementwise ops in a row."""

    def fn(x: Any) -> Any:
        for i in range(ops):
            x = OPS[i % len(OPS)](x)
        return x

    return fn


def stages(ops: int) -> tuple[list[float], list[float]]:
    """Seconds of trace, lower and compile, by way of a graph and by jit."""
    x, fn, events = jnp.ones(8), chain(ops), list[Progress]()
    jax.clear_caches()
    start = time.perf_counter()
    graph = trace(fn, x)
    traced = time.perf_counter() - start
    compile_std_to_exec(graph, progress=events.append)
    jax.clear_caches()
    marks = [time.perf_counter()]
    jitted = jax.jit(fn).trace(x)
    marks.append(time.perf_counter())
    lowered = jitted.lower()
    marks.append(time.perf_counter())
    lowered.compile()
    marks.append(time.perf_counter())
    return [traced, *(e.seconds for e in events)], [b - a for a, b in itertools.pairwise(marks)]


def main(counts: Sequence[int]) -> list[tuple[float, float]]:
    """Print the table; returns for each count the seconds until it can run, of the graph and of jit."""
    print(header((__doc__ or "").splitlines()[0]))
    print("milliseconds per 1,000 ops")
    print(f"{'ops':>6} | {'graph: trace':>12} {'lower':>7} {'compile':>8} | {'jit: trace':>10} {'lower':>7} {'compile':>8} | graph/jit")
    totals = []
    stages(counts[0])  # what only a first time costs
    for ops in counts:
        both = stages(ops)
        ours, theirs = map(sum, both)
        totals.append((ours, theirs))
        mine, jits = ([s / ops * 1e6 for s in seconds] for seconds in both)
        cells = f"{mine[0]:12.1f} {mine[1]:7.1f} {mine[2]:8.1f} | {jits[0]:10.1f} {jits[1]:7.1f} {jits[2]:8.1f}"
        print(f"{ops:>6} | {cells} | {ours / theirs:9.2f}")
    return totals


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=[1000, 2000, 5000])
    main(parser.parse_args().ops)
