"""A function of two arrays and a number as an op, by each kind of rule."""

import jax.numpy as jnp
import numpy as np

import tenferro_jax as tj

X = np.array([0.3, -1.2, 2.0])


Y = np.array([1.5, 0.5, -0.7])


def plain(x, y, t=2.0):
    return jnp.sin(x) * y + t * x * x


@tj.op("test-functions.by_vjp.v1")
def by_vjp(x, y, *, t: float = 2.0):
    return plain(x, y, t)


by_vjp.defvjp(
    lambda x, y, *, t: (by_vjp(x, y, t=t), {"x": x, "y": y}),
    lambda r, g, *, t: (
        (jnp.cos(r["x"]) * r["y"] + 2 * t * r["x"]) * g,
        jnp.sin(r["x"]) * g,
    ),
)


@tj.op("test-functions.in_trees.v1")
def in_trees(p, n, *, t: float = 2.0):
    return {"value": plain(p["x"], p["y"][0], t), "count": n + 1}


in_trees.defvjp(
    lambda p, n, *, t: (in_trees(p, n, t=t), (p["x"], p["y"][0])),
    lambda r, g, *, t: (
        {
            "x": (jnp.cos(r[0]) * r[1] + 2 * t * r[0]) * g["value"],
            "y": [jnp.sin(r[0]) * g["value"]],
        },
        None,
    ),
)
