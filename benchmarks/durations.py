"""Hypothesis: a chain with durations is at least ten times as fast as the same chain of states (s,
times left) from durations up to 50 on; the score of all sequences with its gradient takes at most
four times the best path; a million times fit into 1 GiB.

Log probabilities, float32; the peer is a `Chain` of S D states whose emission has columns,
and its answers are compared. The long chain is run in a process of its own, of which the greatest
memory is told, with that of Python and JAX.

    python -m benchmarks.durations [--times 1000000] [--seconds 2]
"""

from __future__ import annotations

import argparse
import functools
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import numpy as np

from ext_tropical import Chain

from .measure import header, lowest

SIZES = ((2000, 5, 20), (2000, 5, 50), (2000, 10, 50), (10000, 5, 100))
"""Times, states and the longest duration."""


class Row(NamedTuple):
    """Seconds of the questions, ours and as a chain of S D states."""

    size: tuple[int, int, int]
    ours: dict[str, float]
    theirs: dict[str, float]


class Scores(NamedTuple):
    """Log probabilities."""

    initial: np.ndarray
    transition: np.ndarray
    durations: np.ndarray
    emission: np.ndarray


def scores(times: int, states: int, longest: int) -> Scores:
    """Of a model at random."""
    rng = np.random.default_rng(0)
    found = (
        np.log(np.full(states, 1 / states)),
        np.log(rng.dirichlet(np.ones(states), states)),
        np.log(rng.dirichlet(np.ones(longest), states)),
        rng.normal(size=(times, states)),
    )
    return Scores(*(x.astype(np.float32) for x in found))


def with_durations(model: Scores, emission: jax.Array) -> Chain:
    """The chain itself."""
    return Chain(model.initial, model.transition, emission, durations=model.durations)


def of_more_states(model: Scores, emission: jax.Array) -> Chain:
    """Of states (s, how often after this time)."""
    states, longest = model.durations.shape
    moves = np.full((states, longest, states, longest), -np.inf, np.float32)
    for s in range(states):
        left = np.arange(1, longest)
        moves[s, left, s, left - 1] = 0
        for other in {*range(states)} - {s}:
            moves[s, 0, other] = model.transition[s, other] + model.durations[other]
    size = states * longest
    return Chain(
        (model.initial[:, None] + model.durations).reshape(size),
        moves.reshape(size, size),
        emission,
        final=np.where(np.arange(size) % longest == 0, 0, -np.inf).astype(np.float32),
        columns=np.repeat(np.arange(states, dtype=np.int32), longest),
    )


def questions(
    chain: Callable[[jax.Array], Chain], emission: np.ndarray
) -> dict[str, Callable[[], object]]:
    """Compiled calls."""

    def whole(x: jax.Array) -> jax.Array:
        return chain(x).log_partition()

    asked: dict[str, Callable[..., object]] = {
        "best": lambda x: chain(x).best(),
        "all": whole,
        "gradient": jax.value_and_grad(whole),
    }
    given = jax.device_put(emission)
    return {name: functools.partial(jax.jit(ask), given) for name, ask in asked.items()}


def measured(size: tuple[int, int, int], seconds: float) -> Row:
    """The times of one size, whose scores are compared."""
    model = scores(*size)
    both = [
        questions(functools.partial(chain, model), model.emission)
        for chain in (with_durations, of_more_states)
    ]
    for name in both[0]:
        ours, theirs = (jax.tree.leaves(asked[name]())[0] for asked in both)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4)
    took = lowest([run for asked in both for run in asked.values()], seconds)
    names = [*both[0]]
    return Row(
        size=size,
        ours=dict(zip(names, took, strict=False)),
        theirs=dict(zip(names, took[len(names) :], strict=True)),
    )


def long_chain(times: int) -> None:
    """The seconds of the questions of a long chain, and the memory of this process."""
    model = scores(times, 5, 100)
    for name, run in questions(functools.partial(with_durations, model), model.emission).items():
        jax.block_until_ready(run())
        start = time.perf_counter()
        jax.block_until_ready(run())
        print(f"{name} {time.perf_counter() - start:.2f} s", end=", ")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"at most {peak:.2f} GiB")


def main(
    sizes: Sequence[tuple[int, int, int]] = SIZES, times: int = 1_000_000, seconds: float = 2.0
) -> list[Row]:
    """Measure, and print a line for each size and question."""
    print(header(__doc__))
    rows = [measured(size, seconds) for size in sizes]
    print(f"{'T, S, D':20}{'question':>10}{'ms':>9}{'S D states':>12}{'ratio':>8}{'/ best':>8}")
    for row in rows:
        for name, took in row.ours.items():
            theirs = row.theirs[name]
            told = f"{', '.join(map(str, row.size)):20}{name:>10}{1e3 * took:9.2f}"
            ratio, of_best = theirs / took, took / row.ours["best"]
            print(f"{told}{1e3 * theirs:12.1f}{ratio:8.0f}{of_best:8.1f}")
    print(f"{times}, 5, 100: ", end="", flush=True)
    command = f"from benchmarks.durations import long_chain; long_chain({times})"
    print(subprocess.check_output([sys.executable, "-c", command], text=True), end="")
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=2.0)
    options = parser.parse_args()
    main(times=options.times, seconds=options.seconds)
