"""Functions as ops: every transform, by every kind of rule, against the same function in plain JAX."""

import pickle

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import (
    ADRuleError,
    BackendFailure,
    Duplicate,
    DuplicateRule,
    InvalidConfig,
)
from tenferro_jax.extension import LinearInput, apply
from tenferro_jax.extension.routes import RouteKind, current_platform

from ..helpers import close, ends_in, equal, fresh
from .function_ops import X, Y, by_vjp, in_trees, plain


@tj.op("test-functions.by_jvp.v1")
def by_jvp(x, y, *, t: float = 2.0):
    return plain(x, y, t)


@by_jvp.defjvp
def _(primals, outputs, tangents, *, t):
    (x, y), (dx, dy) = primals, tangents
    return (jnp.cos(x) * y + 2 * t * x) * dx + jnp.sin(x) * dy


@tj.op("test-functions.derived.v1")
def derived(x, y, *, t: float = 2.0):
    return plain(x, y, t)


RULES = {
    "jvp": by_jvp,
    "vjp": by_vjp,
    "derive": derived,
    "trees": lambda x, y, **t: in_trees({"x": x, "y": [y]}, jnp.arange(3), **t)["value"],
}


TRANSFORMS = {
    "value": lambda f: f,
    "grad": lambda f: jax.grad(lambda x, y: f(x, y).sum(), (0, 1)),
    "one grad": lambda f: jax.grad(lambda x, y: f(x, y).sum(), 1),
    "jvp": lambda f: lambda x, y: jax.jvp(f, (x, y), (y, x)),
    "hessian": lambda f: jax.hessian(lambda x, y: f(x, y).sum(), (0, 1)),
    "third": lambda f: jax.grad(
        lambda x, y: jax.grad(lambda x: jax.grad(lambda x: f(x, y).sum())(x).sum())(x).sum()
    ),
    "jacfwd of grad": lambda f: jax.jacfwd(jax.grad(lambda x, y: f(x, y).sum()), 1),
    "vmap of grad": lambda f: jax.vmap(jax.grad(f, (0, 1))),
    "grad of vmap": lambda f: jax.grad(lambda x, y: jax.vmap(f, (0, None))(x, y[0]).sum(), (0, 1)),
    "hessian of vmap": lambda f: jax.hessian(
        lambda x, y: jax.vmap(f, (0, None))(x, y[0]).sum(), (0, 1)
    ),
    "checkpoint": lambda f: jax.grad(lambda x, y: jax.checkpoint(f)(x, y).sum(), (0, 1)),
    "scan": lambda f: jax.grad(
        lambda x, y: jax.lax.scan(lambda c, _: (f(c, y) / 9, None), x, length=3)[0].sum()
    ),
    "payload": lambda f: lambda x, y: f(x, y, t=-1.0),
    "linearize": lambda f: lambda x, y: jax.linearize(f, x, y)[1](y, x),
    "graph": lambda f: lambda x, y: tj.from_wire(tj.to_wire(tj.trace(f, x, y))).to_jax()(x, y),
    "gradient of a graph": lambda f: (
        lambda x, y: tj.from_wire(
            tj.to_wire(tj.trace(jax.grad(lambda x: f(x, y).sum()), x))
        ).to_jax()(x)
    ),
}


@pytest.mark.few(8)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("rule", RULES)
def test_every_transform_is_that_of_the_plain_function(rule, transform):
    change = TRANSFORMS[transform]
    want = change(plain)(X, Y) if "graph" not in transform else None
    if want is None:
        want = plain(X, Y) if transform == "graph" else jax.grad(lambda x: plain(x, Y).sum())(X)
    for run in (lambda f: f, jax.jit) if "graph" not in transform else (lambda f: f,):
        chex.assert_trees_all_close(run(change(RULES[rule]))(X, Y), want, rtol=1e-12, atol=1e-12)


def test_a_kernel_runs_in_place_of_the_function_and_may_decline():
    @tj.op("test-functions.with_kernel.v1")
    def with_kernel(x, *, t: float):
        return t * x

    @with_kernel.def_kernel(
        current_platform(),
        declines=lambda x, *, t: "it is for few numbers" if x.shape[0] > 3 else "",
    )
    def _(x, *, t):
        return 100 * t * x

    f = lambda x: with_kernel(x, t=2.0)
    close((jax.jit(f)(X), 200 * X), (f(np.tile(X, 2)), 2 * np.tile(X, 2)))
    assert [route.kind for route in tj.routes(f, X)] == [RouteKind.KERNEL]
    assert "it is for few numbers" in tj.routes(f, np.tile(X, 2))[0].reason
    np.testing.assert_allclose(jax.grad(lambda x: f(x).sum())(X), 2.0)


