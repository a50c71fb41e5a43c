"""Hypothesis: a tropical step that is split over devices needs the collectives of jnp.matmul with
the same shardings, and at most 1.2 times the memory that its pieces need on one device.

On 8 host devices: for each split and question the collectives of the optimised program and the
temporaries of a device, of the op, which has a sharding rule, of its lowering as XLA splits it
alone (not of derivatives, which are no derivatives of the lowering), and of jnp.matmul; whether the
op has the bits of one device; and `pieces`: the temporaries of the op for the pieces of one device,
with those of its results that devices merge. Then a batch of networks, a network a device: seconds
to lower and compile it.

    python -m benchmarks.mesh [--size 1024] [--devices 8] [--tables 280]
"""

from __future__ import annotations

import argparse
import functools
import os
import re
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ext_tropical import log_sum_exp, max_plus, tropical_einsum
from ext_tropical.steps.einsum_op import Outputs, TropicalEinsum
from ext_tropical.steps.log_einsum import LogEinsum
from tenferro_jax.extension import apply

from .measure import header
from .networks import network

KINDS = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
Fn = Callable[..., Any]
MATRICES, BATCH = "ij,jk->ik", "bij,bjk->bik"


class Split(NamedTuple):
    """How the labels of an einsum lie on a mesh of axes d and e.

    Attributes:
      mesh: its shape.
      equation: of the operands.
      axes: for each operand the mesh axis of some labels.
    """

    mesh: tuple[int, ...]
    equation: str
    axes: tuple[dict[str, str], dict[str, str]]

    @property
    def terms(self) -> list[str]:
        """The labels of the operands."""
        return self.equation.partition("->")[0].split(",")

    @property
    def specs(self) -> list[jax.P]:
        """Of the operands."""
        pairs = zip(self.terms, self.axes, strict=True)
        return [jax.P(*(axes.get(label) for label in term)) for term, axes in pairs]

    def merges(self, labels: str) -> bool:
        """Whether devices merge a result with these labels."""
        return not {label for axes in self.axes for label in axes} <= set(labels)


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


class Question(NamedTuple):
    """Functions of two operands.

    Attributes:
      op: asks the op.
      written: asks its lowering; None for a derivative.
      product: asks jnp.matmul.
      results: the labels of each result.
    """

    op: Fn
    written: Fn | None
    product: Fn
    results: tuple[str, ...]


class Row(NamedTuple):
    """What was measured of a split and question.

    Attributes:
      split: its name.
      question: its name.
      op: of the op.
      product: of jnp.matmul.
      pieces: bytes that a device needs for its pieces.
    """

    split: str
    question: str
    op: Measured
    product: Measured
    pieces: int


