"""save_families as a checkpoint policy: how often an extension runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import TROPICAL_RULES, TropicalEinsum, max_plus
from tenferro_jax.extension import apply, save_families
from tenferro_jax.extension.routes import extensions_in

from ..extension_ops import RULES, MaxAndIndex


def count(fn, *args):
    return len(list(extensions_in(jax.make_jaxpr(fn)(*args))))


CALLS = {
    "value-only einsum": (lambda x: apply(TropicalEinsum(max_plus, "ij,jk->ik"), x, x, rules=TROPICAL_RULES)[0], TropicalEinsum.family_id),
    "two outputs": (lambda x: apply(MaxAndIndex(), jnp.sin(x), rules=RULES)[0], MaxAndIndex.family_id),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("remat3", [False, True])
def test_a_saved_family_is_not_run_again(name, remat3):
    call, family = CALLS[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def loss(policy):
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(call, policy=policy)(x))))

    try:
        jax.config.update("jax_remat3", remat3)
        saved, plain = loss(save_families(family)), loss(None)
        counts = count(saved, x), count(plain, x)
        np.testing.assert_allclose(saved(x), plain(x), rtol=1e-12)
    finally:
        jax.config.update("jax_remat3", False)
    assert counts == (1, 2)
