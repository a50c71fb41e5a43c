"""The list of checks; how a check is run and its failing example made smaller; check and
conformance_tests.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
from jax.typing import ArrayLike

from ..extension.contract import ExtensionOp
from ..extension.execution import host_errors
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..extension.runtimes import ExtensionRuntimeSet
from ..shapes import PyTree
from . import agreement, batches, derivatives, inference, payloads, precisions, slots
from .examples import Inputs, of_function, smaller
from .report import ConformanceReport, Finding, Verdict
from .subject import Broken, NotApplicable, Oracle, Subject, as_broken

SECONDS_TO_SHRINK = 2.0


class Check(NamedTuple):
    """One line of the report.

    Attributes:
      law: the law of the check.
      run: a generator over (subject, example) that yields once for each case; it yields a note if
        it left something out.
      clauses: the clauses that it checks, the main one first.
      after: names of checks that must pass first, because otherwise this one adds nothing.
    """

    law: str
    run: Callable[[Subject, Inputs], Iterator[str | None]]
    clauses: tuple[str, ...]
    after: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the check."""
        return self.run.__name__

    def finding(self, **found: Any) -> Finding:
        """A finding of this check; without a verdict, that it does not apply."""
        return Finding(self.law, self.name, self.clauses, **found)


FIRST = ("family_id", "arity")  # before every other check
RUNS = ("host_form", "value")
DIFFERENTIATES = (*RUNS, "derivative_metas")

CHECKS = (
    Check("L1", inference.meta, ("X7.1", "X6.3", "X6.4", "X8.7")),
    Check("L1", inference.symbolic_sizes, ("X7.2", "X7.3", "X7.4")),
    Check("L1", inference.lowering, ("X8.5", "X4.3")),
    Check("L2", payloads.family_id, ("X5.1", "X5.3")),
    Check("L2", payloads.arity, ("X6.1",)),
    Check("L2", payloads.identity, ("X5.6", "X5.8", "X4.2")),
    Check("L2", payloads.others, ("X5.8",)),
    Check("L2", payloads.immutable, ("X4.1",), RUNS),
    Check("L3", derivatives.differentiable_form, ("X10.12",), RUNS),
    Check("L3", derivatives.derivative_metas, ("X10.8", "X10.4", "X6.5"), RUNS),
    Check("L3", derivatives.jvp, ("X10.6",), DIFFERENTIATES),
    Check("L3", derivatives.linear, ("X10.6", "X10.3", "X10.4"), DIFFERENTIATES),
    Check("L3", slots.inactive_slots, ("X10.4",), DIFFERENTIATES),
    Check("L3", derivatives.adjoint, ("X10.7", "X10.3"), DIFFERENTIATES),
    Check("L3", derivatives.linear_transpose, ("X10.11",), DIFFERENTIATES),
    Check("L3", precisions.precisions, ("X10.6", "X10.7"), (*DIFFERENTIATES, "jvp", "adjoint")),
    Check("L3", derivatives.second_order, ("X10.14",), (*DIFFERENTIATES, "jvp", "adjoint")),
    Check("L4", batches.vmap, ("X13.1", "X13.2"), RUNS),
    Check("L4", batches.nested_vmap, ("X13.1", "X13.2"), RUNS),
    Check("L4", batches.vmap_of_grad, ("X13.1",), (*DIFFERENTIATES, "adjoint", "vmap")),
    Check("L5", agreement.host_form, ("X8.7", "X8.8", "X4.3")),
    Check("L5", agreement.value, ("X8.1", "X8.10")),
    Check("L5", agreement.repeated, ("X4.3", "X8.7", "X13.3"), RUNS),
    Check("L5", agreement.routes, ("X8.10", "X8.3"), RUNS),
    Check("L5", agreement.control_flow, ("X13.3",), RUNS),
    Check("L5", agreement.derivatives_inside, ("X13.3", "X13.6"), (*DIFFERENTIATES, "adjoint")),
    Check("L5", agreement.checked_tracing, ("X4.1",), RUNS),
    Check("L5", agreement.checked_derivative, ("X4.1",), DIFFERENTIATES),
    Check("L5", agreement.single_precision, ("X7.1", "X7.7"), RUNS),
    Check("L5", batches.shard_map, ("X13.4",), (*RUNS, "vmap")),
    Check(
        "L5", batches.shard_map_derivative, ("X13.4",), (*DIFFERENTIATES, "adjoint", "shard_map")
    ),
    Check("L5", batches.named_sharding, ("X13.3",), (*RUNS, "vmap")),
    Check("L5", batches.explicit_mesh, ("X13.5",), (*RUNS, "vmap")),
    Check("L5", agreement.engine, ("X8.9", "X8.10", "X7.4"), (*RUNS, "symbolic_sizes")),
    Check("L5", agreement.exported, ("X13.7", "X11.1"), RUNS),
    Check("L5", agreement.exported_sizes, ("X13.7",), (*RUNS, "symbolic_sizes")),
    Check("L6", payloads.payload_text, ("X5.9",)),
    Check("L6", payloads.wrong_inputs, ("X7.6", "X7.1"), RUNS),
)


