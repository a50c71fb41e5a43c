"""Section 10 of the contract: rules that travel with the call, and zeros that are None."""

import dataclasses

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import trace
from tenferro_jax.errors import (
    ADRuleError,
    DuplicateRule,
    InvalidConfig,
    MalformedFamilyId,
)
from tenferro_jax.extension import (
    NOT_DIFFERENTIABLE,
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    LinearInput,
    apply,
)
from tenferro_jax.extension.rules import NO_RULES

from ..extension_ops import (
    RULES,
    Bilinear,
    HostCumulate,
    HostCumulateRule,
    MaxAndIndex,
    ScaledSquare,
    ScaledSquareRule,
)
from ..helpers import close, each_ends_in, ends_in

X = np.arange(6.0).reshape(2, 3)


@pytest.mark.clause("X10.1")
def test_a_rule_serves_the_call_that_brought_it_and_no_other():
    once, ten = ExtensionRuleSet(ScaledSquareRule()), ExtensionRuleSet(ScaledSquareRule(mark=10.0))
    call = lambda rules: lambda x: apply(ScaledSquare(), x, rules=rules)[0]
    assert jax.grad(lambda x: call(once)(x) + call(ten)(x))(3.0) == 6.0 + 60.0
    assert jax.grad(jax.jit(lambda x: call(ten)(x) * call(once)(x)))(1.0) == 2.0 + 20.0
    ends_in(lambda: jax.grad(lambda x: call(once)(x) + call(NO_RULES)(x))(3.0), ADRuleError)


@dataclasses.dataclass(frozen=True)
class Scaled(ExtensionOp):
    """factor * x: linear, and its own rule."""

    family_id = "test-package.scaled.v1"
    factor: float = 2.0

    def lower_to_standard_ops(self, x):
        return (self.factor * x,)

    def linearize(self, primals, outputs, tangents):
        return apply(self, tangents[0])

    def transpose_rule(self, cotangents, inputs):
        assert isinstance(inputs[0], LinearInput)
        return apply(self, cotangents[0])


@dataclasses.dataclass(frozen=True)
class Exponential(ExtensionOp):
    """exp x, with itself as a residual; it has no transpose."""

    family_id = "test-package.exponential.v1"

    @property
    def output_count(self):
        return 1 + self.residual

    residual: bool = False

    def lower_to_standard_ops(self, x):
        return (jnp.exp(x),) * self.output_count

    def differentiable_form(self):
        return Exponential(residual=True)

    def linearize(self, primals, outputs, tangents):
        return (outputs[1] * tangents[0],) * self.output_count


@pytest.mark.clause("X10.1", "X10.11", "X10.12", "X12.5")
def test_an_op_may_state_its_rule_itself():
    f = lambda x: apply(Exponential(), apply(Scaled(), x)[0])[0]
    x = np.array([0.0, 0.5])
    close(
        (jax.jit(jax.vmap(jax.grad(f)))(x), 2 * np.exp(2 * x)),
        (jax.hessian(f)(0.5), 4 * np.exp(1.0)),
        (jax.grad(jax.checkpoint(f))(0.5), 2 * np.exp(1.0)),
        rtol=1e-12,
    )
    assert jax.linear_transpose(lambda x: apply(Scaled(), x)[0], 1.0)(3.0) == (6.0,)
    graph = trace(lambda x: f(x).sum(), x)
    assert not len(graph.rules)
    np.testing.assert_allclose(tj.grad(graph).to_jax()(x), 2 * np.exp(2 * x), rtol=1e-12)
    error = ends_in(
        lambda: jax.linear_transpose(lambda x: apply(Exponential(), x)[0], 1.0)(1.0),
        ADRuleError,
        r"transpose of extension test-package\.exponential\.v1.*Override Exponential",
    )
    assert error.value.kind == "transpose"


@pytest.mark.clause("X10.13")
def test_a_rule_beside_that_of_the_class_is_refused_when_it_is_needed():
    class Second(ExtensionAdRule):
        family_id = Scaled.family_id

    f = lambda x: apply(Scaled(), x, rules=ExtensionRuleSet(Second()))[0]
    assert f(3.0) == 6.0
    ends_in(
        (lambda: jax.grad(f)(3.0), lambda: jax.linear_transpose(f, 1.0)(1.0)),
        DuplicateRule,
        r"test-package\.scaled\.v1: given Second in the rule set, and a rule in the class Scaled",
    )


