"""Conformance as a test suite: one parametrised pytest test a check."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..extension.op import ExtensionOp
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..extension.runtimes import NO_RUNTIMES, ExtensionRuntimeSet
from .check import CHECKS, Examination
from .report import ConformanceReport, Verdict
from .subject import Oracle, Subject


def conformance_tests(
    op: ExtensionOp,
    *examples: Any,
    rules: ExtensionRuleSet = NO_RULES,
    runtimes: ExtensionRuntimeSet = NO_RUNTIMES,
    oracle: Oracle | None = None,
    tolerance: float | None = None,
    others: Sequence[ExtensionOp] = (),
    order: int = 2,
    seed: int = 0,
) -> Callable[..., None]:
    """A pytest test, parametrised by check: assign it to a name that starts with test.

    A check that does not apply is skipped with its reason. Nothing runs while tests are collected.

    Args:
      op, *examples, rules, runtimes, oracle, tolerance, others, order, seed: as for `check_extension`.

    Raises:
      ImportError: pytest is not installed.
      ConformanceError: in a test, whose check failed.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import TropicalEinsum, max_plus
      >>> from tenferro_jax.conformance import conformance_tests
      >>> a, b = np.array([[0.5, 2.0]]), np.array([[1.0], [0.0]])
      >>> test_einsum = conformance_tests(TropicalEinsum(max_plus, "ij,jk->ik"), (a, b))
    """
    import pytest  # noqa: PLC0415

    made: list[Examination] = []

    @pytest.mark.parametrize("check", [c.name for c in CHECKS], ids=[f"{c.law}-{c.name}" for c in CHECKS])
    def test(check: str) -> None:
        if not made:
            made.append(Examination(Subject(op, examples, rules, runtimes, oracle, tolerance, others, order, seed)))
        finding = made[0].finding(check)
        if finding.verdict is Verdict.NOT_APPLICABLE:
            pytest.skip(finding.problem)
        ConformanceReport(op.family_id, repr(op), (finding,)).raise_if_failed()

    return test