def test_a_routine_of_numpy_alone():
    @tj.op("test-functions.sorted.v1")
    def ordered(x, *, descending: bool = False):
        return None

    ordered.def_infer(lambda x, *, descending: x)
    ordered.def_host(lambda x, *, descending: np.sort(x)[::-1] if descending else np.sort(x))
    equal(
        (ordered(X), np.sort(X)),
        (jax.jit(lambda x: ordered(x, descending=True))(X), -np.sort(-X)),
        (jax.vmap(ordered)(np.stack([X, Y])), np.sort([X, Y], 1)),
    )
    ends_in(lambda: jax.grad(lambda x: ordered(x).sum())(X), ADRuleError, "defvjp")

    @ordered.def_host
    def _(x, *, descending):
        raise ZeroDivisionError

    ends_in(lambda: ordered(X[:2]), BackendFailure, "ZeroDivisionError")


def test_a_function_may_be_a_part_of_another():
    @tj.op("test-functions.outer.v1")
    def outer(x, y):
        return by_vjp(x, y) ** 2

    chex.assert_trees_all_close(
        jax.grad(lambda x: outer(x, Y).sum())(X),
        jax.grad(lambda x: (plain(x, Y) ** 2).sum())(X),
        rtol=1e-12,
    )
    assert [route.family_id for route in tj.routes(outer, X, Y)] == ["test-functions.outer.v1"]


def with_rules(kind):
    """The function of this file as code that exists already has it."""
    if kind == "custom_vjp":
        f = jax.custom_vjp(lambda x, y, t: plain(x, y, t), nondiff_argnums=(2,))
        f.defvjp(
            lambda x, y, t: (f(x, y, t), (x, y)),
            lambda t, r, g: (
                (jnp.cos(r[0]) * r[1] + 2 * t * r[0]) * g,
                jnp.sin(r[0]) * g,
            ),
        )
        return f, "t"
    if kind == "custom_jvp":
        f = jax.custom_jvp(lambda t, x, y: plain(x, y, t), nondiff_argnums=(0,))
        f.defjvp(
            lambda t, p, d: (
                f(t, *p),
                (jnp.cos(p[0]) * p[1] + 2 * t * p[0]) * d[0] + jnp.sin(p[0]) * d[1],
            )
        )
        return f, "t"
    return jax.jit(plain, static_argnames="t"), "t"


KINDS = ["custom_vjp", "custom_jvp", "jit"]


@pytest.mark.parametrize("kind", KINDS)
def test_functions_with_rules_are_taken_as_they_are(kind):
    function, name = with_rules(kind)
    f = tj.op(f"test-functions.adopted_{kind}.v1")(function)
    call = lambda x, y: f(x, y, **{name: -1.0})
    want = lambda x, y: plain(x, y, -1.0)
    for transform in ("value", "grad", "jvp", "hessian", "vmap of grad", "graph"):
        change = TRANSFORMS[transform] if transform != "graph" else (lambda f: f)
        got = TRANSFORMS[transform](call)(X, Y)
        chex.assert_trees_all_close(got, change(want)(X, Y), rtol=1e-12, atol=1e-12)
    assert pickle.loads(pickle.dumps(f.op(t=-1.0))) == f.op(t=-1.0)


def test_the_same_contract_underneath():
    """An op of a function is a value: it has identity, is a static argument, a key, and is
    pickled.
    """
    one, same, other = by_vjp.op(t=1.0), by_vjp.op(t=1.0), by_vjp.op(t=1)
    assert one == same != other
    assert {one: 1}[same] == 1
    assert pickle.loads(pickle.dumps(one)) == one
    assert repr(one) == "by_vjp(t=1.0)"
    assert repr(by_vjp) == "<op test-functions.by_vjp.v1: by_vjp(x, y, *, t: float = 2.0)>"
    np.testing.assert_allclose(apply(one, X, Y)[0], plain(X, Y, 1.0))
    np.testing.assert_allclose(by_vjp(0.5, 1.0), plain(0.5, 1.0))  # Python data, as in jnp


def test_a_cell_that_runs_again_replaces_its_function():
    """A name of a module, as in a notebook; functions inside functions may differ in what they
    close over, and one family_id would stand for several computations.
    """
    cell = """
import tenferro_jax as tj
@tj.op("test-functions.cell.v1")
def f(x):
    return factor * x
"""
    first, second = {"factor": 2.0}, {"factor": 3.0}
    for names in (first, second):
        exec(compile(cell, "cell", "exec"), names | {"__name__": "a_notebook"}, names)
    np.testing.assert_allclose((first["f"](X), second["f"](X)), (2 * X, 3 * X))

    def made(factor):
        return tj.op("test-functions.made.v1")(lambda x: factor * x)

    number = 2.0
    made(number), made(number)

    @tj.op("test-functions.bound_later.v1")
    def bound_later(x):
        return later * x + 0 * len(repr(bound_later))

    later = 2.0
    np.testing.assert_allclose(bound_later(X), 2 * X)
    ends_in(lambda: made(3.0), Duplicate, "Make what differs a keyword-only parameter")
    ends_in(
        lambda: tj.op("test-functions.cell.v1")(lambda x: x),
        Duplicate,
        r"<lambda> \(test_function_op.py:\d+\).*a_notebook.f",
    )


