"""Hypothesis: the native route is at least 5 times as fast as tropical-gemm (3 times with winners),
XLA's 2.5 times.

Contraction steps of every shape by each of our routes and by the peers that are installed (pip
install tropical-gemm torch torch-semiring-einsum), all in one process, in turn. The ratio is the
fastest peer's time over the route's. A fraction of the bound is that of the native kernel's
register block on resident data, on all cores, measured in the same run where a C++ compiler is
there.

    python -m benchmarks.tropical [--cases 256 tall ...] [--repeats 5] [--json tropical.json]
    [--plot tropical.png]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import (
    Semiring,
    TropicalEinsum,
    max_plus,
    or_and,
    register_semiring,
    tropical_einsum,
)
from ext_tropical.native.library import native
from ext_tropical.steps.einsum_op import Outputs
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import alternating, header, installed, threads_at_work


class Case(NamedTuple):
    """One contraction step: (batch, rows, contracted) by (batch, contracted, columns). Of bool
    under or_and; with NaN in its name one entry of 100 is NaN. A sum modulo N is "mod", or "matmul"
    where the semiring has JAX's product.
    """

    name: str
    batch: int
    rows: int
    contracted: int
    columns: int
    dtype: str = "float32"
    what: str = "value"

    @property
    def operations(self) -> int:
        """Products, each with a comparison."""
        return self.batch * self.rows * self.contracted * self.columns


N = 251


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Modulo(Semiring):
    """Residues modulo N."""

    id = "benchmarks.modulo.v1"
    dtypes = ("int32",)

    def times(self, x: Any, y: Any) -> Any:
        """The product."""
        return x * y % N

    def plus(self, x: Any, y: Any) -> Any:
        """The sum."""
        return (x + y) % N

    def zero(self, dtype: np.dtype) -> np.ndarray:
        """Of plus."""
        return np.zeros((), dtype)

    def one(self, dtype: np.dtype) -> np.ndarray:
        """Of times."""
        return np.ones((), dtype)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class ByMatmul(Modulo):
    """Residues modulo N, by JAX's product."""

    id = "benchmarks.by_matmul.v1"

    def matmul(self, x: Any, y: Any) -> Any:
        """JAX's product."""
        return jnp.matmul(x, y) % N


SUMS: dict[str, Semiring] = {"mod": Modulo(), "matmul": ByMatmul()}


def cases() -> list[Case]:
    """Squares, tall, wide, batched and odd shapes; values, winners and gradients."""
    squares = [Case(f"{n}", 1, n, n, n) for n in (32, 64, 128, 256, 512, 1024, 2048)]
    shapes = [
        Case("tall", 1, 4096, 256, 64),
        Case("wide", 1, 64, 256, 4096),
        Case("deep", 1, 64, 16384, 64),
        Case("64 x 128^3", 64, 128, 128, 128),
        Case("997", 1, 997, 997, 997),
        Case("prime k", 1, 512, 499, 512),
        Case("k = 1", 1, 1024, 1, 1024),
        Case("one row", 1, 1, 1024, 1024),
    ]
    doubles = [c._replace(dtype="float64") for c in squares if c.rows in (256, 1024)]
    integers = [c._replace(dtype="int32") for c in squares if c.rows in (256, 1024)]
    winners = [c._replace(what="winner") for c in squares + shapes if c.operations >= 2**21]
    gradients = [c._replace(what="gradient") for c in squares if c.rows in (256, 1024)]
    both = [c for c in squares + winners if c.rows in (256, 1024) and c.columns == c.rows]
    of_nan = [c._replace(name=f"{c.name} NaN") for c in both]
    bits = [c._replace(dtype="bool") for c in both]
    sums = [
        Case(f"{n}", 1, n, n, n, dtype, what)
        for what, dtype in (("mod", "int32"), ("matmul", "int32"))
        for n in (64, 256)
    ]
    numbers = squares + shapes + doubles + integers + winners + gradients
    return numbers + of_nan + bits + sums


