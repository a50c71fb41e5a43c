"""Ops that keep the contract: every check passes but for an exact list that does not apply, with
its reasons. Ops that break a clause are found, and their repaired twins pass the same check.
"""

import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import TropicalEinsum
from tenferro_jax.errors import ConformanceError
from tenferro_jax.extension import ExtensionOp
from tenferro_jax.extension.contract import Can
from tenferro_jax.testing import conformance_tests

from ..cases import CASES, ids
from ..helpers import ends_in, passes
from ..sweep import some
from .broken_ops import DEFECTS, arguments
from .conforming_ops import RULES as FURTHER_RULES
from .conforming_ops import (
    Backwards,
    DeclinesWide,
    Entropy,
    Fourier,
    Inverse,
    Nothing,
    Quotient,
    Root,
    Rows,
    RowsOnHost,
    SquareAndModulus,
    ToSingle,
)

RNG = np.random.default_rng(3)
MATRIX = RNG.normal(size=(3, 4))

NO_HOST_FORM = {"host_form": "the op has no host form"}
NO_TRANSPOSE = {"linear_transpose": "no transpose_rule was given"}
DERIVATIVES = (
    *(
        "primal",
        "jvp",
        "linear",
        "inactive_slots",
        "linear_in_cotangent",
        "vjp",
        "precisions",
        "second_order",
    ),
    "vmap_of_grad",
    "shard_map_derivative",
)
DECLINES = dict.fromkeys(("explicit_mesh", "exported", "exported_sizes"), "the op has no lowering")

NO_SPLIT = {"sharding_rule": "no sharding rule"}
NO_RULE = dict.fromkeys(DERIVATIVES, "no AD rule for the family")
LOWERED = NO_HOST_FORM | NO_TRANSPOSE
EXPECTED = {
    "scaled square": LOWERED,
    "difference": NO_HOST_FORM,
    "bilinear": NO_HOST_FORM,
    "sine and cosine": LOWERED,
    "max and index": LOWERED,
    "ranks": LOWERED | dict.fromkeys(DERIVATIVES, "no output is floating or complex"),
    "cumulative product": LOWERED,
    "kernel sine": LOWERED,
    "kernel cosine": LOWERED | DECLINES,
    "softplus": NO_TRANSPOSE | DECLINES,
    "host tanh": NO_TRANSPOSE | DECLINES,
    "placed tanh": {k: v for k, v in (NO_TRANSPOSE | DECLINES).items() if k != "explicit_mesh"},
    "host cumulate": DECLINES,
    "host product": DECLINES,
}
OURS = [c for c in CASES if isinstance(c.op, ExtensionOp) and not isinstance(c.op, TropicalEinsum)]
CHECKED = some(OURS, 6)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("case", CHECKED, ids=ids(CHECKED))
def test_every_op_of_the_sweep(case):
    report = tj.check(
        case.op, *case.inputs, rules=case.rules, runtimes=case.runtimes, oracle=case.oracle
    )
    expected = EXPECTED[case.name] | NO_SPLIT
    if case.op.can(Can.SHARD):
        del expected["sharding_rule"]
    assert not_applicable(report) == expected


def test_the_list_is_the_sweep():
    assert set(EXPECTED) == {c.name for c in OURS}


def _complex(*shape):
    return RNG.normal(size=shape) + 1j * RNG.normal(size=shape)


