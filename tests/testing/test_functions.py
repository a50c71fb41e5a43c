"""check of any function: what it finds, what does not apply, how arguments are taken; functions that
are ops: no false alarm, the words of the author; and the process of the caller stays as it was.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.custom_derivatives import SymbolicZero

import tenferro_jax as tj
from benchmarks.check_faults import ARGUMENTS, FAULTS, in_bwd, only_in, silu
from benchmarks.check_functions import TRUE_FAULTS, functions
from tenferro_jax.errors import ConformanceError, InvalidConfig
from tenferro_jax.jax_seam import says_unsupported
from tenferro_jax.testing import Verdict, conformance_tests
from tenferro_jax.testing.checks import FUNCTION_CHECKS

from ..helpers import ends_in, fresh, passes
from ..sweep import ALL, some
from ..upgrades import is_on

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
    report = passes(functools.partial(scaled, power=2), tree, X, "text")
    verdicts = {f.check: f.verdict for f in report.findings}
    assert set(verdicts) == {check.name for check in FUNCTION_CHECKS}
    assert set(verdicts.values()) == {Verdict.PASSED}
    assert str(report).startswith("tests.testing.test_functions.scaled\n")


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
    text = str(report)
    assert "given argument 0: float64[3]" in text
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
        lambda: jax.lax.linalg.lu(jnp.ones((2, 2), "bfloat16")),
    ],
    ids=["callback", "ffi", "custom_vjp", "while", "betainc", "transpose", "dtype"],
)
def test_the_seam_knows_what_jax_says_of_what_it_lacks(lacking):
    raised = ends_in(lacking, Exception, r".")
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
        (jax.nn.softmax, (X[:1],), "second_order"),
        (jax.nn.log_softmax, (X[:1],), "second_order"),
        (jnp.power, (np.float32([-2.0, 3.0]), np.float32([2.0, 2.0])), "jvp linear vjp"),
        (lambda v, k: v + jax.random.normal(k, v.shape, v.dtype), (X, KEY), "value precisions"),
    ],
    ids=["log of exp", "standardize", "softmax of one", "log_softmax of one", "power", "normal"],
)
def test_what_is_zero_not_finite_or_random_is_no_failure(f, args, only):
    passes(f, *args, only=only.split())


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
def test_a_mistake_is_found_with_advice_that_fits(f, check, advice, request):
    if request.node.callspec.id == "shape" and is_on("jax_disable_bwd_checks"):
        pytest.skip("JAX then takes cotangents of any shape; the check vjp finds it")
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
    noted = "compared by argument 1 alone, not by argument 0: ValueError: the gradient with respect"
    assert found["linear"].problem.startswith(noted)
    assert found["linear"].verdict is Verdict.PARTLY


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
    passes(fn, *args)


# --- functions that are ops -----------------------------------------------------------------------


AT = np.array([0.3, 1.0, 2.0])


def verdicts(report):
    return {finding.check: finding.verdict for finding in report.findings}


def of_sign(x):
    return jax.lax.cond(x[0] > 1, lambda x: (x**2).sum(), lambda x: jnp.abs(x).sum(), x)


def test_a_fixed_axis_is_no_failure():
    def grey(x):
        r, g, b = x
        return r + 2 * g + 3 * b

    report = tj.check(
        fresh(grey, derive=True), AT, only=("symbolic_sizes", "exported_sizes", "vmap")
    )
    assert verdicts(report) == {
        "symbolic_sizes": Verdict.NOT_APPLICABLE,
        "exported_sizes": Verdict.NOT_APPLICABLE,
        "vmap": Verdict.PASSED,
    }
    assert "sizes that are numbers" in report.not_applicable[0].problem


def test_the_gradient_of_a_mapped_op_of_a_cond():
    f = fresh(of_sign, derive=True)
    xs = jnp.array([[0.5, 2.0], [3.0, -1.0]])
    cube = jnp.stack([xs, xs + 4])
    got, want = (
        jax.jit(jax.grad(lambda c, g=g: jax.vmap(jax.vmap(g, 1), 1)(c).sum()))(cube)
        for g in (f, of_sign)
    )
    assert (got == want).all()


def sine(rule=None):
    f = fresh(lambda x: jnp.sin(x))
    f.defjvp(rule or (lambda x, y, t: jnp.cos(x[0]) * t[0]))
    return f


def test_an_oracle_may_return_an_array_or_the_nest_of_the_function():
    for oracle in (np.sin, lambda x: (np.sin(x),), lambda x: [np.sin(x)]):
        report = tj.check(sine(), AT, oracle=oracle, only=("value", "routes"))
        assert set(verdicts(report).values()) == {Verdict.PASSED}, str(report)
    f = fresh(lambda x: {"s": jnp.sin(x), "two": (x, 2 * x)}, derive=True)
    passes(f, AT, oracle=lambda x: {"s": np.sin(x), "two": (x, 2 * x)}, only=("routes",))


@pytest.mark.parametrize(
    ("oracle", "said"),
    [
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x, y: x, "TypeError"),
    ],
)
def test_an_oracle_that_gives_no_answer_for_the_example_is_a_failure(oracle, said):
    f = fresh(lambda x: {"a": jnp.sin(x)})
    report = tj.check(f, AT, oracle=oracle, only=("routes",))
    assert not report.ok
    assert said in report.failures[0].problem
    assert tj.check(f, AT, oracle=lambda x: {"a": np.sin(x)}, only=("routes",)).ok


@pytest.mark.parametrize("right", [True, False])
def test_a_function_that_is_linear_in_one_argument(right):
    f = fresh(lambda a, x: a @ x)
    f.def_transpose(lambda c, a, x: (None, (a.T if right else a) @ c), argnums=1)
    checks = ("vjp", "linear_transpose", "precisions")
    report = tj.check(f, np.array([[1.0, 2.0], [3.0, 4.0]]), AT[:2], only=checks)
    assert report.ok is right
    if not right:
        assert "vjp" in {x.check for x in report.failures}


def test_a_dtype_that_lapack_does_not_have():
    matrix = np.array([[2.0, 0.3], [0.3, 1.5]])
    assert tj.check(fresh(jnp.linalg.cholesky), matrix, only=("precisions",)).ok


@pytest.mark.parametrize(
    ("f", "arguments"),
    [
        (lambda x: (x - x.mean()).sum(), [[0.3, -1.2, 2.1]]),
        (jnp.quantile, [[0.3, -1.2, 2.1], 0.4]),
    ],
)
def test_terms_that_cancel_are_no_failure(f, arguments):
    checks = ("value", "jvp", "vjp", "linear")
    for each in (f, fresh(f)) if f is not jnp.quantile else (f,):
        passes(each, *(np.float32(x) for x in arguments), only=checks)


def test_a_wrong_oracle_and_a_wrong_rule_are_both_reported():
    wrong = sine(lambda x, y, t: 2 * jnp.cos(x[0]) * t[0])
    report = tj.check(wrong, AT, oracle=lambda x: np.sin(x) + 1, only=("value", "routes", "jvp"))
    assert [finding.check for finding in report.failures] == ["routes", "jvp"]
    (alone,) = tj.check(wrong, AT, oracle=np.sin, only=("routes", "jvp")).failures
    assert alone.check == "jvp"


def test_a_kernel_is_named_before_anything_else_and_its_rule_is_not_blamed():
    f = sine()
    f.def_kernel("cpu", name="fast")(lambda x: jnp.sin(x) * (1 + 1e-4))
    f.def_kernel("cuda", name="fast")(lambda x: jnp.sin(x) * (1 + 1e-4))
    report = tj.check(f, AT, only=("value", "routes", "jvp", "vjp"))
    assert [finding.check for finding in report.failures] == ["routes"]
    assert "route kernel fast" in report.failures[0].problem


def infers_float32(f):
    f.def_host(np.sin)
    f.def_infer(lambda x: jax.ShapeDtypeStruct(x.shape, np.dtype(np.float32)))


WRONG = {
    "defjvp": lambda f: f.defjvp(lambda x, y, t: 3 * x[0] * t[0]),
    "bwd": lambda f: f.defvjp(lambda x: (x**2, x), lambda x, g: (3 * x * g,)),
    "def_transpose": lambda f: f.def_transpose(lambda g, x: (3 * g,)),
    "def_infer": infers_float32,
}


@pytest.mark.parametrize("part", WRONG)
def test_the_advice_names_the_wrong_part_of_a_function(part):
    bodies = {"def_transpose": lambda x: 2 * x, "def_infer": lambda x: None}
    f = fresh(bodies.get(part, lambda x: x**2))
    WRONG[part](f)
    checks = ("meta", "jvp", "vjp", "linear_transpose", "precisions")
    failures = tj.check(f, AT, only=checks).failures
    assert any(part in finding.fix for finding in failures), failures


def narrow(x):
    return jnp.sin(x).astype(jnp.float32)


def narrow_inside(x):
    return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)


@pytest.mark.parametrize(
    "take", [lambda f: f, lambda f: fresh(f, derive=True)], ids=["function", "op"]
)
def test_functions_and_ops_are_judged_alike(take):
    (lost,) = tj.check(take(narrow), AT, only=("precisions",)).failures
    assert "the result for float64 arguments: float32" in lost.problem
    inside = tj.check(take(narrow_inside), AT, only=("jvp", "vjp", "precisions"))
    assert inside.ok, str(inside)
    assert "float32 arithmetic inside" in str(inside)


scale = 2.0


def by_scale(x):
    return scale * x


@pytest.mark.parametrize("take", [jax.jit, lambda f: fresh(f, derive=True)], ids=["jit", "op"])
def test_a_global_that_changed_after_tracing(monkeypatch, take):
    f = take(by_scale)
    f(AT)
    assert tj.check(f, AT, only=("value",)).ok
    monkeypatch.setitem(globals(), "scale", 3.0)
    (stale,) = tj.check(f, AT, only=("value",)).failures
    assert "0.6" in stale.problem
    assert "0.9" in stale.problem or "0.8999" in stale.problem


# --- the process of the caller stays as it was ----------------------------------------------------


DATA = np.float32([0.5, 1.5, 2.5])


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


def by_rule(f):
    made = jax.custom_vjp(f)
    made.defvjp(lambda x: jax.vjp(f, x), lambda pull, g: pull(g))
    return made


KINDS = {
    "function": lambda f: f,
    "op": lambda f: fresh(f, derive=True),
    "custom_vjp": by_rule,
}


@pytest.mark.few(4)
@pytest.mark.parametrize("x64", [False, True], ids=["x64 off", "x64 on"])
@pytest.mark.parametrize("dtype", ["float64", "int64", "float32"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("construct", CONSTRUCTS)
def test_numpy_data_that_a_function_closes_over(construct, kind, dtype, x64):
    w = np.asarray([2, 3, 5], dtype)
    want = 3 * float((DATA * (w[0] if construct == "a number" else w)).sum())
    with jax.enable_x64(x64):
        f = KINDS[kind](CONSTRUCTS[construct](w))
        passes(f, DATA)
        assert float(jax.jit(f)(DATA)) == want
        assert float(jax.jit(CONSTRUCTS[construct](w))(DATA)) == want  # another of the same data
        assert jax.config.read("jax_enable_x64") or not x64


def test_a_caller_that_has_compiled_the_function_before():
    w = np.array([0.2, 0.3, 0.5])
    with jax.enable_x64(False):
        f = jax.jit(lambda x: jnp.sin(x * w).sum())
        want = float(f(DATA))
        for kind in KINDS.values():
            checks = ("value", "jvp", "vjp", "precisions", "vmap")
            passes(kind(lambda x: jnp.sin(x * w).sum()), DATA, only=checks)
        assert float(f(DATA)) == want == pytest.approx(np.sin(DATA * w).sum(), rel=1e-6)


def test_data_that_only_a_rule_holds():
    w = np.array([0.2, 0.3, 0.5])

    @jax.custom_vjp
    def f(x):
        return x.sum()

    f.defvjp(lambda x: (x.sum(), None), lambda _, g: (g * (w / w).astype(g.dtype),))
    with jax.enable_x64(False):
        passes(f, DATA)
        assert jax.jit(jax.grad(f))(DATA).tolist() == [1, 1, 1]
        assert (jax.jit(lambda x: x * w)(DATA) == DATA * w.astype(np.float32)).all()


def test_a_wrong_rule_is_found_in_float32_and_the_report_says_so():
    w = np.array([0.2, 0.3, 0.5])
    f = jax.custom_vjp(lambda x: (x * w).sum())
    f.defvjp(lambda x: ((x * w).sum(), None), lambda _, g: (1.05 * g * jnp.asarray(w, DATA.dtype),))
    with jax.enable_x64(False):
        report = tj.check(f, DATA)
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
        f(DATA)
        assert tj.check(f, DATA).ok
        before = len(traces)
        f(DATA)
    assert len(traces) == before


@pytest.mark.parametrize("wrap", [jax.jit, jax.grad, jax.vmap])
def test_inside_a_transform_it_is_refused(wrap):
    closing = lambda x: x * tj.check(lambda y: y * x, np.ones(3)).ok
    for call in (closing, lambda x: x * tj.check(jnp.sin, x).ok):
        ends_in(
            lambda c=call: wrap(c)(jnp.ones(2) if wrap is not jax.grad else 1.0),
            InvalidConfig,
            "outside",
        )
