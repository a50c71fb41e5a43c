"""Extensions written out: no family is left in the jaxpr, wherever the calls are, and the values
stay.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import best_assignment, closure, tropical_einsum, viterbi
from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.jax_seam import inner_jaxprs, open_jaxpr

from ..extension_ops import RULES, HostCumulate, ScaledSquare
from ..helpers import ends_in

A = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)


def product(a, b):
    return tropical_einsum("ij,jk->ik", a, b)


def squared(x):
    return apply(ScaledSquare(0.5), x, rules=RULES)[0]


@jax.custom_jvp
def with_jvp(a):
    return product(a, a)


@with_jvp.defjvp
def _with_jvp(primals, tangents):
    return with_jvp(*primals), product(*primals, *primals) * tangents[0]


@jax.custom_jvp
def in_rule_alone(a):
    return a * 2


@in_rule_alone.defjvp
def _in_rule_alone(primals, tangents):
    return in_rule_alone(*primals), product(*primals, *primals) * tangents[0]


@jax.custom_vjp
def with_vjp(a, n):
    return product(a, a) * n, n


with_vjp.defvjp(
    lambda a, n: (with_vjp(a, n), a), lambda a, cotangents: (product(a, a) * cotangents[0], None)
)

MESH = jax.make_mesh((2,), ("d",), (jax.sharding.AxisType.Auto,), devices=jax.devices("cpu")[:2])
SMOOTH = {  # differentiated too
    "alone": lambda a: product(a, a),
    "jit": lambda a: jax.jit(product)(a, a),
    "scan": lambda a: jax.lax.scan(
        lambda c, x: (product(c, a) + x, c.sum()), a, jnp.ones((2, 3, 3), np.float32)
    ),
    "cond": lambda a: jax.lax.cond(a.sum() > 0, lambda a: product(a, a), jnp.sin, a),
    "checkpoint": lambda a: jax.checkpoint(lambda a: jnp.sin(product(a, a)))(a),
    "vmap": lambda a: jax.vmap(lambda b: product(a, b))(jnp.stack([a, a + 1])),
    "custom_jvp": lambda a: jax.jit(with_jvp)(a),
    "the rule of a custom_jvp": lambda a: jax.jit(in_rule_alone)(a),
    "custom_vjp": lambda a: jax.jit(lambda a: with_vjp(a, 3)[0])(a),
    "functions of JAX": lambda a: jax.nn.relu(product(a, a)) + jax.nn.logsumexp(a),
    "log_sum_exp": lambda a: tropical_einsum("ij,jk->ik", a, a, semiring="log_sum_exp"),
    "shard_map": lambda a: jax.shard_map(
        lambda a: product(a, a.T), mesh=MESH, in_specs=jax.P("d"), out_specs=jax.P("d")
    )(jnp.concatenate([a, a + 1])),
}
OTHERS = {
    "while": lambda a: jax.lax.while_loop(
        lambda s: product(s[1], a).sum() < 99, lambda s: (s[0] + 1, product(s[1], a) + 1), (0, a)
    ),
    "gradient": lambda a: jax.grad(lambda a: squared(product(a, a)).sum())(a),
    "second derivative": lambda a: jax.vmap(jax.grad(jax.grad(squared)))(a[0]),
    "winners": lambda a: best_assignment("ij,jk,ki->", a, a, a).labels,
    "closure": lambda a: closure(jnp.abs(a)).value,
    "viterbi": lambda a: viterbi(a[0], a, a),
}


def families(closed):
    """The primitives of a jaxpr and of those inside that are named by a family."""
    for eqn in open_jaxpr(closed)[0].eqns:
        if ".v" in eqn.primitive.name:
            yield eqn.primitive.name
        for inner in inner_jaxprs(eqn):
            yield from families(inner)


def total(f):
    """A number of which every output is a part."""
    return lambda a: sum(
        jnp.sum(x * jnp.arange(1, 1 + x.size, dtype=x.dtype).reshape(x.shape))
        for x in jax.tree.leaves(f(a))
    )


def test_no_family_is_left_and_the_values_stay():
    programs = SMOOTH | OTHERS
    for name, f in programs.items():
        assert list(families(jax.make_jaxpr(f)(A))) or name == "the rule of a custom_jvp", name
        assert not list(families(jax.make_jaxpr(tj.lowered(f))(A))), name
        assert not list(families(jax.make_jaxpr(jax.jit(tj.lowered(f)))(A))), name
    want, got = jax.jit(
        lambda a: [
            {name: g(f)(a) for name, f in programs.items()} for g in (lambda f: f, tj.lowered)
        ]
    )(A)
    chex.assert_trees_all_close(got, want, rtol=1e-6)
    np.testing.assert_allclose(got["alone"], (A[:, :, None] + A[None]).max(1), rtol=1e-6)


@pytest.mark.slow
def test_derivatives_are_those_of_plain_jax():
    def gradients(of):
        return {name: jax.grad(total(jax.jit(of(f)))) for name, f in SMOOTH.items()}

    for name, g in gradients(tj.lowered).items():
        assert not list(families(jax.make_jaxpr(g)(A))), name
    want, got = jax.jit(
        lambda a: [{n: g(a) for n, g in gradients(of).items()} for of in (lambda f: f, tj.lowered)]
    )(A)
    # no ties in A: the winner alone has a derivative, by the rule and by JAX
    chex.assert_trees_all_close(got, want, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(jax.grad(tj.lowered(squared))(np.float32(3)), 3)
    marked = tj.lowered(lambda x: apply(ScaledSquare(0.5), x)[0])  # no rule at all
    np.testing.assert_array_equal(jax.grad(marked)(np.float32(3)), 3)


def test_a_graph_is_written_out():
    graph = tj.trace(
        lambda tree, *, b: {"y": SMOOTH["scan"](tree["a"]), "z": product(tree["a"], b)},
        {"a": A},
        b=A,
    )
    plain = graph.lowered()
    assert len(graph.extensions) == 2
    assert plain.extensions == ()
    assert (plain.in_tree, plain.out_tree, plain.output_metas) == (
        graph.in_tree,
        graph.out_tree,
        graph.output_metas,
    )
    tj.verify(plain)
    want, got = jax.jit(lambda a: (graph.to_jax()({"a": a}, b=a), plain.to_jax()({"a": a}, b=a)))(A)
    chex.assert_trees_all_equal(got, want)
    (n,) = jax.export.symbolic_shape("n")
    symbolic = tj.trace(product, *[jax.ShapeDtypeStruct((n, n), np.float32)] * 2)
    assert symbolic.lowered().extensions == ()
    assert symbolic.lowered().input_metas == symbolic.input_metas


def test_what_cannot_be_written_out():
    error = ends_in(
        lambda: tj.lowered(lambda x: apply(HostCumulate(), x)[0])(np.ones(3)),
        Unsupported,
        r"test-package\.host_cumulate\.v1: given no lowering to write out; needed a lowering",
    )
    assert "export" not in str(error.value)
    ends_in(lambda: tj.lowered(3), InvalidConfig, "lowered: given 3")
