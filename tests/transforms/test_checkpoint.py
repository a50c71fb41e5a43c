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
def test_a_saved_family_is_not_run_again(name):
    call, family = CALLS[name]
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def loss(policy):
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(call, policy=policy)(x))))

    saved, plain = loss(save_families(family)), loss(None)
    np.testing.assert_allclose(saved(x), plain(x), rtol=1e-12)
    assert (count(saved, x), count(plain, x)) == (1, 2)
