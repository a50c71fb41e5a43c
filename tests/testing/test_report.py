"""What the report says, to readers and programs; what the arguments must be; conformance_tests: one
test a check, skipped with its reason where it does not apply.
"""

import pathlib
import re

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax.errors import ConformanceError, InvalidConfig
from tenferro_jax.extension import (
    NOT_DIFFERENTIABLE,
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    apply,
)
from tenferro_jax.testing import Verdict, conformance_tests
from tenferro_jax.testing.checks import CHECKS
from tenferro_jax.testing.derivatives import LINEARIZE

from ..extension_ops import RULES, Bilinear, MaxAndIndex, ScaledSquare
from ..helpers import each_ends_in, ends_in, passes
from .broken_ops import Cube, CubeRule


class NoExamples(Cube):
    family_id = "broken.no_examples.v1"

    def example_inputs(self):
        return None


X = np.array([[0.5, -1.25, 2.0], [1.5, 0.75, -0.5]])


@pytest.fixture(scope="module")
def wrong():
    return tj.check(Cube(), X, rules=ExtensionRuleSet(CubeRule("0.05 %")))


def test_a_report_of_failures(wrong):
    text = str(wrong)
    assert max(map(len, text.splitlines())) <= 100
    (row,) = [line for line in text.splitlines() if line.startswith("L3  jvp")]
    assert row.split() == ["L3", "jvp", "X10.6", "X10.8", "X6.5", "-", "FAILED"]
    assert "FAILED L3 jvp: clause X10.6\n  given input 0: float64[2,3] [[" in text
    assert "  do    Correct linearize; of a function defjvp or bwd." in text
    assert [f.check for f in wrong.failures] == ["jvp"]
    assert (wrong.ok, wrong.failures[0].clause, wrong.failures[0].cases) == (False, "X10.6", 0)


def test_raise_if_failed(wrong):
    error = ends_in(
        wrong.raise_if_failed, ConformanceError, r"conformance of extension broken\.cube\.v1"
    )
    assert str(wrong) in str(error.value)
    assert (error.value.family_id, error.value.fix) == ("broken.cube.v1", LINEARIZE)
    ends_in(wrong.raise_if_failed, AssertionError)


def test_what_follows_from_a_failure_is_not_counted_as_passed(wrong):
    after = {f.check: f for f in wrong.findings}["second_order"]
    assert (after.verdict, after.problem, after.cases) == (Verdict.NOT_APPLICABLE, "jvp failed", 0)


def test_without_rules_nothing_of_derivatives_counts():
    derivatives = ("jvp", "linear", "vjp", "second_order", "vmap_of_grad")
    report = tj.check(Cube(), X, only=("value", *derivatives, "shard_map_derivative"))
    report.raise_if_failed()
    assert len(report.not_applicable) == 6
    assert {f.problem for f in report.not_applicable} == {"no AD rule for the family"}


@pytest.mark.parametrize(
    ("at", "verdict", "problem"),
    [
        ([[1.0, 1.0, 0.0], [0.5, 2.0, 0.25]], Verdict.PASSED, "1 of 2 entries at a kink, not"),
        (
            np.ones((2, 3)),
            Verdict.NOT_APPLICABLE,
            "no entry has a derivative at the example: kinks",
        ),
    ],
)
def test_kinks_are_told_and_never_passed_over(at, verdict, problem):
    """At a tie the maximum has no derivative: that row is not checked, and the report says so."""
    (jvp,) = tj.check(MaxAndIndex(), np.array(at), rules=RULES, only=("jvp",)).findings
    assert jvp.verdict is verdict
    assert jvp.problem.startswith(problem)


def test_order_one_asks_for_no_second_derivative():
    keywords = {"rules": ExtensionRuleSet(CubeRule("frozen")), "only": ("jvp", "second_order")}
    report = passes(Cube(), X, order=1, **keywords)
    assert report.not_applicable[0].problem == "order=1 was asked for"


@pytest.mark.parametrize(
    ("oracle", "op", "given"),
    [(lambda x: (x**3 + 0j,), Cube(), X), (lambda x: (x + 0.25,), Cube(), np.array([0, 1]))],
    ids=["complex for real", "fractions for integers"],
)
def test_an_oracle_of_another_kind_of_number(oracle, op, given):
    (failed,) = tj.check(op, given, oracle=oracle, only=("value", "routes")).failures
    assert (failed.check, failed.clause) == ("routes", "X8.10")
    assert "the oracle's output 0 is" in failed.problem


def square(x):
    return (x * x,)


@pytest.mark.cpu
def test_a_kernel_for_another_platform_is_named():
    runtimes = ExtensionRuntimeSet(Kernel(ScaledSquare.family_id, "tpu", lambda op, x: (x,)))
    told = "the kernel for tpu was not run: this is cpu"
    for oracle, said in ((None, f"one route, lowering, and no oracle; {told}"), (square, told)):
        keywords = {"runtimes": runtimes, "oracle": oracle, "only": ("routes",)}
        (routes,) = tj.check(ScaledSquare(), X, **keywords).findings
        assert routes.problem == said


def test_a_tolerance_that_is_stated_holds():
    nearly = {"oracle": lambda x: (x**3 * (1 + 1e-7),), "only": ("value", "routes")}
    assert {f.check: f.clause for f in tj.check(Cube(), X, **nearly).failures} == {
        "routes": "X8.10"
    }
    assert tj.check(Cube(), X, tolerance=1e-6, **nearly).ok


def test_examples_of_the_op_itself():
    class WithExamples(Cube):
        family_id = "broken.with_examples.v1"

        def example_inputs(self):
            return [X, (X[0],), [X[:1]]]

    (value,) = tj.check(WithExamples(), only=("value",)).findings
    assert (value.verdict, value.cases) == (Verdict.PASSED, 3)


