"""Hypothesis: a call of `both_modes(f)` takes at most 1.1 times one of `f`, outside jit and inside,
and tracing with lowering at most twice that of `f`.

Two functions: five calls of a rule of one line, where nearly all is the cost of a call; and four
layers, each a matrix product with a rule, a norm, gelu and a choice. Each is traced anew, as a
fresh lambda. A gradient outside jit is traced at each call, which `f` alone is not.

    python -m benchmarks.both_modes [--seconds 1.0]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from tenferro_jax import both_modes

from .measure import header, load, lowest


def five_rules() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function, and its arguments."""

    def rule(factor: float) -> Callable[[jax.Array], jax.Array]:
        scaled = jax.custom_vjp(lambda x: x**3 * factor)
        scaled.defvjp(lambda x: (x**3 * factor, x), lambda x, g: (3 * x**2 * factor * g,))
        return scaled

    rules = [rule(float(k)) for k in range(1, 6)]

    def f(x: jax.Array) -> jax.Array:
        for each in rules:
            x = each(x)
        return x.sum()

    return f, (jnp.ones(3),)


def four_layers() -> tuple[Callable[..., Any], tuple[Any, ...]]:
    """The function, and its arguments."""
    dense = jax.custom_vjp(lambda w, x: jnp.tanh(x @ w))

    def backward(kept: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
        w, x = kept
        slope = g * (1 - jnp.tanh(x @ w) ** 2)
        return x.T @ slope, slope @ w.T

    dense.defvjp(lambda w, x: (jnp.tanh(x @ w), (w, x)), backward)

    def f(weights: Sequence[jax.Array], x: jax.Array) -> jax.Array:
        for w in weights:
            x = dense(w, x)
            x = x / jnp.linalg.norm(x, axis=-1, keepdims=True)
            x = jax.nn.gelu(x) + jnp.where(x > 0, x, 0.1 * x)
        return (x**2).mean()

    return f, ([jnp.eye(4) / 2] * 4, jnp.ones((3, 4)))


def ways(h: Callable[..., Any], args: tuple[Any, ...]) -> dict[str, Callable[[], object]]:
    """What is timed of a function, by name."""
    compiled = jax.jit(lambda *xs: h(*xs))
    return {
        "tracing": lambda: jax.make_jaxpr(lambda *xs: h(*xs))(*args),
        "and lowering": lambda: jax.jit(lambda *xs: h(*xs)).lower(*args),
        "outside jit": lambda: jax.block_until_ready(h(*args)),
        "in jit": lambda: jax.block_until_ready(compiled(*args)),
    }


GOALS = {"and lowering": 2.0, "outside jit": 1.1, "in jit": 1.1}
"""At most so many times as long as of f; a gradient outside jit has no goal."""


def main(seconds: float = 1.0) -> dict[str, float]:
    """Print times and ratios; the greatest ratio of each goal."""
    print(header(__doc__))
    print(f"{'':40}{'f':>12}{'both_modes':>13}{'ratio':>7}")
    worst = dict.fromkeys(GOALS, 0.0)
    for name, (f, args) in (("five rules", five_rules()), ("four layers", four_layers())):
        for question, asks in (("value", lambda h: h), ("gradient", jax.grad)):
            ours = ways(asks(both_modes(f)), args)
            for what, own in ways(asks(f), args).items():
                own(), ours[what]()
                alone, both = lowest([own, ours[what]], seconds)
                row, ratio = f"{name}, {question}, {what}", both / alone
                print(f"{row:40}{alone * 1e3:9.3f} ms{both * 1e3:10.3f} ms{ratio:7.2f}")
                if what in GOALS and (question, what) != ("gradient", "outside jit"):
                    worst[what] = max(worst[what], ratio)
    for what, goal in GOALS.items():
        print(f"{what}: at most {goal}; most {worst[what]:.2f}")
    print(load())
    return worst


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=1.0, help="for each row")
    main(**vars(parser.parse_args()))
