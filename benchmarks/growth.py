"""Hypothesis: time grows as batch * rows * contracted * columns and with the number of operands,
memory as the docs' formula.

Each size is doubled alone; exponents are fitted to the larger half of the sizes. Memory is what XLA
allocates for a step with winners, temporaries and outputs, against the formula of
`tropical_einsum`: results, 12 b (m n + k (m + n)) bytes and 64 KiB.

    python -m benchmarks.growth [--doublings 7] [--repeats 5] [--json growth.json] [--plot
    growth.png]
"""

from __future__ import annotations

import argparse
import itertools
import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from ext_tropical import TropicalEinsum, max_plus, tropical_einsum
from ext_tropical.step.einsum_op import Outputs
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import header, spread

Shapes = Sequence[tuple[int, ...]]


class Sweep(NamedTuple):
    """One size that is doubled.

    Attributes:
      first: the smallest size.
      power: the exponent that the operations have.
      shapes: of the operands, for a size.
    """

    first: int
    power: int
    shapes: Callable[[int], Shapes]

    def sizes(self, doublings: int) -> list[int]:
        """All sizes."""
        return [self.first * 2**i for i in range(doublings)]


SWEEPS = {
    "rows and columns": Sweep(32, 2, lambda n: ((1, n, 256), (1, 256, n))),
    "contracted": Sweep(1024, 1, lambda k: ((1, 128, k), (1, k, 128))),
    "batch": Sweep(16, 1, lambda b: ((b, 64, 64), (b, 64, 64))),
    "operands": Sweep(2, 1, lambda count: ((64, 64),) * count),
}


