"""Hypothesis: a tropical step that is split over devices needs the collectives of jnp.matmul with
the same shardings, and no more memory.

On 8 host devices: for each split and question the collectives of the optimised program and the
temporaries of a device, of the op, which has a sharding rule, of its lowering as XLA splits it
alone (not of derivatives, which are no derivatives of the lowering), and of jnp.matmul; and whether
the op has the bits of one device.

    python -m benchmarks.mesh [--size 1024] [--devices 8]
"""

from __future__ import annotations

import argparse
import functools
import os
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import log_sum_exp, max_plus
from ext_tropical.step.einsum_op import Outputs, TropicalEinsum
from ext_tropical.step.log_einsum import LogEinsum
from tenferro_jax.extension import apply

from .measure import header

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
Fn = Callable[[jax.Array, jax.Array], Any]


class Measured(NamedTuple):
    """A compiled program.

    Attributes:
      collectives: as text.
      temporaries: bytes a device.
      results: of a run.
    """

    collectives: str
    temporaries: int
    results: list[np.ndarray]


def splits(devices: int) -> dict[str, tuple[tuple[int, ...], jax.P, jax.P]]:
    """For each name the mesh, and the specs of the operands."""
    two = (2, devices // 2)
    return {
        "rows": ((devices,), jax.P("d"), jax.P()),
        "columns": ((devices,), jax.P(), jax.P(None, "d")),
        "contracted": ((devices,), jax.P(None, "d"), jax.P("d")),
        "contracted, left alone": ((devices,), jax.P(None, "d"), jax.P()),
        "rows and columns": (two, jax.P("d"), jax.P(None, "e")),
        "rows and contracted": (two, jax.P("d", "e"), jax.P("e")),
    }


def measured(fn: Fn, x: jax.Array, y: jax.Array) -> Measured:
    """The program of a function for these operands."""
    compiled = jax.jit(fn).lower(x, y).compile()
    found = {kind: len(re.findall(rf" {kind}(?:-start)?\(", compiled.as_text())) for kind in KINDS}
    text = ", ".join(f"{n} {kind}" for kind, n in found.items() if n) or "none"
    memory: Any = compiled.memory_analysis()
    results = list(map(np.asarray, jax.tree.leaves(compiled(x, y))))
    return Measured(text, memory.temp_size_in_bytes, results)


def questions(weights: jax.Array) -> dict[str, tuple[Fn, Fn | None, Fn]]:
    """For each question the op, its lowering, and that of a product."""
    best = TropicalEinsum(max_plus, "ij,jk->ik")  # type: ignore[arg-type]
    winner = TropicalEinsum(max_plus, "ij,jk->ik", Outputs.VALUE_AND_WINNER)  # type: ignore[arg-type]
    soft = LogEinsum(log_sum_exp().temperature, "ij,jk->ik")

    def gradient(fn: Fn) -> Fn:
        return jax.grad(lambda x, y: (fn(x, y) * weights).sum(), (0, 1))

    def first(run: Callable[..., Sequence[jax.Array]]) -> Fn:
        return lambda x, y: run(x, y)[0]

    values = {op: first(functools.partial(apply, op)) for op in (best, soft)}
    written = {op: first(op.lower_to_standard_ops) for op in (best, soft)}
    return {
        "value": (values[best], written[best], jnp.matmul),
        "winners": (functools.partial(apply, winner), winner.lower_to_standard_ops, jnp.matmul),
        "gradient": (gradient(values[best]), None, gradient(jnp.matmul)),
        "log_sum_exp": (values[soft], written[soft], jnp.matmul),
        "its gradient": (gradient(values[soft]), None, gradient(jnp.matmul)),
    }


def main(size: int = 1024, devices: int = 8) -> list[tuple[str, str, Measured, Measured]]:
    """Print the table.

    Returns:
      For each split and question its names, and what was measured of the op and of the product.
    """
    print(header(__doc__))
    print(f"{size} x {size} by {size} x {size}, float32, {devices} host devices")
    print(
        f"{'split':>22} {'question':>12} | {'op':>26} {'MiB':>5} | "
        f"{'lowering, split by XLA':>34} {'MiB':>6} | {'jnp.matmul':>14} {'MiB':>5} | one device"
    )
    rng = np.random.default_rng(0)
    x, y, weights = rng.normal(size=(3, size, size)).astype(np.float32)
    rows = []
    for split, (shape, *specs) in splits(devices).items():
        kinds = (jax.sharding.AxisType.Auto,) * len(shape)
        used = jax.devices()[:devices]
        mesh = jax.make_mesh(shape, ("d", "e")[: len(shape)], axis_types=kinds, devices=used)
        placed = [
            jax.device_put(side, jax.NamedSharding(mesh, spec))
            for side, spec in zip((x, y), specs, strict=True)
        ]
        for question, (fn, lowering, matmul) in questions(jnp.asarray(weights)).items():
            op, product, before = measured(fn, *placed), measured(matmul, *placed), ("-", "")
            if lowering:
                written = measured(lowering, *placed)
                before = written.collectives, f"{written.temporaries / 2**20:.1f}"
            alone = jax.tree.leaves(jax.jit(fn)(x, y))
            worst = max(
                float(abs(a.astype(float) - np.asarray(b, float)).max())
                for a, b in zip(op.results, alone, strict=True)
            )
            print(
                f"{split:>22} {question:>12} | {op.collectives:>26} {op.temporaries / 2**20:5.1f} |"
                f" {before[0]:>34} {before[1]:>6} | "
                f"{product.collectives:>14} {product.temporaries / 2**20:5.1f} | "
                f"{f'differs by {worst:.0e}' if worst else 'equal bits'}"
            )
            rows.append((split, question, op, product))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--devices", type=int, default=8)
    given = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"  # read by the first call
    main(given.size, given.devices)
