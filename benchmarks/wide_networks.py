"""Hypothesis: the best assignment of a network too wide for a quick elimination takes at most three
times the better of toulbar2 and elimination.

Scores of a normal distribution, float32, of single variables and of pairs; spins have pairs alone,
of +1 and -1. The search has a new network in its first call, which plans; later ones are the least
of several. toulbar2 (pip install pytoulbar2) is timed without building its problem, and stops after
20 s; elimination is `best(1)`, where its plan has at most 10^8 entries in a result.

    python -m benchmarks.wide_networks [--sizes 16 24 30 50 100] [--repeats 5]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ext_tropical import Network
from tenferro_jax.errors import ShapeError

from .measure import header, lowest
from .network_peers import timed_search

MOST_ENTRIES = 10**8
"""In a result of an elimination that is timed."""

Factor = tuple[tuple[str, ...], np.ndarray]


class Row(NamedTuple):
    """Whether the best score was proved, and seconds; None where a peer does not answer."""

    proved: bool
    first: float
    later: float
    toulbar2: float | None
    elimination: float | None


def fields(size: int, states: int, moves: Sequence[tuple[int, int]]) -> Iterator[Factor]:
    """The tables of a grid, of single variables and of neighbours by moves."""
    rng = np.random.default_rng(0)
    for i, j in itertools.product(range(size), repeat=2):
        yield (f"x{i}_{j}",), rng.normal(size=states)
        for down, right in moves:
            if i + down < size and 0 <= j + right < size:
                other = f"x{i + down}_{j + right}"
                yield (f"x{i}_{j}", other), rng.normal(size=(states, states))


def spins(size: int) -> Iterator[Factor]:
    """The tables of a grid of pairs that are alike, or not."""
    rng = np.random.default_rng(0)
    for scope, _ in fields(size, 2, FOUR):
        if len(scope) == 2:
            yield scope, rng.choice([-1.0, 1.0]) * np.eye(2)


def graph(variables: int, pairs: int, states: int) -> Iterator[Factor]:
    """The tables of random pairs."""
    rng = np.random.default_rng(0)
    for i in range(variables):
        yield (f"x{i}",), rng.normal(size=states)
    for _ in range(pairs):
        one, other = rng.choice(variables, 2, replace=False)
        yield (f"x{one}", f"x{other}"), rng.normal(size=(states, states))


FOUR = ((0, 1), (1, 0))
EIGHT = ((0, 1), (1, 0), (1, 1), (1, -1))


def kinds(sizes: Sequence[int]) -> dict[str, Callable[[], Iterator[Factor]]]:
    """The networks by name."""
    found: dict[str, Callable[[], Iterator[Factor]]] = {}
    for size in sizes:
        found[f"grid {size} x {size}"] = lambda size=size: fields(size, 2, FOUR)
    some = min(max(sizes), 24)
    found[f"grid {some} x {some}, 4 states"] = lambda: fields(some, 4, FOUR)
    found[f"8 neighbours {some} x {some}"] = lambda: fields(some, 2, EIGHT)
    found["graph of 200, 260 pairs, 4 states"] = lambda: graph(200, 260, 4)
    found["graph of 60, 120 pairs, 3 states"] = lambda: graph(60, 120, 3)
    spin = min(max(sizes), 20)
    found[f"spins {spin} x {spin}"] = lambda: spins(spin)
    return found


def asked(kind: str, factors: Sequence[Factor], repeats: int) -> Row:
    """The times of one network, whose best scores are compared."""
    tables = [table.astype(np.float32) for _, table in factors]
    net = Network.from_factors(zip([scope for scope, _ in factors], tables, strict=True))
    start = time.perf_counter()
    best = proved(net)
    first = time.perf_counter() - start
    (later,) = lowest([lambda: proved(net)], 10.0, repeats)
    theirs = timed_search(net.equation, tables, 20)
    if theirs is not None and best is not None and abs(theirs.total - best) > 1e-4 * abs(best):
        raise AssertionError(f"{kind}: {best} and {theirs.total} of toulbar2")
    return Row(
        proved=best is not None,
        first=first,
        later=later,
        toulbar2=theirs and theirs.seconds,
        elimination=by_elimination(net, best, repeats),
    )


def proved(net: Network) -> float | None:
    """The best score; None where the search ends without a proof."""
    try:
        return float(net.best().value)
    except ShapeError:
        return None


def by_elimination(net: Network, best: float | None, repeats: int) -> float | None:
    """A later call of it; None where it is too large."""
    try:
        plan = net.plan().plan
    except ShapeError:
        return None
    if max(step.size for step in plan.steps) > MOST_ENTRIES:
        return None
    found = float(net.best(1).value[0])
    if best is not None and abs(found - best) > 1e-4 * abs(best):
        raise AssertionError(f"{best} and {found} by elimination")
    return lowest([lambda: net.best(1)], 10.0, repeats)[0]


def main(sizes: Sequence[int] = (16, 24, 30, 50, 100), repeats: int = 5) -> list[Row]:
    """Measure, and print a line for each network."""
    print(header(__doc__))
    rows = []
    print(f"{'ms':42}{'first':>8}{'later':>8}{'toulbar2':>10}{'elimination':>13}{'ratio':>8}")
    for kind, factors in kinds(sizes).items():
        row = asked(kind, list(factors()), repeats)
        peers = [x for x in (row.toulbar2, row.elimination) if x is not None]
        ratio = f"{row.later / min(peers):.1f}" if peers and row.proved else "-"
        told = [f"{1e3 * x:.1f}" if x is not None else "-" for x in row[1:]]
        name = kind if row.proved else f"{kind}, open"
        print(f"{name:42}{told[0]:>8}{told[1]:>8}{told[2]:>10}{told[3]:>13}{ratio:>8}", flush=True)
        rows.append(row)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[16, 24, 30, 50, 100])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    main(options.sizes, options.repeats)
