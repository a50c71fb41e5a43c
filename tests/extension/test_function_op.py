"""Functions as ops: every transform, by every kind of rule, against the same function in plain
JAX.
"""

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
    DTypeError,
    Duplicate,
    DuplicateRule,
    InvalidConfig,
)
from tenferro_jax.extension import LinearInput, apply
from tenferro_jax.extension.routes import RouteKind, current_platform
from tenferro_jax.testing.report import Verdict

from ..helpers import close, ends_in, equal, fresh

X = np.array([0.3, -1.2, 2.0])
Y = np.array([1.5, 0.5, -0.7])


def plain(x, y, t=2.0):
    return jnp.sin(x) * y + t * x * x


@tj.op("test-functions.by_jvp.v1")
def by_jvp(x, y, *, t: float = 2.0):
    return plain(x, y, t)


@by_jvp.defjvp
def _(primals, outputs, tangents, *, t):
    (x, y), (dx, dy) = primals, tangents
    return (jnp.cos(x) * y + 2 * t * x) * dx + jnp.sin(x) * dy


@tj.op("test-functions.by_vjp.v1")
def by_vjp(x, y, *, t: float = 2.0):
    return plain(x, y, t)


by_vjp.defvjp(
    lambda x, y, *, t: (by_vjp(x, y, t=t), {"x": x, "y": y}),
    lambda r, g, *, t: (
        (jnp.cos(r["x"]) * r["y"] + 2 * t * r["x"]) * g,
        jnp.sin(r["x"]) * g,
    ),
)


@tj.op("test-functions.derived.v1")
def derived(x, y, *, t: float = 2.0):
    return plain(x, y, t)


@tj.op("test-functions.in_trees.v1")
def in_trees(p, n, *, t: float = 2.0):
    return {"value": plain(p["x"], p["y"][0], t), "count": n + 1}


in_trees.defvjp(
    lambda p, n, *, t: (in_trees(p, n, t=t), (p["x"], p["y"][0])),
    lambda r, g, *, t: (
        {
            "x": (jnp.cos(r[0]) * r[1] + 2 * t * r[0]) * g["value"],
            "y": [jnp.sin(r[0]) * g["value"]],
        },
        None,
    ),
)


@tj.op("test-functions.running_sum.v1")
def running_sum(x):
    return jnp.cumsum(x)


@running_sum.def_transpose
def _(y, x):
    assert isinstance(x, LinearInput)
    assert x.meta.shape == y.shape
    return (jnp.cumsum(y[::-1])[::-1],)


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


@pytest.mark.few(20)
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


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_numbers_and_weak_types_promote_as_in_jax_numpy(run):
    product = fresh(lambda x, y: x * y)
    for dtype, number in (("bfloat16", 2.0), ("float32", 2), ("int8", 3), ("complex64", 2.0)):
        x = jnp.ones(2, dtype)
        with jax.numpy_dtype_promotion("standard"):
            want = x * number
            for weak in (number, jnp.asarray(number)):
                got = run(product)(weak, x)
                np.testing.assert_array_equal(got, want, strict=True)
    ends_in(
        (lambda: product(wide, jnp.ones(2, "int8")) for wide in (300, jnp.asarray(300))),
        DTypeError,
        "300 beside arrays of int8",
    )
    narrow = jnp.ones(2, "bfloat16")
    slope = run(jax.grad(lambda y: product(2.0, y).sum()))(narrow)
    np.testing.assert_array_equal(np.asarray(slope, "float32"), [2, 2])
    assert run(lambda *ts: jax.jvp(product, (2.0, narrow), ts))(1.0, narrow)[1].dtype == "bfloat16"
    carried, _ = jax.lax.scan(lambda c, _: (product(c, 0.5), None), narrow, None, length=2)
    assert carried.dtype == jnp.bfloat16


DTYPES = (
    *("int8", "uint8", "int32", "uint32", "int64", "bool", "bfloat16", "float16", "float32"),
    *("float64", "complex64", "complex128"),
)


@pytest.mark.parametrize("x64", [False, True], ids=["x64 off", "x64 on"])
def test_every_number_beside_every_dtype_has_the_dtype_of_jax_numpy(x64):
    """Python numbers and arrays of weak type, on either side, and beside two arrays."""
    sums = fresh(lambda *xs: sum(xs[1:], xs[0]))

    def dtypes(add):
        found = []
        for name in DTYPES:
            if not x64 and jnp.dtype(name).itemsize >= 8 and name != "complex64":
                continue
            x, half = jnp.ones(2, name), jnp.ones(2, "bfloat16")
            for number in (3, 1.5, 1 + 2j, True):
                for weak in (number, jnp.asarray(number), jnp.full(2, number)):
                    for args in ((x, weak), (weak, x), (x, half, weak)):
                        text = f"{type(weak).__name__} {number} beside {name}, {len(args)}"
                        found.append((text, str(add(*args).dtype)))
        return found

    with jax.enable_x64(x64), jax.numpy_dtype_promotion("standard"):
        want, got = [], []
        jax.eval_shape(lambda: want.extend(dtypes(lambda *xs: sum(xs[1:], xs[0]))))
        jax.eval_shape(lambda: got.extend(dtypes(sums)))
        assert len(got) > 300
        assert got == want
        assert str(sums(1j, jnp.ones(2, "float32")).dtype) == "complex64"


