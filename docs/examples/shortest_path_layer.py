"""A network that learns how long roads take from the times of whole trips: its last layer is a
shortest path.

A multilayer perceptron gives each road a time, the min-plus closure gives the least time of each
trip, and its gradient tells the roads that a trip uses. Nobody ever observed a single road.
"""

from __future__ import annotations

import argparse
import pathlib
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import scipy.sparse.csgraph
import scipy.spatial
from matplotlib.figure import Figure

from ext_tropical import closure


class Maps(NamedTuple):
    """Maps of n places each, made at random.

    `features` are length, climb and surface of the road from one place to another, (maps, n, n, 3);
    `times`, (maps, n, n), are what the network does not see, inf where there is no road.
    """

    places: np.ndarray
    features: np.ndarray
    times: np.ndarray


def maps(count: int, n: int, seed: int) -> Maps:
    """Roads are the edges of Delaunay triangulations; they are slow uphill and on bad surface."""
    rng = np.random.default_rng(seed)
    places = rng.uniform(size=(count, n, 3)).astype(np.float32)  # the third is the height
    roads = np.zeros((count, n, n), bool)
    for road, place in zip(roads, places, strict=True):
        for triangle in scipy.spatial.Delaunay(place[:, :2]).simplices:
            road[np.ix_(triangle, triangle)] = True
    roads &= ~np.eye(n, dtype=bool)
    between = places[:, None] - places[:, :, None]
    length, climb = np.linalg.norm(between[..., :2], axis=-1), between[..., 2]
    surface = rng.uniform(size=roads.shape).astype(np.float32)
    times = length * (1 + 3 * surface**2) + 0.5 * np.maximum(climb, 0)
    features = np.stack([length, climb, surface], -1)
    return Maps(places, features, np.where(roads, times, np.inf))


def learned_times(model: eqx.nn.MLP, maps: Maps) -> jax.Array:
    """The time that the model gives each road: (maps, n, n)."""
    times = jax.nn.softplus(jnp.vectorize(model, signature="(f)->()")(maps.features))
    return jnp.where(np.isfinite(maps.times), times, jnp.inf)


def least_times(times: jax.Array) -> jax.Array:
    """The times of the quickest trips between all places."""
    return jax.vmap(lambda times: closure(times).value)(times)


def dijkstra(times: np.ndarray) -> np.ndarray:
    """The same by SciPy."""
    roads = np.where(np.isfinite(times), times, 0)
    return np.stack([scipy.sparse.csgraph.dijkstra(road) for road in roads])


def train(known: Maps, trips: int, steps: int) -> tuple[eqx.nn.MLP, list[float]]:
    """A model, and its losses, from the times of so many trips on each map, measured to 3 %."""
    rng = np.random.default_rng(0)
    count, n = known.times.shape[:2]
    trip = np.arange(count)[:, None], *rng.integers(n, size=(2, count, trips))
    observed = dijkstra(known.times)[trip] * rng.normal(1, 0.03, (count, trips))
    model = eqx.nn.MLP(3, "scalar", 32, 2, jax.nn.relu, key=jax.random.key(0))
    optimizer = optax.adam(optax.cosine_decay_schedule(1e-2, steps))

    @eqx.filter_value_and_grad
    def loss(model: eqx.nn.MLP) -> jax.Array:
        return jnp.mean((least_times(learned_times(model, known))[trip] - observed) ** 2)

    @eqx.filter_jit
    def step(model, state):
        value, gradient = loss(model)
        updates, state = optimizer.update(gradient, state)
        return eqx.apply_updates(model, updates), state, value

    state, losses = optimizer.init(eqx.filter(model, eqx.is_array)), []
    for _ in range(steps):
        model, state, value = step(model, state)
        losses.append(float(value))
    return model, losses


def time_taken(chosen_by: jax.Array, times: np.ndarray) -> np.ndarray:
    """How long each trip really takes along the path that is best by other times: the derivative of
    their least times in the direction of the real ones.
    """
    really = jnp.where(jnp.isfinite(times), times, 0)
    return np.asarray(jax.jvp(least_times, (chosen_by,), (really,))[1])


def draw(path: pathlib.Path, new: Maps, learned: np.ndarray) -> None:
    """Real and learned times of roads; and on a new map the quickest trips from one place."""
    left, right = (figure := Figure((9, 4), layout="constrained")).subplots(1, 2)
    road = np.isfinite(new.times)
    left.plot(new.times[road], learned[road], ".", markersize=2)
    left.axline((0, 0), slope=1, color="grey", linewidth=1)
    left.set(xlabel="real time of a road", ylabel="learned time", title="roads of new maps")
    for times, style in ((new.times, "0.8 6"), (learned, "tab:red 1.5")):
        before = closure(times[0]).predecessors()[0]
        color, width = style.split()
        for node, other in enumerate(before[1:], 1):
            ends = new.places[0, [other, node]]
            right.plot(ends[:, 0], ends[:, 1], color=color, linewidth=float(width))
    right.plot(*new.places[0, :, :2].T, "k.")
    right.plot(*new.places[0, 0, :2], "k*", markersize=14)
    right.set(title="quickest trips from *: real (grey), learned (red)", xticks=[], yticks=[])
    figure.savefig(path, dpi=70)


def main() -> None:
    """Train on some maps; on others compare the paths with those that Dijkstra's algorithm finds
    for the real times.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=400, help="of training")
    parser.add_argument("--picture", type=pathlib.Path, help="the PNG file to write")
    options = parser.parse_args()
    known, new = maps(16, 24, seed=1), maps(8, 24, seed=2)
    model, losses = train(known, 60, options.steps)
    print(f"mean squared error of the trips: {losses[0]:.4f}, after training {losses[-1]:.4f}")
    learned, best = learned_times(model, new), dijkstra(new.times)
    road, trip = np.isfinite(new.times), best > 0
    by_length = jnp.where(road, new.features[..., 0], jnp.inf)
    off = np.abs(learned[road] / new.times[road] - 1)
    print(f"roads of new maps: half of the learned times are within {np.median(off):.1%}")
    for name, times in (("by length", by_length), ("as learned", learned)):
        longer = time_taken(times, new.times)[trip] / best[trip] - 1
        print(
            f"trips on new maps, planned {name}: {np.mean(longer < 1e-5):.0%} are the quickest by "
            f"Dijkstra; on average {np.mean(longer):.1%} longer"
        )
    if options.picture:
        draw(options.picture, new, np.asarray(learned))


if __name__ == "__main__":
    main()
