"""check of functions that are ops: no false alarm, the author's words, and what it must find."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.conformance import Verdict

from ..helpers import fresh
from ..sweep import some

X = np.array([0.3, 1.0, 2.0])
METHODS = ("linearize", "transpose_rule", "infer_output_meta", "batched(", "eager_execute")


pytestmark = pytest.mark.usefixtures("as_users_have_it")


def verdicts(report):
    return {finding.check: finding.verdict for finding in report.findings}


def soft_ranks(x):
    order = jnp.argsort(-x)
    return jnp.zeros_like(x).at[order].set(jax.nn.softmax(x[order]) * jnp.array([3, 2, 1], x.dtype))


def of_sign(x):
    return jax.lax.cond(x[0] > 1, lambda x: (x**2).sum(), lambda x: jnp.abs(x).sum(), x)


def until(x):
    return jax.lax.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] / 2), (0, x))[1]


def smoothed(x):
    return jax.lax.scan(lambda c, a: (c / 2 + a, c), jnp.zeros((), x.dtype), x)[1]


def running_product(x):
    return jax.lax.associative_scan(jnp.multiply, x)


TAKEN = (soft_ranks, of_sign, until, smoothed, running_product, jnp.linalg.norm, jax.nn.mish)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of casts of integers, in wrong_inputs
@pytest.mark.parametrize("f", some(TAKEN, 3), ids=lambda f: f.__name__)
def test_functions_that_are_taken_as_they_are(f):
    report = tj.check(fresh(f, derive=True), np.float32([0.3, 1.1, 2.0]))
    assert report.ok, str(report)
    assert verdicts(report)["jvp"] is Verdict.PASSED, str(report)


def test_a_fixed_axis_is_no_failure():
    def grey(x):
        r, g, b = x
        return r + 2 * g + 3 * b

    report = tj.check(
        fresh(grey, derive=True), X, only=("symbolic_sizes", "exported_sizes", "vmap")
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
        report = tj.check(sine(), X, oracle=oracle, only=("value", "routes"))
        assert set(verdicts(report).values()) == {Verdict.PASSED}, str(report)
    f = fresh(lambda x: {"s": jnp.sin(x), "two": (x, 2 * x)}, derive=True)
    report = tj.check(f, X, oracle=lambda x: {"s": np.sin(x), "two": (x, 2 * x)}, only=("routes",))
    assert report.ok, str(report)


@pytest.mark.parametrize(
    ("oracle", "said"),
    [
        (lambda x: 1 / 0, "ZeroDivisionError"),
        (lambda x, y: x, "TypeError"),
        (lambda x: {"b": np.sin(x)}, "where the function returns"),
    ],
)
def test_an_oracle_that_gives_no_answer_for_the_example_is_a_failure(oracle, said):
    f = fresh(lambda x: {"a": jnp.sin(x)})
    report = tj.check(f, X, oracle=oracle, only=("routes",))
    assert not report.ok
    assert said in report.failures[0].problem
    assert tj.check(f, X, oracle=lambda x: {"a": np.sin(x)}, only=("routes",)).ok


@pytest.mark.parametrize("right", [True, False])
def test_a_function_that_is_linear_in_one_argument(right):
    f = fresh(lambda a, x: a @ x)
    f.def_transpose(lambda c, a, x: (None, (a.T if right else a) @ c), argnums=1)
    checks = ("vjp", "adjoint", "linear_transpose", "precisions")
    report = tj.check(f, np.array([[1.0, 2.0], [3.0, 4.0]]), X[:2], only=checks)
    assert report.ok is right
    if not right:
        assert {"vjp", "adjoint"} & {x.check for x in report.failures}


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
    checks = ("value", "jvp", "vjp", "linear", "adjoint")
    for each in (f, fresh(f)) if f is not jnp.quantile else (f,):
        report = tj.check(each, *(np.float32(x) for x in arguments), only=checks)
        assert report.ok, str(report)


def test_a_wrong_oracle_and_a_wrong_rule_are_both_reported():
    wrong = sine(lambda x, y, t: 2 * jnp.cos(x[0]) * t[0])
    report = tj.check(wrong, X, oracle=lambda x: np.sin(x) + 1, only=("value", "routes", "jvp"))
    assert [finding.check for finding in report.failures] == ["routes", "jvp"]
    (alone,) = tj.check(wrong, X, oracle=np.sin, only=("routes", "jvp")).failures
    assert alone.check == "jvp"


def test_a_kernel_is_named_before_anything_else_and_its_rule_is_not_blamed():
    f = sine()
    f.def_kernel("cpu", name="fast")(lambda x: jnp.sin(x) * (1 + 1e-4))
    f.def_kernel("cuda", name="fast")(lambda x: jnp.sin(x) * (1 + 1e-4))
    report = tj.check(f, X, only=("value", "routes", "jvp", "adjoint"))
    assert [finding.check for finding in report.failures] == ["routes"]
    assert "route kernel fast" in report.failures[0].problem


def squares(x):
    return x**2


def broken_rules():
    yield "defjvp", fresh(squares), lambda f: f.defjvp(lambda x, y, t: 3 * x[0] * t[0])
    yield (
        "bwd",
        fresh(squares),
        lambda f: f.defvjp(lambda x: (x**2, x), lambda x, g: (3 * x * g,)),
    )
    yield (
        "def_transpose",
        fresh(lambda x: 2 * x),
        lambda f: f.def_transpose(lambda g, x: (3 * g,)),
    )
    yield (
        "def_vmap",
        fresh(squares, derive=True),
        lambda f: f.def_vmap(lambda n, batched, x: (x**3, batched[0])),
    )
    yield "def_infer", fresh(lambda x: None), infers_float32


def infers_float32(f):
    f.def_host(np.sin)
    f.def_infer(lambda x: jax.ShapeDtypeStruct(x.shape, np.dtype(np.float32)))


@pytest.mark.parametrize(
    ("word", "f", "add"), list(broken_rules()), ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_report_has_the_words_of_the_author(word, f, add):
    add(f)
    checks = ("meta", "jvp", "adjoint", "vjp", "linear_transpose", "precisions", "vmap")
    report = tj.check(f, X, only=checks)
    assert report.failures, str(report)
    assert any(word in finding.fix for finding in report.failures), str(report)
    assert not [method for method in METHODS if method in str(report)], str(report)


def narrow(x):
    return jnp.sin(x).astype(jnp.float32)


def narrow_inside(x):
    return jnp.sin(x.astype(jnp.float32)).astype(x.dtype)


@pytest.mark.parametrize(
    "take", [lambda f: f, lambda f: fresh(f, derive=True)], ids=["function", "op"]
)
def test_functions_and_ops_are_judged_alike(take):
    (lost,) = tj.check(take(narrow), X, only=("precisions",)).failures
    assert "the result for float64 arguments: float32" in lost.problem
    inside = tj.check(take(narrow_inside), X, only=("jvp", "adjoint", "precisions"))
    assert inside.ok, str(inside)
    assert "float32 arithmetic inside" in str(inside)


scale = 2.0


def scaled(x):
    return scale * x


@pytest.mark.parametrize("take", [jax.jit, lambda f: fresh(f, derive=True)], ids=["jit", "op"])
def test_a_global_that_changed_after_tracing(monkeypatch, take):
    f = take(scaled)
    f(X)
    assert tj.check(f, X, only=("value",)).ok
    monkeypatch.setitem(globals(), "scale", 3.0)
    (stale,) = tj.check(f, X, only=("value",)).failures
    assert "0.6" in stale.problem
    assert "0.9" in stale.problem or "0.8999" in stale.problem


def test_a_global_that_a_program_keeps_is_named():
    for f in (scaled, fresh(scaled, derive=True)):
        (value,) = tj.check(f, X, only=("value",)).findings
        assert value.problem.endswith("the global scale")
