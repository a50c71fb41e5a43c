"""Hypothesis: a call costs at most 2.5 times jit's, a plan 2 times opt_einsum's, an import at most
0.15 s above JAX's.

Eager calls on 3 elements; plans of networks of 1,000 tables of 2 x 2; imports in fresh processes,
from compiled files.

    python -m benchmarks.overheads [--calls 1000] [--operands 1000] [--repeats 5]
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

import cotengra
import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import plan_tropical_einsum, tropical_einsum
from ext_tropical.einsums.planning import cached_plan
from tenferro_jax import plan_einsum, trace
from tenferro_jax.engine import Engine
from tenferro_jax.extension import ExtensionOp, apply

from .measure import alternating, header, spread

Pairs = list[tuple[int, int]]


@dataclasses.dataclass(frozen=True)
class Double(ExtensionOp):
    """x + x."""

    family_id = "benchmarks.double.v1"

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        """Two of it."""
        return (inputs[0] + inputs[0],)


def batch(run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    """Many calls, one after another; the last result."""
    run()

    def many() -> Any:
        for _ in range(calls):
            out = run()
        return out

    return many


def calls(count: int) -> dict[str, float]:
    """Microseconds of an eager call, the lowest of batches made in turn; the first row is plain
    JAX.
    """
    x, w = jnp.ones(3), jnp.ones((3, 3))
    op, jitted = Double(), jax.jit(lambda x: x + x)
    engine, graph = Engine(), trace(lambda x: x + x, x)
    program = engine.compile(graph)
    runs = {
        "jax.jit": lambda: jitted(x),
        "apply, one op object": lambda: apply(op, x),
        "apply, a new op each call": lambda: apply(Double(), x),
        "ExecProgram": lambda: program(x),
        "Engine.eval": lambda: engine.eval(graph, x),
        "jnp.einsum 3x3x3": lambda: jnp.einsum("ij,jk->ik", w, w),
        "tropical_einsum 3x3x3": lambda: tropical_einsum("ij,jk->ik", w, w),
    }
    lowest = [low for _, low in alternating([batch(run, count) for run in runs.values()], 20)]
    return {name: seconds / count * 1e6 for name, seconds in zip(runs, lowest, strict=True)}


def networks(operands: int) -> dict[str, Pairs]:
    """Pairs of labels: a path, a tree, a grid of width 3, a star."""
    rng, length = np.random.default_rng(0), operands // 5
    across = [(3 * i + j, 3 * i + j + 1) for i in range(length) for j in range(2)]
    along = [(3 * i + j, 3 * i + j + 3) for i in range(length - 1) for j in range(3)]
    return {
        "path": [(i, i + 1) for i in range(operands)],
        "tree": [(i, int(rng.integers(i))) for i in range(1, operands + 1)],
        "grid": across + along,
        "star": [(0, i) for i in range(1, operands + 1)],
    }


def plans(operands: int, repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds of a plan by the greedy algorithm, the lowest; by cotengra as it comes."""
    found = {}
    for name, pairs in networks(operands).items():
        terms = ["".join(map(opt_einsum.get_symbol, pair)) for pair in pairs]
        equation, shapes = ",".join(terms) + "->", [(2, 2)] * len(terms)
        arrays, sizes = (
            [np.zeros((2, 2), np.float32)] * len(terms),
            dict.fromkeys("".join(terms), 2),
        )

        def tropical(equation: str = equation, shapes: Any = shapes) -> Any:
            cached_plan.cache_clear()
            return plan_tropical_einsum(equation, *shapes, optimize="greedy")

        runs: dict[str, Callable[[], Any]] = {
            "plan_einsum": lambda e=equation, s=shapes: plan_einsum(e, s, "greedy"),
            "plan_tropical": tropical,
            "opt_einsum": lambda e=equation, s=shapes: opt_einsum.contract_path(
                e, *s, shapes=True, optimize="greedy"
            ),
            "jnp.einsum_path": lambda e=equation, a=arrays: jnp.einsum_path(
                e, *a, optimize="greedy"
            ),
        }
        found[name] = {kind: spread(run, repeats)[1] * 1e3 for kind, run in runs.items()}
        inputs = [tuple(term) for term in terms]
        path = spread(
            lambda i=inputs, s=sizes: cotengra.array_contract_path(i, (), s, optimize="auto"), 1
        )
        found[name]["cotengra"] = path[1] * 1e3
    return found


def imports(repeats: int) -> dict[str, float]:
    """Seconds of importing JAX, and of each package here after it; the lowest of fresh
    processes.
    """
    code = (
        "import time; a = time.perf_counter(); import jax; b = time.perf_counter(); import {}; "
        "print(b - a, time.perf_counter() - b)"
    )
    found: dict[str, list[float]] = {"jax": []}
    with tempfile.TemporaryDirectory() as folder:  # the first process compiles into it
        env = {
            name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"
        } | {"PYTHONPYCACHEPREFIX": folder}
        for name in ("tenferro_jax", "ext_tropical"):
            command = [sys.executable, "-c", code.format(name)]
            for _ in range(1 + repeats):
                run = subprocess.run(
                    command,
                    env=env,
                    cwd=pathlib.Path(__file__).parents[1],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                first, then = map(float, run.stdout.split())
                found["jax"].append(first)
                found.setdefault(name, []).append(then)
    return {name: min(seconds) for name, seconds in found.items()}


def main(
    count: int = 1000, operands: int = 1000, repeats: int = 5
) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, float]]:
    """Print the three tables; returns what `calls`, `plans` and `imports` found."""
    print(header(__doc__))
    called = calls(count)
    for name, value in called.items():
        print(f"{name:>28} {value:8.1f} us   {value / called['jax.jit']:6.1f} x jit")
    planned = plans(operands, repeats)
    print(
        f"\n{f'ms, {operands:,} operands':>20} | "
        + " ".join(f"{kind:>15}" for kind in planned["path"])
        + " | plan_einsum / opt_einsum"
    )
    for name, row in planned.items():
        print(
            f"{name:>20} | "
            + " ".join(f"{ms:15.1f}" for ms in row.values())
            + f" | {row['plan_einsum'] / row['opt_einsum']:10.2f}"
        )
    imported = imports(repeats)
    print(
        "\nimport of jax {:.3f} s, then of tenferro_jax {:.3f} s, of ext_tropical with it {:.3f} "
        "s".format(*imported.values())
    )
    return called, planned, imported


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--operands", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    main(given.calls, given.operands, given.repeats)
