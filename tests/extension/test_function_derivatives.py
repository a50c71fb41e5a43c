"""Which derivative a function as an op has: that of its body without a word, that of a rule, or an error
that names it.
"""

import chex
import jax
import jax.experimental.hijax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import tenferro_jax as tj
from tenferro_jax.errors import ADRuleError
from tenferro_jax.extension import ExtensionOp, apply

from ..helpers import close, ends_in, equal, fresh

# --- which derivative an op has; integers, which have none ----------------------------------------


AT = np.array([0.3, 1.2, -0.7])


# --- functions without a rule ---------------------------------------------------------------------


WEIGHTS = np.array([1.0, 2.0, 3.0])


PLAIN = {
    "elementwise": lambda x: jnp.sin(x) * WEIGHTS,
    "jit": jax.jit(lambda x: x**3),
    "scan": lambda x: jax.lax.scan(lambda c, _: (jnp.sin(c), c), x, length=3)[0],
    "custom_vjp inside": lambda x: reverse_sine(x) ** 2,
}


@jax.custom_vjp
def reverse_sine(x):
    return jnp.sin(x)


reverse_sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (jnp.cos(x) * g,))


@pytest.mark.parametrize("name", PLAIN)
def test_jax_differentiates_a_function_without_a_rule(name):
    function = PLAIN[name]
    f = fresh(function)
    total = lambda f: lambda x: f(x).sum()
    want = function if name != "custom_vjp inside" else lambda x: jnp.sin(x) ** 2
    for change, x in (
        (jax.grad, AT),
        (lambda f: jax.jit(jax.vmap(jax.grad(f))), AT[:, None]),
        (jax.hessian, AT),
    ):
        got = change(total(f))(x)
        np.testing.assert_allclose(got, change(total(want))(x), rtol=1e-12, atol=1e-12)
    graph = tj.grad(tj.trace(total(f), AT))
    np.testing.assert_allclose(graph.to_jax()(AT), jax.grad(total(function))(AT), rtol=1e-12)


def test_a_rule_wins_over_the_body():
    square = lambda x: x * x
    seven = lambda p, o, t: 7 * t[0]
    forward = fresh(square)
    forward.defjvp(seven)
    reverse = fresh(square)
    reverse.defvjp(lambda x: (x * x, None), lambda r, g: (7 * g,))
    custom = jax.custom_jvp(square)
    custom.defjvp(lambda p, t: (square(*p), 7 * t[0]))
    for f in (forward, reverse, fresh(custom), fresh(jax.jit(jax.jit(custom)))):
        assert jax.grad(f)(3.0) == 7.0
    late = fresh(square)
    assert jax.grad(late)(3.0) == 6.0
    late.defjvp(seven)
    assert jax.grad(late)(3.0) == 7.0


def by_host(x):
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.pure_callback(np.sin, like, x, vmap_method="sequential")


def nothing(**rules):
    f = fresh(lambda x: None)
    f.def_infer(lambda x: x)
    for name, given in rules.items():
        getattr(f, name)(given) if name == "def_host" else f.def_kernel("cpu")(given)
    return f


WITHOUT = {
    "derive=False": (lambda: fresh(jnp.sin, derive=False), "no jvp rule"),
    "def_host": (lambda: nothing(def_host=np.sin), "no jvp rule"),
    "kernel alone": (lambda: nothing(def_kernel=jnp.sin), "no jvp rule"),
    "pure_callback": (lambda: fresh(by_host), "code that JAX cannot differentiate"),
    "pure_callback in scan": (
        lambda: fresh(lambda x: jax.lax.scan(lambda c, _: (by_host(c), 0), x, length=1)[0]),
        "code that JAX cannot differentiate",
    ),
    "io_callback": (
        lambda: fresh(lambda x: io_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)),
        "code that JAX cannot differentiate",
    ),
}


