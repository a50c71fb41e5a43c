"""Hypothesis: a product of matrices under log_sum_exp takes at most 1.5 times what exp, matrix
product, log take, as does its gradient, and is never slower than one line of jax.nn.logsumexp.

The first peer shifts rows and columns by their maxima; where all candidates of a cell are far below
these it gives -inf or NaN, where ours is right. The line is
jax.nn.logsumexp(lhs[..., :, :, None] + rhs[..., None, :, :], -2).

    python -m benchmarks.log_sum_exp [--sizes 8 ...] [--dtypes TEXT ...] [--repeats 20]
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Iterable

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import log_sum_exp, tropical_einsum

from .measure import alternating, header

SIZES = ("8", "12", "16", "20", "32", "64", "128", "256", "512", "64 of 32")
LARGEST = 2**21
"""The most candidates of the line."""

Product = Callable[[jax.Array, jax.Array], jax.Array]


def products(temperature: float) -> dict[str, Product]:
    """Ours and the two peers."""

    def ours(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        semiring = log_sum_exp(temperature)
        return tropical_einsum("...ij,...jk->...ik", lhs, rhs, semiring=semiring)

    def of_matrices(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        lhs, rhs = lhs / temperature, rhs / temperature
        rows, columns = lhs.max(-1, keepdims=True), rhs.max(-2, keepdims=True)
        factors = jnp.exp(lhs - rows), jnp.exp(rhs - columns)
        total = jnp.matmul(*factors, precision="highest")
        return temperature * (rows + columns + jnp.log(total))

    def line(lhs: jax.Array, rhs: jax.Array) -> jax.Array:
        candidates = lhs[..., :, :, None] + rhs[..., None, :, :]
        return temperature * jax.nn.logsumexp(candidates / temperature, -2)

    return {"ours": ours, "matrices": of_matrices, "line": line}


def measured(size: str, dtype: str, temperature: float, repeats: int) -> dict[str, list[float]]:
    """Lowest seconds of value, and of value and gradient, by product."""
    *batch, n = map(int, size.split(" of "))
    rng = np.random.default_rng(0)
    operands = [jnp.asarray(rng.normal(size=(*batch, n, n)), dtype) for _ in range(2)]
    fns = products(temperature)
    if n**3 * int(np.prod(batch)) > LARGEST:
        del fns["line"]

    def gradient(product: Product) -> Callable[..., object]:
        return jax.value_and_grad(lambda lhs, rhs: product(lhs, rhs).sum(), (0, 1))

    rows = []
    for questions in (fns.values(), map(gradient, fns.values())):
        runs = [jax.jit(fn).lower(*operands).compile() for fn in questions]
        lows = alternating([functools.partial(run, *operands) for run in runs], repeats)
        rows.append([low for _, low, *_ in lows])
    return dict(zip(fns, map(list, zip(*rows, strict=True)), strict=True))


def main(
    sizes: Iterable[str] = SIZES, dtypes: Iterable[str] = ("float32", "float64"), repeats: int = 20
) -> dict[tuple[str, str, float], dict[str, list[float]]]:
    """Print the table. Returns the lowest seconds."""
    print(header(__doc__))
    print(
        "us, and behind it times exp, product, log, and times the line\n"
        f"{'':>8} {'':>8}    T" + "".join(f" | {q:>20}" for q in ("value", "with gradient"))
    )
    found = {}
    with jax.enable_x64(True):
        for size in sizes:
            for dtype in dtypes:
                for temperature in (1.0, 0.1):
                    lows = measured(size, dtype, temperature, repeats)
                    found[size, dtype, temperature] = lows
                    peers = (lows["matrices"], lows.get("line", [np.nan, np.nan]))
                    cells = (
                        f"{ours * 1e6:8.0f} {ours / x:5.2f} {ours / y:5.2f}".replace("nan", "  -")
                        for ours, x, y in zip(lows["ours"], *peers, strict=True)
                    )
                    print(
                        f"{size:>8} {dtype:>8} {temperature:4}" + "".join(f" | {c}" for c in cells)
                    )
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", nargs="+", default=SIZES)
    parser.add_argument("--dtypes", nargs="+", default=("float32", "float64"))
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    main(given.sizes, given.dtypes, given.repeats)
