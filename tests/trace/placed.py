"""Functions that are traced from several places: what stands here is copied to other files, and read
there by `test_places.py`.
"""

import functools

import jax
import jax.numpy as jnp

import tenferro_jax as tj
from ext_tropical import closure, tropical_einsum


@jax.custom_jvp
def clipped(x):
    return jnp.clip(x, -1.0, 1.0)


@clipped.defjvp
def _clipped_rule(primals, tangents):
    return clipped(*primals), 0.5 * tangents[0] + 0.0 * jax.nn.relu(primals[0])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def applied(f, x):
    return f(x)


@applied.defjvp
def _applied_rule(f, primals, tangents):
    return applied(f, *primals), applied(f, *tangents)


@jax.custom_vjp
def straight(x):
    return jnp.round(x)


straight.defvjp(lambda x: (straight(x), x), lambda x, g: (g * jax.nn.softplus(x),))


@jax.custom_vjp
def nested(x):
    return straight(x) * clipped(x)


nested.defvjp(lambda x: (nested(x), x), lambda x, g: (g * straight(x),))


@jax.custom_jvp
def unreadable(x):
    return 2 * x


unreadable.defjvp(lambda p, t: (2 * p[0], jax.lax.linalg.schur(jnp.diag(t[0]))[0][0]))


@jax.custom_jvp
def failing(x):
    return 2 * x


@failing.defjvp
def _failing_rule(primals, tangents):
    raise AssertionError


class Method:
    def __call__(self, x):
        return jax.nn.gelu(x)

    @functools.partial(jax.jit, static_argnums=0)
    def run(self, x):
        return jax.nn.selu(x)


def in_scan(x):
    return jax.lax.scan(lambda c, y: (jax.nn.relu(c + y), straight(c)), jnp.zeros(()), x)


def in_while(x):
    return jax.lax.while_loop(lambda c: c[0] < 3, lambda c: (c[0] + 1, jax.nn.silu(c[1])), (0, x))


def in_cond(x):
    return jax.lax.cond(x[0] > 0, jax.nn.softplus, lambda y: clipped(unreadable(y)), x)


def loss(x):
    return (nested(x) * jax.nn.logsumexp(x)).sum()


FUNCTIONS = {
    "custom_jvp": clipped,
    "custom_jvp of a function": lambda x: applied(jnp.sin, x),
    "custom_vjp": straight,
    "nested": nested,
    "lost": unreadable,
    "lost twice": lambda x: unreadable(unreadable(x) + 1),
    "lost without a text": failing,
    "lost two": lambda x: unreadable(x) + failing(x),
    "lost in a loop": lambda x: jax.lax.fori_loop(0, 2, lambda i, c: unreadable(c), x),
    "jit": jax.jit(lambda x: jax.nn.relu(nested(x))),
    "checkpoint": jax.checkpoint(lambda x: jax.nn.gelu(straight(x))),
    "object": Method(),
    "method": Method().run,
    "scan": in_scan,
    "while": in_while,
    "cond": in_cond,
    "vmap": lambda x: jax.vmap(jax.nn.relu)(x) + jax.vmap(lambda y: nested(y[None])[0])(x),
    "gradient": jax.grad(loss),
    "second": jax.jacfwd(jax.grad(lambda x: jax.nn.softplus(x).sum())),
    "both_modes": tj.both_modes(nested),
    "forward mode": lambda x: jax.jvp(tj.both_modes(straight), (x,), (x,)),
    "tropical": lambda x: jax.nn.relu(tropical_einsum("i,j->ij", x, x)),
    "closure": lambda x: closure(jnp.abs(x[:, None] - x[None])).value,
    "root": lambda x: jax.lax.custom_root(
        lambda y: y**3 - x, x, lambda f, y: y - f(y), lambda g, y: y / g(jnp.ones_like(y))
    ),
    "guard": lambda x: jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), 0),
}