class Examination:
    """The checks of one subject; each is run once, when its result is requested."""

    def __init__(self, subject: Subject):
        self.subject = subject
        self._findings: dict[str, Finding] = {}

    def finding(self, name: str) -> Finding:
        """The finding of a check; the checks of `after` are run first."""
        if name not in self._findings:
            check = next(c for c in CHECKS if c.name == name)
            before = check.after if name in FIRST else (*FIRST, *check.after)
            waits_for = next((c for c in before if self.finding(c).verdict is Verdict.FAILED), "")
            if waits_for:
                found = check.finding(
                    problem=f"{waits_for} failed",
                    fix=f"Correct {waits_for} first.",
                    waits_for=waits_for,
                )
            else:
                start = time.perf_counter()
                with jax.enable_x64(True):
                    found = _found(check, self.subject)
                found = dataclasses.replace(found, seconds=time.perf_counter() - start)
            self._findings[name] = found
        return self._findings[name]


def _found(check: Check, subject: Subject) -> Finding:
    cases, reasons = 0, []
    notes = subject.notes = {}
    for inputs in subject.examples:
        try:
            with host_errors():
                for note in check.run(subject, inputs):
                    cases += 1
                    notes.update({note: None} if note else {})
        except NotApplicable as error:
            reasons.append(error)
        except Exception as error:
            broken, example = _smallest(check, subject, _broken(check, error), inputs)
            return check.finding(
                verdict=Verdict.FAILED,
                cases=cases,
                problem=broken.problem,
                clause=broken.clause,
                example=example,
                fix=broken.fix,
            )
    if not cases:
        reason = reasons[0] if reasons else NotApplicable("no case", "Give other example inputs.")
        return check.finding(problem=reason.reason, fix=reason.instead)
    left_out = "; ".join([*notes, *(r.reason for r in reasons)])
    return check.finding(verdict=Verdict.PASSED, cases=cases, problem=left_out)


def _broken(check: Check, error: Exception) -> Broken:
    if isinstance(error, Broken):
        return error
    return as_broken(error, check.clauses[0], check.name, "See the error.")


def _smallest(
    check: Check, subject: Subject, broken: Broken, inputs: Inputs
) -> tuple[Broken, Inputs]:
    """The failure at the smallest inputs that break the same clause."""
    deadline = time.perf_counter() + SECONDS_TO_SHRINK
    pending = smaller(inputs)
    taken, runs = subject.metas(inputs) is not None, not subject.host_error(inputs)
    while time.perf_counter() < deadline and (candidate := next(pending, None)) is not None:
        if (taken and subject.metas(candidate) is None) or (runs and subject.host_error(candidate)):
            continue
        try:
            for _ in check.run(subject, candidate):
                pass
        except NotApplicable:
            continue
        except Exception as error:
            found = _broken(check, error)
            if found.clause == broken.clause:
                broken, inputs, pending = found, candidate, smaller(candidate)
    return broken, inputs


