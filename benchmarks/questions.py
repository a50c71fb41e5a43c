"""Hypothesis: ten best assignments take at most 12 times one, a thousand samples 20 times the
partition function, a count 6 times a loop's value; of 200 tables each first answer takes a second.

A Network of each kind of benchmarks.networks, float32. `first` is of a network that is new to this
process, which has imported everything and answered other questions; `again` the least of several
calls in turn. The loops are NumPy along opt_einsum's path, planning included; a loop's marginals
are those of every table. toulbar2 (pip install pytoulbar2) is given the tenth best value, proves it
and lists what is no worse; its rows are of one call, with building its problem. Answers are
compared.

    python -m benchmarks.questions [--tables 60 200] [--kinds grid tree]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from ext_tropical import Network

from .measure import alternating, header
from .network_peers import LOOP, listed, toulbar2
from .networks import KINDS, network, timed

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
LOOPS = {
    "loop: value": "value",
    "loop: log_partition": "log_sum_exp",
    "loop: marginals": "its gradient",
}
"""Rows, and the loops of network_peers."""

GOALS = {
    "best, k=10": ("best", 12),
    "sample 1000": ("log_partition", 20),
    "count": ("loop: value", 6),
}
"""A question, another one, and how many times as long the first may take."""

FIRST = 1.0
"""Seconds that a first answer may take, of any question but toulbar2's and the loops'."""

Rows = dict[str, tuple[float, float]]
"""Seconds of the first answer to a question, and of the next."""


def measured(kind: str, count: int, seed: int, repeats: int = 5) -> Rows:
    """The rows of one network.

    Raises:
      AssertionError: an answer is not that of a loop or of toulbar2.
    """
    equation, tables = network(kind, count, seed)
    net = Network(equation, *tables)
    asked: dict[str, Callable[[], Any]] = {
        name: lambda ask=ask: jax.block_until_ready(ask(net)) for name, ask in QUESTIONS.items()
    }
    asked |= {row: functools.partial(LOOP[name], equation, tables) for row, name in LOOPS.items()}
    first, answers = {}, {}
    for name, ask in asked.items():
        first[name], answers[name] = timed(ask)
    again = alternating(list(asked.values()), repeats)
    rows = {name: (first[name], low) for name, (_, low) in zip(asked, again, strict=True)}
    close = functools.partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-3)
    close(answers["value"], answers["loop: value"])
    close(answers["log_partition"], answers["loop: log_partition"])
    for scope, share in zip(net.scopes, answers["loop: marginals"], strict=True):
        if len(scope) == 1:
            close(answers["marginals"][scope[0]], share)
    if toulbar2() is not None:
        best = np.asarray(answers["best, k=10"].value)
        seconds, found = timed(lambda: listed(equation, tables, float(best[-1]) - 1e-3))
        close([value for value, _ in found[:10]], best)
        rows["toulbar2, k=10"] = (seconds, seconds)
    return rows


def goals(found: Mapping[tuple[str, int], Rows]) -> Iterator[str]:
    """The worst figure of every goal, and where."""
    figures = {
        f"{name} / {base}, again: at most {most}": {
            where: rows[name][1] / rows[base][1] for where, rows in found.items()
        }
        for name, (base, most) in GOALS.items()
    }
    figures[f"first answer, s: at most {FIRST:g}"] = {
        (*where, name): rows[name][0] for where, rows in found.items() for name in QUESTIONS
    }
    for goal, of in figures.items():
        where = max(of, key=of.__getitem__)
        met = "met" if of[where] <= float(goal.split()[-1]) else "not met"
        yield f"{goal}; worst {of[where]:.2f}, {' '.join(map(str, where))}: {met}"


def main(
    kinds: Sequence[str] = tuple(KINDS), counts: Sequence[int] = (200,), repeats: int = 5
) -> dict[tuple[str, int], Rows]:
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
                print(f"  {name:>19} {first * 1e3:8.1f} {again * 1e3:8.2f}{ratio}", flush=True)
    print("\n".join(goals(found)))
    if toulbar2() is None:
        print("toulbar2 is not installed")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kinds", nargs="*", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--tables", nargs="*", type=int, default=(200,))
    given = parser.parse_args()
    main(given.kinds, given.tables)
