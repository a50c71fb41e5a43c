"""The checks that functions have and most extension ops do not need: an op is called in one way,
and its reverse mode is the transpose of its forward mode, or the other way round.
"""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Iterator, Sequence

import jax
import jax.export
import numpy as np

from ..shapes import is_inexact
from .examples import Array, Inputs, inner, largest, replaced
from .held import read_globals
from .report import Broken, NotApplicable, breaking, one_line
from .smooth import ROUNDINGS, Derivative, Smooth, smooth
from .subject import FunctionSubject, Subject, in_terms_of

LARGE, LITTLE = 1024.0, 1 / 1024


def value(subject: FunctionSubject, inputs: Inputs) -> Iterator[str | None]:
    """Calls the function, compiled too, at two inputs and again: the values are those of the first
    call, and the function keeps nothing from one call to the next, nor from the first of all calls.
    """
    if (error := subject.untraced) is not None:
        raise error
    if subject.first is not None:
        with breaking("", "called again", ""):
            again = subject.plain(anew=True)
        terms = in_terms_of(inputs, again)
        subject.require_equal("called again", again, subject.first, "", "", terms)
        yield "; ".join(filter(None, (subject.tied, read_globals(subject.source))))
    examples = subject.rows(inputs, 2)
    first = [[np.asarray(y) for y in subject.call(*xs)] for xs in examples]
    for what, call in (("called again", subject.call), ("jit", subject.compiled)):
        for xs, want in zip(examples, first, strict=True):
            with breaking("", what, ""):
                got = call(*xs)
            subject.require_equal(what, got, want, "", "", in_terms_of(xs, want))
            yield None


