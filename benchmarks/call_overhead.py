"""Hypothesis: an eager call of an extension op object costs at most 1.5 times an eager call of jitted JAX doing the same.

python -m benchmarks.call_overhead
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ext_tropical import tropical_einsum
from tenferro_jax import Engine, trace
from tenferro_jax.extension import Builder, ExtensionOp, apply

from .measure import alternating, header


@dataclasses.dataclass(frozen=True)
class Double(ExtensionOp):
    """x + x."""

    family_id = "benchmarks.double.v1"

    def lower_to_standard_ops(self, builder: Builder, *inputs: Any) -> Sequence[Any]:
        """Two of it."""
        return (builder.inline(lambda x: x + x, *inputs),)


def batch(run: Callable[[], Any], calls: int) -> Callable[[], Any]:
    """Many calls, one after another; the last result."""
    run()

    def many() -> Any:
        for _ in range(calls):
            out = run()
        return out

    return many


def main(calls: int = 1000) -> dict[str, float]:
    """Print the table; returns microseconds a call, the lowest of batches made in turn."""
    print(header(__doc__.splitlines()[0]))
    x, w = jnp.ones(3), jnp.ones((3, 3))
    op, jitted = Double(), jax.jit(lambda x: x + x)
    engine, graph = Engine(), trace(lambda x: x + x, x)
    program = engine.compile(graph)
    runs = {
        "jax.jit": lambda: jitted(x),
        "apply, one op object": lambda: apply(op, x),
        "apply, a new op each call": lambda: apply(Double(), x),
        "ExecProgram": lambda: program(x),
        "Engine.eval": lambda: engine.eval(graph, x),
        "tropical_einsum 3x3x3": lambda: tropical_einsum("ij,jk->ik", w, w),
    }
    lowest = [low for _, low in alternating([batch(run, calls) for run in runs.values()], 20)]
    rows = {name: seconds / calls * 1e6 for name, seconds in zip(runs, lowest, strict=True)}
    for name, value in rows.items():
        print(f"{name:>28} {value:8.1f} us   {value / rows['jax.jit']:6.1f} x jit")
    return rows


if __name__ == "__main__":
    main()
