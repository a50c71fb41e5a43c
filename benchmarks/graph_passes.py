"""Hypothesis: XLA folds transposes into matrix products and orders contracted axes by itself; graph
passes add nothing.

Each row is one computation written twice: as it comes, and as a pass would leave it (the transpose
folded into the dimension numbers, or the contracted axes in ascending order).

    python -m benchmarks.graph_passes [--repeats 100]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .measure import alternating, header


def dot(
    a: Any, b: Any, contracting: Sequence[Sequence[int]], batch: Sequence[Sequence[int]] = ((), ())
) -> Any:
    """lax.dot_general."""
    return jax.lax.dot_general(a, b, (contracting, batch))


Function = Callable[[Any, Any], Any]
CASES: dict[
    str, tuple[Function, Function, Callable[[int], tuple[tuple[int, ...], tuple[int, ...]]]]
] = {
    "fold x.T @ y": (
        lambda a, b: dot(a.T, b, ((1,), (0,))),
        lambda a, b: dot(a, b, ((0,), (0,))),
        lambda n: ((n, n), (n, n)),
    ),
    "fold x @ y.T": (
        lambda a, b: dot(a, b.T, ((1,), (0,))),
        lambda a, b: dot(a, b, ((1,), (1,))),
        lambda n: ((n, n), (n, n)),
    ),
    "fold x.T @ y.T": (
        lambda a, b: dot(a.T, b.T, ((1,), (0,))),
        lambda a, b: dot(a, b, ((0,), (1,))),
        lambda n: ((n, n), (n, n)),
    ),
    "fold attention bqhd,bkhd": (
        lambda q, k: dot(
            q.transpose(0, 2, 1, 3), k.transpose(0, 2, 3, 1), ((3,), (2,)), ((0, 1), (0, 1))
        ),
        lambda q, k: dot(q, k, ((3,), (3,)), ((0, 2), (0, 2))),
        lambda n: ((4, n // 4, 8, 64), (4, n // 4, 8, 64)),
    ),
    "fold a chain of three": (
        lambda a, b: dot(
            a.transpose(1, 2, 0).transpose(1, 2, 0).transpose(2, 1, 0), b, ((0,), (0,))
        ),
        lambda a, b: dot(a, b, ((1,), (0,))),
        lambda n: ((n // 8, n // 4, n // 8), (n // 4, n // 8)),
    ),
    "sort both, n/2 rows": (
        lambda a, b: dot(a, b, ((2, 1), (1, 0))),
        lambda a, b: dot(a, b, ((1, 2), (0, 1))),
        lambda n: ((n // 2, 32, 32), (32, 32, n // 2)),
    ),
    "sort both, 1 row": (
        lambda a, b: dot(a, b, ((2, 1), (1, 0))),
        lambda a, b: dot(a, b, ((1, 2), (0, 1))),
        lambda n: ((1, n // 2, n // 2), (n // 2, n // 2, 64)),
    ),
    "sort lhs, which unsorts rhs": (
        lambda a, b: dot(a, b, ((2, 1), (0, 1))),
        lambda a, b: dot(a, b, ((1, 2), (1, 0))),
        lambda n: ((n // 2, 32, 32), (32, 32, n // 2)),
    ),
}


def main(n: int = 512, repeats: int = 100) -> dict[str, float]:
    """Print the table; returns for each case the ratio of medians, as it comes over rewritten."""
    print(header(__doc__))
    print(
        f"{'float32, median (lowest)':>28} | HLO instructions | {'as it comes':>18} | "
        f"{'rewritten':>18} | ratio of medians (lowest)"
    )
    ratios = {}
    rng = np.random.default_rng(0)
    for name, (plain, rewritten, shapes) in CASES.items():
        args = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes(n)]
        both = [jax.jit(f).lower(*args).compile() for f in (plain, rewritten)]
        sizes = [sum(" = " in line for line in c.as_text().splitlines()) for c in both]
        before, after = alternating([functools.partial(c, *args) for c in both], repeats)
        ratios[name] = before[0] / after[0]
        times = " | ".join(
            f"{median * 1e3:6.3f} ({low * 1e3:6.3f}) ms" for median, low in (before, after)
        )
        print(
            f"{name:>28} | {sizes[0]:>5} -> {sizes[1]:<5}   | {times} | {ratios[name]:5.2f} "
            f"({before[1] / after[1]:.2f})"
        )
    return ratios


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    main(repeats=parser.parse_args().repeats)
