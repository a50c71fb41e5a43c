"""How checks are run; check and conformance_tests."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from .. import jax_seam
from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.execution import host_errors
from ..extension.function_op import FunctionOp
from ..extension.kernels import ExtensionRuntimeSet
from ..extension.rules import NO_RULES, ExtensionRuleSet
from ..shapes import PyTree
from .checks import CHECKS, FUNCTION_CHECKS, Check
from .examples import of_function
from .functions import FunctionSubject, Oracle, Subject
from .ops_given import OpSubject
from .report import Broken, ConformanceReport, Finding, NotApplicable, Verdict, as_broken


class Examination:
    """The checks of a target; each is run once, when its result is requested."""

    def __init__(self, subjects: Sequence[Subject], checks: Sequence[Check]):
        self.subjects, self.checks = subjects, checks
        self._findings: dict[str, Finding] = {}

    def finding(self, name: str) -> Finding:
        """The finding of a check; the checks of `after` are run first."""
        if name not in self._findings:
            check = next(c for c in self.checks if c.name == name)
            failed = (c for c in check.after if self.finding(c).verdict is Verdict.FAILED)
            if waits_for := next(failed, ""):
                found = check.finding(
                    problem=f"{waits_for} failed", fix=f"Correct {waits_for} first."
                )
            else:
                start = time.perf_counter()
                found = _found(check, self.subjects)
                found = dataclasses.replace(found, seconds=time.perf_counter() - start)
            self._findings[name] = found
        return self._findings[name]

    def report(self, names: Sequence[str]) -> ConformanceReport:
        """The findings of these checks, or of all."""
        unknown = set(names) - {check.name for check in self.checks}
        if isinstance(names, str) or unknown:
            raise InvalidConfig(
                where="check",
                given=f"only={names!r}",
                needed=f"names among {', '.join(check.name for check in self.checks)}",
                fix=f"Write only=({names!r},)." if isinstance(names, str) else "",
            )
        findings = [self.finding(c.name) for c in self.checks if not names or c.name in names]
        return ConformanceReport(self.subjects[0].name, self.subjects[0].text, tuple(findings))


def _found(check: Check, subjects: Sequence[Subject]) -> Finding:
    cases, reasons = 0, []
    notes: dict[str, None] = {}
    partly: dict[str, None] = {}
    for subject in subjects:
        subject.notes, subject.partly = notes, partly
        for inputs in subject.examples:
            try:
                with subject.precision(), host_errors():
                    for note in check.run(subject, inputs):
                        cases += 1
                        notes.update({note: None} if note else {})
            except NotApplicable as error:
                reasons.append(error)
            except Exception as error:
                if text := subject.limit(error):
                    reasons.append(NotApplicable(text))
                    continue
                broken = _broken(check, error)
                clause = (broken.clause or check.main_clause) if check.clauses else ""
                names = tuple(subject.names((i,)) for i in range(len(inputs)))
                return check.finding(
                    verdict=Verdict.FAILED,
                    cases=cases,
                    problem=broken.problem,
                    clause=clause,
                    example=inputs,
                    inputs=names,
                    fix=_advice(check, broken),
                )
    if not cases:
        reason = reasons[0] if reasons else NotApplicable("no case", "Give other example inputs.")
        return check.finding(problem=reason.reason, fix=reason.instead)
    left_out = "; ".join([*partly, *notes, *(r.reason for r in reasons)])
    verdict = Verdict.PARTLY if partly else Verdict.PASSED
    return check.finding(verdict=verdict, cases=cases, problem=left_out)


def _broken(check: Check, error: Exception) -> Broken:
    if isinstance(error, Broken):
        return error
    broken = as_broken(error, check.main_clause, check.name, "See the error.")
    broken.__cause__ = error
    return broken


NOT_FINITE = (
    "Make the argument safe inside jnp.where too: jnp.where(ok, f(jnp.where(ok, x, 1)), 0). The "
    "derivative of a branch that is not taken is multiplied by 0, which gives NaN."
)


def _advice(check: Check, broken: Broken) -> str:
    """The advice of a check of functions, if it fits what was found."""
    if not check.advice:
        return broken.fix
    if broken.__cause__ and not isinstance(broken.__cause__, jax.errors.UnexpectedTracerError):
        return "The function, or a rule of it, raised this: see the error."
    if check.name in ("jvp", "vjp") and " nan" in broken.problem:
        return NOT_FINITE
    return check.advice


DEFAULTS: dict[str, Any] = {
    "rules": NO_RULES,
    "runtimes": None,
    "oracle": None,
}


def _is_op(target: object) -> bool:
    """Whether it is an op; refuses what is no function either."""
    function = target.func if isinstance(target, functools.partial) else target
    is_class = isinstance(function, type) and issubclass(function, ExtensionOp)
    if not callable(target) and not isinstance(function, ExtensionOp):
        raise InvalidConfig(
            where="check",
            given=repr(target),
            needed="a function, or an instance of an ExtensionOp subclass",
        )
    return is_class or isinstance(function, ExtensionOp | FunctionOp)


def examination(
    target: object, examples: Sequence[Sequence[PyTree]], settings: dict[str, Any]
) -> Examination:
    """The checks of an op, or of any function at each example."""
    if not jax_seam.is_eager():
        raise InvalidConfig(
            where="check",
            given="a call inside a transform, such as jit or grad",
            needed="a call outside: the checks make transforms of their own",
        )
    fn: Any = target
    if _is_op(target):
        op, given, kernels = of_function(fn, examples, settings["runtimes"])
        return Examination(
            [OpSubject(op=op, given=given, **settings | {"runtimes": kernels})], CHECKS
        )
    held = {name: settings.pop(name) for name in DEFAULTS}
    for right, text, needed in (
        (held == DEFAULTS, f"{', '.join(DEFAULTS)} for a function", "these for an op alone"),
        (
            all(isinstance(example, tuple | list) for example in examples),
            f"examples={examples!r:.100}",
            "a tuple of arguments for each example",
        ),
    ):
        if not right:
            raise InvalidConfig(where="check", given=text, needed=needed)
    subjects = [FunctionSubject(fn=fn, args=args, **settings) for args in examples or [()]]
    return Examination(subjects, FUNCTION_CHECKS)


def check(
    target: ExtensionOp | Callable[..., PyTree],
    *args: PyTree,
    examples: Sequence[Sequence[PyTree]] = (),
    only: Sequence[str] = (),
    rules: ExtensionRuleSet = NO_RULES,
    runtimes: ExtensionRuntimeSet | None = None,
    oracle: Oracle | None = None,
    tolerance: float | None = None,
    order: int = 2,
    seed: int = 0,
) -> ConformanceReport:
    """Check any function: its derivatives, precision, vmap, jit and export; or an extension op
    against the whole contract.

    The function may be plain, jitted, a jax.custom_vjp or jax.custom_jvp, a functools.partial, a
    wrapper of jax.ffi, Pallas or pure_callback, or a callable pytree such as an equinox module,
    whose arrays are checked as arguments are. Arrays of numbers in the arguments are inputs, the
    floating ones are differentiated; all other values (Python numbers, text, functions, random
    keys) are given as they are, keywords by functools.partial. What JAX cannot do with a function
    is reported as not applicable, with the reason.

    The checks run with 64-bit types on, in float64, if the function takes it; while they run this
    holds for the whole process, because JAX runs some callbacks in other threads. A function that
    closes over NumPy arrays is checked in the setting of the caller, because JAX would confuse
    programs of both settings: in float32 while 64-bit types are off. Small examples
    are best: a few elements, sizes that differ from each other, floating values away from ties
    and kinks.

    Args:
      target: a function; an op; or a function that `tenferro_jax.op` returned, or a
        functools.partial of it with its payload.
      *args: the arguments of one example; of an op an array for each input. By default
        `op.example_inputs()` gives the examples of an op.
      examples: further examples, each a tuple of such arguments.
      only: names of checks; by default all.
      rules: AD rules of an op; without one for the family the checks of derivatives do not apply.
      runtimes: kernels instead of those of the op's class; each is compared with the other
        routes.
      oracle: a NumPy function of the inputs of an op that returns an array, a tuple of outputs or
        what the op's function returns, as an independent answer. By default the routes are only
        compared with each other.
      tolerance: relative difference between entries that counts as equal, finite; 0 for equality to
        the last bit. By default eps ** 0.75 of the dtype: 2e-12 for float64, 6e-6 for float32. An
        entry may also differ by 64 eps of the largest entry, or by that tolerance of it if this is
        less; of a function by that tolerance of it.
      order: 1 if there is no second derivative by intention.
      seed: of the random directions.

    Returns:
      The report; print it, or call `raise_if_failed()`.

    Raises:
      InvalidConfig: not a function or op, no examples of an op, or an invalid argument; an
        example whose number of arrays is not that of the inputs; or a call inside a transform.

    Example:
      >>> import jax, jax.numpy as jnp, numpy as np
      >>> @jax.custom_vjp
      ... def cube(x):
      ...     return x**3
      >>> cube.defvjp(lambda x: (x**3, x), lambda x, g: (3.003 * x**2 * g,))
      >>> report = check(cube, np.array([0.5, 2.0]), only=("vjp", "vmap"))
      >>> [(finding.check, finding.verdict.value) for finding in report.findings]
      [('vjp', 'failed'), ('vmap', 'passed')]
    """
    settings = {
        "rules": rules,
        "runtimes": runtimes,
        "oracle": oracle,
        "tolerance": tolerance,
        "order": order,
        "seed": seed,
    }
    return examination(target, [*filter(None, [args]), *examples], settings).report(only)


def conformance_tests(
    target: ExtensionOp | Callable[..., PyTree],
    *args: PyTree,
    examples: Sequence[Sequence[PyTree]] = (),
    **settings: Any,
) -> Callable[..., None]:
    """A pytest test, parametrised by check; assign it to a name that starts with test.

    A check that does not apply is skipped with its reason. No check runs while tests are collected.

    Args:
      target: as for `check`.
      *args: as for `check`.
      examples: as for `check`.
      **settings: the keywords of `check` except `only`.

    Raises:
      ImportError: pytest is not installed.
      ConformanceError: in the test of a check that failed.

    Example:
      >>> import numpy as np
      >>> from ext_tropical import TropicalEinsum, max_plus
      >>> from tenferro_jax.testing import conformance_tests
      >>> a, b = np.array([[0.5, 2.0]]), np.array([[1.0], [0.0]])
      >>> test_einsum = conformance_tests(TropicalEinsum(max_plus, "ij,jk->ik"), a, b)
    """
    import pytest  # noqa: PLC0415

    made: list[Examination] = []
    checks = CHECKS if _is_op(target) else FUNCTION_CHECKS

    @pytest.mark.parametrize(
        "check", [c.name for c in checks], ids=[f"{c.law}-{c.name}" for c in checks]
    )
    def test(check: str) -> None:
        if not made:
            given = [*filter(None, [args]), *examples]
            made.append(examination(target, given, DEFAULTS | settings))
        finding = made[0].finding(check)
        if finding.verdict is Verdict.NOT_APPLICABLE:
            pytest.skip(finding.problem)
        made[0].report([check]).raise_if_failed()

    return test
