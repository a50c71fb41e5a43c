"""conformance_tests: one test a check, skipped with its reason where it does not apply."""

import numpy as np
import pytest

from tenferro_jax import ConformanceError
from tenferro_jax.conformance import conformance_tests
from tenferro_jax.conformance.check import CHECKS
from tenferro_jax.extension import ExtensionRuleSet

from ..extension_ops import RULES, ScaledSquare
from .broken_ops import Cube, CubeRule

X = np.array([0.5, -1.25, 2.0])

test_scaled_square = conformance_tests(ScaledSquare(1.5), X, rules=RULES, oracle=lambda x: (1.5 * x * x,))


def test_ids_and_verdicts():
    test = conformance_tests(Cube(), X, rules=ExtensionRuleSet(CubeRule("affine")))
    (mark,) = test.pytestmark
    assert mark.kwargs["ids"] == [f"{c.law}-{c.name}" for c in CHECKS]
    test("meta")
    with pytest.raises(pytest.skip.Exception, match="no host form"):
        test("host_form")
    with pytest.raises(ConformanceError, match=r"clause X10\.6"):
        test("linear")


def test_nothing_runs_before_a_test_does():
    test = conformance_tests(Cube(), "no array")
    with pytest.raises(TypeError, match="no array"):
        test("meta")
