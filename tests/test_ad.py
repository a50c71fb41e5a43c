"""Derivatives of graphs, with extensions inside."""

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import TROPICAL_RULES, tropical_einsum
from tenferro_jax.extension import ExtensionRuleSet

from .oracles import brute_force, central_difference

A, B = np.random.default_rng(0).normal(size=(3, 4)), np.random.default_rng(1).normal(size=(4, 2))


def loss(a, b):
    return (tropical_einsum("ij,jk->ik", a, b) ** 2).sum()


def oracle(a, b):
    return (brute_force("max_plus", "ij,jk->ik", a, b)[0] ** 2).sum()


def test_grad_of_a_graph_is_a_graph():
    graph = tj.trace(loss, A, B)
    for argnums in (0, 1):
        gradient = tj.grad(graph, argnums)
        want = central_difference(oracle, [A, B], argnums)
        np.testing.assert_allclose(gradient.to_jax()(A, B), want, rtol=1e-6, atol=1e-6)
    both = tj.grad(graph, (0, 1)).to_jax()(A, B)
    np.testing.assert_allclose(both[1], central_difference(oracle, [A, B], 1), rtol=1e-6, atol=1e-6)


def test_second_order():
    graph = tj.trace(loss, A, B)
    twice = tj.grad(tj.trace(lambda a, b: tj.grad(graph).to_jax()(a, b).sum(), A, B))
    numeric = central_difference(lambda a: np.asarray(jax.grad(loss)(a, B)).sum(), [A], 0)
    np.testing.assert_allclose(twice.to_jax()(A, B), numeric, rtol=1e-5, atol=1e-5)


def test_jvp_and_vjp():
    graph = tj.trace(lambda a, b: tropical_einsum("ij,jk->ik", a, b), A, B)
    ta, tb = np.cos(A), np.sin(B)
    value, tangent = tj.jvp(graph).to_jax()(A, B, ta, tb)
    w = np.cos(np.arange(6.0)).reshape(3, 2)
    same, (ca, cb) = tj.vjp(graph).to_jax()(A, B, w)
    np.testing.assert_array_equal(value, same)
    np.testing.assert_array_equal(value, brute_force("max_plus", "ij,jk->ik", A, B)[0])
    np.testing.assert_allclose(np.vdot(w, tangent), np.vdot(ca, ta) + np.vdot(cb, tb), rtol=1e-12)
    step = 1e-6
    ends = [brute_force("max_plus", "ij,jk->ik", A + s * step * ta, B + s * step * tb)[0] for s in (1, -1)]
    np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)


def test_rules_may_be_overridden():
    graph = tj.trace(loss, A, B)
    with pytest.raises(tj.ADRuleError, match=r"tenferro-ext-tropical\.einsum\.v1"):
        tj.grad(graph, rules=ExtensionRuleSet())
    stripped = graph.with_rules(ExtensionRuleSet())
    np.testing.assert_array_equal(tj.grad(stripped, rules=TROPICAL_RULES).to_jax()(A, B), tj.grad(graph).to_jax()(A, B))
