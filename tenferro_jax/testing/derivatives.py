"""L3: derivatives agree with finite differences, are linear and have adjoints; differentiable
forms.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ADRuleError
from ..extension.carrier import Extension
from ..extension.contract import Can, inherited
from ..extension.rules import absent, is_stated, linearize, present
from ..jax_seam import Atom, ClosedJaxpr, inner_jaxprs, is_literal, name_of, open_jaxpr
from ..shapes import PyTree, is_inexact, meta_of, struct
from .examples import Array, Arrays, Inputs, first_wrong, inner, largest
from .finite_differences import (
    DECLARED,
    ROUNDINGS,
    Derivative,
    Mask,
    Smooth,
    at_two_sizes,
    directional,
    in_each_dtype,
    near_the_example,
    pulled,
    smooth,
    values_of,
)
from .functions import Subject, in_terms_of
from .ops_given import OpSubject
from .plain import undifferentiated
from .report import Broken, Cases, NotApplicable, NotedCases, breaking, failure

LINEARIZE = "Correct linearize; of a function defjvp or bwd."
NOWHERE = "no entry has a derivative at the example: kinks, or values that are not finite"


@at_two_sizes
def jvp(subject: Subject, inputs: Inputs, place: str) -> NotedCases:
    """Compares jvp with finite differences of the values along random directions; for an op also
    at other sizes, for all inputs together.
    """
    view = smooth(subject, inputs, reverse=False)
    v = view.random(view.at(view.active), subject.rng)
    with breaking("X10.6", f"jvp{place}", LINEARIZE):
        pushed = view.derivatives(v, whole=bool(place))
    for mask, _, _, got in pushed:
        want = view.differences(mask, v)
        for note in _agree(
            f"jvp by {subject.names(mask)}{place}", got, want, "X10.6", LINEARIZE, view.within()
        ):
            yield note or None


def _agree(
    what: str,
    got: Arrays,
    want: Sequence[Derivative],
    clause: str,
    fix: str,
    within: float,
) -> Iterator[str]:
    """One case for each output: agreement where there is a derivative, and a note on the entries
    without one.
    """
    for g, w in zip(map(np.asarray, got), want, strict=True):
        kinks = w.smooth.size - int(w.smooth.sum())
        if kinks and kinks == w.smooth.size:
            raise NotApplicable(NOWHERE, "Give other example inputs.")
        wrong = w.smooth & ~(abs(g - w.value) <= within * abs(w.value) + 8 * w.error)
        if text := first_wrong(wrong, g, w.value, "finite differences give {}"):
            raise Broken(clause, f"{what}: {text}", fix)
        yield f"{kinks} of {w.smooth.size} entries at a kink, not checked there" if kinks else ""


def linear(subject: Subject, inputs: Inputs) -> Cases:
    """jvp is linear in the tangents: for sums, for multiples by 1024 and 1/1024 too, and for zero.
    Its values for one tangent each, with None for the others, add up.
    """
    view = smooth(subject, inputs, reverse=False)
    fix = "Make the rule linear in the tangents; nonlinear factors may depend only on primals."
    alone = "X10.3", "A tangent that is None is a zero: leave its term out."
    yield from _is_linear(view, False, ("X10.6", fix), alone)


def linear_in_cotangent(subject: Subject, inputs: Inputs) -> Cases:
    """vjp(3u - v/2) = 3 vjp(u) - vjp(v)/2, vjp(1024 u) = 1024 vjp(u), vjp(u/1024) = vjp(u)/1024,
    vjp(0) = 0, and the vjps of the outputs, each alone, add up.
    """
    view = smooth(subject, inputs)
    reverse = "X10.7", "Let the cotangent enter the reverse rule linearly."
    yield from _is_linear(view, True, reverse, reverse)


def _is_linear(
    view: Smooth, reverse: bool, whole: tuple[str, str], alone: tuple[str, str]
) -> Cases:
    """The derivatives along multiples and sums of two directions; and along one the sum of those of
    each input, in reverse of each output. `whole`, `alone`: the clause of each and its fix.
    """
    subject, rng, mask = view.subject, view.subject.rng, view.active
    name = "vjp" if reverse else "jvp"
    u, v = (view.cotangents(rng) if reverse else view.random(view.at(mask), rng) for _ in "uv")

    def mixed(a: float, b: float, xs: Arrays, ys: Arrays) -> list[np.ndarray]:
        pairs = zip(map(np.asarray, xs), map(np.asarray, ys), strict=True)
        return [np.asarray(a * x + b * y, x.dtype) for x, y in pairs]

    with breaking(whole[0], name, whole[1]):
        of_u, of_v = (view.derivatives(d, reverse=reverse) for d in (u, v))
        ju, jv = of_u[0][3], of_v[0][3]
        view.require_finite([ju, jv])
        for a, b, text in (
            (0, 0, "{0}(0)"),
            (3, -0.5, "{0}(3u - v/2) against 3 {0}(u) - {0}(v)/2"),
            (1024, 0, "{0}(1024 u) against 1024 {0}(u)"),
            (1 / 1024, 0, "{0}(u/1024) against {0}(u)/1024"),
        ):
            along = mixed(a, b, u, v)
            got, wanted = view.derivatives(along, reverse=reverse)[0][3], mixed(a, b, ju, jv)
            subject.require_equal(text.format(name), got, wanted, *whole, view.terms(along))
            yield
    parts = []
    for moved, part, _, derivative in of_u:
        if reverse:
            is_alone = moved == mask and len(part.outputs) == 1
        else:
            is_alone = len(moved) == 1
        if is_alone:
            parts.append(derivative)
    if len(parts) == len(view.outputs if reverse else mask):
        added = [sum(column) for column in zip(*parts, strict=True)]
        text = f"{name}, each {'output' if reverse else 'input'} alone, added up"
        subject.require_equal(text, added, ju, *alone, view.terms(u))
        yield


def second_order(subject: Subject, inputs: Inputs) -> NotedCases:
    """Compares forward over reverse (reverse over reverse if there is no forward mode) with finite
    differences of the first derivative.
    """
    if subject.order < 2:
        raise NotApplicable("order=1 was asked for", "Pass order=2.")
    view = smooth(subject, inputs)
    at, rng = view.at(view.active), subject.rng
    w, direction = view.cotangents(rng), view.random(at, rng)
    pullback = pulled(view.function(view.active), w)

    def first(*xs: Array) -> Arrays:
        with near_the_example():
            return view.moved(view.active, xs).derivatives(w, reverse=True)[0][3]

    def forward_over_reverse(xs: Arrays, d: Arrays) -> PyTree:
        return jax.jvp(pullback, xs, d)[1]

    def reverse_over_reverse(xs: Arrays, d: Arrays) -> PyTree:
        return pulled(pullback, d)(*xs)

    ways = (forward_over_reverse, reverse_over_reverse)
    failures = [failure(jax.jit(way).lower, at, direction) for way in ways]
    reasons = [subject.limit(error) for error in failures]
    reason = reasons[0] if all(reasons) else ""
    if all(failures) and not reason:
        reason = undifferentiated(pullback, *at)
    if reason:
        raise NotApplicable(f"no second derivative: {reason}")
    fix = (
        "Use only differentiable functions in the rule, or pass order=1 and say so in the "
        "docstring."
    )
    with breaking("X10.14", "second order", fix):
        got = jax.jit(ways[reasons.index("")])(at, direction)
    terms = max(view.terms(w), *map(largest, first(*at)))
    want = directional(first, at, direction, subject.grain, terms)
    for note in _agree("second derivative", got, want, "X10.14", fix, view.within()):
        yield note or None


TRANSPOSE = "Correct transpose_rule or linearize; of a function def_transpose, bwd or defjvp."


@at_two_sizes
def vjp(subject: Subject, inputs: Inputs, place: str) -> NotedCases:
    """Compares vjp with finite differences of the values: <w, difference> = <vjp(w), v> for random
    v and w, by each input alone and all together, for each output alone; for an op also at other
    sizes, for all together.
    """
    view = smooth(subject, inputs)
    rng = subject.rng
    v, cotangents = view.random(view.at(view.active), rng), view.cotangents(rng)
    for mask in [view.active] if place else view.masks():
        found = view.differences(mask, v)
        if not any(d.smooth.any() for d in found):
            raise NotApplicable(NOWHERE, "Give other arguments.")
        w = tuple(  # zero where there is no derivative
            np.where(d.smooth, c, 0).astype(c.dtype) for d, c in zip(found, cotangents, strict=True)
        )
        with breaking("X10.7", "vjp", TRANSPOSE):
            every = view.derivatives(w, reverse=True, whole=bool(place))
        for _, part, _, back in (each for each in every if each[0] == mask):
            weights, wants, along = (
                view.those(part, w),
                view.those(part, found),
                view.those(mask, v),
            )
            kinks = sum(int((~d.smooth).sum()) for d in wants)
            if kinks and not np.isfinite(inner(back, along)):
                raise NotApplicable("the vjp is not finite beside entries without a derivative")
            # of terms that cancel, as in 3 x - 2 x - x
            slack = ROUNDINGS * view.eps() * in_terms_of(view.inputs)
            slack *= sum(map(largest, (*weights, *along)))
            slack += 8 * inner(map(np.abs, weights), [d.error for d in wants])
            what = (
                f"vjp by {subject.names(mask)}, {part.output_names}{place}, by finite differences"
            )
            pairs = (weights, [d.value for d in wants]), (back, along)
            _require_adjoint(view, what, *pairs, "X10.7", slack, view.within())
            yield f"{kinks} entries at a kink, not checked there" if kinks else None


def _require_adjoint(
    view: Smooth,
    what: str,
    forward: tuple[Arrays, Arrays],
    back: tuple[Arrays, Arrays],
    clause: str,
    slack: float = 0.0,
    relative: float = 0.0,
) -> None:
    """Refuse <w, J v> and <J' w, v> that differ by more than rounding, or than this part of their
    terms, and the slack.
    """
    left, right = inner(*forward), inner(*back)
    size = max(map(_size_of_terms, (forward, back)))
    if not abs(left - right) <= max(relative, view.rounding()) * size + slack:
        text = f"{what}: <J' w, v> = {right:.12g} where <w, J v> = {left:.12g}"
        raise Broken(clause, text, TRANSPOSE)


def _size_of_terms(pair: tuple[Arrays, Arrays]) -> float:
    """The inner product of the absolute values."""
    a, b = pair
    return inner(map(np.abs, a), map(np.abs, b))


def primal(subject: Subject, inputs: Inputs) -> Cases:
    """The values that jvp and vjp return beside the derivative are those of a call."""
    found = []
    for name, reverse in (("jvp", False), ("vjp", True)):
        with contextlib.suppress(Exception):  # jvp and vjp tell what raises
            view = smooth(subject, inputs, reverse=reverse)
            at = view.cotangents(subject.rng) if reverse else view.at(view.active)
            outs = view.derivatives(at, reverse=reverse)[0][2]
            found.append((f"the value of {name}", outs, view))
    if not found:
        smooth(subject, inputs)
    for what, outs, view in found:
        want = [subject.expected(view.inputs)[i] for i in view.outputs]
        subject.require_equal(what, outs, want, "", "")
        yield


def linear_transpose(subject: OpSubject, inputs: Inputs) -> Cases:
    """Compares jax.linear_transpose with the op, for all inputs together and for each alone where
    the op is linear, the others unchanged or zero; in every precision.
    """
    rule = subject.rules.rule_of(subject.op)
    if rule is None or not is_stated(rule, subject.op, Can.TRANSPOSE):
        raise NotApplicable("no transpose_rule was given", "Give one where the op is linear.")
    view = smooth(subject, inputs, linearized=False)
    held = [(mask, zero) for mask in view.masks() if (zero := _linear(view, mask)) is not None]
    if not held:
        raise NotApplicable("the op is linear in no input")
    for dtype, there in in_each_dtype(subject, inputs, linearized=False):
        for (mask, zero), part in itertools.product(held, there.parts()):
            what = (
                f"{dtype} transpose by {subject.names(mask)}"
                f"{', the others zero' if zero else ''}, {part.output_names}"
            )
            f, x = part.function(mask, _others(part, mask, zero)), part.at(mask)
            w = part.cotangents(subject.rng)
            with breaking("X10.11", what, TRANSPOSE):
                try:
                    back = jax.linear_transpose(f, *x)(w)
                except ADRuleError as error:
                    if error.clause != DECLARED:
                        raise
                    continue
            _require_adjoint(part, what, (w, f(*x)), (back, x), "X10.11")
            yield


def _linear(view: Smooth, mask: Mask) -> bool | None:
    """Whether the op is linear in these inputs with the others unchanged (False), only with zeros
    for the others (True), or not at all.
    """
    for zero in (False, True) if len(mask) < len(view.active) else (False,):
        values, x = values_of(view, mask, _others(view, mask, zero)), view.at(mask)
        u = view.random(x, view.subject.rng)
        with np.errstate(all="ignore"):
            at_x, at_u = values(*x), values(*u)
            both = values(*(2 * a - 3 * b for a, b in zip(x, u, strict=True)))
            wanted = [2 * a - 3 * b for a, b in zip(at_x, at_u, strict=True)]
        if zero and not any(np.any(y) for y in at_x):
            continue  # zeros for the others do not help: 0 / a is not a linear function of a
        if all(np.isfinite(y).all() for y in both) and not view.subject.difference(both, wanted):
            return zero
    return None


def _others(view: Smooth, mask: Mask, zero: bool) -> Sequence[np.ndarray]:
    return [
        np.zeros_like(x) if zero and i not in mask and is_inexact(x) else x
        for i, x in enumerate(view.inputs)
    ]


MULTIPLIES = ("mul", "dot_general", "div")
CALLS = ("jit", "pjit", "closed_call", "core_call", "eval_jaxpr", "remat", "checkpoint")


ADDS = ("add", "add_any", "sub")

Traced = frozenset[str]
"""From which of "zero", "tangent" and "primal" a value in a rule is computed."""


def inactive_slots(subject: OpSubject, inputs: Inputs) -> Cases:
    """The rule gives None for an output that no given tangent reaches, and computes no term from
    zeros of its own in place of a tangent that is None.
    """
    if subject.derived:
        raise NotApplicable("JAX differentiates the function")
    if getattr(subject.op, "takes_zeros", False):
        raise NotApplicable(
            "the rule takes zeros for missing tangents, as that of jax.custom_jvp",
            "Use defjvp(rule, symbolic_zeros=True), and leave out terms whose tangent is None.",
        )
    view = smooth(subject, inputs, reverse=False)
    _, _, most = _emitted(subject, view, view.active)
    for mask in view.masks():
        outputs, made_from, terms = _emitted(subject, view, mask)
        for i, traced in zip(outputs, made_from, strict=True):
            if "tangent" not in traced:
                text = (
                    f"derivative by {subject.names(mask)}: the tangent of output {i} is made from "
                    f"no tangent that was given"
                )
                raise Broken("X10.4", text, "Return None for it.")
        if terms > most:
            text = (
                f"derivative by {subject.names(mask)}: zeros are made for an inactive input, and "
                f"multiplied or added"
            )
            raise Broken("X10.4", text, "Leave out the term of an input whose tangent is None.")
        yield


def _emitted(subject: OpSubject, view: Smooth, mask: Mask) -> tuple[list[int], list[Traced], int]:
    """The traced rule for some active inputs: the outputs that get a tangent, the inputs of each,
    and the number of sums with a term, and of products with a factor, of zeros that the rule made.
    """
    rule = subject.rule()
    metas = [meta_of(x) for x in view.inputs]
    form = subject.carrier.with_op(rule.form_for(subject.op, metas))
    numbers: list[int] = []

    def run(
        primals: Sequence[jax.Array],
        outs: Sequence[jax.Array],
        given: Sequence[jax.Array],
    ) -> Any:
        tangents = [dict(zip(mask, given, strict=True)).get(i) for i in range(len(metas))]
        with inherited((subject.rules, subject.carrier.given)):
            results = linearize(rule, form.op, (), primals, outs, tangents)
        numbers[:] = [i for i, result in enumerate(results) if not absent(result)]
        return present(results)

    primals = [struct(meta) for meta in metas]
    outs = [struct(meta) for meta in form.infer(*metas)]
    given = [primals[i] for i in mask]
    closed = jax.make_jaxpr(run)(primals, outs, given)
    arguments = [Traced({"primal"})] * (len(primals) + len(outs))
    arguments += [Traced({"tangent"})] * len(given)
    return numbers, *_walk(closed, arguments)


def _walk(closed: ClosedJaxpr, arguments: Sequence[Traced]) -> tuple[list[Traced], int]:
    jaxpr, constants = open_jaxpr(closed)
    known = dict(zip(jaxpr.invars, arguments, strict=True))
    known |= {v: _of_constant(c) for v, c in zip(jaxpr.constvars, constants, strict=True)}
    terms = 0

    def look(atom: Atom) -> Traced:
        return _of_constant(atom.val) if is_literal(atom) else known[atom]

    for eqn in jaxpr.eqns:
        given = [look(atom) for atom in eqn.invars]
        if name_of(eqn) in CALLS:
            outs, more = _walk(inner_jaxprs(eqn)[0], given)
            terms += more
        else:
            found = Traced().union(*given)
            has_zero = any(
                "zero" in t and atom.aval.shape for t, atom in zip(given, eqn.invars, strict=True)
            )  # a number is not a tensor
            multiplies = eqn.primitive.name in MULTIPLIES or isinstance(
                eqn.params.get("op"), Extension
            )
            a_factor = multiplies and "primal" in found and "tangent" not in found
            terms += has_zero and (eqn.primitive.name in ADDS or a_factor)
            outs = [found if len(given) == 1 else found - {"zero"}] * len(eqn.outvars)
        known.update(zip(eqn.outvars, outs, strict=True))
    return [look(atom) for atom in jaxpr.outvars], terms


def _of_constant(value: Array) -> Traced:
    return Traced() if np.any(np.asarray(value)) else Traced({"zero"})
