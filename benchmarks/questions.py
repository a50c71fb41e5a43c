"""Hypothesis: ten best assignments take at most 12 times one, a thousand samples 20 times the
partition function, a count 6 times a value; of 200 tables each first answer takes a second.

A Network of each kind of benchmarks.networks, float32. `first` is of a network that is new to this
process, which has imported everything and answered other questions; `again` the least of several
calls in turn. The loop is a value in NumPy along the same plan, planning included.

    python -m benchmarks.questions [--tables 60 200] [--kinds grid tree]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from ext_tropical import Network

from .measure import alternating, header
from .network_peers import LOOP
from .networks import KINDS, network

QUESTIONS: dict[str, Callable[[Network], Any]] = {
    "value": Network.value,
    "best": Network.best,
    "best, k=10": lambda net: net.best(k=10),
    "log_partition": Network.log_partition,
    "sample 1000": lambda net: net.sample(jax.random.key(0), (1000,)),
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "count": Network.count,
    "count best": lambda net: net.count(within=0),
}
GOALS = {"best, k=10": ("best", 12), "sample 1000": ("log_partition", 20), "count": ("value", 6)}
"""A question, another one, and how many times as long the first may take."""


def measured(kind: str, count: int, seed: int, repeats: int = 5) -> dict[str, tuple[float, float]]:
    """Seconds of the first and of the next answer to each question, and of the loop's."""
    equation, tables = network(kind, count, seed)
    net = Network(equation, *tables)
    asked = {
        name: lambda ask=ask: jax.block_until_ready(ask(net)) for name, ask in QUESTIONS.items()
    }
    asked["NumPy loop"] = lambda: LOOP["value"](equation, tables)
    first = {}
    for name, ask in asked.items():
        start = time.perf_counter()
        ask()
        first[name] = time.perf_counter() - start
    again = alternating(list(asked.values()), repeats)
    return {name: (first[name], low) for name, (_, low) in zip(asked, again, strict=True)}


def main(
    kinds: Sequence[str] = tuple(KINDS), counts: Sequence[int] = (200,), repeats: int = 5
) -> dict[tuple[str, int], dict[str, tuple[float, float]]]:
    """Print and return the figures by kind and number of tables."""
    print(header(__doc__ or ""))
    measured("tree", 20, 1)  # all that a process does once
    found = {}
    for kind in kinds:
        for count in counts:
            rows = found[kind, count] = measured(kind, count, 0, repeats)
            print(f"{kind}, {count} tables: ms first, again")
            for name, (first, again) in rows.items():
                base, most = GOALS.get(name, ("", 0))
                ratio = f"  {again / rows[base][1]:5.1f} x {base} (goal {most})" if base else ""
                print(f"  {name:>14} {first * 1e3:8.1f} {again * 1e3:8.2f}{ratio}")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tables", nargs="*", type=int, default=(200,))
    given = parser.parse_args()
    main(given.kinds, given.tables)