def vjp(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Compares with finite differences of the values: <w, difference> = <vjp(w), v> for random v
    and w, by each argument alone and all together, for each output alone; of an op where it has
    no forward mode.
    """
    view = smooth(subject, inputs)
    view.require_reverse_alone()
    rng = subject.rng
    v, cotangents = view.random(view.at(view.active), rng), view.cotangents(rng)
    for mask in view.masks():
        found = view.differences(mask, v)
        if not any(d.smooth.any() for d in found):
            raise NotApplicable(
                "no entry has a derivative at the example: kinks, or values that are not finite",
                "Give other arguments.",
            )
        w = tuple(  # zero where there is no derivative
            np.where(d.smooth, c, 0).astype(c.dtype) for d, c in zip(found, cotangents, strict=True)
        )
        with breaking("", "vjp", ""):
            pulled = [each for each in view.derivatives(w, reverse=True) if each[0] == mask]
        for _, part, _, back in pulled:
            weights, wants = view.those(part, w), view.those(part, found)
            what = f"vjp by {subject.names(mask)}, {part.output_names}"
            _require_weighed(subject, view, what, wants, weights, (back, view.those(mask, v)))
            kinks = sum(int((~d.smooth).sum()) for d in wants)
            yield f"{kinks} entries at a kink, not checked there" if kinks else None


def _require_weighed(
    subject: Subject,
    view: Smooth,
    what: str,
    differences: Sequence[Derivative],
    w: Sequence[np.ndarray],
    back: tuple[Sequence[Array], Sequence[Array]],
) -> None:
    """Refuse <w, finite differences> and <vjp(w), v> that differ by more than their errors."""
    values, errors = [d.value for d in differences], [d.error for d in differences]
    left, right = inner(w, values), inner(*back)
    if not np.isfinite(right) and not all(d.smooth.all() for d in differences):
        raise NotApplicable("the vjp is not finite beside entries without a derivative")
    sizes = [np.abs(c) for c in w]
    size = max(inner(sizes, map(np.abs, values)), inner(*(map(np.abs, xs) for xs in back)))
    allowed = max(view.within(), view.rounding()) * size + 8 * inner(sizes, errors)
    (top, *_) = in_terms_of(view.inputs, [0])  # of terms that cancel, as in 3 x - 2 x - x
    allowed += ROUNDINGS * view.eps() * top * sum(map(largest, (*w, *back[1])))
    if not abs(left - right) <= allowed:
        text = f"<vjp(w), v> = {right:.9g} where finite differences of the values give {left:.9g}"
        raise Broken("", f"{what}: {text}", "")


def primal(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The values that jvp and vjp return beside the derivative are those of a call."""
    found = []
    for name, reverse in (("jvp", False), ("vjp", True)):
        with contextlib.suppress(Exception):  # jvp and vjp tell what raises
            view = smooth(subject, inputs, reverse=reverse)
            at = view.cotangents(subject.rng) if reverse else view.at(view.active)
            outs = view.derivatives(at, reverse=reverse)[0][2]
            found.append((f"the value of {name}", outs))
    if not found:
        smooth(subject, inputs)
    for what, outs in found:
        want = [subject.expected(view.inputs)[i] for i in view.outputs]
        subject.require_equal(what, outs, want, "", "")
        yield


def linear_in_cotangent(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """vjp(3w - u/2) = 3 vjp(w) - vjp(u)/2, vjp(1024 w) = 1024 vjp(w), vjp(w/1024) = vjp(w)/1024,
    vjp(0) = 0, and the vjps of the outputs, each alone, add up; of an op where it has no forward
    mode.
    """
    view = smooth(subject, inputs)
    view.require_reverse_alone()
    rng = subject.rng
    w, u = view.cotangents(rng), view.cotangents(rng)
    both = tuple((3 * a - 0.5 * b).astype(a.dtype) for a, b in zip(w, u, strict=True))
    large, little = (tuple((f * a).astype(a.dtype) for a in w) for f in (LARGE, LITTLE))
    zero = tuple(map(np.zeros_like, w))
    with breaking("", "vjp", ""):
        found = [view.derivatives(c, reverse=True) for c in (w, u, both, large, little, zero)]
    pw, pu, pb, pl, ps, p0 = (each[0][3] for each in found)
    alone = [back for mask, _, _, back in found[0][1:] if mask == view.active]
    view.require_finite([pw, pu])
    want = [np.asarray(3 * a - 0.5 * b) for a, b in zip(pw, pu, strict=True)]
    terms = view.reverse_terms(view.active, both)
    summed = [sum(column) for column in zip(*alone, strict=True)] or pw
    for what, got, wanted, factor in (
        ("vjp(0)", p0, [np.zeros_like(x) for x in want], 0.0),
        ("vjp(3w - u/2) against 3 vjp(w) - vjp(u)/2", pb, want, 1.0),
        ("vjp(1024 w) against 1024 vjp(w)", pl, [LARGE * np.asarray(x) for x in pw], LARGE),
        ("vjp(w/1024) against vjp(w)/1024", ps, [LITTLE * np.asarray(x) for x in pw], LITTLE),
        ("vjp, each output alone, added up", summed, pw, 1.0),
    ):
        sizes = [factor * size for size in terms]
        subject.require_equal(what, got, [np.asarray(x) for x in wanted], "", "", sizes)
        yield


def exported(subject: FunctionSubject, inputs: Inputs) -> Iterator[None]:
    """Exports with jax.export, with the reverse derivative if there is one, reloads the bytes and
    runs them.
    """
    if importlib.util.find_spec("flatbuffers") is None:
        raise NotApplicable("flatbuffers is not installed", "pip install 'tenferro-jax[export]'.")
    view: Smooth | None = None
    with contextlib.suppress(NotApplicable):
        view = smooth(subject, inputs)
        if len(view.active) < sum(map(is_inexact, inputs)):
            view = None  # an export differentiates by all inputs
    try:
        made = jax.export.export(subject.compiled)(*inputs)
        data = made.serialize(vjp_order=0 if view is None else 1)
        program = jax.export.deserialize(data)
    except Exception as error:
        raise NotApplicable(f"JAX cannot export it: {one_line(error)}") from error
    with breaking("", "the exported program", ""):
        got = program.call(*inputs)
    subject.require_equal("exported and reloaded", got, subject.expected(inputs), "", "")
    yield
    if view is None:
        return
    w = view.cotangents(subject.rng)

    def reloaded(*xs: jax.Array) -> tuple[jax.Array, ...]:
        outs = program.call(*replaced(inputs, view.active, xs))
        return tuple(outs[i] for i in view.outputs)

    with breaking("", "the vjp of the exported program", ""):
        got = jax.jit(lambda *xs: jax.vjp(reloaded, *xs)[1](w))(*view.at(view.active))
    want = view.derivatives(w, reverse=True)[0][3]
    terms = view.reverse_terms(view.active, w)
    subject.require_equal("vjp, exported and reloaded", got, want, "", "", terms)
    yield
