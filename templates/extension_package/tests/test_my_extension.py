"""The op is what NumPy says, and keeps the extension contract."""

import jax
import jax.numpy as jnp
import numpy as np
from my_extension import RULES, SoftPlus, register, soft_plus

from tenferro_jax.conformance import conformance_tests
from tenferro_jax.extension import lookup_extension_factory

X = np.linspace(-1.0, 2.0, 5, dtype=np.float32)

test_contract = conformance_tests(SoftPlus(0.5), X, rules=RULES)


def test_values():
    np.testing.assert_allclose(soft_plus(X, 0.5), 0.5 * np.log1p(np.exp(X / 0.5)), rtol=1e-5)


def test_derivative():
    slope = jax.jit(jax.vmap(jax.grad(lambda x: soft_plus(x, 0.5))))(jnp.asarray(X))
    np.testing.assert_allclose(slope, 1 / (1 + np.exp(-X / 0.5)), rtol=1e-5)


def test_registration():
    assert register() is register() is RULES
    assert lookup_extension_factory(SoftPlus.family_id).op_class is SoftPlus
