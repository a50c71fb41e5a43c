"""Section 10 of the contract: what a rule may emit, and what the next order differentiates."""

import jax
import jax.export
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    ADRuleError,
    ShapeError,
)
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    apply,
    require_equal,
)

from ..extension_ops import (
    ScaledSquare,
    ScaledSquareRule,
)
from ..helpers import each_ends_in, ends_in, equal


class Outer(ExtensionOp):
    """x ** 2; its rule emits Helper."""

    family_id = "test-package.outer_square.v1"

    def lower_to_standard_ops(self, x):
        return (x * x,)


class Helper(ExtensionOp):
    """2 x dx, linear in dx. Terminal where no rule is given: no second order then."""

    family_id = "test-package.helper.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, dx):
        return (2.0 * x * dx,)


class OuterRule(ExtensionAdRule):
    family_id = Outer.family_id

    def linearize(self, op, primals, outputs, tangents):
        return apply(Helper(), primals[0], tangents[0])


class HelperRule(ExtensionAdRule):
    family_id = Helper.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, dx), (tx, tdx) = primals, tangents
        terms = [
            *([] if tx is None else apply(op, tx, dx)),
            *([] if tdx is None else apply(op, x, tdx)),
        ]
        return (sum(terms[1:], terms[0]),)

    def transpose_rule(self, op, cotangents, inputs):
        (ct,) = apply(op, next(x for x in inputs if not isinstance(x, LinearInput)), cotangents[0])
        return [ct if isinstance(x, LinearInput) else None for x in inputs]


@pytest.mark.clause("X10.9", "X10.14")
def test_a_rule_may_emit_an_extension_to_any_order():
    f = lambda x: apply(Outer(), x, rules=ExtensionRuleSet(OuterRule(), HelperRule()))[0]
    first, second, third = jax.grad(f), jax.grad(jax.grad(f)), jax.grad(jax.grad(jax.grad(f)))
    assert (first(3.0), second(3.0), third(3.0)) == (6.0, 2.0, 0.0)
    equal(
        (jax.hessian(lambda x: f(x).sum())(np.array([1.0, 2.0])), 2 * np.eye(2)),
        (jax.vmap(jax.grad(f))(np.array([1.0, 2.0])), [2.0, 4.0]),
    )
    graph = trace(f, jax.ShapeDtypeStruct((), np.float64))
    assert Engine().eval(tj.grad(tj.grad(graph)), np.float64(3.0)) == 2.0


@jax.jit
def _slope(x, dx):
    """Used by a rule; JAX keeps what it traced of it."""
    return apply(ScaledSquare(), x)[0] * dx


@pytest.mark.cpu
@pytest.mark.clause("X10.1", "X10.9")
def test_what_a_rule_calls_has_the_rules_and_kernels_of_the_outer_call():
    """The derivative is x**2; its own derivative is that of ScaledSquare by the rules of the call,
    also in a jitted helper.
    """

    class Rule(ExtensionAdRule):
        family_id = Outer.family_id

        def linearize(self, op, primals, outputs, tangents):
            return (_slope(primals[0], tangents[0]),)

    def second(*rules, **kernels):
        return jax.grad(
            jax.grad(
                lambda x: apply(Outer(), x, rules=ExtensionRuleSet(Rule(), *rules), **kernels)[0]
            )
        )

    assert _slope(3.0, 1.0) == 9.0  # outside of any rule: no rules
    for mark in (1.0, 10.0, 1.0):
        assert second(ScaledSquareRule(mark=mark))(3.0) == 6.0 * mark
        assert jax.jit(second(ScaledSquareRule(mark=mark)))(3.0) == 6.0 * mark
    each_ends_in(
        (lambda: second()(3.0), ADRuleError, r"test-package\.scaled_square\.v1"),
        (
            lambda: jax.grad(lambda x: _slope(x, 1.0))(3.0),
            ADRuleError,
            r"test-package\.scaled_square\.v1",
        ),
    )
    ten = ExtensionRuntimeSet(Kernel(ScaledSquare.family_id, "cpu", lambda op, x: (10.0 * x * x,)))
    first = lambda x, **kernels: jax.jvp(
        lambda x: apply(Outer(), x, rules=ExtensionRuleSet(Rule()), **kernels)[0], (x,), (1.0,)
    )[1]
    assert (first(3.0), first(3.0, runtimes=ten), first(3.0)) == (9.0, 90.0, 9.0)


