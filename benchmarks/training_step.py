"""Hypothesis: a training step traced to a graph compiles to the program of the jitted step and runs
at its speed.

python -m benchmarks.training_step [--widths 784 512 512 10] [--batch 128]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import trace
from tenferro_jax.engine import compile_std_to_exec

from .measure import alternating, canonical_hlo, header


def loss(params: Any, x: Any, y: Any) -> Any:
    """Mean softmax cross-entropy of a dense network with one-hot labels."""
    for w, b in params[:-1]:
        x = jax.nn.relu(x @ w + b[None, :])
    w, b = params[-1]
    return -(jax.nn.log_softmax(x @ w + b[None, :]) * y).sum(1).mean()


def step(params: Any, x: Any, y: Any) -> Any:
    """One step of gradient descent."""
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, jax.grad(loss)(params, x, y))


def arguments(batch: int, *widths: int) -> tuple[Any, Any, Any]:
    """Parameters, inputs and one-hot labels of a random problem."""
    rng = np.random.default_rng(0)
    params = [
        (jnp.asarray(rng.normal(size=(m, n)) / m**0.5), jnp.zeros(n))
        for m, n in itertools.pairwise(widths)
    ]
    labels = jnp.asarray(np.eye(widths[-1])[rng.integers(widths[-1], size=batch)])
    return (
        params,
        jnp.asarray(rng.normal(size=(batch, widths[0]))),
        labels.astype(params[0][0].dtype),
    )


def main(widths: Sequence[int], batch: int, repeats: int = 50) -> tuple[bool, float]:
    """Print the figures; returns whether the optimised programs are equal, and the ratio of
    medians, graph over jit.
    """
    print(header(__doc__))
    args = arguments(batch, *widths)
    start = time.perf_counter()
    jitted = jax.jit(step).lower(*args).compile()
    at_once = time.perf_counter()
    graph = trace(step, *args)
    traced = time.perf_counter()
    program = compile_std_to_exec(graph)
    done = time.perf_counter()
    equal = canonical_hlo(program.segments[0].compiled.as_text()) == canonical_hlo(jitted.as_text())
    (by_jit, jit_low), (by_graph, graph_low) = alternating(
        [lambda: jitted(*args), lambda: program(*args)], repeats
    )
    print(
        f"widths {list(widths)}, batch {batch}, {len(graph.nodes)} nodes; optimised HLO equal: "
        f"{equal}"
    )
    print(
        f"    jit: {at_once - start:5.2f} s to compile, {by_jit * 1e3:8.3f} ms a step (lowest "
        f"{jit_low * 1e3:.3f})"
    )
    print(
        f"  graph: {done - traced:5.2f} s to compile, {by_graph * 1e3:8.3f} ms a step (lowest "
        f"{graph_low * 1e3:.3f})",
        end="",
    )
    print(f"; {traced - at_once:.2f} s to trace")
    return equal, by_graph / by_jit


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[784, 512, 512, 10])
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    main(options.widths, options.batch)