TOY = [
    Case("8", 1, 8, 8, 8),
    Case("toy", 2, 30, 20, 20, "float64", "winner"),
    Case("toy", 1, 128, 30, 128, what="gradient"),  # whose sums have a kernel of their own
    Case("toy NaN", 1, 20, 30, 20),
    Case("toy", 1, 20, 30, 20, "bool", "winner"),
    Case("7", 1, 7, 7, 7, "int32", "mod"),
]


def ours(case: Case, kind: RouteKind, a: Any, b: Any) -> Callable[[], Any] | None:
    """A case by one of our routes; None where it has none."""
    if case.what in SUMS:
        equation, semiring = "bij,bjk->bik", SUMS[case.what]
        if kind is RouteKind.KERNEL:
            return None
        return _jitted(lambda a, b: tropical_einsum(equation, a, b, semiring=semiring), a, b)
    outputs = Outputs.VALUE_AND_WINNER if case.what == "winner" else Outputs.VALUE
    algebra = or_and if case.dtype == "bool" else max_plus
    op = TropicalEinsum(algebra, "bij,bjk->bik", outputs)

    # A derivative has ops of its own, with their kernels.
    alone = case.what != "gradient" or kind is RouteKind.LOWERING
    chosen = {"runtimes": op.runtimes.only(kind)} if alone else {}

    def step(a: Any, b: Any) -> Any:
        return apply(op, a, b, **chosen)

    return _jitted(
        jax.value_and_grad(lambda a, b: step(a, b)[0].sum(), (0, 1))
        if case.what == "gradient"
        else step,
        a,
        b,
    )


def naive(case: Case, a: Any, b: Any) -> Callable[[], Any] | None:
    """What JAX users write without us; gradients and winners of large cases take minutes."""
    if case.what != "value" and case.operations > 2**25:
        return None

    def step(a: Any, b: Any) -> Any:
        left, right = a[..., :, :, None], b[..., None, :, :]
        if case.what in ("mod", "matmul"):
            return (left * right).sum(2) % N
        candidates = left & right if case.dtype == "bool" else left + right
        return (
            (candidates.max(2), candidates.argmax(2))
            if case.what == "winner"
            else candidates.max(2)
        )

    return _jitted(
        jax.value_and_grad(lambda a, b: step(a, b).sum(), (0, 1))
        if case.what == "gradient"
        else step,
        a,
        b,
    )


def _jitted(fn: Callable[..., Any], a: Any, b: Any) -> Callable[[], Any] | None:
    try:
        compiled = jax.jit(fn).lower(a, b).compile()
    except Exception as error:
        if "declines" in str(error):
            return None
        raise
    return lambda: compiled(a, b)


def tropical_gemm(case: Case, a: Any, b: Any) -> Callable[[], Any] | None:
    """The Rust package of that name, without batches but for winners."""
    peer = installed("tropical_gemm")
    numbers = case.what in ("value", "winner") and case.dtype != "bool"
    if peer is None or not numbers or case.batch > 1:
        return None
    suffix = {"float32": "", "float64": "_f64", "int32": "_i32"}[case.dtype]
    fn = getattr(
        peer, "maxplus_matmul" + ("_with_argmax" if case.what == "winner" else "") + suffix, None
    )
    lhs, rhs = np.asarray(a[0]), np.asarray(b[0])
    return None if fn is None else lambda: fn(lhs, rhs)


def threads_of_tropical_gemm() -> str:
    """How many threads it uses, or that it is not there."""
    a, b = np.ones((2, 1, 1024, 1024), np.float32)
    run = tropical_gemm(Case("1024", 1, 1024, 1024, 1024), a, b)
    if run is None:
        return "tropical-gemm: not installed"
    return f"tropical-gemm: threads at work on 1024^3: {threads_at_work(run) or 'not known'}"


