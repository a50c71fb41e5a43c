"""conformance_tests: one test a check, skipped with its reason where it does not apply."""

import numpy as np
import pytest

from tenferro_jax.conformance import conformance_tests
from tenferro_jax.conformance.checks import CHECKS
from tenferro_jax.errors import ConformanceError
from tenferro_jax.extension import ExtensionRuleSet

from ..helpers import each_ends_in, ends_in
from .broken_ops import Cube, CubeRule

X = np.array([0.5, -1.25, 2.0])


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