def test_an_op_without_inputs():
    class Answer(ExtensionOp):
        family_id = "broken.answer.v1"
        input_count = 0

        def lower_to_standard_ops(self):
            return (np.float32(42),)

    report = passes(Answer(), oracle=lambda: (np.float32(42),))
    assert {"vmap", "shard_map"} <= {f.check for f in report.not_applicable}


@pytest.mark.parametrize(
    ("args", "keywords", "kind", "match"),
    [
        ((ScaledSquare,), {}, InvalidConfig, "needed an instance of an ExtensionOp"),
        (
            (ScaledSquare(),),
            {},
            InvalidConfig,
            "scaled_square.*no example inputs.*override example_inputs",
        ),
        ((Bilinear(), X), {}, InvalidConfig, r"bilinear.*1 arrays; needed 2.*\(op, x, y\)"),
        ((ScaledSquare(), "text"), {}, InvalidConfig, r"scaled_square.*input 0.*'text'"),
        ((ScaledSquare(), X), {"rules": [1]}, InvalidConfig, "ExtensionRuleSet"),
        ((ScaledSquare(), X), {"runtimes": RULES}, InvalidConfig, "ExtensionRuntimeSet"),
        ((ScaledSquare(), X), {"oracle": 1}, InvalidConfig, "NumPy function"),
        *(
            ((ScaledSquare(), X), {"tolerance": t}, InvalidConfig, "finite number from 0")
            for t in (-1.0, np.inf, np.nan, "a", True, [1])
        ),
        *(
            ((ScaledSquare(), X), {"order": order}, InvalidConfig, "1 or 2")
            for order in (3, "2", X)
        ),
        *(
            ((ScaledSquare(), X), {"seed": seed}, InvalidConfig, "a non-negative int")
            for seed in (-1, 1.5, "a", None)
        ),
        (
            (ScaledSquare(), jax.random.key(0)),
            {},
            InvalidConfig,
            "scaled_square.*input 0.*key<fry>.*key_data",
        ),
        ((ScaledSquare(), np.array(["a"])), {}, InvalidConfig, "scaled_square.*input 0.*needed"),
        ((ScaledSquare(), np.array([None])), {}, InvalidConfig, "scaled_square.*input 0.*needed"),
        (
            (ScaledSquare(), np.array(["2026-01-01"], "M8[D]")),
            {},
            InvalidConfig,
            "scaled_square.*input 0.*needed",
        ),
        ((NoExamples(),), {}, InvalidConfig, "example_inputs.*TypeError.*Correct it"),
    ],
)
def test_arguments_that_cannot_be(args, keywords, kind, match):
    ends_in(lambda: tj.check(*args, **keywords), kind, match)


@pytest.mark.parametrize(
    ("declared", "told"),
    [
        (
            "everywhere",
            {
                "jvp": "no forward mode: the rule declares NOT_DIFFERENTIABLE",
                "vjp": "no reverse mode: the rule declares NOT_DIFFERENTIABLE",
                "second_order": "no reverse mode: the rule declares NOT_DIFFERENTIABLE",
            },
        ),
        (
            "in reverse",
            {
                "vjp": "no reverse mode: the rule declares NOT_DIFFERENTIABLE",
                "second_order": "no reverse mode: the rule declares NOT_DIFFERENTIABLE",
            },
        ),
    ],
)
def test_what_is_declared_not_differentiable_is_left_out_and_told(declared, told):
    class Slope(ExtensionOp):
        family_id = "broken.slope.v1"
        input_count = 2

        def lower_to_standard_ops(self, x, t):
            return (3 * x * x * t,)

    class DeclaredRule(CubeRule):
        def linearize(self, op, primals, outputs, tangents):
            if declared == "everywhere":
                return (NOT_DIFFERENTIABLE,)
            return apply(Slope(), primals[0], tangents[0])

    class SlopeRule(ExtensionAdRule):
        family_id = Slope.family_id

        def transpose_rule(self, op, cotangents, inputs):
            return (None, NOT_DIFFERENTIABLE)

    rules = ExtensionRuleSet(DeclaredRule(), SlopeRule())
    report = passes(Cube(), X, rules=rules, only=("value", "jvp", *told))
    assert {f.check: f.problem for f in report.findings if f.problem} == told
    refused = {name for name, problem in told.items() if problem.startswith("no ")}
    assert {f.check for f in report.not_applicable} == refused


def test_every_clause_named_is_one_of_the_contract():
    root = pathlib.Path(__file__).parent.parent.parent
    page = set(
        re.findall(
            r"^- \*\*(X\d+\.\d+)\*\*",
            (root / "docs/spec/extension_op.md").read_text(),
            re.MULTILINE,
        )
    )
    kit = "".join(path.read_text() for path in (root / "tenferro_jax/testing").glob("*.py"))
    named = set(re.findall(r"\"(X\d+\.\d+)\"", kit))
    assert len(named) > 30
    assert named <= page
    assert {clause for check in CHECKS for clause in check.clauses} <= named


def test_one_check_alone():
    test = conformance_tests(Cube(), X, rules=ExtensionRuleSet(CubeRule("affine")))
    (cases,) = test.pytestmark
    assert cases.args == ("check", [c.name for c in CHECKS])
    assert cases.kwargs == {"ids": [f"{c.law}-{c.name}" for c in CHECKS]}
    test("meta")
    each_ends_in(
        (lambda: test("host_form"), pytest.skip.Exception, "no host form"),
        (lambda: test("linear"), ConformanceError, r"clause X10\.6"),
    )


def test_nothing_runs_before_a_test_does():
    test = conformance_tests(Cube(), "no array")
    ends_in(lambda: test("meta"), TypeError, "no array")