@pytest.mark.parametrize("name", WITHOUT)
def test_what_jax_cannot_differentiate_asks_for_a_rule(name):
    make, given = WITHOUT[name]
    f = make()
    np.testing.assert_allclose(f(AT), np.sin(AT))
    for run in (
        lambda: jax.grad(lambda x: f(x).sum())(AT),
        lambda: jax.jit(jax.grad(lambda x: f(x).sum()))(AT),
        lambda: jax.jvp(f, (AT,), (AT,)),
        lambda: tj.grad(tj.trace(lambda x: f(x).sum(), AT)),
    ):
        error = ends_in(run, ADRuleError, given).value
        assert f.op.family_id in str(error)
        assert "@f.defjvp" in error.fix
    f.defjvp(lambda p, o, t: jnp.cos(p[0]) * t[0])
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(AT), np.cos(AT))


# --- rules that JAX cannot transpose --------------------------------------------------------------


@jax.custom_vjp
def twice(t):
    return 2 * t


twice.defvjp(lambda t: (2 * t, None), lambda _, g: (2 * g,))


def loop(t):
    return jax.lax.while_loop(lambda c: c[0] < 1, lambda c: (c[0] + 1, 2 * c[1]), (0, t))[1]


def function_with(rule):
    f = fresh(lambda x: 2 * x)
    f.defjvp(lambda p, o, t: rule(t[0]))
    return f


def class_with(rule):
    class Doubles(ExtensionOp):
        family_id = "test-derivatives.doubles.v1"

        def lower_to_standard_ops(self, x):
            return (2 * x,)

        def linearize(self, primals, outputs, tangents):
            return (rule(tangents[0]),)

    return lambda x: apply(Doubles(), x)[0]


def test_a_rule_that_calls_a_reverse_rule_has_both_modes():
    """Not only that rule: `bwd` and the transpose of a linear function may call one too."""
    sine = jax.custom_vjp(jnp.sin)
    sine.defvjp(lambda x: (sine(x), x), lambda x, g: (jnp.cos(x) * g,))
    forward = fresh(lambda x: jnp.round(x))
    forward.defjvp(lambda p, o, t: sine(p[0]) * twice(t[0]))
    reverse = fresh(lambda x: jnp.round(x))
    reverse.defvjp(lambda x: (reverse(x), x), lambda x, g: (sine(x) * twice(g),))
    scaled = fresh(lambda x, y: jnp.sin(x) * 2 * y)
    scaled.def_transpose(lambda g, x, y: (None, sine(x) * twice(g)), argnums=1)
    for f in (forward, reverse):
        for order in (
            jax.hessian,
            lambda f: jax.jacfwd(jax.jacfwd(f)),
            lambda f: jax.jacrev(jax.grad(f)),
        ):
            found = jax.jit(order(lambda x: f(x).sum()))(AT)
            np.testing.assert_allclose(found, np.diag(2 * np.cos(AT)), rtol=1e-12)
    found = jax.hessian(lambda y: (scaled(AT, y) ** 2).sum())(AT)
    np.testing.assert_allclose(found, np.diag(8 * np.sin(AT) ** 2), rtol=1e-12)


@pytest.mark.parametrize(
    ("author", "rule"), [(function_with, loop), (class_with, loop), (class_with, twice)]
)
def test_a_rule_that_jax_cannot_transpose_has_forward_mode_alone(author, rule):
    f = author(rule)
    ends_in(
        (lambda: jax.grad(wrap(lambda x: f(x).sum()))(AT) for wrap in (jax.jit, lambda f: f)),
        (ValueError, NotImplementedError),
        "(?i)reverse-mode differentiation|must implement `transpose`",
    )
    close(
        (jax.vmap(lambda x: jax.jvp(f, (x,), (x,))[1])(AT), 2 * AT),
        (jax.linearize(f, AT)[1](AT), 2 * AT),
        (jax.jacfwd(f)(AT), 2 * np.eye(3)),
    )


def test_a_forward_derivative_that_has_no_transpose_is_written_and_read():
    graph = tj.from_wire(tj.to_wire(tj.jvp(tj.trace(function_with(twice), AT))))
    np.testing.assert_allclose(graph.to_jax()(AT, AT)[1], 2 * AT)


