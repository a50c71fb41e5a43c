"""How a check ends: a clause is broken, or it does not apply; and what errors say of it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from ..errors import ADRuleError, BackendFailure, TenferroError
from ..extension.execution import host_errors
from ..jax_seam import says_unsupported


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


def failure(lower: Callable[..., object], *args: Any) -> Exception | None:
    """The exception of tracing and lowering; JAX refuses some derivatives only then."""
    try:
        lower(*args)
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
