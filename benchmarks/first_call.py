"""Hypothesis: a graph compiles as fast as jit, a tropical step as fast for every contracted size, a
network in time of its operands.

Elementwise ops are an unrolled chain on 8 numbers; steps are 64 x k by k x 64; networks are trees
of tables of 2 x 2, those of jnp.einsum with the same path. Nothing is run: tracing, lowering and
compiling are timed, each from empty caches.

    python -m benchmarks.first_call [--ops 1000 5000] [--contracted 64 65536] [--operands 10 60]
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import TropicalEinsum, best_assignment, log_sum_exp, max_plus, tropical_einsum
from tenferro_jax import trace
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from .measure import header

OPS: tuple[Callable[[Any], Any], ...] = (jnp.sin, lambda x: x * x, lambda x: x + x, lambda x: -x)


class Stages(NamedTuple):
    """Seconds until a function can run."""

    trace: float
    lower: float
    compile: float

    def __str__(self) -> str:
        return f"{self.trace * 1e3:17.0f} {self.lower * 1e3:6.0f} {self.compile * 1e3:8.0f}"


def head(what: str) -> str:
    """The head of a column of stages."""
    return f"{f'{what}: trace':>17} {'lower':>6} {'compile':>8}"


def of_jit(fn: Callable[..., Any], *args: Any) -> Stages:
    """What jit takes; the arguments are arrays or ShapeDtypeStructs."""
    jax.clear_caches()
    marks = [time.perf_counter()]
    traced = jax.jit(fn).trace(*args)
    marks.append(time.perf_counter())
    lowered = traced.lower()
    marks.append(time.perf_counter())
    lowered.compile()
    marks.append(time.perf_counter())
    return Stages(*(b - a for a, b in itertools.pairwise(marks)))


def of_graph(fn: Callable[..., Any], *args: Any) -> Stages:
    """What a graph takes. Without host ops an engine compiles it as jit compiles this function."""
    jax.clear_caches()
    start = time.perf_counter()
    graph = trace(fn, *args)
    traced = time.perf_counter() - start
    stages = of_jit(graph.to_jax(), *args)
    return Stages(traced, stages.trace + stages.lower, stages.compile)


def chain(ops: int) -> Callable[[Any], Any]:
    """A function of so many elementwise ops in a row."""

    def fn(x: Any) -> Any:
        for i in range(ops):
            x = OPS[i % len(OPS)](x)
        return x

    return fn


def gradient(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The gradient of the sum of fn's result for its first argument."""
    return jax.grad(lambda *args: fn(*args).sum())


def steps() -> dict[str, Callable[..., Any]]:
    """Ways to write one step."""

    def route(kind: RouteKind) -> Callable[..., Any]:
        op = TropicalEinsum(max_plus, "ij,jk->ik")
        return lambda a, b: apply(op, a, b, runtimes=op.runtimes.only(kind))[0]

    ways = {
        "native": route(RouteKind.KERNEL),
        "xla": route(RouteKind.LOWERING),
        "naive jnp": lambda a, b: (a[:, :, None] + b[None]).max(1),
    }
    return ways | {f"{name}, gradient": gradient(fn) for name, fn in ways.items()}


def networks(operands: int) -> dict[str, Callable[[Any], Any]]:
    """What is asked of a tree of tables, and its sum of products by jnp.einsum."""
    rng = np.random.default_rng(0)
    terms = [
        opt_einsum.get_symbol(i) + opt_einsum.get_symbol(int(rng.integers(i)))
        for i in range(1, operands + 1)
    ]
    equation = ",".join(terms) + "->"
    path, _ = opt_einsum.contract_path(
        equation, *[(2, 2)] * operands, shapes=True, optimize="greedy"
    )

    def value(tables: Any) -> Any:
        return tropical_einsum(equation, *tables, optimize="greedy")

    def soft(tables: Any) -> Any:
        return tropical_einsum(equation, *tables, optimize="greedy", semiring=log_sum_exp())

    def plain(tables: Any) -> Any:
        return jnp.einsum(equation, *tables, optimize=path)

    return {
        "jnp.einsum": plain,
        "value": value,
        "assignment": lambda tables: best_assignment(equation, *tables, optimize="greedy").labels,
        "log_sum_exp": soft,
        "jnp.einsum, gradient": gradient(plain),
        "value, gradient": gradient(value),
        "log_sum_exp, gradient": gradient(soft),
    }


def ops_table(counts: Sequence[int]) -> dict[int, tuple[Stages, Stages]]:
    """Of chains, by way of a graph and by jit."""
    x, found = jnp.ones(8), {}
    of_graph(chain(counts[0]), x), of_jit(chain(counts[0]), x)  # what only a first time costs
    print(f"{'ms, elementwise ops':>24} | {head('graph')} | {head('jit')} | graph/jit")
    for ops in counts:
        ours, theirs = found[ops] = of_graph(chain(ops), x), of_jit(chain(ops), x)
        print(f"{ops:>24} | {ours} | {theirs} | {sum(ours) / sum(theirs):9.2f}")
    return found


def contracted_table(counts: Sequence[int]) -> dict[str, list[Stages]]:
    """Of one step for growing contracted sizes."""
    found: dict[str, list[Stages]] = {}
    print(
        f"{'ms, contracted':>24} | "
        + " | ".join(head(f"k = {k}") for k in counts)
        + " | last/first"
    )
    for name, fn in steps().items():
        try:
            shapes = [
                [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((64, k), (k, 64))]
                for k in counts
            ]
            of_jit(fn, *shapes[0])
            found[name] = [of_jit(fn, *pair) for pair in shapes]
        except Exception as error:
            if "declines" not in str(error):
                raise
            continue
        row = found[name]
        print(
            f"{name:>24} | "
            + " | ".join(f"{stages}" for stages in row)
            + f" | {sum(row[-1]) / sum(row[0]):10.2f}"
        )
    return found


def operands_table(counts: Sequence[int]) -> dict[str, list[Stages]]:
    """Of networks of growing numbers of operands."""
    found: dict[str, list[Stages]] = {}
    for count in counts:
        tables = [jax.ShapeDtypeStruct((2, 2), jnp.float32)] * count
        for name, fn in networks(count).items():
            found.setdefault(name, []).append(of_jit(fn, tables))
    print(
        f"{'ms, operands':>24} | "
        + " | ".join(head(f"{n}") for n in counts)
        + " | a further operand"
    )
    for name, row in found.items():
        more = (sum(row[-1]) - sum(row[0])) / max(counts[-1] - counts[0], 1) * 1e3
        print(f"{name:>24} | " + " | ".join(f"{stages}" for stages in row) + f" | {more:10.1f}")
    return found


def main(
    ops: Sequence[int], contracted: Sequence[int], operands: Sequence[int]
) -> tuple[dict[Any, Any], ...]:
    """Print the three tables; returns them."""
    print(header(__doc__))
    tables: list[dict[Any, Any]] = [ops_table(ops)]
    print()
    tables.append(contracted_table(contracted))
    print()
    tables.append(operands_table(operands))
    return tuple(tables)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ops", type=int, nargs="+", default=[1000, 2000, 5000])
    parser.add_argument("--contracted", type=int, nargs="+", default=[64, 2048, 65536])
    parser.add_argument("--operands", type=int, nargs="+", default=[10, 60])
    given = parser.parse_args()
    main(given.ops, given.contracted, given.operands)
