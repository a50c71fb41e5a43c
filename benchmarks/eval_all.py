"""Hypothesis: a loss and its gradients in one eval_all cost one program; evaluated one by one they
compute the shared part again.

python -m benchmarks.eval_all [--widths 784 512 512 10] [--batch 128]
"""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.engine import Engine
from tenferro_jax.tensor import TracedTensor, eval_all

from .measure import alternating, header


def network(
    widths: Sequence[int], batch: int
) -> tuple[TracedTensor, list[TracedTensor], TracedTensor]:
    """A lazy loss of a dense network on random data, its weights and its input."""
    rng = np.random.default_rng(0)
    weights = [
        TracedTensor.from_array((rng.normal(size=(m, n)) / m**0.5).astype(np.float32), f"w{i}")
        for i, (m, n) in enumerate(itertools.pairwise(widths))
    ]
    hidden = x = TracedTensor.from_array(
        rng.normal(size=(batch, widths[0])).astype(np.float32), "x"
    )
    for w in weights[:-1]:
        hidden = (hidden @ w).tanh()
    return ((hidden @ weights[-1]) ** 2.0).sum(), weights, x


def main(widths: Sequence[int], batch: int, repeats: int = 30) -> tuple[float, float, bool]:
    """Print the figures; returns separate/together, together/jit, and whether all three agree."""
    print(header(__doc__))
    loss, weights, x = network(widths, batch)
    wanted = [loss, *loss.grad(weights)]
    engine = Engine()

    def plain(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights[:-1]:
            x = jnp.tanh(x @ w)
        return ((x @ weights[-1]) ** 2.0).sum()

    jitted = jax.jit(jax.value_and_grad(plain))
    runs = [
        lambda: eval_all(wanted, engine),
        lambda: [t.eval(engine) for t in wanted],
        lambda: jitted([w.array for w in weights], x.array),
    ]
    (together, _), (apart, _), (by_jit, _) = alternating(runs, repeats)
    first, second, (value, gradients) = (run() for run in runs)
    peers = zip(first, second, [value, *gradients], strict=True)
    agree = all(
        np.allclose(a, other, rtol=1e-4, atol=1e-4) for a, *others in peers for other in others
    )
    nodes = [len(t.graph().nodes) for t in wanted]
    print(f"widths {list(widths)}, batch {batch}; nodes of loss and gradients one by one {nodes}")
    for name, seconds in (
        ("eval_all", together),
        ("separate evals", apart),
        ("jitted value_and_grad", by_jit),
    ):
        print(f"  {name:>21} {seconds * 1e3:8.2f} ms")
    print(f"  all agree: {agree}")
    print(f"  separate/together {apart / together:.2f}, together/jit {together / by_jit:.2f}")
    return apart / together, together / by_jit, agree


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--widths", type=int, nargs="+", default=[784, 512, 512, 10])
    parser.add_argument("--batch", type=int, default=128)
    options = parser.parse_args()
    main(options.widths, options.batch)
