"""Hypothesis: recording a node costs at most 10 us where op and shapes repeat, 400 us where both
are new.

python -m benchmarks.graph_building
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np

from tenferro_jax import Graph, TensorMeta
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.graph.verify import verify
from tenferro_jax.ops.analytic import Tanh
from tenferro_jax.ops.arithmetic import Add, Mul
from tenferro_jax.ops.structural import BroadcastInDim, Pad, Reshape, Reverse, Slice, Transpose

from .measure import header, spread

F32 = np.dtype("float32")


def repeating(count: int) -> tuple[GraphBuilder, Any]:
    """A chain of three ops on one shape."""
    builder = GraphBuilder()
    first = value = builder.input(TensorMeta(F32, (3, 4)))
    add, mul, tanh = Add(), Mul(), Tanh()
    for i in range(count):
        value = (
            builder.add(tanh, value)[0]
            if i % 3 == 2
            else builder.add((add, mul)[i % 3], value, first)[0]
        )
    return builder, value


def ever_new(count: int) -> tuple[GraphBuilder, Any]:
    """A chain of seven kinds of op, each made for a shape that was not there before."""
    builder = GraphBuilder()
    value, fill = builder.input(TensorMeta(F32, (3, 1))), builder.input(TensorMeta(F32, ()))
    for i in range(count):
        rows, columns = value.shape
        match i % 7:
            case 0:
                value = builder.add(BroadcastInDim((rows, i + 5), (0, 1)), value)[0]
            case 1:
                value = builder.add(Transpose((1, 0)), value)[0]
            case 2:
                value = builder.add(Pad((0, 0), (1, 1), (0, 0)), value, fill)[0]
            case 3:
                value = builder.add(Slice((0, 0), (rows - 2, columns - 1), (1, 1)), value)[0]
            case 4:
                value = builder.add(Add(), value, value)[0]
            case 5:
                value = builder.add(Reverse((0,)), value)[0]
            case 6:
                value = builder.add(Slice((0, 0), (1, 3), (1, 1)), value)[0]
                value = builder.add(Reshape((3, 1)), value)[0]
    return builder, value


def per_node(run: Callable[[], Any], count: int, repeats: int) -> float:
    """Median microseconds a node."""
    return spread(run, repeats)[0] / count * 1e6


def main(counts: list[int], repeats: int = 3) -> dict[tuple[str, int], float]:
    """Print the table; returns microseconds a node of recording and building."""
    print(header(__doc__))
    print(
        f"{'us a node':>24} | {'record':>8} {'build':>8} {'hash':>8} {'str':>8} {'bytes':>8} "
        f"{'verify':>8} {'dot':>8}"
    )
    results = {}
    for name, record in (("op and shape repeat", repeating), ("ever new", ever_new)):
        for count in counts:
            record(min(count, 100))
            recorded = per_node(
                lambda record=record, count=count: record(count), count, repeats
            )  # before a graph fills the heap
            builder, value = record(count)
            graph: Graph = builder.build([value])
            parts = [
                lambda builder=builder, value=value: builder.build([value]),
                lambda graph=graph: hash(graph.with_guards(())),
                lambda graph=graph: str(graph),
                lambda graph=graph: verify(graph),
                graph.mermaid,
            ]
            costs = [recorded, *(per_node(part, count, repeats) for part in parts)]
            print(f"{name:>24} | {' '.join(f'{cost:8.1f}' for cost in costs)}   {count:,} nodes")
            results[name, count] = costs[0] + costs[1]
    builder, value = repeating(counts[0])
    graph = builder.build([value])
    start = time.perf_counter()
    graph(jnp.ones((3, 4), F32))
    print(
        f"evaluating {counts[0]:,} nodes, op by op: "
        f"{(time.perf_counter() - start) / counts[0] * 1e6:.0f} us a node"
    )
    return results


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="+", default=[1_000, 10_000, 100_000])
    main(parser.parse_args().counts)
