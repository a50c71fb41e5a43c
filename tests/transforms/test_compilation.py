"""Eager calls, jit, disable_jit, ahead-of-time compilation, donation, and JAX's own checks;
jax.checkpoint with save_families as a policy: how often an extension runs.
"""

import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.measure import canonical_hlo
from ext_tropical import TropicalEinsum, max_plus
from tenferro_jax import trace
from tenferro_jax.extension import apply
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.extension.primitive import save_families
from tenferro_jax.extension.routes import extensions_in

from ..cases import CASES, ids
from ..helpers import made
from .matrix import agree, agree_numerically, sweep


@pytest.mark.clause("X8.10")
@sweep("eager")
def test_eager(case):
    agree(case(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X8.10")
@sweep("jit")
def test_jit(case):
    agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


def body(x):
    return jax.lax.scan(lambda c, row: (c * 0.5 + row, c), x[0], jnp.tanh(x @ x.T) @ x)[1]


Body = made("Body", family_id="tests.body.v1", lower_to_standard_ops=lambda self, x: (body(x),))
Body.linearize = lambda self, xs, outs, ts: (jax.jvp(body, (xs[0],), (ts[0],))[1],)


@pytest.mark.clause("X13.8")
@pytest.mark.parametrize(
    "transform",
    [
        lambda f: f,
        lambda f: jax.grad(lambda x: (f(x) ** 2).sum()),
        lambda f: lambda x: jax.vmap(f, in_axes=2, out_axes=2)(jnp.stack([x, 2 * x], 2)),
    ],
    ids=["value", "gradient", "vmap"],
)
def test_the_optimised_program_is_that_of_the_plain_function(transform):
    x = jnp.linspace(-1.0, 1.0, 12).reshape(3, 4)
    ours, plain = (
        canonical_hlo(jax.jit(transform(f)).lower(x).compile().as_text())
        for f in (lambda x: apply(Body(), x)[0], body)
    )
    assert ours == plain


@sweep("disable_jit")
def test_disable_jit(case):
    with jax.disable_jit():
        agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("ahead of time")
def test_ahead_of_time(case):
    agree(jax.jit(case).lower(*case.inputs).compile()(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("donation")
def test_donated_inputs_are_overwritten_and_the_results_are_right(case):
    """Every input has an output of its own shape beside the op's: its buffer is reused while the op
    reads it.
    """
    arrays = [jnp.array(x) for x in case.inputs]
    outs, moved = jax.jit(
        lambda *xs: (case(*xs), [x + 1 for x in xs]), donate_argnums=case.argnums
    )(*arrays)
    agree(outs, case.oracle(*case.inputs))
    agree(moved, [x + 1 for x in case.inputs])
    assert all(x.is_deleted() for x in arrays)


def check_value_vmap_and_grad(case):
    """The three in one program."""
    batch = case.batch(2)
    differentiable = case.kind != "integer outputs"

    def program(xs, batch):
        return (
            case(*xs),
            jax.vmap(case)(*batch),
            jax.grad(case.scalar, case.argnums)(*xs) if differentiable else (),
        )

    value, mapped, gradients = jax.jit(program)(case.inputs, batch)
    agree(value, case.oracle(*case.inputs))
    agree(mapped, case.stacked(*batch))
    agree_numerically(gradients, case.gradients(*case.inputs) if differentiable else ())


@sweep("checking_leaks")
def test_no_tracer_leaks(case):
    with jax.checking_leaks():
        check_value_vmap_and_grad(case)


@sweep("enable_checks")
def test_jax_finds_nothing_to_complain_about(case):
    with jax.enable_checks(True):
        check_value_vmap_and_grad(case)


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_equal_ops_are_traced_once(case):
    @functools.partial(jax.jit, static_argnums=0)
    @chex.assert_max_traces(1)
    def f(carrier, *xs):
        return apply(carrier, *xs, runtimes=case.runtimes)

    carrier = Extension.of(case.op)
    rebuilt = type(carrier.op)(
        **{
            name: getattr(carrier.op, name)
            for name in getattr(carrier.op, "__dataclass_fields__", ())
        }
    )
    f(carrier, *case.inputs)
    f(Extension(rebuilt, carrier.batching), *case.inputs)


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