def test_a_loop_of_unknown_length_has_forward_mode_alone():
    f = fresh(lambda x: jax.lax.while_loop(lambda y: y.sum() < 9, lambda y: 2 * y, x))
    x = np.array([1.0, 0.5])
    np.testing.assert_allclose(jax.jvp(f, (x,), (x,))[1], 8 * x)
    ends_in(lambda: jax.grad(lambda x: f(x).sum())(x), ValueError, "while_loop")


# --- integers -------------------------------------------------------------------------------------


def nearest_of_class():
    class Near(ExtensionOp):
        family_id = "test-derivatives.near.v1"

        def lower_to_standard_ops(self, q):
            return (jnp.argmin(q).astype("int32"),)

    return lambda q: apply(Near(), q)[0]


def nearest_of_host():
    near = fresh(lambda q: None)
    near.def_infer(lambda q: jax.ShapeDtypeStruct((), "int32"))
    near.def_host(lambda q: np.argmin(q).astype("int32"))
    return near


NEAREST = {
    "function": lambda: fresh(lambda q: jnp.argmin(q).astype("int32")),
    "function without derivative": lambda: fresh(
        lambda q: jnp.argmin(q).astype("int32"), derive=False
    ),
    "class": nearest_of_class,
    "host": nearest_of_host,
}


Q = np.array([2.0, 0.5, 1.0])


@pytest.mark.parametrize("name", NEAREST)
def test_integers_need_no_rule(name):
    near = NEAREST[name]()
    f = lambda q: q[near(q)] ** 2
    want = np.array([0.0, 1.0, 0.0])
    for run in (
        lambda: jax.grad(f)(Q),
        lambda: jax.jit(jax.grad(f))(Q),
        lambda: jax.vmap(jax.grad(f))(Q[None])[0],
        lambda: jax.grad(lambda q: jax.vmap(f)(q[None])[0])(Q),
        lambda: jax.grad(lambda q: jax.lax.scan(lambda c, _: (c, f(c)), q, length=1)[1][0])(Q),
        lambda: jax.grad(jax.checkpoint(f))(Q),
        lambda: tj.grad(tj.trace(f, Q)).to_jax()(Q),
        lambda: jax.linear_transpose(jax.linearize(f, Q)[1], Q)(1.0)[0],
    ):
        np.testing.assert_array_equal(run(), want)
    assert jax.jvp(f, (Q,), (Q,))[1] == 2 * 0.5 * 0.5
    out, tangent = jax.jvp(near, (Q,), (Q,))
    assert out == 1
    assert tangent.dtype == jax.dtypes.float0
    out, pull = jax.vjp(near, Q)
    (back,) = pull(np.zeros((), jax.dtypes.float0))
    equal((back, np.zeros(3)), (tj.jvp(tj.trace(f, Q)).to_jax()(Q, Q)[1], 0.5))


def mixed_rules():
    body = lambda x: (3 * x, (x > 0).sum(), x > 0)
    forward, reverse, linear = fresh(body), fresh(body), fresh(body)
    forward.defjvp(lambda p, o, t: (3 * t[0], None, None))
    reverse.defvjp(lambda x: (body(x), None), lambda _, g: (3 * g[0],))
    linear.def_transpose(lambda y, x: (3 * y[0],))
    return {"derived": fresh(body), "defjvp": forward, "defvjp": reverse, "def_transpose": linear}


@pytest.mark.parametrize("name", ["derived", "defjvp", "defvjp", "def_transpose"])
def test_integers_beside_floats(name):
    f = mixed_rules()[name]
    loss = lambda x: jnp.where(f(x)[2], f(x)[0] * 2, 0.0).sum()
    want = 2 * 3.0 * (AT > 0)
    close(
        *((run(loss)(AT), want) for run in (jax.grad, lambda f: jax.jit(jax.grad(f)))),
        (jax.vmap(jax.grad(loss))(AT[None])[0], want),
        (tj.grad(tj.trace(loss, AT)).to_jax()(AT), want),
    )
    tangents = jax.jvp(f, (AT,), (AT,))[1]
    np.testing.assert_allclose(tangents[0], 3 * AT)
    chex.assert_trees_all_equal([t.dtype for t in tangents[1:]], [jax.dtypes.float0] * 2)
    np.testing.assert_allclose(jax.linearize(f, AT)[1](AT)[0], 3 * AT)