@pytest.mark.clause("X10.1", "X10.13")
def test_rule_sets_compare_by_content():
    assert ExtensionRuleSet(ScaledSquareRule()) == ExtensionRuleSet(ScaledSquareRule())
    assert hash(ExtensionRuleSet(ScaledSquareRule())) == hash(ExtensionRuleSet(ScaledSquareRule()))
    assert ExtensionRuleSet(ScaledSquareRule(1.0)) != ExtensionRuleSet(ScaledSquareRule(2.0))
    assert ExtensionRuleSet(*reversed(list(RULES))) == RULES
    assert RULES.united(ExtensionRuleSet(ScaledSquareRule())) == RULES
    ends_in(lambda: RULES.united(ExtensionRuleSet(ScaledSquareRule(3.0))), DuplicateRule)

    class Nameless(ExtensionAdRule):
        family_id = "x"

    ends_in(lambda: ExtensionRuleSet(Nameless()), MalformedFamilyId)


@pytest.mark.clause("X10.13")
def test_a_second_rule_for_a_family_changes_nothing():
    class New(ExtensionAdRule):
        family_id = "test-package.new.v1"

    mine, before = ExtensionRuleSet(ScaledSquareRule()), ExtensionRuleSet(ScaledSquareRule())
    for change in (
        lambda: mine.with_rule(ScaledSquareRule(3.0)),
        lambda: mine.with_rule(ScaledSquareRule()),
        lambda: mine.merge(
            ExtensionRuleSet(New(), ScaledSquareRule())
        ),  # the new one comes first, and does not stay
        lambda: ExtensionRuleSet(ScaledSquareRule(), ScaledSquareRule()),
    ):
        ends_in(change, DuplicateRule, r"test-package\.scaled_square\.v1")
    assert mine == before
    assert [
        mine.is_rule_registered(family) for family in (ScaledSquare.family_id, New.family_id)
    ] == [True, False]
    both = mine.merge(ExtensionRuleSet(New()))
    assert (len(both), len(mine)) == (2, 1)
    assert both.lookup_rule(New.family_id) == New()


@pytest.mark.few(12)
@pytest.mark.clause("X10.2")
@pytest.mark.parametrize("kind", ["grad", "jvp", "vjp", "linearize", "hessian", "jacfwd"])
@pytest.mark.parametrize(
    "wrap", ["plain", "jit", "scan", "cond", "while", "checkpoint", "vmap", "shard_map"]
)
def test_a_missing_rule_is_named_from_inside_every_transform(kind, wrap):
    f = lambda x: apply(ScaledSquare(), x, rules=NO_RULES)[0].sum()
    mesh = jax.make_mesh((1,), ("d",), axis_types=(jax.sharding.AxisType.Auto,))
    wrapped = {
        "plain": f,
        "jit": jax.jit(f),
        "scan": lambda x: jax.lax.scan(lambda c, _: (c + f(x), None), 0.0, None, length=2)[0],
        "cond": lambda x: jax.lax.cond(x.sum() > 0, f, lambda x: x.sum(), x),
        "while": lambda x: (
            jax.lax.fori_loop(0, jnp.int32(2), lambda i, c: c + f(x), 0.0)
            if kind in ("jvp", "jacfwd")
            else f(x)
        ),
        "checkpoint": jax.checkpoint(f),
        "vmap": lambda x: jax.vmap(f)(x).sum(),
        "shard_map": jax.shard_map(
            lambda x: jax.lax.psum(f(x), "d"), mesh=mesh, in_specs=jax.P("d"), out_specs=jax.P()
        ),
    }[wrap]
    run = {
        "grad": lambda: jax.grad(wrapped)(X),
        "jvp": lambda: jax.jvp(wrapped, (X,), (X,)),
        "vjp": lambda: jax.vjp(wrapped, X),
        "linearize": lambda: jax.linearize(wrapped, X),
        "hessian": lambda: jax.hessian(wrapped)(X),
        "jacfwd": lambda: jax.jacfwd(wrapped)(X),
    }[kind]
    error = ends_in(run, ADRuleError, r"jvp of extension test-package\.scaled_square\.v1")
    assert (error.value.family_id, error.value.kind) == ("test-package.scaled_square.v1", "jvp")


@pytest.mark.clause("X10.2")
def test_a_missing_rule_does_not_matter_where_nothing_is_differentiated():
    def f(x, n):
        return (
            apply(ScaledSquare(), jax.lax.stop_gradient(x), rules=ExtensionRuleSet())[0] * x
        ).sum() + apply(ScaledSquare(), n)[0].sum() * 0.0

    np.testing.assert_allclose(jax.grad(f)(X, np.ones(2)), X * X)