@tj.op("test-functions.straight.v1")
def straight(x):
    return jnp.round(x)


straight.defjvp(lambda primals, outputs, tangents: tangents[0])


def test_a_rule_stays_with_its_op_inside_another_op():
    cube = lambda x: straight(x) ** 3
    want = jax.grad(cube)(1.7)
    assert want == 12.0
    inside = tj.op("test-functions.inside.v1")(lambda x: jax.grad(cube)(x))
    in_fwd, in_bwd = (
        tj.op(f"test-functions.in_{k}.v1")(f)
        for k, f in (("fwd", lambda x: straight(x) ** 3), ("bwd", lambda x: straight(x) ** 3))
    )
    in_fwd.defvjp(lambda x: (cube(x), jax.grad(cube)(x)), lambda r, g: (g * r,))
    in_bwd.defvjp(lambda x: (cube(x), x), lambda x, g: (g * jax.grad(cube)(x),))
    for run in (lambda f: f, jax.jit):
        got = [run(inside)(1.7), run(jax.grad(in_fwd))(1.7), run(jax.grad(in_bwd))(1.7)]
        got.append(run(lambda x: jax.jvp(in_bwd, (x,), (1.0,))[1])(1.7))
        np.testing.assert_allclose(got, want)
    reverse = tj.op("test-functions.reverse.v1")(lambda x: jnp.round(x))
    reverse.defvjp(lambda x: (jnp.round(x), None), lambda _, g: (g,))
    outer = tj.op("test-functions.outer_of_reverse.v1")(
        lambda x: jax.grad(lambda x: reverse(x) ** 3)(x)
    )
    np.testing.assert_allclose(outer(1.7), want)
    ruleless = tj.op("test-functions.ruleless.v1", derive=False)(lambda x: jnp.round(x))
    lost = tj.op("test-functions.lost.v1")(lambda x: jax.grad(lambda x: ruleless(x))(x))
    ends_in(lambda: lost(1.7), (ADRuleError, InvalidConfig), "no jvp rule")


def test_linear_in_one_of_several_arguments():
    product = tj.op("test-functions.matvec.v1")(lambda a, x: a @ x)
    rule = lambda y, a, x: (None, a.T @ y)
    ends_in(lambda: product.def_transpose(rule), InvalidConfig, "argnums")
    product.def_transpose(rule, argnums=1)
    a = np.arange(6.0).reshape(2, 3)
    close(
        (jax.grad(lambda x: product(a, x).sum())(X), a.sum(0)),
        (jax.jvp(lambda x: product(a, x), (X,), (Y,))[1], a @ Y),
    )
    ends_in(
        lambda: jax.grad(lambda a: product(a, X).sum())(a), ADRuleError, "in which it is not linear"
    )
    both = tj.op("test-functions.two_multiples.v1")(lambda x: (2 * x, 3 * x))
    both.def_transpose(lambda y, x: (2 * y[0] + 3 * y[1],))
    np.testing.assert_allclose(jax.grad(lambda x: both(x)[0].sum())(X), 2.0)


def test_a_transpose_rule_knows_the_shape_of_its_argument():
    running_sum = fresh(lambda x: jnp.cumsum(x))

    def back(y, x):
        assert isinstance(x, LinearInput)
        assert x.meta.shape == y.shape
        return (jnp.cumsum(y[::-1])[::-1],)

    running_sum.def_transpose(back)
    np.testing.assert_allclose(jax.grad(lambda x: running_sum(x)[1])(X), [1.0, 1.0, 0.0])


def test_one_rule_and_only_functions():
    double = lambda x: 2 * x
    two = fresh(double)
    two.defjvp(lambda p, o, t: 2 * t[0])
    for name, second in (
        ("def_transpose", lambda f: f.def_transpose(lambda y, x: (2 * y,))),
        ("defvjp", lambda f: f.defvjp(lambda x: (2 * x, None), lambda r, g: (2 * g,))),
    ):
        ends_in(lambda: second(two), DuplicateRule, name)
    ends_in(
        lambda: fresh(double, derive=True).defjvp(lambda p, o, t: t[0]),
        DuplicateRule,
        "after derive",
    )
    ends_in(
        (
            lambda: fresh(double).defvjp(None, None),
            lambda: fresh(double).def_kernel(lambda x: x),
        ),
        InvalidConfig,
    )
