"""check leaves the process of its caller as it found it, and is not misled by what it holds."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj

from ..helpers import fresh

X = np.float32([0.5, 1.5, 2.5])


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def weighed(x, w):
    return (x * w).sum().astype(x.dtype)


CONSTRUCTS = {
    "fori_loop": lambda w: (
        lambda x: jax.lax.fori_loop(0, 3, lambda _, c: c + weighed(x, w), jnp.zeros((), x.dtype))
    ),
    "scan": lambda w: (
        lambda x: jax.lax.scan(
            lambda c, _: (c + weighed(x, w), None), jnp.zeros((), x.dtype), None, length=3
        )[0]
    ),
    "while_loop": lambda w: (
        lambda x: jax.lax.while_loop(
            lambda s: s[0] < 3,
            lambda s: (s[0] + 1, s[1] + weighed(x, w)),
            (0, jnp.zeros((), x.dtype)),
        )[1]
    ),
    "cond": lambda w: (
        lambda x: jax.lax.cond(x[0] > 0, lambda x: 3 * weighed(x, w), lambda x: weighed(x, w), x)
    ),
    "jit": lambda w: lambda x: 3 * jax.jit(lambda x: weighed(x, w))(x),
    "checkpoint": lambda w: lambda x: 3 * jax.checkpoint(lambda x: weighed(x, w))(x),
    "map": lambda w: (
        lambda x: 3 * jax.lax.map(lambda each: weighed(*each), (x, jnp.asarray(w))).sum()
    ),
    "nothing": lambda w: lambda x: 3 * (x * w).sum(),
    "a number": lambda w: lambda x: 3 * (x * np.asarray(w[0])).sum(),
}


def with_rule(f):
    made = jax.custom_vjp(f)
    made.defvjp(lambda x: jax.vjp(f, x), lambda pull, g: pull(g))
    return made


KINDS = {
    "function": lambda f: f,
    "op": lambda f: fresh(f, derive=True),
    "custom_vjp": with_rule,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("x64", [False, True], ids=["x64 off", "x64 on"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_numpy_data_that_a_function_closes_over(construct, kind, dtype, x64):
    w = np.asarray([2, 3, 5], dtype)
    want = 3 * float((X * (w[0] if construct == "a number" else w)).sum())
    with jax.enable_x64(x64):
        f = KINDS[kind](CONSTRUCTS[construct](w))
        report = tj.check(f, X)
        assert report.ok, str(report)
        assert float(jax.jit(f)(X)) == want
        again = jax.jit(CONSTRUCTS[construct](w))(X)  # another function of the same data
        assert float(again) == want
        assert jax.config.read("jax_enable_x64") or not x64


def test_a_caller_that_has_compiled_the_function_before():
    w = np.array([0.2, 0.3, 0.5])
    with jax.enable_x64(False):
        f = jax.jit(lambda x: jnp.sin(x * w).sum())
        want = float(f(X))
        for kind in KINDS.values():
            checks = ("value", "jvp", "vjp", "precisions", "vmap")
            report = tj.check(kind(lambda x: jnp.sin(x * w).sum()), X, only=checks)
            assert report.ok, str(report)
        assert float(f(X)) == want == pytest.approx(np.sin(X * w).sum(), rel=1e-6)


def test_data_that_only_a_rule_holds():
    w = np.array([0.2, 0.3, 0.5])

    @jax.custom_vjp
    def f(x):
        return x.sum()

    f.defvjp(lambda x: (x.sum(), None), lambda _, g: (g * (w / w).astype(g.dtype),))
    with jax.enable_x64(False):
        report = tj.check(f, X)
        assert report.ok, str(report)
        assert jax.jit(jax.grad(f))(X).tolist() == [1, 1, 1]
        assert (jax.jit(lambda x: x * w)(X) == X * w.astype(np.float32)).all()


def test_a_wrong_rule_is_found_in_float32_and_the_report_says_so():
    w = np.array([0.2, 0.3, 0.5])
    f = jax.custom_vjp(lambda x: (x * w).sum())
    f.defvjp(lambda x: ((x * w).sum(), None), lambda _, g: (1.05 * g * jnp.asarray(w, X.dtype),))
    with jax.enable_x64(False):
        report = tj.check(f, X)
    assert [finding.check for finding in report.failures] == ["vjp"]
    (value,) = [finding for finding in report.findings if finding.check == "value"]
    assert "in float32 alone" in value.problem
    assert "jax_enable_x64" in value.problem


def test_the_callers_programs_stay_compiled():
    traces = []

    @jax.jit
    def f(x):
        traces.append(1)
        return jnp.sin(x)

    with jax.enable_x64(False):
        f(X)
        assert tj.check(f, X).ok
        before = len(traces)
        f(X)
    assert len(traces) == before
