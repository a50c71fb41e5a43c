"""Hypothesis: time grows as batch * rows * contracted * columns and with the number of operands, memory as the docs' formula.

Each size is doubled alone; the exponent is fitted to the upper half of the doublings. Memory is XLA's own: its temporaries and
outputs against what `plan_tropical_einsum` says.

    python -m benchmarks.growth [--doublings 5] [--plot growth.png]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import TROPICAL_RUNTIMES, Outputs, TropicalEinsum, max_plus, plan_tropical_einsum, tropical_einsum
from tenferro_jax import RouteKind
from tenferro_jax.extension import apply

from .measure import header, spread

Shapes = Sequence[tuple[int, ...]]


def step(kind: RouteKind, outputs: Outputs = Outputs.VALUE) -> Callable[..., Any]:
    """One contraction step by a route."""
    op = TropicalEinsum(max_plus, "bij,bjk->bik", outputs)
    return lambda a, b: apply(op, a, b, runtimes=TROPICAL_RUNTIMES.only(kind))


def chain(*matrices: Any) -> Any:
    """The product of any number of matrices."""
    parts = [part for i, x in enumerate(matrices) for part in (x, [i, i + 1])]
    return tropical_einsum(*parts, [0, len(matrices)], optimize="greedy")


def sweeps(doublings: int) -> dict[str, tuple[list[int], Callable[[int], Shapes]]]:
    """What is doubled: the sizes, and the shapes of the operands for a size."""
    sizes = [32 * 2**i for i in range(doublings)]
    return {
        "rows and columns": (sizes, lambda n: ((1, n, 256), (1, 256, n))),
        "contracted": (sizes, lambda k: ((1, 128, k), (1, k, 128))),
        "batch": ([2**i for i in range(doublings)], lambda b: ((b, 64, 64), (b, 64, 64))),
        "operands": ([2 * 2**i for i in range(doublings)], lambda count: ((32, 32),) * count),
    }


def seconds(fn: Callable[..., Any], shapes: Shapes, repeats: int) -> float:
    """The lowest time of a call."""
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    compiled = jax.jit(fn).lower(*arrays).compile()
    jax.block_until_ready(compiled(*arrays))
    return spread(lambda: jax.block_until_ready(compiled(*arrays)), repeats)[1]


def exponent(sizes: Sequence[int], values: Sequence[float]) -> float:
    """The slope of the logarithms over the upper half of the sizes."""
    half = max(2, len(sizes) // 2 + 1)
    return float(np.polyfit(np.log(sizes[-half:]), np.log(values[-half:]), 1)[0])


def memory(sizes: Sequence[int]) -> tuple[list[int], list[int]]:
    """Bytes that XLA allocates for a step with winners, and those of the plan, for growing contracted sizes."""
    found, said = [], []
    for k in sizes:
        shapes = (128, k), (k, 128)
        structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
        analysis = jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b)).lower(*structs).compile().memory_analysis()
        found.append(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)
        said.append(plan_tropical_einsum("ij,jk->ik", *shapes).peak or 0)
    return found, said


def main(doublings: int = 6, repeats: int = 5, plot_path: str | None = None) -> dict[str, float]:
    """Print times and exponents; returns the exponents."""
    print(header(__doc__.splitlines()[0]))
    curves: dict[str, tuple[list[int], list[float]]] = {}
    for name, (sizes, shapes) in sweeps(doublings).items():
        forms = {"": chain} if name == "operands" else {"native": step(RouteKind.KERNEL), "xla": step(RouteKind.LOWERING)}
        for route, fn in forms.items():
            try:
                curves[f"{name}, {route}".rstrip(", ")] = sizes, [seconds(fn, shapes(size), repeats) for size in sizes]
            except Exception as error:
                if "declines" not in str(error):
                    raise
    fitted = {name: exponent(sizes, values) for name, (sizes, values) in curves.items()}
    for name, (sizes, values) in curves.items():
        print(
            f"{name:>26}: exponent {fitted[name]:5.2f} | " + " ".join(f"{n}: {t * 1e3:.3g} ms" for n, t in zip(sizes, values, strict=True))
        )
    found, said = memory(sizes := [32 * 2**i for i in range(doublings)])
    print(f"{'memory, contracted':>26}: " + " ".join(f"{k}: {a} of {b}" for k, a, b in zip(sizes, found, said, strict=True)) + " bytes")
    if plot_path:
        plot(curves, (sizes, found, said), plot_path)
    return fitted


def plot(curves: dict[str, tuple[list[int], list[float]]], bytes: tuple[list[int], list[int], list[int]], path: str) -> None:
    """A panel a size, and one of memory."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    names = list(dict.fromkeys(name.split(",")[0] for name in curves))
    figure, axes = plt.subplots(1, len(names) + 1, figsize=(3 * (len(names) + 1), 3), layout="constrained")
    for axis, name in zip(axes, names, strict=False):
        for label, (sizes, values) in curves.items():
            if label.split(",")[0] == name:
                axis.loglog(sizes, values, "o-", label=f"{label.partition(', ')[2] or 'plan'}: n^{exponent(sizes, values):.2f}")
        axis.set(title=name, xlabel="size", ylabel="seconds")
        axis.legend()
    sizes, found, said = bytes
    axes[-1].loglog(sizes, found, "o-", label="XLA's")
    axes[-1].loglog(sizes, said, "--", label="the plan's bound")
    axes[-1].set(title="memory", xlabel="contracted", ylabel="bytes")
    axes[-1].legend()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doublings", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--plot")
    given = parser.parse_args()
    main(given.doublings, given.repeats, given.plot)
