"""Derivatives against finite differences of the NumPy oracle, and against each other's definitions."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..cases import CASES, ids
from ..oracles import central_difference

sweep = pytest.mark.parametrize("case", CASES, ids=ids(CASES))


def argnums(case):
    return tuple(range(len(case.inputs)))


@sweep
def test_grad_agrees_with_finite_differences(case):
    got = jax.grad(case.scalar, argnums(case))(*case.inputs)
    jitted = jax.jit(jax.grad(case.scalar, argnums(case)))(*case.inputs)
    for i, (g, j) in enumerate(zip(got, jitted)):
        want = central_difference(case.scalar_oracle, list(case.inputs), i)
        np.testing.assert_allclose(g, want, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(j, want, rtol=1e-6, atol=1e-6)


@sweep
def test_grad_of_one_input_alone(case):
    for i in argnums(case):
        want = central_difference(case.scalar_oracle, list(case.inputs), i)
        np.testing.assert_allclose(jax.grad(case.scalar, i)(*case.inputs), want, rtol=1e-6, atol=1e-6)


@sweep
def test_jvp_vjp_and_linearize_agree(case):
    rng = np.random.default_rng(3)
    tangents = tuple(rng.normal(size=x.shape) for x in case.inputs)

    def f(*xs):
        return case(*xs)[0]

    value, jv = jax.jvp(f, case.inputs, tangents)
    w = rng.normal(size=value.shape)
    _, pullback = jax.vjp(f, *case.inputs)
    _, linear = jax.linearize(f, *case.inputs)
    np.testing.assert_allclose(linear(*tangents), jv, rtol=1e-12)
    reverse = sum(np.vdot(ct, t) for ct, t in zip(pullback(w), tangents))
    np.testing.assert_allclose(np.vdot(w, jv), reverse, rtol=1e-12)
    step = 1e-6
    ends = [case.oracle(*(x + s * step * t for x, t in zip(case.inputs, tangents)))[0] for s in (1, -1)]
    np.testing.assert_allclose(jv, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)


@sweep
def test_jacobians_agree(case):
    forward = jax.jacfwd(lambda *xs: case(*xs)[0], argnums(case))(*case.inputs)
    reverse = jax.jacrev(lambda *xs: case(*xs)[0], argnums(case))(*case.inputs)
    for f, r in zip(forward, reverse):
        np.testing.assert_allclose(f, r, rtol=1e-12, atol=1e-12)


@sweep
def test_second_order(case):
    """Forward over reverse and reverse over reverse, against finite differences of the first-order gradient."""
    x, *rest = case.inputs
    direction = np.random.default_rng(5).normal(size=x.shape)
    g = jax.grad(case.scalar)
    _, forward = jax.jvp(lambda x: g(x, *rest), (x,), (direction,))
    reverse = jax.grad(lambda x: jnp.vdot(g(x, *rest), direction))(x)
    step = 1e-5
    numeric = (np.asarray(g(x + step * direction, *rest)) - np.asarray(g(x - step * direction, *rest))) / (2 * step)
    np.testing.assert_allclose(forward, numeric, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(reverse, numeric, rtol=1e-5, atol=1e-5)


@sweep
def test_vmap_of_grad_and_grad_of_vmap(case):
    for axes in itertools.product((None, 0), repeat=len(case.inputs)):
        if all(a is None for a in axes):
            continue
        args = [x if a is None else np.stack([x, 1.1 * x, x + 0.2]) for x, a in zip(case.inputs, axes)]
        per_example = jax.vmap(jax.grad(case.scalar, argnums(case)), in_axes=axes)(*args)
        total = jax.grad(lambda *xs, axes=axes: jax.vmap(case.scalar, in_axes=axes)(*xs).sum(), argnums(case))(*args)
        for i, a in enumerate(axes):
            rows = []
            for k in range(3):
                at = [x if b is None else x[k] for x, b in zip(args, axes)]
                rows.append(central_difference(case.scalar_oracle, at, i))
            want = np.stack(rows)
            np.testing.assert_allclose(per_example[i], want, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(total[i], want.sum(0) if a is None else want, rtol=1e-5, atol=1e-5)


@sweep
def test_nested_vmap_of_grad(case):
    args = [np.stack([np.stack([x, 1.2 * x]), np.stack([x + 0.3, -x]), np.stack([0.5 * x, x - 0.1])]) for x in case.inputs]
    got = jax.grad(lambda *xs: jax.vmap(jax.vmap(case.scalar))(*xs).sum(), argnums(case))(*args)
    for i, g in enumerate(got):
        for at in np.ndindex(3, 2):
            want = central_difference(case.scalar_oracle, [a[at] for a in args], i)
            np.testing.assert_allclose(g[at], want, rtol=1e-5, atol=1e-5)


@sweep
def test_grad_through_scan_cond_and_checkpoint(case):
    def loop(*xs):
        def body(total, k):
            return total + jax.lax.cond(k > 0, lambda: case.scalar(*(x * k for x in xs)), lambda: case.scalar(*xs)), None

        return jax.lax.scan(body, 0.0, jnp.array([0.0, 1.5]))[0]

    def loop_oracle(*xs):
        return case.scalar_oracle(*xs) + case.scalar_oracle(*(x * 1.5 for x in xs))

    want = central_difference(loop_oracle, list(case.inputs), 0)
    for fn in (loop, jax.checkpoint(loop), jax.jit(jax.checkpoint(loop))):
        np.testing.assert_allclose(jax.grad(fn)(*case.inputs), want, rtol=1e-5, atol=1e-5)


@sweep
def test_custom_derivatives_around_an_extension(case):
    @jax.custom_vjp
    def doubled(*xs):
        return case.scalar(*xs)

    doubled.defvjp(lambda *xs: (case.scalar(*xs), xs), lambda xs, ct: tuple(2 * ct * g for g in jax.grad(case.scalar, argnums(case))(*xs)))
    want = 2 * central_difference(case.scalar_oracle, list(case.inputs), 0)
    np.testing.assert_allclose(jax.grad(doubled)(*case.inputs), want, rtol=1e-5, atol=1e-5)


LINEAR = tuple(c for c in CASES if "linear" in c.name)


@pytest.mark.parametrize("case", LINEAR, ids=ids(LINEAR))
def test_linear_transpose(case):
    """jax.linear_transpose of a linear extension is the adjoint: <w, A x> = <A' w, x>."""
    x, *rest = case.inputs

    def f(x):
        return case(x, *rest)[0]

    w = np.cos(np.arange(f(x).size, dtype=float)).reshape(f(x).shape)
    (back,) = jax.linear_transpose(f, x)(w)
    np.testing.assert_allclose(np.vdot(w, case.oracle(x, *rest)[0]), np.vdot(back, x), rtol=1e-12)
