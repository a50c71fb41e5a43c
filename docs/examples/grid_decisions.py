"""A model of travel times that is trained for the routes which are planned by it.

Costs of the edges of a 5 x 5 grid depend on features in a way that a linear model cannot follow. It
is trained once by least squares, and once by the SPO+ loss (Elmachtoub and Grigas, Management
Science 68, 2022), whose gradient needs the shortest path by twice the guess less the real costs.
The regret is what a planned route costs more than the best one.
"""

from __future__ import annotations

import argparse
import functools
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure

from ext_tropical import EdgeGraph, shortest_paths

SIDE = 5
_node = np.arange(SIDE * SIDE).reshape(SIDE, SIDE)
GRID = EdgeGraph(
    np.concatenate([_node[:, :-1].ravel(), _node[:-1].ravel()]),
    np.concatenate([_node[:, 1:].ravel(), _node[1:].ravel()]),
    SIDE * SIDE,
)
"""Edges lead to the right and down."""


class Days(NamedTuple):
    """What is known of each day, (days, features), and the costs of the edges, (days, E)."""

    features: jax.Array
    costs: jax.Array


def days(count: int, degree: int, seed: int, features: int = 5) -> Days:
    """The generator of Elmachtoub and Grigas, which PyEPO has too, with noise of 50 %."""
    truth = np.random.default_rng(0).binomial(1, 0.5, (len(GRID.senders), features))
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, features))
    costs = ((x @ truth.T / np.sqrt(features) + 3) ** degree + 1) / 3.5**degree
    costs = costs * rng.uniform(0.5, 1.5, costs.shape)
    return Days(*(jnp.asarray(part, jnp.float32) for part in (x, costs)))


def least_cost(costs: jax.Array) -> jax.Array:
    """From corner to corner."""
    return shortest_paths(GRID, costs, 0, [SIDE * SIDE - 1]).distances[0]


route = jax.grad(least_cost)
"""(E,): 1 for the edges of the best route, and 0."""


def spo_plus(guess: jax.Array, costs: jax.Array) -> jax.Array:
    """The SPO+ loss. Its derivative by the guess is 2 (route(costs) - route(2 guess - costs))."""
    return 2 * guess @ route(costs) - least_cost(2 * guess - costs) - least_cost(costs)


def squares(guess: jax.Array, costs: jax.Array) -> jax.Array:
    """Half the squared error."""
    return jnp.sum((guess - costs) ** 2) / 2


def guessed(model: dict[str, jax.Array], features: jax.Array) -> jax.Array:
    """The costs of a linear model."""
    return features @ model["weights"] + model["bias"]


def regret(model: dict[str, jax.Array], new: Days) -> jax.Array:
    """What planned routes cost more than the best, as a share of the best."""
    planned = jax.vmap(route)(guessed(model, new.features))
    best = jax.vmap(least_cost)(new.costs).sum()
    return jnp.sum(planned * new.costs) / best - 1


def train(
    loss: Callable[[jax.Array, jax.Array], jax.Array], known: Days, new: Days, steps: int
) -> tuple[dict[str, jax.Array], np.ndarray]:
    """A model, and its regret on new days after each step."""
    model = {
        "weights": jnp.zeros((known.features.shape[1], known.costs.shape[1])),
        "bias": jnp.ones(known.costs.shape[1]),
    }
    optimizer = optax.adam(0.02)

    def mean(model: dict[str, jax.Array]) -> jax.Array:
        return jax.vmap(loss)(guessed(model, known.features), known.costs).mean()

    def step(state, _):
        model, memory = state
        updates, memory = optimizer.update(jax.grad(mean)(model), memory)
        model = optax.apply_updates(model, updates)
        return (model, memory), regret(model, new)

    start = model, optimizer.init(model)
    (model, _), found = jax.jit(lambda s: jax.lax.scan(step, s, length=steps))(start)
    return model, np.asarray(found)


LOSSES = {"least squares": squares, "SPO+": spo_plus}


def draw(path: pathlib.Path, curves: dict[str, np.ndarray], routes: dict[str, np.ndarray]) -> None:
    """The regret while training; and the routes of one day."""
    left, right = (figure := Figure((9, 4), layout="constrained")).subplots(1, 2)
    for name, curve in curves.items():
        left.plot(100 * curve, label=name)
    left.set(xlabel="step", ylabel="regret on new days, %", ylim=0)
    left.legend()
    ends = np.array([np.asarray(GRID.senders), np.asarray(GRID.receivers)])
    x, y = ends % SIDE, -(ends // SIDE)
    right.plot(x, y, color="0.85", linewidth=1)
    styles = {"best": "0.6 7", "least squares": "tab:blue 3", "SPO+": "tab:orange 1.5"}
    for name, taken in routes.items():
        color, width = styles[name].split()
        lines = right.plot(x[:, taken > 0], y[:, taken > 0], color=color, linewidth=float(width))
        lines[0].set_label(name)
    right.set(title="routes of one day", xticks=[], yticks=[])
    right.legend(loc="lower left")
    figure.savefig(path, dpi=70)


def main() -> None:
    """Train with both losses, for three degrees of costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=300, help="of training")
    parser.add_argument("--picture", type=pathlib.Path, help="the PNG file to write")
    options = parser.parse_args()
    for degree in (1, 4, 8):
        known, new = days(200, degree, seed=1), days(500, degree, seed=2)
        run = functools.partial(train, known=known, new=new, steps=options.steps)
        found = {name: run(loss) for name, loss in LOSSES.items()}
        told = ", ".join(f"{name} {curve[-1]:.1%}" for name, (_, curve) in found.items())
        print(f"costs of degree {degree}: regret by {told}")
    if options.picture:
        plans = {name: route(guessed(model, new.features[4])) for name, (model, _) in found.items()}
        routes = {"best": route(new.costs[4]), **plans}
        curves = {name: curve for name, (_, curve) in found.items()}
        draw(options.picture, curves, {name: np.asarray(taken) for name, taken in routes.items()})


if __name__ == "__main__":
    main()