@pytest.mark.clause("X10.9")
def test_a_call_in_a_rule_may_bring_its_own_rules():
    own = ExtensionRuleSet(ScaledSquareRule(mark=5.0))

    class Rule(ExtensionAdRule):
        family_id = Outer.family_id

        def linearize(self, op, primals, outputs, tangents):
            (square,) = apply(ScaledSquare(), primals[0], rules=own)
            return (square * tangents[0],)

    rules = ExtensionRuleSet(Rule(), ScaledSquareRule())
    assert jax.grad(jax.grad(lambda x: apply(Outer(), x, rules=rules)[0]))(3.0) == 30.0


@pytest.mark.clause("X10.14")
def test_what_a_rule_does_is_what_the_next_order_differentiates():
    """The rule says 10 times too much; its own derivative follows the rule, not the lowering."""
    f = lambda x: apply(ScaledSquare(), x, rules=ExtensionRuleSet(ScaledSquareRule(mark=10.0)))[0]
    assert (jax.grad(f)(3.0), jax.grad(jax.grad(f))(3.0), jax.grad(jax.grad(jax.grad(f)))(3.0)) == (
        60.0,
        20.0,
        0.0,
    )


B, C = jax.export.symbolic_shape("b, c")


class Tails(ExtensionOp):
    """x.sum() * y.sum(): any lengths. Its rule takes the lengths to be equal."""

    family_id = "test-package.tails.v1"
    input_count = 2

    def lower_to_standard_ops(self, x, y):
        return (x.sum() * y.sum(),)


class RuleOfTails(ExtensionAdRule):
    family_id = Tails.family_id

    def linearize(self, op, primals, outputs, tangents):
        (x, y), dx = primals, tangents[0]
        require_equal(x.shape[0], y.shape[0])
        return (dx.sum() * y.sum(),)


@pytest.mark.clause("X10.10")
def test_a_guard_taken_in_a_rule_is_one_of_the_derivative():
    rules = ExtensionRuleSet(RuleOfTails())
    f = lambda x, y: apply(Tails(), x, y, rules=rules)[0]
    spec = lambda d: jax.ShapeDtypeStruct((d,), np.float64)
    graph = trace(f, spec(B), spec(C))
    assert graph.guards == ()
    assert graph.to_jax()(np.ones(2), np.ones(3)) == 6.0
    for derivative, more in ((tj.grad(graph), 0), (tj.jvp(graph, 0), 1)):
        assert [str(g) for g in derivative.guards] == ["b == c"]
        assert "linearize of extension test-package.tails.v1" in derivative.guards[0].where
        x, y = np.ones(2), np.arange(2.0) + 1
        got = Engine().eval(derivative, x, y, *[x] * more)
        np.testing.assert_array_equal(jax.tree.leaves(got)[-1], 3.0 * x if not more else 6.0)
        ends_in(
            (
                lambda: run(x, np.ones(3), *[x] * more)
                for run in (
                    derivative.to_jax(),
                    lambda *xs, derivative=derivative: Engine().eval(derivative, *xs),
                )
            ),
            ShapeError,
            r"test-package\.tails\.v1: given 2 for dimension b and 3 for dimension c",
        )
    each_ends_in(
        (
            lambda: jax.grad(f)(np.ones(2), np.ones(3)),
            ShapeError,
            r"linearize of extension test-package\.tails\.v1: given dimensions 2 and 3",
        ),
        (
            lambda: jax.export.export(jax.jit(jax.grad(f)))(spec(B), spec(C)),
            ShapeError,
            r"test-package\.tails\.v1.*constraints=\('b == c',\)",
        ),
    )
