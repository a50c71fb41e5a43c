"""Hypothesis: a closure takes at most a tenth of SciPy's Floyd and Warshall, and less than two
products of matrices of its size.

Lengths of shortest paths between all pairs of a complete graph; with predecessors; and the gradient
of their sum. `product` is one `tropical_einsum` of the same size, with winners where predecessors
are asked, and its gradient. SciPy takes float64 and uses one core. Values are compared with
SciPy's, and predecessors by the edges that they name.

    python -m benchmarks.closures [--sizes 256 1024] [--seconds 2]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import closure, tropical_einsum, tropical_einsum_with_argmax

from .measure import header, installed, load, lowest

GOAL = 10
"""SciPy's time over ours."""


def product(a: jax.Array) -> jax.Array:
    """One product."""
    return tropical_einsum("ij,jk->ik", a, a, semiring="min_plus")


def with_predecessors(a: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The closure, and the node before the last of each walk."""
    found = closure(a)
    return found.value, found.predecessors()


WAYS: dict[str, dict[str, Callable[[jax.Array], Any]]] = {
    "value": {"closure": lambda a: closure(a).value, "product": product},
    "predecessors": {
        "closure": with_predecessors,
        "product": lambda a: tropical_einsum_with_argmax("ij,jk->ik", a, a, semiring="min_plus"),
    },
    "gradient": {
        "closure": jax.value_and_grad(lambda a: closure(a).value.sum()),
        "product": jax.value_and_grad(lambda a: product(a).sum()),
    },
}


def checked(a: np.ndarray, value: np.ndarray, before: np.ndarray, theirs: np.ndarray) -> None:
    """Whether these are the lengths, and each walk's last edge completes a shortest one."""
    tolerance = 1e-5 if a.dtype == np.float32 else 1e-12
    np.testing.assert_allclose(value, theirs, rtol=tolerance)
    i, j = np.nonzero(before >= 0)
    np.testing.assert_allclose(
        theirs[i, before[i, j]] + a[before[i, j], j], theirs[i, j], rtol=tolerance
    )
    np.testing.assert_array_equal(before < 0, np.eye(len(a), dtype=bool))


def measured(size: int, dtype: str, seconds: float) -> dict[str, dict[str, float]]:
    """Lowest seconds by question and by way.

    Raises:
      AssertionError: the answers differ.
    """
    rng = np.random.default_rng(0)
    with jax.enable_x64(dtype == "float64"):
        a = np.abs(rng.normal(size=(size, size)) * 100).astype(dtype)
        given = jnp.asarray(a)
        asked: dict[str, dict[str, Callable[[], Any]]] = {
            name: {way: functools.partial(jax.jit(f), given) for way, f in ways.items()}
            for name, ways in WAYS.items()
        }
        answers = {name: jax.block_until_ready(ways["closure"]()) for name, ways in asked.items()}
        if (peer := installed("scipy.sparse.csgraph")) is not None:
            asked["value"]["SciPy"] = lambda: peer.floyd_warshall(a)
            asked["predecessors"]["SciPy"] = lambda: peer.floyd_warshall(
                a, return_predecessors=True
            )
            theirs = peer.floyd_warshall(a)
            checked(a, *(np.asarray(x) for x in answers["predecessors"]), theirs)
            # The sum of all lengths is each edge times how many walks take it.
            total, uses = answers["gradient"]
            sums = float(total), np.vdot(np.asarray(uses, "f8"), a)
            np.testing.assert_allclose(sums, theirs.sum(), 1e-4)
        runs = [run for ways in asked.values() for run in ways.values()]
        for run in runs:
            jax.block_until_ready(run())
        lows = iter(lowest(runs, seconds / len(runs)))
        return {name: {way: next(lows) for way in ways} for name, ways in asked.items()}


def main(
    sizes: Sequence[int] = (256, 1024), seconds: float = 2
) -> dict[tuple[int, str], dict[str, dict[str, float]]]:
    """Print and return the figures by size and dtype."""
    print(header(__doc__))
    found = {}
    for size in sizes:
        for dtype in ("float32", "float64"):
            print(f"{size} nodes, {dtype}: ms; SciPy / closure; closure / product")
            found[size, dtype] = measured(size, dtype, seconds)
            for name, ways in found[size, dtype].items():
                row = "  ".join(f"{way} {low * 1e3:.2f}" for way, low in ways.items())
                theirs = f"{ways['SciPy'] / ways['closure']:.1f}" if "SciPy" in ways else "-"
                print(f"  {name:>12}: {row}  ({theirs}; {ways['closure'] / ways['product']:.1f})")
    for name in ("value", "predecessors"):
        ratios = [
            rows[name]["SciPy"] / rows[name]["closure"]
            for rows in found.values()
            if "SciPy" in rows[name]
        ]
        if ratios:
            met = "met" if min(ratios) >= GOAL else "not met"
            print(f"SciPy / closure, {name}: at least {GOAL}; least {min(ratios):.1f}: {met}")
        else:
            print("SciPy is not installed")
    print(load())
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="*", type=int, default=(256, 1024))
    parser.add_argument("--seconds", type=float, default=2, help="of each size and dtype")
    given = parser.parse_args()
    main(given.sizes, given.seconds)
