"""L5: each route alone gives the values of the oracle, or those of the others."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

from ..extension.primitive import apply
from ..extension.routes import current_platform
from ..extension.runtimes import ExtensionRuntimeSet
from ..shapes import is_inexact
from .breaches import Broken, NotApplicable, one_line
from .examples import Inputs, grown, in_other_dtypes, is_half, listed, of_other_sizes
from .op_subject import OpSubject
from .subject import Claim

SAME = "Let every route compute the same; state a tolerance where rounding may differ."


def routes(subject: OpSubject, inputs: Inputs) -> Iterator[str | None]:
    """Runs each route alone, in every precision and at other sizes; compares it with the oracle, or
    else with the lowering or the host form.
    """
    elsewhere = [
        k.platform
        for k in subject.runtimes
        if k.family_id == subject.op.family_id and k.platform != current_platform()
    ]
    unchecked = (
        f"the kernel for {' and '.join(sorted(elsewhere))} was not run: this is "
        f"{current_platform()}"
        if elsewhere
        else ""
    )
    ways = _in_order(subject, inputs)
    if len(ways) < 2 and not subject.oracle:
        reason = f"one route, {ways[0][0]}, and no oracle" if ways else "no route"
        raise NotApplicable(
            "; ".join(filter(None, (reason, unchecked))),
            "Pass oracle=, a NumPy function of the inputs.",
        )
    made = [
        inputs,
        *subject.accepted(itertools.chain(in_other_dtypes(inputs), of_other_sizes(inputs, (1,)))),
    ]
    made += subject.accepted([grown(inputs)]) or subject.accepted(of_other_sizes(inputs, (2, 3)))
    answers = [_answer(subject, xs, i == 0) for i, xs in enumerate(made)]
    against = "the oracle" if subject.oracle else ways[0][0]
    claims = [
        Claim(
            f"route {way} for {listed(xs)}, against {against}",
            functools.partial(apply, subject.op, runtimes=alone),
            xs,
            i,
        )
        for i, xs in enumerate(made)
        for way, alone in _in_order(subject, xs)
    ]
    results = subject.results(claims, "X8.3", "See the error.")
    for (what, _, xs, i), got in zip(claims, results, strict=True):
        want = answers[i]
        if want is None:
            want = answers[i] = got
        elif any(is_half(x.dtype) for x in xs) and len(got) == len(want):
            # An integer output that depends on rounded values, such as the index of the largest,
            # may differ by the rounding.
            judged = [is_inexact(y) for y in got]
            got, want = (list(itertools.compress(outs, judged)) for outs in (got, want))
        fix = "Correct what computes this, or the oracle." if subject.oracle else SAME
        subject.require_equal(what, got, want, "X8.10", fix)
        yield unchecked or None


def _in_order(subject: OpSubject, inputs: Inputs) -> list[tuple[str, ExtensionRuntimeSet]]:
    """The routes that can run these inputs, kernels last."""
    return sorted(subject.ways(inputs).items(), key=lambda way: way[0].startswith("kernel"))


def _answer(subject: OpSubject, inputs: Inputs, is_example: bool) -> Any:
    """The oracle's outputs; None without an oracle, or if it does not take inputs made from the
    example.
    """
    if not subject.oracle:
        return None
    try:
        return subject.of_oracle(subject.oracle, inputs)
    except Broken:
        raise
    except Exception as error:
        if is_example:
            text = f"the oracle for the example: {one_line(error)}"
            raise Broken("X8.10", text, "Correct the oracle.") from error
        note = f"no oracle there: it raises {type(error).__name__} for {listed(inputs)}"
        subject.notes.update({note: None})
        return None
