"""The op is what NumPy says, and keeps the extension contract."""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
from my_extension import SoftPlus, register, soft_plus

from tenferro_jax.conformance import conformance_tests
from tenferro_jax.extension import apply, lookup_extension_factory

X = np.linspace(-1.0, 2.0, 5, dtype=np.float32)

test_contract = conformance_tests(SoftPlus(0.5), X)


def test_values():
    got = soft_plus(X, 0.5)
    chex.assert_shape(got, X.shape)
    chex.assert_type(got, X.dtype)
    chex.assert_trees_all_close(got, 0.5 * np.log1p(np.exp(X / 0.5)), rtol=1e-5)


def test_derivative():
    slope = jax.jit(jax.vmap(jax.grad(lambda x: soft_plus(x, 0.5))))(jnp.asarray(X))
    chex.assert_trees_all_close(slope, 1 / (1 + np.exp(-X / 0.5)), rtol=1e-5)


def test_equal_ops_share_a_trace():
    @functools.partial(jax.jit, static_argnums=0)
    @chex.assert_max_traces(1)
    def by(op, x):
        return apply(op, x)[0]

    for _ in range(2):
        by(SoftPlus(0.5), X)


def test_registration():
    register()
    register()
    assert lookup_extension_factory(SoftPlus.family_id).op_class is SoftPlus
