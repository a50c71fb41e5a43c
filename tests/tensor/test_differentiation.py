"""Derivatives of lazy tensors: those of the same functions of arrays by JAX are the judges."""

import chex
import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax.engine import Engine
from tenferro_jax.errors import ADRuleError, DTypeError, DuplicateRule, InvalidConfig
from tenferro_jax.extension import ExtensionRuleSet
from tenferro_jax.tensor import TracedTensor, eval_all
from tenferro_jax.tensor.record import to_graph

from ..extension_ops import HostTanh, HostTanhRule, ScaledSquare, ScaledSquareRule
from ..helpers import each_ends_in, ends_in

ENGINE = Engine()
RNG = np.random.default_rng(0)
X, W, B = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 2)), RNG.normal(size=(1, 2))


def tensors():
    return (
        TracedTensor.from_array(X, "x"),
        TracedTensor.from_array(W, "w"),
        TracedTensor.from_array(B, "b"),
    )


def loss_of(x, w, b, tanh=np.tanh):
    """The same text for lazy tensors, for NumPy and for JAX."""
    h = tanh(x @ w + b)
    return (h * h / (1 + h * h)).sum()


def lazy_loss(x, w, b):
    return loss_of(x, w, b, TracedTensor.tanh)


def ops_of(*outputs):
    graph, _ = to_graph(outputs)
    return [type(n.op).__name__ for n in graph.nodes]


def test_derivatives_of_both_modes_and_orders_nested_as_wrt():
    x, w, b = tensors()
    v, cotangent = np.cos(W), np.cos(X @ W)
    loss, y = lazy_loss(x, w, b), (x @ w + b).tanh()
    to_w = loss.grad(w)
    lazy = {
        "gradient": loss.grad({"x": x, "rest": [w, b]}),
        "pulled": y.vjp([w, b], TracedTensor.constant(cotangent)),
        "pushed": y.jvp([w, b], [v, np.sin(B)]),
        "second": [to_w.jvp(w, v), (to_w * v).sum().grad(w)],
    }

    def value(w, b):
        return jnp.tanh(X @ w + b)

    def slope(w):
        return jax.grad(loss_of, 1)(X, w, B, jnp.tanh)

    gradient = jax.grad(loss_of, (0, 1, 2))(X, W, B, jnp.tanh)
    second = jax.jvp(slope, (W,), (v,))[1]
    want = {
        "gradient": {"x": gradient[0], "rest": [*gradient[1:]]},
        "pulled": [*jax.vjp(value, W, B)[1](cotangent)],
        "pushed": jax.jvp(value, (W, B), (v, np.sin(B)))[1],
        "second": [second, second],
    }
    leaves, tree = jax.tree.flatten(lazy)
    found = jax.tree.unflatten(tree, eval_all(leaves, ENGINE))
    chex.assert_trees_all_close(found, want, rtol=1e-9, atol=1e-12)


def test_a_tensor_on_the_way_has_a_gradient_and_does_not_hide_what_is_behind_it():
    x, w, b = tensors()
    h = (x @ w + b).tanh()
    y = (h * h).sum() + h.sum() * w.sum()

    def after(h, w):
        return (h * h).sum() + h.sum() * w.sum()

    def before(w):
        return jnp.tanh(X @ w + B)

    want = [jax.grad(after)(before(W), W), jax.grad(lambda w: after(before(w), w))(W)]
    got = eval_all([*y.grad([h, w, h]), y.grad(y)], ENGINE)
    chex.assert_trees_all_close(got, [*want, want[0], np.array(1.0)], rtol=1e-12)
    pushed = h.jvp([h, w], [np.sin(X @ W), np.cos(W)]).eval(ENGINE)
    behind = jax.jvp(before, (W,), (np.cos(W),))[1]
    np.testing.assert_allclose(pushed, np.sin(X @ W) + behind, rtol=1e-12)
    both = TracedTensor.inline(lambda p, q: (jnp.sin(p), jnp.cos(q)), x[:, :2], x[:, 2:])
    slope = (both[1] * both[1]).sum().grad(both[1]).eval(ENGINE)
    np.testing.assert_allclose(slope, 2 * np.cos(X[:, 2:]), rtol=1e-12)


def test_value_and_gradients_are_one_program_without_repetition():
    x, w, b = tensors()
    loss = (x @ w + b).tanh().sum()
    forward, both = ops_of(loss), ops_of(loss, *loss.grad([w, b]))
    assert both[: len(forward)] == forward
    assert both.count("Tanh") == 1
    assert both.count("DotGeneral") == 2  # x @ w, and its transpose for w


def test_value_and_gradients_run_a_host_op_once(monkeypatch):
    calls, run = [], HostTanh.eager_execute
    monkeypatch.setattr(
        HostTanh, "eager_execute", lambda self, x: calls.append(x.shape) or run(self, x)
    )
    x = TracedTensor.from_array(np.array([1.0, 2.0]))
    (y,) = TracedTensor.apply(HostTanh(), x * 3.0, rules=ExtensionRuleSet(HostTanhRule()))
    loss = (y * y).sum()
    value, gradient = eval_all([loss, loss.grad(x)], ENGINE)
    t = np.tanh([3.0, 6.0])
    np.testing.assert_allclose([value, *gradient], [(t * t).sum(), *6 * t * (1 - t * t)], rtol=1e-9)
    assert calls == [(2,)]