def test_residuals_that_are_inputs_are_not_kept_again():
    def body(x, w):
        return jnp.tanh(x @ w)

    def fwd(x, w):
        out = body(x, w)
        return out, (x, w, out)

    def bwd(kept, g):
        x, w, out = kept
        z = g * (1 - out**2)
        return z @ w.T, x.T @ z

    layer, peer = tj.op("test-functions.layer.v1")(body), jax.custom_vjp(body)
    layer.defvjp(fwd, bwd), peer.defvjp(fwd, bwd)
    x, w = jnp.ones((4, 64)), jnp.ones((64, 64)) / 64

    def held(f):
        loss = lambda w: jax.lax.scan(lambda s, _: (f(s, w), None), x, None, length=20)[0].sum()
        return sum(a.nbytes for a in jax.tree.leaves(jax.vjp(loss, w)[1])), jax.grad(loss)(w)

    (ours, gradient), (theirs, want) = held(layer), held(peer)
    assert ours <= 1.1 * theirs
    np.testing.assert_allclose(gradient, want, rtol=1e-6)


def test_a_host_function_whose_fwd_calls_it():
    host = tj.op("test-functions.host_sine.v1")(lambda x: None)
    host.def_infer(lambda x: x)
    host.def_host(lambda x: np.sin(x))
    host.defvjp(lambda x: (host(x), x), lambda x, g: (jnp.cos(x) * g,))
    for run in (lambda f: f, jax.jit):
        np.testing.assert_allclose(run(jax.grad(lambda x: host(x).sum()))(X), np.cos(X))
    np.testing.assert_allclose(jax.grad(host)(0.5), np.cos(0.5))  # JAX's own kind of number


@pytest.mark.parametrize("default", [2.0, None])
def test_arrays_of_a_custom_vjp_may_have_defaults(default):
    """As JAX has it: they may be left out, or named."""

    def times(x, y=default):
        return x * (3.0 if y is None else y)

    f = jax.custom_vjp(times)
    f.defvjp(
        lambda x, y: (f(x, y), (x, y)),
        lambda kept, g: (
            times(g, kept[1]),
            None if kept[1] is None else (kept[0] * g).reshape(-1, *np.shape(kept[1])).sum(0),
        ),
    )
    published = tj.op("test-functions.times.v1")(f)
    for args, named in (((X,), {}), ((X, Y), {}), ((X,), {"y": Y})):
        for run in (lambda f: f, jax.jit, lambda f: lambda *a, **k: jax.vmap(f)(*a, **k)):
            np.testing.assert_array_equal(run(published)(*args, **named), run(f)(*args, **named))
        loss = lambda f, args=args, named=named: lambda x: (f(x, *args[1:], **named) ** 2).sum()
        np.testing.assert_array_equal(jax.grad(loss(published))(X), jax.grad(loss(f))(X))
        wanted = jax.jacfwd(jax.grad(loss(times)))(X)
        np.testing.assert_allclose(jax.hessian(loss(published))(X), wanted)
    ends_in(lambda: published(X, Y, y=Y), InvalidConfig, "y by position and by keyword")
    ends_in(lambda: published(), InvalidConfig, "0 arguments by position")
    ends_in(
        lambda: published(x=X, y=Y), InvalidConfig, "keyword x; needed one of y. Pass arrays by"
    )


