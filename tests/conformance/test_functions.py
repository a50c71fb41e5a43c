"""check of any function: what it finds, what does not apply, and how arguments are taken."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import SymbolicZero

import tenferro_jax as tj
from benchmarks.check_faults import ARGUMENTS, FAULTS, in_bwd, only_in, silu
from benchmarks.check_functions import TRUE_FAULTS, functions
from tenferro_jax.conformance import Verdict, conformance_tests
from tenferro_jax.conformance.checks import FUNCTION_CHECKS
from tenferro_jax.errors import ConformanceError, InvalidConfig
from tenferro_jax.jax_seam import says_unsupported

from ..helpers import ends_in
from ..sweep import ALL, some

X, KEY = np.float32([0.3, -1.0, 2.0]), jax.random.key(0)
FUNCTIONS = [f for f in functions([]) if f[0] not in TRUE_FAULTS]
QUICK = [
    f for f in FUNCTIONS if f[0] in ("jax.nn.gelu", "jax.numpy.sort", "optax.losses.huber_loss")
]


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def scaled(params, x, label, *, power):
    """A function of a tree, an index, text and a keyword."""
    assert label == "text"
    return {"y": params["w"] * x**power, "n": params["n"] + 1}, params["key"]


def test_only_arrays_are_inputs_and_only_floats_are_differentiated():
    tree = {"w": np.float32(2.0), "n": np.arange(3), "key": jax.random.key(0)}
    report = tj.check(functools.partial(scaled, power=2), tree, X, "text")
    assert report.ok, str(report)
    verdicts = {f.check: f.verdict for f in report.findings}
    assert set(verdicts) == {check.name for check in FUNCTION_CHECKS}
    assert set(verdicts.values()) == {Verdict.PASSED}
    assert str(report).startswith("tests.conformance.test_functions.scaled\n")


@functools.partial(jax.custom_vjp, nondiff_argnums=())
def halved(x, y):
    return x * y


halved.defvjp(lambda x, y: (x * y, (x, y)), lambda xy, g: (g * xy[1] / 2, g * xy[0]))


def test_a_failure_names_what_was_compared_and_the_argument():
    report = tj.check(halved, X, X + 1, only=("jvp", "vjp"))
    (failed,) = report.failures
    assert failed.check == "vjp"
    assert "vjp by argument 0" in failed.problem
    assert "by finite differences: <J' w, v> = " in failed.problem
    assert [x.shape for x in failed.example] == [(1,), (1,)]
    text = str(report)
    assert "given argument 0: float64[1]" in text
    assert "do    Correct the reverse rule" in text
    (left_out,) = report.not_applicable
    assert left_out.check == "jvp"
    assert "no forward mode: TypeError" in left_out.problem


def test_what_jax_cannot_do_is_not_a_failure():
    def branches(x):
        return x if x.sum() > 0 else -x

    for f, reason, ok in (
        (on_host, "no forward mode", True),
        (branches, "JAX cannot trace it", False),
    ):
        report = tj.check(f, X, only=("value", "jvp", "vjp", "vmap"))
        assert not report.failures, str(report)
        assert any(reason in finding.problem for finding in report.not_applicable)
        assert (report.ok, "NOTHING WAS CHECKED" not in str(report)) == (ok, ok)
    assert not any("refused" in finding.problem for finding in report.findings)
    ends_in(report.raise_if_failed, ConformanceError, "JAX cannot trace the function: see value")


def on_host(x):
    return jax.pure_callback(np.sin, jax.ShapeDtypeStruct(x.shape, x.dtype), x)


@pytest.mark.parametrize(
    "lacking",
    [
        lambda: jax.jvp(on_host, (X,), (X,)),
        lambda: jax.jvp(jax.ffi.ffi_call("none", jax.ShapeDtypeStruct((3,), X.dtype)), (X,), (X,)),
        lambda: jax.jit(lambda x: jax.jvp(halved, (x, x), (x, x))).lower(X),
        lambda: jax.grad(lambda x: jax.lax.while_loop(lambda y: y < 9, lambda y: y * 2, x))(1.0),
        lambda: jax.grad(jax.scipy.special.betainc)(0.5, 0.5, 0.5),
        lambda: jax.linear_transpose(jnp.sin, X)(X),
    ],
    ids=["callback", "ffi", "custom_vjp", "while", "betainc", "transpose"],
)
def test_the_seam_knows_what_jax_says_of_what_it_lacks(lacking):
    with pytest.raises(Exception, match=r".") as raised:
        lacking()
    assert says_unsupported(raised.value), raised.value


def test_kinks_nan_and_integers_are_no_failures():
    at = np.float32([0.0, 1.0, -1.0])
    assert tj.check(jax.nn.relu, at, only=("jvp", "vjp", "second_order")).ok
    assert tj.check(jnp.log, at, only=("jvp", "vjp", "precisions")).ok
    report = tj.check(jnp.argsort, at, only=("value", "vjp", "vmap"))
    assert {f.check: f.verdict.value for f in report.findings} == {
        "value": "passed",
        "vjp": "not applicable",
        "vmap": "passed",
    }


def test_as_tests_of_pytest():
    test = conformance_tests(halved, X, X + 1, order=1)
    test("value")
    ends_in(lambda: test("vjp"), ConformanceError, "FAILED derivatives vjp")
    ends_in(lambda: test("second_order"), pytest.skip.Exception, "vjp failed")


@pytest.mark.parametrize(
    ("args", "keywords", "match"),
    [
        ((3.0,), {}, "needed a function"),
        ((jnp.sin, X), {"only": ("vjps",)}, r"only=\('vjps',\); needed names among value, primal"),
        ((jnp.sin,), {"examples": [X]}, "a tuple of arguments for each example"),
        ((jnp.sin, X), {"rules": [1]}, "rules, runtimes, oracle for a function"),
        ((jnp.sum, X), {"axis": 0}, "the keyword axis; .*functools.partial"),
    ],
)
def test_arguments_that_cannot_be(args, keywords, match):
    ends_in(lambda: tj.check(*args, **keywords), InvalidConfig, match)


def test_what_is_no_function_is_refused_before_any_test():
    ends_in(lambda: conformance_tests(3, 1.0), InvalidConfig, "given 3; needed a function")


@pytest.mark.parametrize(
    ("f", "args", "only"),
    [
        (lambda v: jnp.log(jnp.exp(v)), (np.float32([0.3, 1.7, -2.0]),), "second_order"),
        (jax.nn.standardize, (X[[0, 2]],), "linear linear_in_cotangent precisions"),
        (jax.nn.softmax, (X[:1],), "second_order adjoint"),
        (jax.nn.log_softmax, (X[:1],), "second_order"),
        (jnp.power, (np.float32([-2.0, 3.0]), np.float32([2.0, 2.0])), "jvp linear adjoint"),
        (lambda v, k: v + jax.random.normal(k, v.shape, v.dtype), (X, KEY), "value precisions"),
    ],
    ids=["log of exp", "standardize", "softmax of one", "log_softmax of one", "power", "normal"],
)
def test_what_is_zero_not_finite_or_random_is_no_failure(f, args, only):
    report = tj.check(f, *args, only=only.split())
    assert report.ok, str(report)


def counting():
    calls = []

    def counted(v):
        calls.append(v)
        return v * (2.0 if len(calls) == 1 else 1.0)

    return counted


def with_rule(backward):
    f = jax.custom_vjp(jnp.sin)
    f.defvjp(lambda v: (jnp.sin(v), jnp.cos(v)), backward)
    return f


@pytest.mark.parametrize(
    ("f", "check", "advice"),
    [
        (counting(), "value", "Compute from the arguments alone"),
        (jax.jit(counting()), "value", "Compute from the arguments alone"),
        (lambda: 0, "value", "raised this"),
        (with_rule(lambda c, g: (g[0] * c[0],)), "linear_in_cotangent", "raised this"),
        (
            with_rule(lambda c, g: (jnp.where(abs(g) < 1e-2, 0, g) * c,)),
            "linear_in_cotangent",
            "linearly",
        ),
        (lambda v: jnp.where(v > 0, jnp.sqrt(v), 0.0), "vjp", "inside jnp.where"),
        (with_rule(lambda c, g: (g,)), "vjp", "differs on purpose"),
    ],
    ids=[
        "first call",
        "first trace",
        "arguments",
        "shape",
        "threshold",
        "where",
        "straight through",
    ],
)
def test_a_mistake_is_found_with_advice_that_fits(f, check, advice):
    (failed,) = tj.check(f, X, only=(check,)).failures
    assert (failed.check, advice in failed.fix) == (check, True), failed


@pytest.mark.parametrize(("dtype", "factor"), [("float16", 1.02), ("bfloat16", 1.3)])
def test_a_derivative_that_is_wrong_in_one_dtype_is_found(dtype, factor):
    spoil = only_in(jnp.dtype(dtype), factor)
    f = in_bwd(silu, lambda back, xs, g: map(spoil, back))
    (failed,) = tj.check(f, X, only=("precisions",)).failures
    assert f"vjp in {dtype}" in failed.problem


def test_the_arguments_that_have_a_derivative_are_judged_beside_one_that_has_none():
    f = jax.custom_jvp(lambda a, x: x**3 + a)

    def rule(primals, tangents):
        (a, x), (da, dx) = primals, tangents
        if type(da) is not SymbolicZero:
            raise ValueError("the gradient with respect to a is not supported")
        return x**3 + a, 3.1 * x**2 * dx

    f.defjvp(rule, symbolic_zeros=True)
    found = {each.check: each for each in tj.check(f, X, X).findings}
    assert "jvp by argument 1" in found["jvp"].problem
    noted = "not differentiable by argument 0: ValueError: the gradient with respect to a"
    assert found["exported"].verdict is Verdict.PASSED
    assert all(noted in found[name].problem for name in ("linear", "exported"))


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", some(FAULTS, 4), ids=lambda f: f"{f.function.__name__}: {f.mistake}"
)
def test_a_seeded_fault_is_found(fault):
    assert not tj.check(fault.made, *ARGUMENTS[fault.function]).ok


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "fn", "args"),
    FUNCTIONS if ALL else QUICK,
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_no_false_alarm_in_a_released_library(name, fn, args):
    report = tj.check(fn, *args)
    assert report.ok, str(report)