class Curve(NamedTuple):
    """What was found for growing sizes, beside what was expected: seconds and an exponent, or bytes
    and the formula's.
    """

    sizes: list[int]
    found: list[float]
    expected: Any

    @property
    def fitted(self) -> list[int]:
        """The larger half of the sizes."""
        return self.sizes[-max(2, (len(self.sizes) + 1) // 2) :]

    @property
    def exponent(self) -> float:
        """The slope of the logarithms over the larger half."""
        return float(np.polyfit(np.log(self.fitted), np.log(self.found[-len(self.fitted) :]), 1)[0])


def step(kind: RouteKind | None, outputs: Outputs = Outputs.VALUE) -> Callable[..., Any]:
    """One contraction step by a route; None: by its own and, of a derivative, that of its ops."""
    op = TropicalEinsum(max_plus, "bij,bjk->bik", outputs)
    chosen = {} if kind is None else {"runtimes": op.runtimes.only(kind)}
    return lambda a, b: apply(op, a, b, **chosen)


def chain(*matrices: Any) -> Any:
    """The product of any number of matrices."""
    symbols = [get_symbol(i) for i in range(len(matrices) + 1)]
    terms = ",".join(map("".join, itertools.pairwise(symbols)))
    return tropical_einsum(f"{terms}->{symbols[0]}{symbols[-1]}", *matrices, optimize="greedy")


def gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of a step's values."""
    return jax.grad(lambda *operands: fn(*operands)[0].sum(), (0, 1))


STEPS = {
    "native": step(RouteKind.KERNEL),
    "xla": step(RouteKind.LOWERING),
    "native, gradient": gradient(step(None)),
    "xla, gradient": gradient(step(RouteKind.LOWERING)),
}


def seconds(fn: Callable[..., Any], shapes: Shapes, repeats: int) -> float:
    """The lowest time of a call."""
    rng = np.random.default_rng(0)
    arrays = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    compiled = jax.jit(fn).lower(*arrays).compile()
    jax.block_until_ready(compiled(*arrays))
    return spread(lambda: jax.block_until_ready(compiled(*arrays)), repeats)[1]


def times(doublings: int, repeats: int) -> dict[str, Curve]:
    """By what is doubled and how it is computed; without the routes that do not serve it."""
    curves = {}
    for name, sweep in SWEEPS.items():
        sizes = sweep.sizes(doublings)
        for route, fn in ({"plan": chain} if name == "operands" else STEPS).items():
            try:
                curves[f"{name}, {route}"] = Curve(
                    sizes, [seconds(fn, sweep.shapes(size), repeats) for size in sizes], sweep.power
                )
            except Exception as error:
                if "declines" not in str(error):
                    raise
    return curves


def memory(doublings: int) -> dict[str, Curve]:
    """Bytes beside the operands that XLA allocates for a step with winners, and those of the
    formula.
    """
    curves = {}
    for name, sweep in SWEEPS.items():
        if name == "operands":
            continue
        curve = curves[name] = Curve(sweep.sizes(doublings), [], [])
        for size in curve.sizes:
            (b, m, k), (_, _, n) = shapes = sweep.shapes(size)
            structs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
            analysis = (
                jax.jit(step(RouteKind.LOWERING, Outputs.VALUE_AND_WINNER))
                .lower(*structs)
                .compile()
                .memory_analysis()
            )
            curve.found.append(analysis.temp_size_in_bytes + analysis.output_size_in_bytes)
            curve.expected.append(8 * b * m * n + 12 * b * (m * n + k * (m + n)) + 2**16)
    return curves


def main(
    doublings: int = 7, repeats: int = 5, json_path: str | None = None, plot_path: str | None = None
) -> dict[str, dict[str, Curve]]:
    """Print times with exponents, and memory; returns both, and writes them as JSON and as a plot
    if asked.
    """
    print(header(__doc__))
    found = {"time": times(doublings, repeats), "memory": memory(doublings)}
    print(f"{'ms':>35} | exponent, of operations | sizes fitted to | all sizes")
    for name, curve in found["time"].items():
        cells = " ".join(
            f"{size}: {value * 1e3:.3g}"
            for size, value in zip(curve.sizes, curve.found, strict=True)
        )
        span = f"{curve.fitted[0]} to {curve.fitted[-1]}"
        print(f"{name:>35} | {curve.exponent:8.2f} {curve.expected:14} | {span:>15} | {cells}")
    print(f"{'KiB':>35} | of the formula, at most | all sizes")
    for name, curve in found["memory"].items():
        cells = " ".join(
            f"{size}: {value / 2**10:.0f}"
            for size, value in zip(curve.sizes, curve.found, strict=True)
        )
        worst = max(have / said for have, said in zip(curve.found, curve.expected, strict=True))
        print(f"{name:>35} | {worst:23.0%} | {cells}")
    if json_path:
        rows = {
            kind: {name: curve._asdict() for name, curve in curves.items()}
            for kind, curves in found.items()
        }
        pathlib.Path(json_path).write_text(
            json.dumps({"machine": header("").split("\n")[1], **rows}, indent=1) + "\n"
        )
    if plot_path:
        plot(found["time"], found["memory"], plot_path)
    return found


def plot(times: dict[str, Curve], memory: dict[str, Curve], path: str) -> None:
    """A panel a size, and one of memory."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    figure, axes = plt.subplots(
        1, len(SWEEPS) + 1, figsize=(3.2 * (len(SWEEPS) + 1), 4.0), layout="constrained"
    )
    for axis, name in zip(axes, SWEEPS, strict=False):
        for label, curve in times.items():
            if label.split(", ")[0] == name:
                axis.loglog(
                    curve.sizes,
                    curve.found,
                    "o-",
                    label=f"{label.partition(', ')[2]}: size^{curve.exponent:.2f}",
                )
        axis.set(title=f"{name}, size^{SWEEPS[name].power}", xlabel="size", ylabel="seconds")
    for name, curve in memory.items():
        (line,) = axes[-1].loglog(curve.sizes, curve.found, "o-", label=name)
        axes[-1].loglog(curve.sizes, curve.expected, "--", color=line.get_color())
    axes[-1].set(title="memory; dashed: the formula", xlabel="size", ylabel="bytes")
    for axis in axes:
        axis.legend(
            fontsize="small", frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.2)
        )  # below: it hides no point
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--doublings", type=int, default=7)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--plot")
    given = parser.parse_args()
    main(given.doublings, given.repeats, given.json, given.plot)