def semiring_einsum(case: Case, a: Any, b: Any) -> Callable[[], Any] | None:
    """torch-semiring-einsum, on the same number of threads; minutes where the step is large."""
    peer, torch = installed("torch_semiring_einsum"), installed("torch")
    if (
        peer is None
        or torch is None
        or case.operations > 2**28
        or case.what not in ("value", "winner")
        or case.dtype in ("int32", "bool")
    ):
        return None
    equation = peer.compile_equation("bij,bjk->bik")
    lhs, rhs = (torch.from_numpy(np.array(x)) for x in (a, b))
    if case.what == "winner":
        return lambda: peer.log_viterbi_einsum_forward(equation, lhs, rhs)
    return lambda: peer.log_viterbi_einsum_forward(equation, lhs, rhs)[0]


def matmul(case: Case, a: Any, b: Any) -> Callable[[], Any] | None:
    """JAX's product, of sums modulo N: two operands alone, and only where all fits."""
    return _jitted(lambda a, b: a @ b % N, a, b) if case.what in ("mod", "matmul") else None


PEERS = {
    "naive jnp": naive,
    "jnp.matmul": matmul,
    "tropical-gemm": tropical_gemm,
    "torch-semiring": semiring_einsum,
}


def bounds() -> dict[str, float]:
    """Billions of operations a second of the register block on all cores, by dtype; empty without a
    compiler.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("clang++")
    source = pathlib.Path(__file__).with_name("register_block.cc")
    if compiler is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        program = str(pathlib.Path(folder, "block"))
        flags = ["-std=c++17", "-O3", "-march=native", "-fwrapv", "-ffp-contract=off"]
        if subprocess.run(
            [compiler, *flags, str(source), "-o", program], capture_output=True, check=False
        ).returncode:
            return {}
        lines = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    return {
        dtype: float(rate) * (os.cpu_count() or 1)
        for dtype, rate in zip(lines[::2], lines[1::2], strict=True)
    }


def measured(case: Case, repeats: int) -> dict[str, float]:
    """Seconds of each that can do the case."""
    rng = np.random.default_rng(0)
    shapes = (case.batch, case.rows, case.contracted), (case.batch, case.contracted, case.columns)
    with jax.enable_x64(True):
        numbers = [rng.normal(size=shape) * 100 for shape in shapes]
        if case.dtype == "bool":
            numbers = [x > 200 for x in numbers]  # 2 %
        if case.name.endswith("NaN"):
            numbers = [np.where(rng.random(x.shape) < 0.01, np.nan, x) for x in numbers]
        a, b = (jnp.asarray(x.astype(case.dtype)) for x in numbers)
        if case.what in ("mod", "matmul"):
            a, b = a % N, b % N
        made: dict[str, Any] = {
            "native": ours(case, RouteKind.KERNEL, a, b),
            "xla": ours(case, RouteKind.LOWERING, a, b),
        }
        made |= {name: peer(case, a, b) for name, peer in PEERS.items()}
        runs = {name: run for name, run in made.items() if run is not None}
        return {
            name: low
            for name, (_, low) in zip(runs, alternating(list(runs.values()), repeats), strict=True)
        }


def rows(chosen: list[Case], repeats: int) -> Iterator[dict[str, Any]]:
    """One row a case: seconds, the fastest peer's time over each route's, and the fraction of the
    bound.
    """
    bound = bounds()
    for case in chosen:
        seconds = measured(case, repeats)
        best = min(seconds.get("native", np.inf), seconds["xla"])
        gops = case.operations / best / 1e9
        of_bound = (
            gops / bound[case.dtype]
            if case.dtype in bound and case.what in ("value", "winner")
            else None
        )
        peer = min((seconds[name] for name in PEERS if name in seconds), default=None)
        ratios = {
            route: peer / seconds[route] for route in ("native", "xla") if peer and route in seconds
        }
        yield {
            "case": case._asdict(),
            "seconds": seconds,
            "ratios": ratios,
            "gops": gops,
            "bound": of_bound,
        }


HEAD = (
    f"{'case':>11} {'dtype':>8} {'':>8} |"
    + "".join(f"{name:>11.10}" for name in ("native", "xla", *PEERS))
    + " ms | ratio: native, xla | 10^9 op/s, of bound"
)


def text(row: dict[str, Any]) -> str:
    """A row of the table."""
    case, seconds = Case(**row["case"]), row["seconds"]
    cells = [
        f"{seconds[name] * 1e3:11.2f}" if name in seconds else f"{'-':>11}"
        for name in ("native", "xla", *PEERS)
    ]
    ratios = [
        f"{row['ratios'][name]:8.1f}" if name in row["ratios"] else f"{'-':>8}"
        for name in ("native", "xla")
    ]
    of_bound = "-" if row["bound"] is None else f"{row['bound']:.0%}"
    return (
        f"{case.name:>11} {case.dtype:>8} {case.what:>8} |{''.join(cells)}    | "
        f"{' '.join(ratios)}  | {row['gops']:10.1f} {of_bound:>8}"
    )


def geometric_means(table: list[dict[str, Any]]) -> dict[str, float]:
    """tropical-gemm's time over ours, by route and kind, over the cases of at least 256^3
    operations.
    """
    means: dict[str, float] = {}
    for what in ("value", "winner"):
        for route in ("native", "xla"):
            ratios = [
                row["seconds"]["tropical-gemm"] / row["seconds"][route]
                for row in table
                if {"tropical-gemm", route} <= row["seconds"].keys()
                and (row["case"]["what"], row["case"]["dtype"]) == (what, "float32")
                and Case(**row["case"]).operations >= 2**24
                and "NaN" not in row["case"]["name"]
            ]
            if ratios:
                means[f"{route}, {what}"] = float(np.exp(np.mean(np.log(ratios))))
    return means


def plot(table: list[dict[str, Any]], path: str) -> None:
    """Operations a second of the float32 squares against their size."""
    import matplotlib.pyplot as plt  # noqa: PLC0415 - an extra

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
    for axis, what in zip(axes, ("value", "winner"), strict=True):
        squares = [
            row
            for row in table
            if row["case"]["what"] == what
            and row["case"]["dtype"] == "float32"
            and row["case"]["name"].isdigit()
        ]
        for name in ("native", "xla", *PEERS):
            points = [
                (row["case"]["rows"], Case(**row["case"]).operations / row["seconds"][name] / 1e9)
                for row in squares
                if name in row["seconds"]
            ]
            if points:
                axis.loglog(*zip(*sorted(points), strict=True), "o-", label=name)
        axis.set(title=f"max-plus, float32, {what}s", xlabel="n of n x n by n x n", xscale="log")
        axis.xaxis.set_minor_formatter("")  # under a decade the labels of minor ticks overlap
        sizes = sorted(
            {
                row["case"]["rows"]
                for row in squares
                if row["case"]["rows"] & (row["case"]["rows"] - 1) == 0
            }
        )
        axis.set_xticks(sizes, map(str, sizes))
    axes[0].set_ylabel("10^9 products and comparisons a second")
    axes[1].legend(*axes[0].get_legend_handles_labels(), loc="lower right")
    figure.savefig(path, dpi=120)
    plt.close(figure)


def main(
    chosen: list[Case], repeats: int = 5, json_path: str | None = None, plot_path: str | None = None
) -> list[dict[str, Any]]:
    """Print the table, and write it as JSON and as a plot if asked."""
    print(header(__doc__))
    print(native())
    print(threads_of_tropical_gemm())
    print(HEAD)
    table = []
    for row in rows(chosen, repeats):
        print(text(row), flush=True)
        table.append(row)
    means = geometric_means(table)
    for name, mean in means.items():
        print(f"geometric mean of tropical-gemm / {name}, float32 from 256^3 on: {mean:.2f}")
    if json_path:
        pathlib.Path(json_path).write_text(
            json.dumps(
                {"machine": header("").split("\n")[1], "rows": table, "means": means}, indent=1
            )
        )
    if plot_path:
        plot(table, plot_path)
    return table


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="*", help="names; all by default")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json")
    parser.add_argument("--plot")
    given = parser.parse_args()
    main(
        [c for c in cases() if not given.cases or c.name in given.cases],
        given.repeats,
        given.json,
        given.plot,
    )
