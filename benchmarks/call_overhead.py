"""Hypothesis: an eager call of an extension op object costs at most twice an eager call of jitted JAX doing the same.

python -m benchmarks.call_overhead
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ext_tropical import tropical_einsum
from tenferro_jax import Engine, trace
from tenferro_jax.extension import Builder, ExtensionOp, apply

from .measure import header, spread


@dataclasses.dataclass(frozen=True)
class Double(ExtensionOp):
    """x + x."""

    family_id = "benchmarks.double.v1"

    def lower_to_standard_ops(self, builder: Builder, *inputs: Any) -> Sequence[Any]:
        """Two of it."""
        return (builder.inline(lambda x: x + x, *inputs),)


def microseconds(run: Callable[[], Any], calls: int) -> float:
    """Median microseconds a call, over batches of calls."""
    run()

    def batch() -> None:
        for _ in range(calls):
            out = run()
        jax.block_until_ready(out)

    return statistics.median(spread(batch, 5)) / calls * 1e6


def main(calls: int = 2000) -> dict[str, float]:
    """Print the table; returns microseconds a call."""
    print(header(__doc__.splitlines()[0]))
    x, w = jnp.ones(3), jnp.ones((3, 3))
    op, jitted = Double(), jax.jit(lambda x: x + x)
    engine, graph = Engine(), trace(lambda x: x + x, x)
    program = engine.compile(graph)
    rows = {
        "jax.jit": microseconds(lambda: jitted(x), calls),
        "apply, one op object": microseconds(lambda: apply(op, x), calls),
        "apply, a new op each call": microseconds(lambda: apply(Double(), x), calls),
        "ExecProgram": microseconds(lambda: program(x), calls),
        "Engine.eval": microseconds(lambda: engine.eval(graph, x), calls),
        "tropical_einsum 3x3x3": microseconds(lambda: tropical_einsum("ij,jk->ik", w, w), calls),
    }
    for name, value in rows.items():
        print(f"{name:>28} {value:8.1f} us   {value / rows['jax.jit']:6.1f} x jit")
    return rows


if __name__ == "__main__":
    main()