def splits(devices: int) -> dict[str, Split]:
    """For each name the split."""
    one, two, left = (devices,), (2, devices // 2), {"j": "d"}
    return {
        "rows": Split(one, MATRICES, ({"i": "d"}, {})),
        "columns": Split(one, MATRICES, ({}, {"k": "d"})),
        "contracted": Split(one, MATRICES, (left, left)),
        "contracted, left alone": Split(one, MATRICES, (left, {})),
        "rows and columns": Split(two, MATRICES, ({"i": "d"}, {"k": "e"})),
        "rows and contracted": Split(two, MATRICES, ({"i": "d", "j": "e"}, {"j": "e"})),
        "batch": Split(one, BATCH, ({"b": "d"}, {"b": "d"})),
        "batch and contracted": Split(two, BATCH, ({"b": "d", "j": "e"}, {"b": "d", "j": "e"})),
    }


def measured(fn: Fn, *args: jax.Array) -> Measured:
    """The program of a function for these operands."""
    compiled = jax.jit(fn).lower(*args).compile()
    found = {kind: len(re.findall(rf" {kind}(?:-start)?\(", compiled.as_text())) for kind in KINDS}
    text = ", ".join(f"{n} {kind}" for kind, n in found.items() if n) or "none"
    memory: Any = compiled.memory_analysis()
    results = list(map(np.asarray, jax.tree.leaves(compiled(*args))))
    return Measured(text, memory.temp_size_in_bytes, results)


def questions(equation: str, weights: np.ndarray) -> dict[str, Question]:
    """For each name the question; gradients are those of a weighted sum."""
    inputs, output = equation.split("->")
    best = TropicalEinsum(max_plus, equation)  # type: ignore[arg-type]
    winner = TropicalEinsum(max_plus, equation, Outputs.VALUE_AND_WINNER)  # type: ignore[arg-type]
    soft = LogEinsum(log_sum_exp().temperature, equation)

    def gradient(fn: Fn) -> Fn:
        return jax.grad(lambda x, y: (fn(x, y) * weights).sum(), (0, 1))

    def first(run: Callable[..., Sequence[jax.Array]]) -> Fn:
        return lambda x, y: run(x, y)[0]

    value, log = (first(functools.partial(apply, op)) for op in (best, soft))
    slopes = gradient(jnp.matmul), tuple(inputs.split(","))
    both = functools.partial(apply, winner)
    return {
        "value": Question(value, first(best.lower_to_standard_ops), jnp.matmul, (output,)),
        "winners": Question(both, winner.lower_to_standard_ops, jnp.matmul, (output,) * 2),
        "gradient": Question(gradient(value), None, *slopes),
        "log_sum_exp": Question(log, first(soft.lower_to_standard_ops), jnp.matmul, (output,)),
        "its gradient": Question(gradient(log), None, *slopes),
    }


def pieces(split: Split, name: str, operands: Sequence[np.ndarray]) -> int:
    """Bytes that a question needs on one device for one device's pieces: temporaries, and the
    results that devices merge.
    """
    output = split.equation.partition("->")[2]
    sizes = dict(zip("".join(split.terms), [n for x in operands for n in x.shape], strict=True))
    shape = dict(zip("de", split.mesh, strict=False))
    for label, axis in {**split.axes[0], **split.axes[1]}.items():
        sizes[label] //= shape[axis]
    own = [
        x[tuple(slice(sizes[label]) for label in term)]
        for x, term in zip(operands, split.terms, strict=True)
    ]
    weights = np.ones([sizes[label] for label in output], np.float32)
    asked = questions(split.equation, weights)[name]
    found = measured(asked.op, *own)
    pairs = zip(found.results, asked.results, strict=True)
    return found.temporaries + sum(x.nbytes for x, labels in pairs if split.merges(labels))


def networks(devices: int, tables: int) -> list[tuple[str, float, Measured]]:
    """Print what a batch of networks takes, each on a device.

    Returns:
      For each question its name, seconds to lower and compile, and what was measured.
    """
    some = network("grid", tables, 0)
    place = jax.NamedSharding(mesh_of((devices,)), jax.P("d"))
    batch = [jax.device_put(np.stack([x] * devices), place) for x in some.tables]
    rows = []
    for name, semiring in (("value", max_plus), ("log_sum_exp", log_sum_exp())):
        value = functools.partial(tropical_einsum, some.equation, semiring=semiring)
        slope = jax.grad(value, tuple(range(len(some.tables))))
        for what, fn in ((name, value), (f"gradient of {name}", slope)):
            start = time.perf_counter()
            jax.jit(jax.vmap(fn)).lower(*batch).compile()
            seconds = time.perf_counter() - start
            found = measured(jax.vmap(fn), *batch)
            print(
                f"{devices} networks of {len(batch)} tables, one a device: {what} lowered and "
                f"compiled in {seconds:.2f} s, collectives: {found.collectives}"
            )
            rows.append((what, seconds, found))
    return rows


def mesh_of(shape: tuple[int, ...]) -> jax.sharding.Mesh:
    """Automatic axes d and e over the first devices."""
    kinds = (jax.sharding.AxisType.Auto,) * len(shape)
    used = jax.devices()[: int(np.prod(shape))]
    return jax.make_mesh(shape, ("d", "e")[: len(shape)], axis_types=kinds, devices=used)


def main(size: int = 1024, devices: int = 8, tables: int = 280) -> list[Row]:
    """Print the tables.

    Returns:
      What was measured.
    """
    print(header(__doc__))
    print(
        f"{size} x {size} by {size} x {size}, or {devices} of a quarter of the size, float32, "
        f"{devices} host devices; MiB"
    )
    print(
        f"{'split':>22} {'question':>12} | {'op':>14} {'MiB':>5} {'pieces':>6} | "
        f"{'lowering, split by XLA':>34} {'MiB':>6} | {'jnp.matmul':>14} {'MiB':>5} | one device"
    )
    rng = np.random.default_rng(0)
    rows = []
    for name, split in splits(devices).items():
        side = size // 4 if split.equation == BATCH else size
        shape = (devices, side, side) if split.equation == BATCH else (side, side)
        x, y, weights = rng.normal(size=(3, *shape)).astype(np.float32)
        mesh = mesh_of(split.mesh)
        placed = [
            jax.device_put(side, jax.NamedSharding(mesh, spec))
            for side, spec in zip((x, y), split.specs, strict=True)
        ]
        for question, asked in questions(split.equation, weights).items():
            op, product = measured(asked.op, *placed), measured(asked.product, *placed)
            before = ("-", "")
            if asked.written:
                written = measured(asked.written, *placed)
                before = written.collectives, f"{written.temporaries / 2**20:.1f}"
            row = Row(name, question, op, product, pieces(split, question, (x, y)))
            alone = jax.tree.leaves(jax.jit(asked.op)(x, y))
            worst = max(
                float(abs(a.astype(float) - np.asarray(b, float)).max())
                for a, b in zip(op.results, alone, strict=True)
            )
            print(
                f"{name:>22} {question:>12} | {op.collectives:>14} {op.temporaries / 2**20:5.1f} "
                f"{row.pieces / 2**20:6.1f} | {before[0]:>34} {before[1]:>6} | "
                f"{product.collectives:>14} {product.temporaries / 2**20:5.1f} | "
                f"{f'differs by {worst:.0e}' if worst else 'equal bits'}",
                flush=True,
            )
            rows.append(row)
    most = max((row.op.temporaries + 2**16) / (row.pieces + 2**16) for row in rows)
    print(f"temporaries at most {most:.2f} times those of the pieces of one device (goal 1.2)")
    networks(devices, tables)
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=1024)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--tables", type=int, default=280)
    given = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"  # read by the first call
    main(given.size, given.devices, given.tables)
