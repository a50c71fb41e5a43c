"""Hypothesis: no shape takes longer than the line of jnp that one would write instead: at most 1.2
times it on two threads and 1.0 on one.

The line is (lhs[..., :, :, None] + rhs[..., None, :, :]).min(axis), of one array x.min(axis), and
.argmin(axis) beside it for winners; its gradient shares ties, and its minimum may lose NaN. Loops
are value iteration (100 sweeps over 512 states), Bellman-Ford (512 nodes) and a Viterbi scan with
back pointers (200 steps over 64 states), with our step and with the line.

    python -m benchmarks.one_line [--cases TEXT] [--dtypes TEXT ...] [--repeats 20]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import min_plus, tropical_einsum, tropical_einsum_with_argmax

from .measure import alternating, header

ONE_THREAD = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

SHAPES: dict[str, Any] = {
    "rows of 2000 x 2000": ("ij->i", (2000, 2000)),
    "columns of 2000 x 2000": ("ij->j", (2000, 2000)),
    "rows of 20000 x 64": ("ij->i", (20000, 64)),
    "2000 x 2000 by vector": ("ij,j->i", (2000, 2000), (2000,)),
    "20000 x 64 by vector": ("ij,j->i", (20000, 64), (64,)),
    "256 x 256 by vector": ("ij,j->i", (256, 256), (256,)),
    "vector by 2000 x 2000": ("j,jk->k", (2000,), (2000, 2000)),
    "vector by 20000 x 64": ("j,jk->k", (20000,), (20000, 64)),
    "vector by 256 x 256": ("j,jk->k", (256,), (256, 256)),
    "64 of 128 x 128 by vector": ("bij,bj->bi", (64, 128, 128), (64, 128)),
    "1000 x 1 x 1000": ("ij,jk->ik", (1000, 1), (1, 1000)),
    "1000 x 2 x 1000": ("ij,jk->ik", (1000, 2), (2, 1000)),
    "1000 x 4 x 1000": ("ij,jk->ik", (1000, 4), (4, 1000)),
    "16 of 8 x 8": ("bij,bjk->bik", (16, 8, 8), (16, 8, 8)),
    "1024 of 8 x 8": ("bij,bjk->bik", (1024, 8, 8), (1024, 8, 8)),
    "128 of 16 x 16": ("bij,bjk->bik", (128, 16, 16), (128, 16, 16)),
    "64 of 32 x 32": ("bij,bjk->bik", (64, 32, 32), (64, 32, 32)),
    "16 of 64 x 64": ("bij,bjk->bik", (16, 64, 64), (16, 64, 64)),
}

LOOPS: dict[str, Any] = {
    "value iteration": ("ij,j->i", (512, 512), (512,)),
    "Bellman-Ford": ("j,jk->k", (512,), (512, 512)),
    "Viterbi scan": ("j,jk->k", (64,), (64, 64)),
}

Step = Callable[..., Any]


def steps(equation: str) -> dict[str, tuple[Step, Step]]:
    """Of value, and of value and winner: our call and the line."""

    def line(lhs: jax.Array, *others: jax.Array) -> tuple[jax.Array, int]:
        if not others:
            return lhs, -1 if equation.endswith("i") else 0
        (rhs,) = others
        if equation.endswith("ik"):
            return lhs[..., :, :, None] + rhs[..., None, :, :], -2
        if equation == "j,jk->k":
            return lhs[:, None] + rhs, 0
        return lhs + rhs[..., None, :], -1

    def line_value(*operands: jax.Array) -> jax.Array:
        candidates, axis = line(*operands)
        return candidates.min(axis)

    def line_winner(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        candidates, axis = line(*operands)
        return candidates.min(axis), candidates.argmin(axis)

    def ours(*operands: jax.Array) -> jax.Array:
        return tropical_einsum(equation, *operands, semiring=min_plus)

    def ours_winner(*operands: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = tropical_einsum_with_argmax(equation, *operands, semiring=min_plus)
        return found.value, found.winner

    return {"value": (ours, line_value), "winner": (ours_winner, line_winner)}


def gradient(step: Step) -> Step:
    """In all operands."""
    return lambda *operands: jax.grad(lambda operands: step(*operands).sum())(operands)


def value_iteration(step: Step) -> Step:
    """100 sweeps."""
    return lambda costs, start: jax.lax.fori_loop(0, 100, lambda _, v: step(costs, v), start)


def bellman_ford(step: Step) -> Step:
    """Distances, until none changes."""

    def distances(start: jax.Array, lengths: jax.Array) -> jax.Array:
        def turn(state: Any) -> Any:
            new = jnp.minimum(state[0], step(state[0], lengths))
            return new, jnp.any(new != state[0])

        return jax.lax.while_loop(lambda state: state[1], turn, (start, jnp.bool_(True)))[0]

    return distances


def viterbi_scan(step: Step) -> Step:
    """The last scores and all back pointers."""
    return lambda start, costs: jax.lax.scan(
        lambda score, _: step(score, costs), start, None, length=200
    )


def cases(text: str, dtypes: Iterable[str]) -> Iterable[tuple[str, str, str, tuple[Step, Step]]]:
    """(name, dtype, question, ours and the line)."""
    for name, (equation, *_) in SHAPES.items():
        pairs = steps(equation)
        questions = pairs | {"gradient": tuple(map(gradient, pairs["value"]))}
        for dtype in dtypes:
            for question, pair in questions.items():
                if text in name and not (question == "gradient" and dtype == "int32"):
                    yield name, dtype, question, pair
    loops = zip(
        LOOPS,
        (value_iteration, bellman_ford, viterbi_scan),
        ("value", "value", "winner"),
        strict=True,
    )
    for name, loop, question in loops:
        if text in name:
            pair = steps(LOOPS[name][0])[question]
            yield name, "float32", question, tuple(map(loop, pair))


def measured(text: str, dtypes: Iterable[str], repeats: int) -> dict[str, tuple[float, float]]:
    """Lowest seconds of our call and of the line, by name, dtype and question."""
    found = {}
    rng = np.random.default_rng(0)
    for name, dtype, question, pair in cases(text, dtypes):
        _, *shapes = (SHAPES | LOOPS)[name]
        arrays = [jnp.asarray((rng.random(shape) * 1000).astype(dtype)) for shape in shapes]
        runs = [jax.jit(fn).lower(*arrays).compile() for fn in pair]
        lows = alternating([functools.partial(run, *arrays) for run in runs], repeats)
        found[f"{name}, {dtype}, {question}"] = (lows[0][1], lows[1][1])
    return found


def main(
    text: str = "", dtypes: Iterable[str] = ("float32", "float64", "int32"), repeats: int = 20
) -> dict[str, tuple[float, float, float, float]]:
    """Print the table: our lowest time and the line's on all threads, then on one, in a process of
    its own. Returns the same in seconds.
    """
    print(header(__doc__))
    print(
        "us and, behind it, times the line's; then the same on one thread\n"
        + f"{'':>34}"
        + "".join(f" | {question:>24}" for question in ("value", "winner", "gradient"))
    )
    command = [sys.executable, "-m", "benchmarks.one_line", "--json", "--cases", text]
    command += ["--repeats", str(repeats), "--dtypes", *dtypes]
    flags = f"{os.environ.get('XLA_FLAGS', '')} {ONE_THREAD}"
    child = subprocess.run(
        command, env=os.environ | {"XLA_FLAGS": flags}, capture_output=True, text=True, check=True
    )
    one = json.loads(child.stdout)
    with jax.enable_x64(True):
        every = {name: (*row, *one[name]) for name, row in measured(text, dtypes, repeats).items()}
    rows: dict[str, list[str]] = {}
    for name, row in every.items():
        of, _, _ = name.rpartition(", ")
        cells = (f"{a * 1e6:6.0f} {a / b:5.2f}" for a, b in (row[:2], row[2:]))
        rows.setdefault(of, []).append(" ".join(cells))
    for name, found in rows.items():
        print(f"{name:>34}" + "".join(f" | {cell}" for cell in found))
    return every


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", default="", help="part of their names")
    parser.add_argument("--dtypes", nargs="+", default=("float32", "float64", "int32"))
    parser.add_argument("--repeats", type=int, default=20)
    parser.add_argument("--json", action="store_true", help="seconds in this process alone")
    given = parser.parse_args()
    if given.json:
        jax.config.update("jax_enable_x64", True)
        print(json.dumps(measured(given.cases, given.dtypes, given.repeats)))
    else:
        main(given.cases, given.dtypes, given.repeats)