def check(
    op: ExtensionOp | Callable[..., object],
    *args: PyTree,
    examples: Sequence[ArrayLike | Sequence[PyTree]] = (),
    rules: ExtensionRuleSet = NO_RULES,
    runtimes: ExtensionRuntimeSet | None = None,
    oracle: Oracle | None = None,
    tolerance: float | None = None,
    others: Sequence[ExtensionOp] = (),
    order: int = 2,
    seed: int = 0,
) -> ConformanceReport:
    """Check an extension op against the contract: inference, identity, derivatives, vmap, every
    route and transform, bytes.

    The checks run with 64-bit types on; one check runs with 64-bit types off. Small examples are
    best: a few elements, sizes that differ from each other, floating values away from ties and
    kinks.

    Args:
      op: the op; or a function that `tenferro_jax.op` returned, or a functools.partial of it with
        its payload.
      *args: one example: an array for each input of the op; of a function its arguments by
        position. By default `op.example_inputs()` gives the examples.
      examples: further examples, each a tuple of such arguments, or a bare array for one argument.
      rules: AD rules; without one for the family the checks of derivatives do not apply.
      runtimes: kernels instead of those of the op's class; each is compared with the other
        routes.
      oracle: a NumPy function of the inputs that returns the outputs as a tuple, as an independent
        answer. By default the routes are only compared with each other.
      tolerance: relative difference between entries that counts as equal, finite; 0 for equality to
        the last bit. By default eps ** 0.75 of the dtype: 2e-12 for float64, 6e-6 for float32. An
        entry may also differ by 64 eps of the largest entry, or by that tolerance of it if this is
        less.
      others: further ops of the family, which must not be equal to this one.
      order: 1 if the rule has no second derivative by intention.
      seed: of the random directions.

    Returns:
      The report; print it, or call `raise_if_failed()`.

    Raises:
      InvalidConfig: not an op, no examples, or an invalid argument; or an example whose number of
        arrays is not that of the inputs.

    Example:
      >>> import jax.numpy as jnp, numpy as np
      >>> from tenferro_jax.extension import ExtensionOp
      >>> class Cube(ExtensionOp):
      ...     family_id = "docs-example.cube.v1"
      ...     def lower_to_standard_ops(self, x):
      ...         return (x * x * x,)
      ...     def linearize(self, primals, outputs, tangents):
      ...         return (3.003 * primals[0] ** 2 * tangents[0],)
      >>> report = check(Cube(), np.array([0.5, 2.0]))
      >>> [(finding.check, finding.clause) for finding in report.failures]
      [('jvp', 'X10.6')]
    """
    one, given, kernels = of_function(op, [*([args] if args else []), *examples], runtimes)
    examination = Examination(
        Subject(one, given, rules, kernels, oracle, tolerance, others, order, seed)
    )
    findings = tuple(examination.finding(check.name) for check in CHECKS)
    return ConformanceReport(one.family_id, repr(one), findings)


def conformance_tests(
    op: ExtensionOp | Callable[..., object],
    *args: PyTree,
    examples: Sequence[ArrayLike | Sequence[PyTree]] = (),
    rules: ExtensionRuleSet = NO_RULES,
    runtimes: ExtensionRuntimeSet | None = None,
    oracle: Oracle | None = None,
    tolerance: float | None = None,
    others: Sequence[ExtensionOp] = (),
    order: int = 2,
    seed: int = 0,
) -> Callable[..., None]:
    """A pytest test, parametrised by check; assign it to a name that starts with test.

    A check that does not apply is skipped with its reason. No check runs while tests are collected.

    Args:
      op, *args, examples, rules, runtimes, oracle, tolerance, others, order, seed: as for
      `check`.

    Raises:
      ImportError: pytest is not installed.
      ConformanceError: in the test of a check that failed.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import TropicalEinsum, max_plus
      >>> from tenferro_jax.conformance import conformance_tests
      >>> a, b = np.array([[0.5, 2.0]]), np.array([[1.0], [0.0]])
      >>> test_einsum = conformance_tests(TropicalEinsum(max_plus, "ij,jk->ik"), a, b)
    """
    import pytest  # noqa: PLC0415

    made: list[Examination] = []

    @pytest.mark.parametrize(
        "check", [c.name for c in CHECKS], ids=[f"{c.law}-{c.name}" for c in CHECKS]
    )
    def test(check: str) -> None:
        if not made:
            every = [*([args] if args else []), *examples]
            one, given, kernels = of_function(op, every, runtimes)
            made.append(
                Examination(
                    Subject(one, given, rules, kernels, oracle, tolerance, others, order, seed)
                )
            )
        finding = made[0].finding(check)
        if finding.verdict is Verdict.NOT_APPLICABLE:
            pytest.skip(finding.problem)
        checked = made[0].subject.op
        ConformanceReport(checked.family_id, repr(checked), (finding,)).raise_if_failed()

    return test
