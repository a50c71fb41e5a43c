"""Tropical attention beside softmax attention: shortest paths learned on graphs of 16 nodes, asked
for on graphs of up to 512.

A score is the negative Hilbert distance of a query and a key, a context the best sum of score and
value: three max-plus and min-plus products, and no array with an entry for each query, key and
channel. After B. Hashemi and others, Tropical Attention, NeurIPS 2025.
"""

from __future__ import annotations

import argparse
import pathlib
import timeit
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse.csgraph
from matplotlib.figure import Figure

from ext_tropical import min_plus, tropical_einsum

NODES = [16, 32, 64, 128, 256, 512]
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def tropical(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """For each query and channel the greatest value, each less the distance of its key."""
    least = tropical_einsum("...id,...jd->...ij", q, -k, semiring=min_plus)
    score = least - tropical_einsum("...id,...jd->...ij", q, -k)
    return tropical_einsum("...ij,...jd->...id", score, v)


def naive(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """The same in plain JAX."""
    difference = q[..., :, None, :] - k[..., None, :, :]
    score = difference.min(-1) - difference.max(-1)
    return (score[..., None] + v[..., None, :, :]).max(-2)


def softmax(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Attention as it is used most."""
    score = jnp.einsum("...id,...jd->...ij", q, k) / q.shape[-1] ** 0.5
    return jnp.einsum("...ij,...jd->...id", jax.nn.softmax(score), v)


def graphs(count: int, nodes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The two coordinates of each node, and the length of the road to it from a source outside:
    float32 (count, nodes, 3). SciPy's lengths of the shortest paths from the source, (count,
    nodes): between nodes the roads are as long as the greater difference of coordinates.
    """
    given = np.random.default_rng(seed).uniform(size=(count, nodes, 3)).astype(np.float32)
    roads = np.zeros((count, nodes + 1, nodes + 1))
    roads[:, 1:, 1:] = np.abs(given[:, :, None, :2] - given[:, None, :, :2]).max(-1)
    roads[:, 0, 1:] = given[..., 2]
    lengths = [scipy.sparse.csgraph.dijkstra(graph, indices=0)[1:] for graph in roads]
    return given, np.stack(lengths)


class Weights(NamedTuple):
    """One layer of attention between two dense ones."""

    first: jax.Array
    bias: jax.Array
    second: jax.Array
    qkv: jax.Array
    mix: jax.Array
    offset: jax.Array
    last: jax.Array


def weights(width: int, seed: int = 0) -> Weights:
    """At random, and 0 for the two offsets."""
    square = (width, width)
    shapes = (
        (3, width),
        (width,),
        square,
        (width, 3 * width),
        (2 * width, width),
        (width,),
        (width,),
    )
    keys = jax.random.split(jax.random.key(seed), len(shapes))
    drawn = Weights(*(jax.random.normal(k, s) / s[0] ** 0.5 for k, s in zip(keys, shapes)))
    return drawn._replace(bias=jnp.zeros(width), offset=jnp.zeros(width))


def predict(attention: Attention, weights: Weights, given: jax.Array, heads: int = 4) -> jax.Array:
    """The lengths of the shortest paths to all nodes of graphs: (count, nodes)."""
    hidden = jax.nn.relu(given @ weights.first + weights.bias) @ weights.second
    parts = (hidden @ weights.qkv).reshape(*given.shape[:2], 3, heads, -1)
    context = attention(*jnp.moveaxis(parts, (2, 3), (0, 2))).swapaxes(1, 2).reshape(hidden.shape)
    both = jnp.concatenate([hidden, context], -1)
    return jax.nn.relu(both @ weights.mix + weights.offset) @ weights.last


def train(attention: Attention, steps: int, width: int = 32) -> Weights:
    """Weights from graphs of the smallest size."""
    given, lengths = graphs(2048, NODES[0], seed=0)
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    @jax.jit
    def step(model, state, batch):
        def loss(model):
            given, lengths = batch
            return jnp.mean((predict(attention, model, given) - lengths) ** 2)

        updates, state = optimizer.update(jax.grad(loss)(model), state)
        return optax.apply_updates(model, updates), state

    model, rng = weights(width), np.random.default_rng(0)
    state = optimizer.init(model)
    for _ in range(steps):
        some = rng.integers(len(given), size=64)
        model, state = step(model, state, (given[some], lengths[some]))
    return model


def errors(attention: Attention, model: Weights) -> list[float]:
    """The mean error of a length for each number of nodes, as a share of the mean length."""
    tests = [graphs(8, nodes, seed=1) for nodes in NODES]
    return [
        float(np.abs(predict(attention, model, given) - lengths).mean() / lengths.mean())
        for given, lengths in tests
    ]


def compare(shape: tuple[int, int, int]) -> str:
    """Time and memory beside the naive form, in this process on this machine."""
    arrays = [jax.random.normal(key, shape) for key in jax.random.split(jax.random.key(0), 3)]
    told = []
    for name in ("forward", "gradient"):
        times, memory = [], []
        for attention in (naive, tropical):
            total = lambda *arrays, attention=attention: (attention(*arrays) ** 2).sum()  # noqa: E731
            form = attention if name == "forward" else jax.grad(total, (0, 1, 2))
            ready = jax.jit(form).lower(*arrays).compile()
            call = lambda ready=ready: jax.block_until_ready(ready(*arrays))  # noqa: E731
            times.append(min(timeit.repeat(call, number=1, repeat=5)))
            memory.append(ready.memory_analysis().temp_size_in_bytes / 2**20)
        told.append(
            f"{name} {times[0] / times[1]:.1f} times as fast, temporaries {memory[0]:.0f} -> "
            f"{memory[1]:.0f} MiB"
        )
    return f"{' x '.join(map(str, shape))}, beside naive JAX: {'; '.join(told)}"


def main() -> None:
    """Train both, and ask both about larger graphs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600, help="of training")
    parser.add_argument("--picture", type=pathlib.Path, help="the PNG file to write")
    parser.add_argument("--compare", action="store_true", help="time and memory beside naive JAX")
    options = parser.parse_args()
    axes = (figure := Figure((5.5, 3.5), layout="constrained")).subplots()
    for attention in (tropical, softmax):
        off = errors(attention, train(attention, options.steps))
        print(
            f"{attention.__name__}: mean error "
            + ", ".join(f"{error:.1%} of {nodes} nodes" for nodes, error in zip(NODES, off))
        )
        axes.plot(NODES, off, "o-", label=f"{attention.__name__} attention")
    axes.set(
        xscale="log", yscale="log", xlabel="nodes (trained on 16)", ylabel="mean error of a path"
    )
    axes.set_xticks(NODES, map(str, NODES))
    axes.minorticks_off()
    axes.set_yticks([0.05, 0.1, 0.2, 0.5, 1], ["5%", "10%", "20%", "50%", "100%"])
    axes.legend()
    if options.picture:
        figure.savefig(options.picture, dpi=90)
    if options.compare:
        print(*map(compare, [(8, 128, 16), (8, 256, 16), (4, 512, 32)]), sep="\n")


if __name__ == "__main__":
    main()
