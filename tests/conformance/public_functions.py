"""Functions as their libraries publish them, and functions with axes of a fixed size, each with
arguments. They become ops without an edit.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax

R = np.random.default_rng(3)
V, W, Q = (R.uniform(0.3, 2, n).astype(np.float32) for n in (3, 3, 4))
M = R.uniform(0.3, 2, (2, 3)).astype(np.float32)
N = R.uniform(0.3, 2, (2, 3)).astype(np.float32)
WEIGHTS = R.normal(size=(3, 2)).astype(np.float32)


def grey(x):
    r, g, b = x
    return 0.3 * r + 0.59 * g + 0.11 * b


def rotation(q):
    w, x, y, z = q / jnp.linalg.norm(q)
    return jnp.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def spherical_harmonics(v):
    x, y, z = jnp.moveaxis(v / jnp.linalg.norm(v, axis=-1, keepdims=True), -1, 0)
    root = 3**0.5
    return jnp.stack(
        [root * x * z, root * x * y, y * y - (x * x + z * z) / 2, root * y * z], axis=-1
    )


def soft_ranks(x):
    order = jnp.argsort(-x)
    return jnp.zeros_like(x).at[order].set(jax.nn.softmax(x[order]) * jnp.array([3, 2, 1], x.dtype))


def dense(x):
    return jnp.tanh(x @ WEIGHTS + 1)


def oscillator(y):
    step = jnp.array([[0, 1], [-1, 0]], y.dtype)
    return jax.lax.fori_loop(0, 3, lambda _, y: y + step @ y / 8, y)


def until(x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / 2), (0, x))[1]


def of_sign(x):
    return jax.lax.cond(x[0] > 1, lambda x: (x**2).sum(), lambda x: jnp.abs(x).sum(), x)


def smoothed(x):
    return jax.lax.scan(lambda c, a: (c / 2 + a, c), jnp.zeros((), x.dtype), x)[1]


def running_product(x):
    return jax.lax.associative_scan(jnp.multiply, x)


FIXED = {
    f.__name__: (f, args)
    for f, args in (
        (grey, (V,)),
        (rotation, (Q,)),
        (spherical_harmonics, (M,)),
        (soft_ranks, (V,)),
        (dense, (M,)),
        (oscillator, (Q[:2],)),
        (until, (V,)),
        (of_sign, (V,)),
        (smoothed, (Q,)),
        (running_product, (Q,)),
    )
}

PUBLISHED = {
    f"{of}.{name}": (getattr(module, name), args)
    for of, module, args, names in (
        ("jax.nn", jax.nn, (M,), "silu softplus log_softmax mish celu elu log_sigmoid"),
        ("jax.numpy", jnp, (V, W), "cross outer convolve kron hypot arctan2"),
        ("jax.numpy", jnp, (M,), "cumsum sort nanmean cumprod"),
        ("jax.numpy.linalg", jnp.linalg, (V,), "norm"),
        ("jax.scipy.special", jax.scipy.special, (M,), "erf gammaln entr expit"),
        ("jax.scipy.special", jax.scipy.special, (M, N), "xlogy rel_entr"),
        ("optax", optax.losses, (M, N), "cosine_similarity"),
    )
    for name in names.split()
}
