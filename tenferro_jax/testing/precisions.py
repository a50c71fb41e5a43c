"""L3: rules in each precision of the op, compared with the same rules in double precision, which
are compared with finite differences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from ..shapes import is_inexact
from .examples import Array, Arrays, Inputs, cast, first_wrong, largest, listed
from .finite_differences import Smooth, in_each_dtype, smooth
from .functions import Subject, in_terms_of
from .numpy_arrays import all_wide
from .report import (
    Broken,
    Cases,
    NotApplicable,
    NotedCases,
    breaking,
    causes,
    one_line,
    unsupported,
)

NEARBY = 8
"""Number of points near the example at which derivatives are computed, to see how much rounding may
change them.
"""


def precisions(subject: Subject, inputs: Inputs) -> NotedCases:
    """Compares jvp and vjp in float32, complex64, bfloat16 and float16 with float64; of a function
    the values too.

    They may differ by the rounding of the narrower dtype, which is measured in float32, and by the
    change of the derivative near the example: if rounding makes a tie, either side of a kink is
    correct.
    """
    modes = []
    for reverse in (False, True):
        with contextlib.suppress(NotApplicable):
            smooth(subject, inputs, reverse=reverse)
            modes.append(reverse)
    (_, wide), *narrower = in_each_dtype(subject, inputs, reverse=True in modes)
    lost = [y for y in subject.metas(wide.inputs) or () if not all_wide([y])]
    if lost and subject.given_wide:
        fix = "Return the dtype of the arguments, without astype and dtype=."
        raise Broken("X10.6", f"the result for float64 arguments: {listed(lost)}", fix)
    if subject.wide == "float64" and subject.grain > np.finfo(np.float64).eps:
        yield "float32 arithmetic inside, for float64 arguments"
    if not narrower:
        raise NotApplicable("it takes one precision")
    single = None
    for dtype, view in narrower:
        narrow = view._replace(active=wide.active)
        try:
            yield from _compared(wide, narrow, single, modes)
        except Broken as broken:
            lacking = (one_line(e) for e in causes(broken) if unsupported(e))
            reason = subject.limit(broken) or next(lacking, "")
            if not reason:
                if subject.keyed:
                    text = f"from a random key JAX draws other numbers in {dtype}"
                    raise NotApplicable(text, "Pass the random numbers as an argument.") from broken
                raise
            yield f"not in {dtype}: {reason}"
        else:
            single = narrow if dtype == "float32" else single


class Point(NamedTuple):
    """Where derivatives are computed.

    Attributes:
      inputs: of the op, all of them.
      tangents: along which jvp is, one for each active input.
      cotangents: of which vjp is, one for each floating output.
    """

    inputs: Arrays
    tangents: Arrays
    cotangents: Arrays


class Answers(NamedTuple):
    """What a program gives at a point; nothing for a mode that it does not have.

    Attributes:
      values: the floating outputs.
      jvp: their tangents.
      vjp: the cotangents of the active inputs.
    """

    values: Arrays
    jvp: Arrays
    vjp: Arrays


def _answers(view: Smooth, modes: Sequence[bool], point: Point, *, whole: bool) -> Answers:
    """What this view gives at a point, in its dtypes. `whole`: by a program for all inputs and
    outputs alone, and not by those that the other checks have compiled.
    """
    there = view._replace(inputs=_in_dtypes(point.inputs, view.inputs))
    tangents = _in_dtypes(point.tangents, view.at(view.active))
    cotangents = _in_dtypes(point.cotangents, view.cotangents(view.subject.rng))
    values: Arrays = ()
    jvp: Arrays = ()
    vjp: Arrays = ()
    if False in modes:
        _, _, values, jvp = there.derivatives(tangents, whole=whole)[0]
    if True in modes:
        _, _, again, vjp = there.derivatives(cotangents, reverse=True, whole=whole)[0]
        values = values or again
    return Answers(values, jvp, vjp)


def _in_dtypes(xs: Arrays, likes: Sequence[np.ndarray]) -> Inputs:
    return tuple(np.asarray(x).astype(like.dtype) for x, like in zip(xs, likes, strict=True))


COMPARED = (  # the clause of each of Answers, its name, and what is to be corrected
    ("", "value", "the function"),
    ("X10.6", "jvp", "the rule"),
    ("X10.7", "vjp", "the rule or its transpose"),
)


def _compared(wide: Smooth, narrow: Smooth, single: Smooth | None, modes: Sequence[bool]) -> Cases:
    """One case for each value and derivative. The rounding is measured in `single`, where the
    program was found to be right, or else it is that of the largest terms.
    """
    subject, rng = wide.subject, wide.subject.rng
    at = cast(narrow.inputs, "float64")
    if subject.refuses(narrow.inputs) or subject.refuses(at):
        return
    least = _narrowest(narrow.inputs)
    info = jnp.finfo(least)
    v, w = narrow.random(narrow.at(wide.active), rng), narrow.cotangents(rng)
    with breaking("X10.6", f"derivatives in {least}", f"Correct the rule in {least}."):
        got = _answers(narrow, modes, Point(narrow.inputs, v, w), whole=True)
    nearby = (_nearby(at, 4 * float(info.eps), rng) for _ in range(NEARBY))
    points = [Point(x, v, w) for x in (at, *nearby) if x is at or not subject.refuses(x)]
    near = [_answers(wide, modes, point, whole=False) for point in points]
    if not all(map(_finite_alike, got.values, near[0].values)):
        return
    eps = max(float(info.eps), subject.grain)
    allowed = max(eps**0.75 if least == np.float32 else 2 * eps, subject.tolerance or 0.0)
    terms = in_terms_of(wide.inputs), wide.terms(v), wide.terms(w)
    roughly = [_answers(single, modes, point, whole=True) for point in points] if single else []
    for k, (clause, kind, rule) in enumerate(COMPARED):
        if kind == "value" and subject.text:  # the values of an op are those of its routes
            continue
        for j, g in enumerate(got[k]):
            around = [np.asarray(answers[k][j]) for answers in near]
            rounding = terms[k]
            if roughly:
                rounding = _rounding([answers[k][j] for answers in roughly], around)
            off = _difference(np.asarray(g), around, allowed, 4 * eps * rounding, info)
            if off:
                problem = f"{kind} in {least}, entry {j}: {off}"
                raise Broken(clause, problem, f"Correct {rule} in {least}.")
            yield


def _narrowest(inputs: Inputs) -> np.dtype:
    """The narrowest of the floating dtypes."""
    floating = (x.dtype for x in inputs if is_inexact(x))
    return min(floating, key=lambda dtype: float(jnp.finfo(dtype).bits))


def _nearby(inputs: Inputs, size: float, rng: np.random.Generator) -> Inputs:
    """Inputs that differ from these by a part of this size, as far as float32 can tell."""
    moved = []
    for x in inputs:
        moved.append(x * (1 + size * rng.uniform(-1, 1, x.shape)) if is_inexact(x) else x)
    return cast(cast(tuple(moved), "float32"), "float64")


def _rounding(single: Arrays, wide: Sequence[np.ndarray]) -> float:
    """The largest difference of values in float32 and float64, in units of eps of float32."""
    with np.errstate(all="ignore"):
        off = [np.asarray(s).astype(w.dtype) - w for s, w in zip(single, wide, strict=True)]
    return max(map(largest, off)) / float(jnp.finfo(np.float32).eps)


def _finite_alike(a: Array, b: Array) -> bool:
    """Whether two arrays are finite at the same places."""
    one, other = (np.isfinite(np.asarray(x).astype(np.complex128)) for x in (a, b))
    return np.array_equal(one, other)


def _difference(
    got: np.ndarray,
    around: Sequence[np.ndarray],
    allowed: float,
    rest: float,
    info: jnp.finfo,
) -> str:
    want = around[0]
    with np.errstate(all="ignore"):
        spread = np.max([abs(near - want) for near in around], axis=0)
        size = np.abs(want)
        judged = np.isfinite(size) & np.isfinite(spread) & (size < float(info.max) / 16)
        scale = np.max(size, where=judged, initial=0.0)
        difference = abs(got.astype(want.dtype) - want)
        floor = max(allowed * scale, rest) + float(info.tiny)
        wrong = judged & ~(difference <= floor + allowed * size + spread)
    return first_wrong(wrong, got, want, "float64 gives {}")
