"""Functions as ops under code that nobody here wrote: nufftax issue 5 with the package itself,
equinox and optax; and the memory of attention.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj

pytestmark = pytest.mark.slow


def test_attention_keeps_no_more_than_custom_vjp():
    scale = np.float32(0.25)

    def fwd(q, k, v):
        scores = q @ k.T * scale
        log = jax.nn.logsumexp(scores, -1)
        out = jnp.exp(scores - log[:, None]) @ v
        return out, (q, k, v, out, log)

    def bwd(kept, g):
        q, k, v, out, log = kept
        p = jnp.exp(q @ k.T * scale - log[:, None])
        slope = p * (g @ v.T - (g * out).sum(-1, keepdims=True)) * scale
        return slope @ k, slope.T @ q, p.T @ g

    value = lambda q, k, v: fwd(q, k, v)[0]
    ours, peer = tj.op("test-judges.attention.v1")(value), jax.custom_vjp(value)
    ours.defvjp(fwd, bwd), peer.defvjp(fwd, bwd)
    args = np.random.default_rng(0).normal(size=(3, 512, 16)).astype("float32")
    held = [sum(a.nbytes for a in jax.tree.leaves(jax.vjp(f, *args)[1])) for f in (ours, peer)]
    print(f"attention, n = 512: {held[0] / 1024} KiB, jax.custom_vjp {held[1] / 1024} KiB")
    assert held[0] <= 1.1 * held[1]


@pytest.mark.filterwarnings("ignore")
def test_training_with_equinox_and_optax():
    eqx, optax = pytest.importorskip("equinox"), pytest.importorskip("optax")
    size = jax.custom_vjp(lambda x: jnp.abs(x))
    size.defvjp(lambda x: (jnp.abs(x), x), lambda x, g: (jnp.sign(x) * g,))
    size = tj.op("test-judges.size.v1")(size)
    model = eqx.nn.MLP(2, 1, 8, 1, key=jax.random.key(0))
    x = jax.random.normal(jax.random.key(1), (64, 2))
    adam = optax.adam(1e-2)
    state, losses = adam.init(eqx.filter(model, eqx.is_array)), []

    @eqx.filter_jit
    def step(model, state):
        loss = lambda model: size(jax.vmap(model)(x)[:, 0] - x.sum(1)).mean()
        value, slope = eqx.filter_value_and_grad(loss)(model)
        change, state = adam.update(slope, state)
        return eqx.apply_updates(model, change), state, value

    with jax.numpy_dtype_promotion("standard"):
        for _ in range(60):
            model, state, value = step(model, state)
            losses.append(float(value))
    assert losses[-1] < losses[0] / 5


@pytest.mark.filterwarnings("ignore")
def test_conjugate_gradients_over_nufftax():
    nufftax = pytest.importorskip("nufftax")
    points = jnp.linspace(-3, 3, 20).astype("float32")

    def transforms(sign):
        one = lambda y: nufftax.nufft1d1(points, y, 8, eps=1e-6, isign=sign)
        return one, lambda c: nufftax.nufft1d2(points, c, eps=1e-6, isign=sign)

    # a custom_vjp inside the body has no transpose: the op has one
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        ops = {}
        for sign in (1, -1):
            one, two = transforms(sign)
            name = "plus" if sign > 0 else "minus"
            ops[1, sign] = tj.op(f"test-judges.{name}_one.v1")(one)
            ops[2, sign] = tj.op(f"test-judges.{name}_two.v1")(two)
            ops[1, sign].def_transpose(lambda c, y, two=two: (two(c),))
            ops[2, sign].def_transpose(lambda y, c, one=one: (one(y),))
        forward, adjoint = ops[2, -1], ops[1, 1]
        c = jnp.ones(8, "complex64")
        matrix = np.asarray(jax.vmap(forward)(jnp.eye(8, dtype="complex64"))).T
        y = np.asarray(forward(c))
        np.testing.assert_allclose(y, matrix @ c, atol=1e-4)
        (back,) = jax.linear_transpose(forward, c)(jnp.asarray(y))
        np.testing.assert_allclose(back, matrix.T @ y, atol=1e-3)
        np.testing.assert_allclose(jax.jvp(forward, (c,), (2 * c,))[1], 2 * y, atol=1e-4)
        normal = lambda v: adjoint(forward(v)) + v
        solve = lambda b: jax.scipy.sparse.linalg.cg(normal, b, tol=1e-6)[0]
        dense = matrix.conj().T @ matrix + np.eye(8)
        np.testing.assert_allclose(solve(c), np.linalg.solve(dense, c), atol=1e-4)
        slope = jax.grad(lambda b: solve(b).real.sum())(c)
        want = np.linalg.solve(dense.T, np.ones(8))
        np.testing.assert_allclose(slope, want, atol=1e-4)
