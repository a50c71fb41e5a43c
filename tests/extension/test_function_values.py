"""Values of functions as ops: numbers and weak types, defaults, residuals, host functions; and refusals
that name the function and its line.
"""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import (
    ADRuleError,
    DTypeError,
    InvalidConfig,
)
from tenferro_jax.testing.report import Verdict

from ..helpers import ends_in, equal, fresh
from .function_ops import X, Y, by_vjp, in_trees


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
            rf"{function.__name__} \(test_function_values.py.*{given}",
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

    ends_in(lambda: needs(X), InvalidConfig, r"needs \(test_function_values.py:\d+\).*given no t")
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