FURTHER = {
    "an integer input": (
        Rows(),
        (MATRIX, np.array([2, 0])),
        lambda x, i: (x[i],),
        NO_HOST_FORM,
    ),
    "complex": (
        SquareAndModulus(),
        (_complex(3),),
        lambda z: (z * z, abs(z) ** 2),
        NO_HOST_FORM | NO_TRANSPOSE,
    ),
    "a cast": (ToSingle(), (MATRIX,), lambda x: (x.astype(np.float32),), LOWERED),
    "a transpose alone": (
        Backwards(),
        (MATRIX,),
        lambda x: (x[::-1],),
        NO_HOST_FORM | dict.fromkeys(DERIVATIVES, "the rule has transpose_rule alone"),
    ),
    "a lowering that declines": (
        DeclinesWide(),
        (MATRIX,),
        lambda x: (2 * x,),
        NO_RULE | NO_TRANSPOSE | DECLINES,
    ),
    "a lowering that takes over": (
        DeclinesWide(),
        (MATRIX.astype(np.float32),),
        lambda x: (2 * x,),
        NO_RULE | NO_TRANSPOSE,
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FURTHER)
def test_further_kinds(name):
    op, inputs, oracle, expected = FURTHER[name]
    report = tj.check(op, *inputs, rules=FURTHER_RULES, oracle=oracle)
    assert not_applicable(report) == NO_SPLIT | expected


@pytest.mark.slow
def test_values_that_are_not_numbers_have_no_derivative():
    """A square root of -1 is no defect of its rule: what can be judged is, and the report asks for
    another example elsewhere.
    """
    found = {
        f.check: f
        for f in tj.check(Root(), np.array([1.0, -1.0, 2.0]), rules=FURTHER_RULES).findings
    }
    assert {
        found[name].verdict.value for name in ("jvp", "linear", "vjp", "second_order", "precisions")
    } == {
        "passed",
        "not applicable",
    }
    assert found["jvp"].problem == "1 of 3 entries at a kink, not checked there"
    assert "the vjp is not finite beside entries" in found["vjp"].problem
    assert not [f.check for f in found.values() if f.verdict.value == "failed"]


def not_applicable(report):
    assert report.ok, str(report)
    assert sum(f.cases for f in report.findings) > 50
    return {f.check: f.problem for f in report.not_applicable}


@pytest.mark.slow
def test_finite_differences_of_restricted_values_do_not_apply():
    report = passes(Entropy(), np.array([0.2, 0.3, 0.5]), rules=FURTHER_RULES)
    assert (
        "the op refuses values near the example (probabilities that add up to"
        in not_applicable(report)["jvp"]
    )


@pytest.mark.slow
def test_a_rule_may_raise_for_an_input_that_the_op_is_not_linear_in():
    report = passes(Quotient(), np.array([2.0, 0.5]), np.array([1.0, -1.0]), rules=FURTHER_RULES)
    assert "linear_transpose" not in not_applicable(report)


VALUES_REFUSED = {
    "an index input": (RowsOnHost(), (np.array([1.0, 2.0, 4.0]), np.array([2, 0, 2, 1]))),
    "a distribution": (Entropy(), (np.array([0.2, 0.3, 0.5]),)),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", VALUES_REFUSED)
def test_a_host_form_that_refuses_values_made_from_the_example(name):
    op, inputs = VALUES_REFUSED[name]
    report = passes(op, *inputs)
    problems = {f.check: f.problem for f in report.findings}
    assert ("refuses values made from the example" in problems["vmap"]) is (
        name == "a distribution"
    )


BEYOND = {
    "no outputs": (
        Nothing(),
        (MATRIX,),
        "exported",
        "the op has no outputs, so no program holds it",
    ),
    "a batch of inverses on an explicit mesh": (
        Inverse(),
        (np.eye(3) + 0.25,),
        "explicit_mesh",
        "JAX itself cannot run vmap on an explicit mesh",
    ),
    "a Fourier transform of any size": (
        Fourier(),
        (MATRIX,),
        "exported_sizes",
        "JAX itself cannot export this with symbolic sizes",
    ),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", BEYOND)
def test_what_cannot_be_asked_is_told(name):
    op, inputs, check, reason = BEYOND[name]
    assert reason in {f.check: f.problem for f in passes(op, *inputs).findings}[check]


# --- ops that break one clause, and their repaired twins ------------------------------------------


@pytest.mark.few(14)
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found_and_its_repair_accepted(name):
    defect = DEFECTS[name]
    (op, inputs), keywords = arguments(defect, broken=True)
    ends_in(
        lambda: conformance_tests(op, *inputs, **keywords)(defect.check),
        ConformanceError,
        rf"FAILED L\d {defect.check}: clause {defect.clause.replace('.', '[.]')}\n",
    )
    (op, inputs), keywords = arguments(defect, broken=False)
    try:
        conformance_tests(op, *inputs, **keywords)(defect.check)
    except pytest.skip.Exception as reason:
        pytest.fail(f"not applicable to the twin: {reason}")
