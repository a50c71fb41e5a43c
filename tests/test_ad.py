"""Derivatives of graphs, with extensions inside."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import trace
from tenferro_jax.ad import AdContext
from tenferro_jax.errors import ADRuleError, InvalidConfig
from tenferro_jax.extension import ExtensionRuleSet, apply

from .extension_ops import RULES, Bilinear, ScaledSquare
from .helpers import ends_in, equal
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


def test_jvp_and_vjp():
    graph = tj.trace(lambda a, b: tropical_einsum("ij,jk->ik", a, b), A, B)
    ta, tb = np.cos(A), np.sin(B)
    value, tangent = tj.jvp(graph).to_jax()(A, B, ta, tb)
    w = np.cos(np.arange(6.0)).reshape(3, 2)
    same, (ca, cb) = tj.vjp(graph).to_jax()(A, B, w)
    equal((value, same), (value, brute_force("max_plus", "ij,jk->ik", A, B)[0]))
    np.testing.assert_allclose(np.vdot(w, tangent), np.vdot(ca, ta) + np.vdot(cb, tb), rtol=1e-12)
    step = 1e-6
    ends = [
        brute_force("max_plus", "ij,jk->ik", A + s * step * ta, B + s * step * tb)[0]
        for s in (1, -1)
    ]
    np.testing.assert_allclose(tangent, (ends[0] - ends[1]) / (2 * step), rtol=1e-6, atol=1e-6)


def test_rules_may_be_overridden():
    graph = tj.trace(lambda a, b: apply(Bilinear(), a, b, rules=RULES)[0].sum(), A, B)
    ends_in(
        lambda: tj.grad(graph, rules=ExtensionRuleSet()), ADRuleError, r"test-package\.bilinear\.v1"
    )
    stripped = graph.with_rules(ExtensionRuleSet())
    np.testing.assert_array_equal(
        tj.grad(stripped, rules=RULES).to_jax()(A, B), tj.grad(graph).to_jax()(A, B)
    )


def mixed(p, n, y):
    """Integer and floating leaves, inside and outside."""
    z = jnp.sin(p["w"]) * y.sum() + n.sum().astype(p["w"].dtype)
    return {"z": z, "count": n + p["n"], "both": (z * z).sum()}


P = {"w": np.array([0.5, -1.0, 2.0]), "n": np.arange(3)}
MIXED = P, np.arange(3), np.array([1.0, 2.0])


def test_what_is_inactive_is_none():
    graph = trace(mixed, *MIXED)
    t = {"w": np.array([1.0, 2.0, 3.0]), "n": None}
    forward = tj.jvp(graph)
    outs, tangents = forward.to_jax()(*MIXED, t, None, np.array([0.5, 0.25]))
    want = jax.jvp(
        lambda w, y: mixed({"w": w, "n": P["n"]}, MIXED[1], y)["z"],
        (P["w"], MIXED[2]),
        (t["w"], np.array([0.5, 0.25])),
    )
    np.testing.assert_allclose(outs["z"], want[0], rtol=1e-15)
    np.testing.assert_allclose(tangents["z"], want[1], rtol=1e-14)
    assert tangents["count"] is None
    assert outs["count"].dtype == np.int64
    backward = tj.vjp(graph, (0, 2))
    _, (to_p, to_y) = backward.to_jax()(
        *MIXED, {"z": np.ones(3), "count": None, "both": np.float64(2)}
    )
    np.testing.assert_allclose(
        (to_p["w"] * t["w"]).sum() + (to_y * np.array([0.5, 0.25])).sum(),
        tangents["z"].sum() + 2 * tangents["both"],
    )
    assert to_p["n"] is None
    assert len(tj.jvp(graph, 2).input_specs) == 4
    ends_in(
        lambda: tj.jvp(graph, 3),
        InvalidConfig,
        r"jvp: given argnums=3; needed one or more of \[0, 1, 2\]",
    )
    assert not [
        n for n in forward.nodes if type(n.op).__name__ == "Constant" and not n.op.value.any()
    ]  # no zeros were made


def test_linearize_is_the_jvp_in_two_parts():
    graph = trace(mixed, *MIXED)
    first, second = tj.linearize(graph)
    outs, residuals = first.to_jax()(*MIXED)
    t = ({"w": np.array([1.0, 2.0, 3.0]), "n": None}, None, np.array([0.5, 0.25]))
    tangents = second.to_jax()(residuals, *t)
    want_outs, want = tj.jvp(graph).to_jax()(*MIXED, *t)
    chex.assert_trees_all_equal((outs, tangents), (want_outs, want))
    assert not {type(n.op).__name__ for n in second.nodes} & {
        "Sin",
        "Cos",
    }  # what needs the arguments alone is in the first part
    double = second.to_jax()(residuals, *jax.tree.map(lambda x: 2 * x, t))
    np.testing.assert_array_equal(double["z"], 2 * tangents["z"])
    product = trace(
        lambda a, b: tropical_einsum("ij,jk->ik", a, b), *2 * [np.arange(4.0).reshape(2, 2)]
    )
    residuals = tj.linearize(product)[0].to_jax()(np.eye(2), np.eye(2))[1]
    assert [r.dtype.kind for r in residuals]


def test_the_context_traces_a_derivative_once_for_each_rule_set():
    context = AdContext(capacity=2)
    square = trace(lambda x: (x * x).sum(), np.ones(3))
    assert context.grad(square) is context.grad(trace(lambda y: (y * y).sum(), np.ones(3)))
    ends_in(lambda: context.grad(square, False), InvalidConfig)  # though 0 is kept
    context.jvp(square)
    context.vjp(square, [0])
    context.linearize(square)
    assert context.cache_info() == (1, 5, 2, 2)
    bare = trace(lambda a: apply(ScaledSquare(2.0), a)[0].sum(), np.ones(3))
    for _ in range(2):  # equal graphs with other rules have other derivatives
        ends_in(lambda: context.grad(bare), ADRuleError)
        ruled = context.grad(bare.with_rules(RULES)).to_jax()
        np.testing.assert_array_equal(ruled(np.ones(3)), np.full(3, 4.0))
    np.testing.assert_array_equal(AdContext(RULES).grad(bare).to_jax()(np.ones(3)), np.full(3, 4.0))


def test_complex_gradients_are_those_of_jax():
    z = np.array([1.0 + 2.0j, -0.5j])
    graph = trace(lambda z: (jnp.abs(z) ** 2 + z.real).sum(), z)
    np.testing.assert_allclose(tj.grad(graph).to_jax()(z), 2 * z.conj() + 1, rtol=1e-15)
    ends_in(
        lambda: tj.grad(trace(lambda z: z.sum(), z)),
        InvalidConfig,
        r"outputs complex128\[\]; needed one floating output",
    )


# (function, where, the derivative that docs/spec/autodiff.md says; None where only JAX is asked)
AT_KINKS = [
    (jnp.abs, 0.0, 1.0),
    (jnp.abs, -0.0, 1.0),
    (jnp.abs, -1.0, -1.0),
    (lambda x: jnp.abs(jax.lax.complex(x, jnp.zeros_like(x))), 0.0, 0.0),
    (jnp.sign, 0.0, 0.0),
    (jnp.floor, 1.0, 0.0),
    (lambda x: jnp.maximum(x, 2.0), 2.0, 0.5),
    (lambda x: jnp.minimum(x, 2.0), 2.0, 0.5),
    (lambda x: jax.lax.cummax(jnp.stack([x, x]))[1], 2.0, 1.0),
    (lambda x: jnp.max(jnp.stack([x, jnp.full_like(x, 2.0), x])), 2.0, 2 / 3),
    (lambda x: jax.lax.clamp(0.0, x, 2.0), 2.0, 0.0),
    (jax.grad(jax.scipy.special.i0), 0.0, None),
    (jax.grad(jax.scipy.special.i1), 0.0, None),
    (jax.grad(jax.scipy.special.i0e), 0.0, None),
]


def test_derivatives_at_ties_and_kinks_are_those_of_the_page_and_of_jax():
    x = np.float64(0)
    ours = [tj.grad(tj.trace(fn, x)).to_jax() for fn, *_ in AT_KINKS]
    at = [np.float64(where) for _, where, _ in AT_KINKS]
    got, want = jax.jit(
        lambda at: [
            [f(x) for f, x in zip(fs, at)] for fs in (ours, [jax.grad(fn) for fn, *_ in AT_KINKS])
        ]
    )(at)
    np.testing.assert_array_equal(got, want)
    page = [(g, said) for g, (_, _, said) in zip(got, AT_KINKS) if said is not None]
    np.testing.assert_allclose(*zip(*page), rtol=1e-15)
