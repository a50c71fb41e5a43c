"""How a check ends, the findings of all as data and as a table, and what errors say of a breach."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import textwrap
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import numpy as np

from ..errors import ADRuleError, BackendFailure, ConformanceError, TenferroError
from ..extension.execution import host_errors
from ..jax_seam import says_unsupported
from ..shapes import TensorMeta

Cases: TypeAlias = Iterator[None]
"""What a check gives: one for each case."""
NotedCases: TypeAlias = Iterator[str | None]
"""Likewise; a note where it left something out."""


class Broken(Exception):
    """Raised by a check: a clause does not hold."""

    def __init__(self, clause: str, problem: str, fix: str):
        self.clause, self.problem, self.fix = clause, problem, fix
        super().__init__(f"{clause}: {problem}")


class NotApplicable(Exception):
    """Raised by a check that does not apply to this op."""

    def __init__(self, reason: str, instead: str = "Nothing is to be done."):
        self.reason, self.instead = reason, instead
        super().__init__(reason)


@contextlib.contextmanager
def breaking(clause: str, what: str, fix: str) -> Iterator[None]:
    """An exception inside is a breach of this clause, or of the clause to which the exception
    belongs.
    """
    try:
        with host_errors():
            yield
    except (Broken, NotApplicable):
        raise
    except Exception as error:
        raise as_broken(error, clause, what, fix) from error


def as_broken(error: Exception, clause: str, what: str, fix: str) -> Broken:
    """An exception as a broken clause: the clause and the fix are those of the error if it has
    some. The checks themselves judge a missing derivative.
    """
    if isinstance(error, BackendFailure):
        clause, fix = "X8.8", error.fix
    elif isinstance(error, TenferroError) and not isinstance(error, ADRuleError) and error.clause:
        clause, fix = error.clause, error.fix
    return Broken(clause, f"{what}: {one_line(error, 600)}", fix)


def failure(call: Callable[..., object], *args: Any) -> Exception | None:
    """The exception of a call, such as that of lowering, where JAX refuses some derivatives."""
    try:
        call(*args)
    except Exception as error:
        return error
    return None


def unsupported(error: BaseException) -> bool:
    """Whether JAX or a library says that it lacks something."""
    return says_unsupported(error) and not isinstance(error, Broken)


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what it was raised from."""
    while error is not None:
        yield error
        error = error.__cause__


def one_line(error: BaseException, length: int = 200) -> str:
    """An exception as text."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:length]}"


WIDTH = 100
"""Columns of a report."""


class Verdict(enum.Enum):
    """The result of a check. A check that does not apply was not run, and never counts as
    passed, nor one that could compare some of the inputs alone.
    """

    PASSED = "passed"
    PARTLY = "partly passed"
    FAILED = "failed"
    NOT_APPLICABLE = "not applicable"


@dataclasses.dataclass(frozen=True, eq=False)
class Finding:
    """The finding of one check.

    Attributes:
      law: "L1" inference, "L2" identity, "L3" derivatives, "L4" vmap, "L5" one value everywhere,
        "L6" bytes and refusals.
      check: name of the check.
      clauses: the clauses of the contract that it checks.
      verdict: passed, passed for some of the inputs, failed, or not applicable.
      cases: how many cases held.
      seconds: wall time.
      problem: what is wrong; or why the check does not apply; or what a passed check left out; or
        "".
      clause: the clause that is broken, or "".
      example: the smallest inputs found at which the check fails.
      inputs: the names of these inputs.
      fix: advice.
    """

    law: str
    check: str
    clauses: tuple[str, ...]
    verdict: Verdict = Verdict.NOT_APPLICABLE
    cases: int = 0
    seconds: float = 0.0
    problem: str = ""
    clause: str = ""
    example: tuple[Any, ...] = ()
    inputs: tuple[str, ...] = ()
    fix: str = ""


@dataclasses.dataclass(frozen=True, eq=False)
class ConformanceReport:
    """The report of `check`; printing it gives a table.

    Attributes:
      family_id: the family of the op; of a function its module and name.
      op: the op as text; "" for a function.
      findings: one for each check, in the order of the laws.
    """

    family_id: str
    op: str
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether no check failed, and a case of one passed."""
        compared = self._with(Verdict.PASSED) or self._with(Verdict.PARTLY)
        return not self.failures and bool(compared)

    @property
    def failures(self) -> tuple[Finding, ...]:
        """The checks that failed, values before derivatives."""
        failed = self._with(Verdict.FAILED)
        return tuple(sorted(failed, key=lambda f: f.law == "L3"))

    @property
    def not_applicable(self) -> tuple[Finding, ...]:
        """The checks that do not apply to this op, each with its reason."""
        return self._with(Verdict.NOT_APPLICABLE)

    def _with(self, verdict: Verdict) -> tuple[Finding, ...]:
        return tuple(f for f in self.findings if f.verdict is verdict)

    def raise_if_failed(self) -> None:
        """Raise ConformanceError, whose text holds this report, if it is not ok."""
        if not self.ok:
            (first, *_) = self.failures or self.findings
            raise ConformanceError(self.family_id, str(self), first.fix)

    def __str__(self) -> str:
        title = textwrap.shorten(f"{self.family_id} {self.op}", WIDTH, placeholder=" ...")
        counts = ", ".join(f"{len(found)} {v.value}" for v in Verdict if (found := self._with(v)))
        cases, seconds = sum(f.cases for f in self.findings), sum(f.seconds for f in self.findings)
        total = f"{len(self.findings)} checks: {counts}; {cases} cases in {seconds:.1f} s"
        lines = [title, ""]
        if not (self.ok or self.failures):
            lines.insert(1, "NOTHING WAS CHECKED: no check applies.")
        lines += [_line("law", "check", "clauses" if self.op else "", "cases", "verdict"), RULE]
        lines += [*map(_row, self.findings), RULE, *textwrap.wrap(total, WIDTH)]
        return "\n".join([*lines, *map(_failure, self.failures)])


RULE = "-" * WIDTH


def _line(law: str, check: str, clauses: str, cases: str, verdict: str) -> str:
    if clauses:
        name = f"{law:<3} {check:<20} {clauses:<19}"
    else:
        name = f"{law:<12} {check:<20}"
    return f"{name} {cases:>5}  {verdict}"


def _row(finding: Finding) -> str:
    verdict = finding.verdict.value
    if finding.verdict is Verdict.FAILED:
        verdict = verdict.upper()
    elif finding.problem:
        verdict += f": {finding.problem}"
    cases = str(finding.cases) if finding.cases else "-"
    line = _line(finding.law, finding.check, " ".join(finding.clauses), cases, "")
    indent = " " * (len(line) + 2)
    return "\n".join(textwrap.wrap(verdict, WIDTH, initial_indent=line, subsequent_indent=indent))


def _failure(finding: Finding) -> str:
    clause = f": clause {finding.clause}" if finding.clause else ""
    lines = ["", f"FAILED {finding.law} {finding.check}{clause}"]
    given = "; ".join(
        f"{name}: {_array(x)}" for name, x in zip(finding.inputs, finding.example, strict=True)
    )
    for name, text in (("given", given), ("found", finding.problem), ("do", finding.fix)):
        if text:
            lines += textwrap.wrap(
                text, WIDTH, initial_indent=f"  {name:<6}", subsequent_indent=" " * 8
            )
    return "\n".join(lines)


def _array(x: np.ndarray) -> str:
    values = np.array2string(np.asarray(x), precision=4, separator=", ", threshold=8, edgeitems=2)
    return f"{TensorMeta(x.dtype, x.shape)} {' '.join(values.split())}"