def test_symbolic_sizes_stay_symbolic():
    x, w = TracedTensor.input("x", np.float64, ("n", 3)), TracedTensor.from_array(W)
    gradient = (x @ w).tanh().sum().grad(x)
    assert str(gradient.shape) == "(n, 3)"
    np.testing.assert_allclose(
        gradient.eval(ENGINE, {x: X}), jax.grad(lambda x: jnp.tanh(x @ W).sum())(X), rtol=1e-12
    )


def test_rules_travel_with_the_call_and_two_for_one_family_are_refused():
    x = TracedTensor.from_array(np.array([1.0, 2.0]))
    marked = [
        TracedTensor.apply(ScaledSquare(1.0), x, rules=ExtensionRuleSet(ScaledSquareRule(mark)))[0]
        for mark in (10.0, 3.0)
    ]
    assert [y.sum().grad(x).eval(ENGINE).tolist() for y in marked] == [[20.0, 40.0], [6.0, 12.0]]
    ends_in((marked[0] + marked[1]).graph, DuplicateRule)
    (without,) = TracedTensor.apply(ScaledSquare(), x)
    ends_in(lambda: without.sum().grad(x), ADRuleError, r"test-package\.scaled_square\.v1")


def test_nothing_that_depends_gives_zeros_as_in_jax():
    x, w, b = tensors()
    other = TracedTensor.input("other", np.float64, ())
    y = (x @ w).sum()
    assert y.grad([w, b])[1].eval(ENGINE).tolist() == [[0.0, 0.0]]
    assert y.grad(other).eval(ENGINE) == 0.0
    assert y.jvp(b, B).eval(ENGINE) == 0.0
    z = (
        w.floor().astype(np.int32).sum().astype(np.float64)
        + TracedTensor.inline(jax.lax.stop_gradient, b).sum()
    )
    assert [np.any(g) for g in eval_all(z.grad([w, b]), ENGINE)] == [False, False]


def test_what_has_no_derivative_is_refused():
    x, w, _ = tensors()
    y = (x @ w).sum()
    each_ends_in(
        (lambda: (x @ w).grad(x), InvalidConfig, r"float64\[4,2\]"),
        (lambda: y.astype(np.int64).grad(x), InvalidConfig, "int64"),
        (lambda: y.grad(w.astype(np.int32)), DTypeError, "int32"),
        (lambda: y.grad("w"), InvalidConfig, "list or dict of them"),
        (
            (lambda: y.jvp([w], wrong) for wrong in ([np.ones(2)], [np.float32(W)], [W, W], W)),
            (TypeError, ValueError),
            r"tangent|List arity|Expected list",
        ),
    )
    (ruleless,) = TracedTensor.apply(HostTanh(), x)
    z = (ruleless.checkpoint() @ w).sum()
    np.testing.assert_allclose(
        z.grad(w).eval(ENGINE), np.tile(np.tanh(X).sum(0)[:, None], 2), rtol=1e-12
    )
    ends_in(lambda: z.grad(x), ADRuleError, r"host_tanh")


# --- checkpoints ----------------------------------------------------------------------------------


def deep(x, w, checkpoint):
    for _ in range(3):
        x = (x @ w).sin().exp().tanh()
        if checkpoint:
            x = x.checkpoint()
    return (x * x).sum()


def test_a_checkpoint_changes_no_value_and_no_derivative():
    x, w = TracedTensor.from_array(X[:3, :3]), TracedTensor.from_array(X[1:, :3] / 3)
    plain, marked = deep(x, w, False), deep(x, w, True)
    assert plain.graph() == marked.graph()
    first = [y.grad(w) for y in (plain, marked)]
    second = [(g * np.cos(3)).sum().grad(x) for g in first]
    forward = [g.jvp(w, np.ones((3, 3))) for g in first]
    for a, b in (first, second, forward):
        np.testing.assert_allclose(*eval_all([a, b], ENGINE), rtol=1e-10)


def test_a_checkpoint_computes_again_behind_a_barrier():
    x, w = TracedTensor.from_array(X[:3, :3]), TracedTensor.from_array(X[1:, :3] / 3)
    for checkpoint, counts in ((False, (3, 0)), (True, (6, 3))):
        loss = deep(x, w, checkpoint)
        names = ops_of(loss, loss.grad(w))
        assert (names.count("Exp"), names.count("OptimizationBarrier")) == counts


def test_a_gradient_looks_no_further_back_than_what_it_is_taken_for():
    y = TracedTensor.from_array(np.float64([1, 2, 3]), "b")
    want = np.float64([1, 2, 3])
    for _ in range(30):
        y = y + (y * y).sum().grad(y) * 0.01
        want = want + 2 * want * 0.01
    np.testing.assert_allclose(y.eval(ENGINE), want, rtol=1e-12)
    before = len(y.graph().nodes)
    assert len((y * y).sum().grad(y).graph().nodes) <= before + 6
