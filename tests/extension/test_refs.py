"""Refs of JAX (`jax.new_ref`) in an op: made inside, in a rule, as an argument, closed over. The
right values are those of the same function written without a ref.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import DTypeError, InvalidConfig

from ..helpers import close, ends_in, fresh

X = np.array([0.3, 1.2, -0.7])


def twice(x):
    ref = jax.new_ref(jnp.zeros_like(x))
    ref[...] = x * x
    ref[...] += x
    return ref[...]


def in_a_loop(x):
    ref = jax.new_ref(jnp.zeros_like(x))

    def body(i, _):
        ref[i] = x[i] * x[i]
        ref[i] += x[i]

    jax.lax.fori_loop(0, 3, body, None)
    return ref[...]


def in_a_branch(x):
    ref = jax.new_ref(x * x)
    return jax.lax.cond(x.sum() > 100, lambda: ref[...], lambda: ref[...] + x)


def in_a_jit(x):
    ref = jax.new_ref(jnp.zeros((2, 3), x.dtype))

    @jax.jit
    def write(y):
        ref[0] = y * y
        ref[1] = y
        return ref[...].sum(0)

    return write(x)


def plain(x):
    return x * x + x


def loss(f):
    return lambda x: (f(x) * jnp.array([1.0, 2.0, 3.0])).sum()


TRANSFORMS = {
    "grad": lambda f: jax.grad(loss(f))(X),
    "jit of grad": lambda f: jax.jit(jax.grad(loss(f)))(X),
    "jvp": lambda f: jax.jvp(f, (X,), (X + 1,))[1],
    "linearize": lambda f: jax.linearize(f, X)[1](X + 1),
    "hessian": lambda f: jax.hessian(loss(f))(X),
    "grad of grad": lambda f: jax.grad(lambda x: jax.grad(loss(f))(x).sum())(X),
    "scan": lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, None, length=2)[0].sum()
    )(X),
    "checkpoint": lambda f: jax.grad(lambda x: jax.checkpoint(f)(x).sum())(X),
}


def in_bwd(x):
    """A rule whose bwd makes a ref."""
    f = jax.custom_vjp(plain)

    def bwd(x, g):
        ref = jax.new_ref(jnp.zeros_like(g))
        ref[...] = 2 * x * g
        ref[...] += g
        return (ref[...],)

    f.defvjp(lambda x: (plain(x), x), bwd)
    return f(x)


WITH_REFS = (twice, in_a_loop, in_a_branch, in_a_jit, in_bwd)


@pytest.mark.few(6)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("f", WITH_REFS)
def test_derivatives_of_an_op_that_makes_a_ref_are_those_without_it(f, transform):
    run = TRANSFORMS[transform]
    close((run(fresh(f)), run(plain)), rtol=1e-5)


@pytest.mark.parametrize("f", WITH_REFS)
def test_gradients_and_tangents_of_an_op_that_makes_a_ref(f):
    op = fresh(f)
    close((jax.grad(loss(op))(X), (2 * X + 1) * [1, 2, 3]), rtol=1e-5)
    close((jax.jit(jax.linearize(op, X)[1])(X), (2 * X + 1) * X), rtol=1e-5)


@pytest.mark.parametrize("opaque", ["refuse", "differentiate"])
@pytest.mark.parametrize("transform", ["jvp", "hessian", "linearize"])
def test_forward_mode_of_a_bwd_that_makes_a_ref(transform, opaque):
    f = tj.both_modes(in_bwd, opaque=opaque)
    close((TRANSFORMS[transform](f), TRANSFORMS[transform](plain)), rtol=1e-5)


def write_into(ref, x):
    ref[...] = x
    return x


HELD = jax.new_ref(jnp.ones(3))


def test_refs_from_outside_are_refused_with_what_to_do():
    op = fresh(write_into)
    outside = jax.new_ref(jnp.ones(3))
    ends_in(
        (lambda: op(outside, X), lambda: jax.jit(lambda x: op(jax.new_ref(x), x))(X)),
        DTypeError,
        r"array 0: given a jax\.Ref; .*ref\[\.\.\.\] = f\(ref\[\.\.\.\]\)",
    )
    ends_in(
        (lambda: fresh(lambda x: x * outside[...])(X), lambda: fresh(lambda x: x * HELD[...])(X)),
        InvalidConfig,
        r"given code that closes over a jax\.Ref; .*Make the ref inside",
    )


def test_scans_and_batches_of_a_function_with_a_ref():
    """In both of these JAX itself may be wrong (docs/limits.md)."""
    square = np.arange(1.0, 10.0).reshape(3, 3)
    over_scan = lambda f: jax.grad(
        lambda x: jax.lax.scan(lambda c, _: (0.3 * f(c), None), x, length=3)[0].sum()
    )
    over_columns = lambda f: jax.vmap(f, in_axes=1, out_axes=1)
    published = fresh(twice)
    for wrap in (lambda f: f, jax.jit):
        for f in (tj.both_modes(twice), published):
            close(
                (wrap(over_scan(f))(jnp.asarray(X)), over_scan(plain)(jnp.asarray(X))), rtol=1e-12
            )
        found = wrap(over_columns(tj.both_modes(twice)))(square)
        close((found, plain(square)), rtol=1e-12)