@pytest.mark.clause("X10.2")
def test_a_missing_transpose_rule():
    class Rule(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def linearize(self, op, primals, outputs, tangents):
            return apply(op, tangents[0])

    rules = ExtensionRuleSet(Rule())
    f = lambda x: apply(HostCumulate(), x, rules=rules)[0].sum()
    assert jax.jvp(f, (X,), (X,))[1] == np.cumsum(X, -1).sum()
    error = ends_in(
        lambda: jax.grad(f)(X),
        ADRuleError,
        r"transpose of extension test-package\.host_cumulate\.v1",
    )
    assert error.value.kind == "transpose"
    ends_in(
        lambda: jax.linear_transpose(lambda x: apply(HostCumulate(), x)[0], X)(X),
        ADRuleError,
        "transpose",
    )


class Pair(ExtensionOp):
    """(x + 2 y, 3 x): linear, two in and two out."""

    family_id = "test-package.pair.v1"
    input_count = 2
    output_count = 2

    def lower_to_standard_ops(self, x, y):
        return (x + 2.0 * y, 3.0 * x)


@dataclasses.dataclass(frozen=True)
class PairRule(ExtensionAdRule):
    """Takes note of what is None; makes no zeros."""

    family_id = Pair.family_id

    def linearize(self, op, primals, outputs, tangents):
        SEEN.append(("jvp", *(t is None for t in tangents)))
        dx, dy = tangents
        terms = [*([] if dx is None else [dx]), *([] if dy is None else [2.0 * dy])]
        return sum(terms[1:], terms[0]), None if dx is None else 3.0 * dx

    def transpose_rule(self, op, cotangents, inputs):
        assert all(isinstance(x, LinearInput) for x in inputs)
        SEEN.append(("transpose", *(ct is None for ct in cotangents)))
        first, second = cotangents
        terms = [*([] if first is None else [first]), *([] if second is None else [3.0 * second])]
        return sum(terms[1:], terms[0]), None if first is None else 2.0 * first


SEEN: list = []


PAIR = ExtensionRuleSet(PairRule())


@pytest.mark.clause("X10.3", "X10.4")
def test_none_is_zero_both_ways():
    pair = lambda x, y: apply(Pair(), x, y, rules=PAIR)
    SEEN.clear()
    out = jax.jvp(lambda x: pair(x, 1.0), (1.0,), (5.0,))[1]
    assert [float(t) for t in out] == [5.0, 15.0]
    out = jax.jvp(lambda y: pair(1.0, y), (1.0,), (5.0,))[1]
    assert [float(t) for t in out] == [10.0, 0.0]  # None came back
    assert SEEN == [("jvp", False, True), ("jvp", True, False)]
    SEEN.clear()
    for chosen, to_x, to_y in ((0, 1.0, 2.0), (1, 3.0, 0.0)):
        got = jax.linear_transpose(lambda x, y, chosen=chosen: pair(x, y)[chosen], 1.0, 1.0)(1.0)
        assert [float(ct) for ct in got] == [to_x, to_y]
    assert SEEN == [("transpose", False, True), ("transpose", True, False)]


@pytest.mark.clause("X10.3", "X10.4")
def test_a_tangent_that_is_none_stays_symbolic_in_what_follows():
    """The second output has no tangent for y: an op after it is not differentiated, so needs no
    rule.
    """

    def f(y):
        first, second = apply(Pair(), 1.0, y, rules=PAIR)
        return first + apply(ScaledSquare(), second, rules=NO_RULES)[0]

    assert jax.grad(f)(2.0) == 2.0
    ends_in(
        lambda: jax.grad(
            lambda x: apply(ScaledSquare(), apply(Pair(), x, 1.0, rules=PAIR)[1], rules=NO_RULES)[0]
        )(2.0),
        ADRuleError,
    )


@pytest.mark.clause("X10.5")
def test_not_differentiable_has_its_own_error():
    class Rule(ExtensionAdRule):
        family_id = ScaledSquare.family_id

        def linearize(self, op, primals, outputs, tangents):
            return [NOT_DIFFERENTIABLE]

    rules = ExtensionRuleSet(Rule())
    f = lambda x: apply(ScaledSquare(), x, rules=rules)[0].sum()
    error = ends_in(
        (
            lambda: run(X)
            for run in (jax.grad(f), jax.grad(lambda x: jax.vmap(f)(x).sum()), jax.jit(jax.grad(f)))
        ),
        ADRuleError,
        r"NOT_DIFFERENTIABLE for output 0",
    )
    assert error.value.clause == "X10.5"


@pytest.mark.clause("X10.15")
def test_a_rule_gets_jax_arrays():
    """Of Python numbers and NumPy arrays too."""
    given = []
    note = lambda *slots: given.extend(
        x for slot in slots for x in slot if x is not None and not isinstance(x, LinearInput)
    )

    class Rule(ExtensionAdRule):
        family_id = Bilinear.family_id

        def linearize(self, op, primals, outputs, tangents):
            note(primals, outputs, tangents)
            return apply(op, tangents[0], primals[1])

        def transpose_rule(self, op, cotangents, inputs):
            note(cotangents, inputs)
            return (cotangents[0] @ inputs[1].T, None)

    rules = ExtensionRuleSet(Rule())
    x, w = np.eye(2), np.arange(4.0).reshape(2, 2)
    call = lambda x: apply(Bilinear(), x, w, rules=rules)[0]
    jax.jvp(call, (x,), (x,))
    jax.vjp(call, x)[1](x)
    jax.linear_transpose(call, x)(x)
    assert len(given) >= 10
    assert all(isinstance(value, jax.Array) for value in given)


@pytest.mark.clause("X10.5")
def test_not_differentiable_in_a_transpose_rule():
    class Rule(PairRule):
        def transpose_rule(self, op, cotangents, inputs):
            return (cotangents[0], NOT_DIFFERENTIABLE)

    pair = lambda x, y: apply(Pair(), x, y, rules=ExtensionRuleSet(Rule()))[0]
    for run in (
        jax.linear_transpose(pair, 1.0, 1.0),
        jax.jit(jax.linear_transpose(pair, 1.0, 1.0)),
    ):
        error = ends_in(
            lambda: run(1.0),
            ADRuleError,
            r"transpose of extension test-package\.pair\.v1.*NOT_DIFFERENTIABLE for input 1",
        )
        assert (error.value.kind, error.value.clause) == ("transpose", "X10.5")
    assert pair(1.0, 1.0) == 3.0


@pytest.mark.clause("X10.8")
def test_tangents_and_cotangents_have_the_metas_of_their_primals():
    class TangentOfIndex(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def linearize(self, op, primals, outputs, tangents):
            return [tangents[0][..., 0], outputs[1]]

    class CotangentOfOneRow(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def linearize(self, op, primals, outputs, tangents):
            return apply(op, tangents[0])

        def transpose_rule(self, op, cotangents, inputs):
            return [cotangents[0][:1]]

    rules = ExtensionRuleSet(TangentOfIndex(), CotangentOfOneRow())
    each_ends_in(
        (
            (
                lambda: jax.jvp(wrap(lambda x: apply(MaxAndIndex(), x, rules=rules)), (X,), (X,))
                for wrap in (lambda f: f, jax.vmap)
            ),
            InvalidConfig,
            r"linearize of extension test-package\.max_and_index\.v1, entry 1.*no tangents",
        ),
        (
            lambda: jax.grad(lambda x: apply(HostCumulate(), x, rules=rules)[0].sum())(X),
            InvalidConfig,
            r"transpose_rule of extension test-package\.host_cumulate\.v1, entry "
            r"0.*float64\[1,3\].*float64\[2,3\]",
        ),
    )


@pytest.mark.clause("X10.11")
def test_a_transpose_rule_alone_is_enough_for_linear_transpose():
    class Transposed(ExtensionAdRule):
        family_id = HostCumulate.family_id

        def transpose_rule(self, op, cotangents, inputs):
            return HostCumulateRule().transpose_rule(op, cotangents, inputs)

    rules = ExtensionRuleSet(Transposed())
    f = lambda x: apply(HostCumulate(), x, rules=rules)[0]
    w = np.cos(X)
    for transpose in (jax.linear_transpose(f, X), jax.jit(jax.linear_transpose(f, X))):
        (back,) = transpose(w)
        np.testing.assert_allclose(np.vdot(w, np.cumsum(X, -1)), np.vdot(back, X), rtol=1e-14)
    assert ends_in(lambda: jax.grad(lambda x: f(x).sum())(X), ADRuleError).value.kind == "jvp"


@pytest.mark.clause("X10.12")
def test_the_differentiable_form_gives_residuals():
    forms = []

    class Rule(ExtensionAdRule):
        family_id = MaxAndIndex.family_id

        def differentiable_form(self, op):
            return MaxAndIndex()

        def linearize(self, op, primals, outputs, tangents):
            forms.append((type(op), len(outputs)))
            winners = outputs[1][..., None]
            return jnp.take_along_axis(tangents[0], winners, -1)[..., 0], None

    rules = ExtensionRuleSet(Rule())

    class Max(ExtensionOp):
        family_id = MaxAndIndex.family_id

        def lower_to_standard_ops(self, x):
            return (jnp.max(x, -1),)

    f = lambda x: apply(Max(), x, rules=rules)[0].sum()
    np.testing.assert_array_equal(jax.grad(f)(X), [[0.0, 0.0, 1.0]] * 2)
    assert set(forms) == {(MaxAndIndex, 2)}
    (route,) = tj.routes(f, X)
    assert [r.family_id for r in tj.routes(jax.grad(f), X)] == [
        route.family_id
    ]  # the form runs in its place, once