def test_refusals_name_the_function_and_its_line():
    def define(function):
        return lambda: tj.op("test-functions.refused.v1")(function)

    positional = lambda x, t=2.0: x
    bare = lambda x, *, t: x
    with_default = lambda x, *, mode="fast": x
    variadic = lambda x, **t: x

    def taken(x, *, stage: str):
        return x

    def counted(x, *, input_count: int = 3):
        return x

    for function, given in (
        (positional, "the parameter t=2.0"),
        (bare, "keyword-only parameter t without an annotation.*such as t: float"),
        (with_default, "parameter mode='fast' without an annotation.*its type"),
        (variadic, "the parameter \\*\\*t.*Name each keyword"),
        (taken, "payload stage"),
        (counted, "payload input_count"),
    ):
        ends_in(
            define(function),
            InvalidConfig,
            rf"{function.__name__} \(test_function_op.py.*{given}",
        )

    def unread(x, *, t: "Unknown"):  # noqa: F821
        return x

    for wrong, given in (
        (3, "given 3"),
        (unread, "cannot be read: name 'Unknown'"),
    ):
        ends_in(lambda: tj.op("test-functions.refused.v1")(wrong), InvalidConfig, given)
    for call, given in (
        (lambda: by_vjp(X), "1 argument by position"),
        (lambda: by_vjp(X, Y, 2.0), "3 arguments by position.*Pass t by keyword"),
        (lambda: by_vjp(X, Y, u=2.0), "the keyword u"),
        (lambda: jax.jit(lambda t: by_vjp(X, Y, t=t))(2.0), "t"),
        (lambda: in_trees(frozenset([1]), X), "frozenset"),
        (
            lambda: tj.check(in_trees, {"x": X, "y": [Y]}, 1, examples=[({"x": X, "y": (Y,)}, 1)]),
            "nested in different ways",
        ),
    ):
        ends_in(call, (InvalidConfig, TypeError), given)

    @tj.op("test-functions.needs.v1", derive=False)
    def needs(x, *, t: float):
        return x

    ends_in(lambda: needs(X), InvalidConfig, r"needs \(test_function_op.py:\d+\).*given no t")
    ends_in(
        lambda: jax.grad(lambda x: needs(x, t=1.0).sum())(X),
        ADRuleError,
        r"@f.defjvp, f.defvjp\(fwd, bwd\)",
    )


@pytest.mark.parametrize("factor", [1.0, 1.01])
def test_where_bwd_has_no_transpose_the_checks_judge_reverse_mode(factor):
    @fresh
    def sine(x):
        return jnp.sin(x)

    slope = lambda x, g: (factor * np.cos(x) * g).astype(x.dtype)
    call = lambda *xs: jax.pure_callback(slope, xs[0], *xs, vmap_method="broadcast_all")
    sine.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: (call(x, g),))
    report = tj.check(sine, X, only=("jvp", "linear", "linear_in_cotangent", "vjp"))
    assert [f.check for f in report.failures] == (["vjp"] if factor > 1 else [])
    found = {f.check: f for f in report.findings}
    assert found["jvp"].verdict is Verdict.NOT_APPLICABLE
    assert "forward mode of sine" in found["jvp"].problem


def test_a_function_that_closes_over_a_traced_value_is_refused():
    def loss(w):
        return fresh(lambda x: w * x)(X).sum()

    ends_in(
        (lambda: run(2.0) for run in (jax.grad(loss), jax.jit(jax.grad(loss)))),
        InvalidConfig,
        "closes over a traced value",
    )


def test_numbers_and_texts_among_residuals_stay_python_values():
    """As in jax.custom_vjp under jit; here under every transform."""
    doubled = jax.custom_vjp(lambda x: x * 2)
    doubled.defvjp(
        lambda x: (doubled(x), {"factor": 2, "axis": 0, "how": "twice", "bad": float("nan")}),
        lambda r, g: (g * r["factor"] if r["how"] == "twice" and r["factor"] > 1 else g,),
    )
    f = tj.op("test-functions.held.v1")(doubled)
    total = lambda x: f(x).sum()
    scanned = lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=2)[0].sum()
    for run in (jax.grad(total), jax.jit(jax.grad(total)), jax.vmap(jax.grad(f))):
        np.testing.assert_array_equal(run(X), [2, 2, 2])
    equal(
        (jax.jit(jax.grad(scanned))(X), [4, 4, 4]),
        (jax.jvp(f, (X,), (Y,))[1], 2 * Y),
        (jax.hessian(lambda x: (f(x) ** 2).sum())(X), 8 * np.eye(3)),
    )
    graph = tj.from_wire(tj.to_wire(tj.trace(jax.grad(total), X)))
    np.testing.assert_array_equal(graph.to_jax()(X), [2, 2, 2])


def test_arrays_as_defaults_of_the_payload():
    @tj.op("test-functions.array_default.v1")
    def weighed(x, *, w: np.ndarray = np.array([1.0, 2.0, 3.0])):  # noqa: B008
        return x * w

    equal((weighed(X), X * [1, 2, 3]), (weighed(X, w=np.ones(3)), X))
    assert weighed.op() == weighed.op()


def test_a_callback_in_a_thread_without_64_bit_types_narrows_nothing():
    """jax.enable_x64 holds for one thread, and XLA may run callbacks in another."""

    @tj.op("test-functions.third.v1")
    def third(x):
        return None

    third.def_infer(lambda x: x)
    third.def_host(lambda x: np.asarray(x, "float64") / 3)
    rows = np.random.default_rng(0).integers(-9, 9, (300, 300)).astype("float64")
    jax.config.update("jax_enable_x64", False)
    try:
        with jax.enable_x64(True):
            made = jax.jit(lambda m: jax.lax.map(third, m @ m.T))(rows)
            np.testing.assert_array_equal(made, rows @ rows.T / 3)
    except (jax.errors.JaxRuntimeError, ValueError) as error:
        assert "64-bit types on in the whole process" in str(error)  # noqa: PT017
    finally:
        jax.config.update("jax_enable_x64", True)
