"""A search by toulbar2, in a process of its own: it reads a problem, and writes what it found.

toulbar2 has one problem in a process. It keeps Python from running meanwhile, is not interrupted by
Ctrl-C, and does not work in the threads in which JAX calls the host. Its clock ends a process that
does not stop it. So it gets one, which begins in some 0.1 s, because nothing of JAX is imported.
"""

from __future__ import annotations

import importlib
import os
import pickle
import signal
import sys
from typing import NamedTuple


class Problem(NamedTuple):
    """Costs that toulbar2 minimises.

    Attributes:
      sizes: the number of values of each variable.
      scopes: for each table the numbers of its variables.
      costs: for each table its costs, whole numbers of at least 0; inf is forbidden.
      below: only assignments of a lower cost are looked for.
      seconds: the time after which the search ends.
    """

    sizes: list[int]
    scopes: list[tuple[int, ...]]
    costs: list[list[float]]
    below: int
    seconds: float | None


class Outcome(NamedTuple):
    """What toulbar2 found.

    Attributes:
      labels: the best assignment; None if there is none below the bound, or none was found.
      least: no assignment costs less, if that is below the bound.
      is_limited: whether time ended the search, so that the labels may not be the best.
    """

    labels: list[int] | None
    least: float
    is_limited: bool


def minimised(problem: Problem) -> Outcome:
    """What toulbar2 finds."""
    package = importlib.import_module("pytoulbar2")
    search = package.CFN(float(problem.below), resolution=0, verbose=-1)
    try:
        for i, size in enumerate(problem.sizes):
            search.AddVariable(f"x{i}", range(size))
        for scope, table in zip(problem.scopes, problem.costs, strict=True):
            search.AddFunction(list(scope), table)
        if problem.seconds is not None:
            search.CFN.timer(1 + int(problem.seconds))  # takes the signal; the clock is set anew
            signal.setitimer(signal.ITIMER_VIRTUAL, max(problem.seconds, 1e-3))
        answer = search.Solve()
    except search.Contradiction:  # what is forbidden leaves no assignment
        return Outcome(labels=None, least=problem.below, is_limited=False)
    return Outcome(
        labels=[int(label) for label in answer[0]] if answer else None,
        least=float(search.GetDDualBound()),
        is_limited=bool(search.Option.limited),
    )


if __name__ == "__main__":
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # toulbar2 prints
    outcome = minimised(Problem(*pickle.load(sys.stdin.buffer)))
    pickle.dump(tuple(outcome), results)
    results.flush()
    os._exit(0)  # whatever clocks are left
