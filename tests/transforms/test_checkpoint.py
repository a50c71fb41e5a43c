"""jax.checkpoint: gradients, and save_families as a policy: how often an extension runs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import TropicalEinsum, max_plus
from tenferro_jax import trace
from tenferro_jax.extension import apply
from tenferro_jax.extension.primitive import save_families
from tenferro_jax.extension.routes import extensions_in

from .matrix import agree_numerically, sweep


def count(fn, *args):
    return len(list(extensions_in(jax.make_jaxpr(fn)(*args))))


@pytest.mark.clause("X13.3")
@sweep("checkpoint")
def test_grad_of_checkpoint(case):
    got = jax.jit(jax.grad(jax.checkpoint(case.scalar), case.argnums))(*case.inputs)
    agree_numerically(got, case.gradients(*case.inputs))


@pytest.mark.clause("X13.6")
@sweep("checkpoint with save_families")
def test_a_saved_family_runs_once_less(case):
    def grad(policy):
        return jax.grad(jax.checkpoint(case.scalar, policy=policy), case.argnums)

    saved, plain = grad(save_families(case.op.family_id)), grad(None)
    agree_numerically(jax.jit(saved)(*case.inputs), case.gradients(*case.inputs))
    assert count(plain, *case.inputs) - count(saved, *case.inputs) == 1


@pytest.mark.clause("X13.6", "X10.12")
def test_a_value_that_is_differentiated_by_another_form_is_saved_too():
    """The einsum of values alone is differentiated by the one with winners: that is what
    is saved.
    """

    def call(x):
        return apply(TropicalEinsum(max_plus, "ij,jk->ik"), x, x)[0]

    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def loss(policy):
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(call, policy=policy)(x))))

    saved, plain = loss(save_families(TropicalEinsum.family_id)), loss(None)
    np.testing.assert_allclose(saved(x), plain(x), rtol=1e-12)
    assert (count(saved, x), count(plain, x)) == (1, 2)


def test_a_traced_gradient_computes_again_behind_a_barrier():
    """Without it the nodes that are made again would be one with those of the forward pass."""
    gradient = jax.value_and_grad(
        lambda x: jnp.sum(jax.checkpoint(lambda x: jnp.exp(jnp.sin(x)))(x))
    )
    x = jnp.arange(3.0)
    graph = trace(gradient, x)
    names = [type(node.op).__name__ for node in graph.nodes]
    assert (names.count("OptimizationBarrier"), names.count("Exp"), names.count("Sin")) == (1, 2, 2)
    for got, want in zip(graph.to_jax()(x), gradient(x), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_a_call_whose_inputs_are_not_differentiated_is_not_saved():
    """A known limit: outputs get their name where an AD rule is applied, and none is
    applied here.
    """
    x = jnp.asarray(np.random.default_rng(0).normal(size=(4, 4)))

    def call(x, w):
        return (apply(TropicalEinsum(max_plus, "ij,jk->ik"), w, w)[0] * jnp.sin(x)).sum()

    saved = jax.grad(jax.checkpoint(call, policy=save_families(TropicalEinsum.family_id)))
    np.testing.assert_allclose(saved(x, x), jax.grad(call)(x, x), rtol=1e-12)
    assert count(saved, x, x) == 2
