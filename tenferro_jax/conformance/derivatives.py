"""L3: derivatives agree with finite differences, are linear and have adjoints; differentiable
forms.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from ..errors import ADRuleError, TenferroError
from ..extension.carrier import Extension
from ..extension.contract import inherited
from ..extension.primitive import apply
from ..extension.rules import absent, is_stated, linearize, present
from ..jax_seam import Atom, ClosedJaxpr, inner_jaxprs, is_literal, open_jaxpr
from ..shapes import PyTree, is_inexact, meta_of, struct
from .examples import Array, Inputs, first_wrong, in_each_precision, inner, largest, listed
from .op_subject import OpSubject
from .report import Broken, NotApplicable, as_broken, breaking
from .smooth import (
    DECLARED,
    ROUNDINGS,
    Derivative,
    Mask,
    Smooth,
    at_two_sizes,
    directional,
    in_each_dtype,
    near_the_example,
    smooth,
    values_of,
)
from .subject import Claim, Subject

LINEARIZE = "Correct linearize."


def derivative_metas(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Traces derivatives in both modes, for every subset of inputs and every precision, and
    compares dtypes and shapes.
    """
    for dtype, view in in_each_dtype(subject, inputs, reverse=False):
        for mask in view.masks():
            what = f"{dtype}, derivative by {view.subject.names(mask)}"
            f, at, w = view.function(mask), view.at(mask), view.cotangents(subject.rng)
            missing = any(is_inexact(x) for i, x in enumerate(view.inputs) if i not in mask)
            try:
                jax.eval_shape(lambda *xs, f=f: jax.jvp(f, xs, xs), *at)
            except Exception as error:
                broken = as_broken(error, "X10.8", what, LINEARIZE)
                if missing and not isinstance(error, ADRuleError):
                    broken.clause, broken.fix = (
                        "X10.4",
                        "Leave out inactive slots: a tangent of None means zero.",
                    )
                raise broken from error
            try:
                jax.eval_shape(lambda *xs, f=f, w=w: jax.vjp(f, *xs)[1](w), *at)
            except ADRuleError as error:
                if error.clause != DECLARED:
                    raise
                yield "reverse mode is declared NOT_DIFFERENTIABLE"
                continue
            except TenferroError:
                raise
            except Exception as error:
                fix = "Make linearize linear in the tangents, or write transpose_rule."
                raise as_broken(
                    error, "X10.6", f"{what}: JAX cannot transpose what linearize emits", fix
                ) from error
            yield None


@at_two_sizes
def jvp(subject: Subject, inputs: Inputs, place: str) -> Iterator[str | None]:
    """Compares with finite differences of the values along random directions; of an op also at
    other sizes, for all inputs together.
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
    got: Sequence[Array],
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
            raise NotApplicable(
                "no entry has a derivative at the example: kinks, or values that are not finite",
                "Give other example inputs.",
            )
        wrong = w.smooth & ~(abs(g - w.value) <= within * abs(w.value) + 8 * w.error)
        if text := first_wrong(wrong, g, w.value, "finite differences give {}"):
            raise Broken(clause, f"{what}: {text}", fix)
        yield f"{kinks} of {w.smooth.size} entries at a kink, not checked there" if kinks else ""


def linear(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The tangent of a sum is the sum of the tangents, that of a multiple is the multiple, and that
    of zero is zero; with all but one tangent None the tangents of the inputs add up to it.
    """
    view = smooth(subject, inputs, reverse=False)
    at, rng = view.at(view.active), subject.rng
    u, v = view.random(at, rng), view.random(at, rng)
    w = tuple(3 * a - 0.5 * b for a, b in zip(u, v, strict=True))
    zero = tuple(map(np.zeros_like, at))
    with breaking("X10.6", "jvp", LINEARIZE):
        found = [view.derivatives(d) for d in (u, v, w, zero)]
    ju, jv, jw, j0 = (each[0][3] for each in found)
    view.require_finite([ju, jv])
    terms = view.forward_terms(view.active, w)
    combined = [np.asarray(3 * a - 0.5 * b) for a, b in zip(ju, jv, strict=True)]
    fix = "Make linearize linear in the tangents; nonlinear factors may depend only on primals."
    subject.require_equal("J 0", j0, [np.zeros_like(a) for a in combined], "X10.6", fix)
    yield
    subject.require_equal("J (3u - v/2) against 3 J u - (J v)/2", jw, combined, "X10.6", fix, terms)
    yield
    alone = [tangents for mask, _, _, tangents in found[0] if len(mask) == 1]
    if len(alone) == len(view.active):
        added = [sum(column) for column in zip(*alone, strict=True)]
        fix = "A tangent that is None is a zero: leave its term out."
        subject.require_equal("J u, each input alone, added up", added, ju, "X10.3", fix, terms)
        yield


def second_order(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Compares forward over reverse with finite differences of the first derivative, and with
    reverse over reverse.
    """
    if subject.order < 2:
        raise NotApplicable("order=1 was asked for", "Pass order=2.")
    view = smooth(subject, inputs)
    at, rng = view.at(view.active), subject.rng
    w, direction = view.cotangents(rng), view.random(at, rng)
    f = view.function(view.active)

    def pullback(*xs: jax.Array) -> Sequence[jax.Array]:
        return jax.vjp(f, *xs)[1](w)

    def first(*xs: Array) -> Sequence[Array]:
        with near_the_example():
            return view.moved(view.active, xs).derivatives(w, reverse=True)[0][3]

    def forward(xs: Sequence[jax.Array], d: Sequence[jax.Array]) -> PyTree:
        return jax.jvp(pullback, xs, d)[1]

    def reverse(xs: Sequence[jax.Array], d: Sequence[jax.Array]) -> PyTree:
        return jax.vjp(pullback, *xs)[1](d)

    fix = (
        "Use only differentiable functions in the rule, or pass order=1 and say so in the "
        "docstring."
    )
    modes = subject.taken([forward, reverse], at, direction)
    with breaking("X10.14", "second order", fix):
        got = jax.jit(lambda xs, d: [mode(xs, d) for mode in modes])(at, direction)
    terms = [
        max(size, largest(g))
        for size, g in zip(view.reverse_terms(view.active, w), first(*at), strict=True)
    ]
    want = directional(first, at, direction, subject.grain, terms)
    for note in _agree("second derivative", got[0], want, "X10.14", fix, view.within()):
        yield note or None
    view.require_finite(got)
    if len(got) == 2 and all(not np.iscomplexobj(x) for x in at):
        pairs = (direction, got[0]), (got[1], direction)
        second = view.paced(view.active, direction, terms)
        _require_adjoint(view, "reverse over reverse", *pairs, "X10.14", fix, second)
        yield None


def _require_adjoint(
    view: Smooth,
    what: str,
    forward: tuple[Sequence[Array], Sequence[Array]],
    back: tuple[Sequence[Array], Sequence[Array]],
    clause: str,
    fix: str,
    terms: Sequence[float] = (),
) -> None:
    """Refuse <w, J v> and <J' w, v> that differ by more than rounding, of them and of the terms of
    J v, whose sizes are given.
    """
    left, right = inner(*forward), inner(*back)
    size = max(inner(*(map(np.abs, xs) for xs in pair)) for pair in (forward, back))
    rest = sum(t * float(np.abs(w).sum()) for t, w in zip(terms, forward[0], strict=False))
    if not abs(left - right) <= view.rounding() * size + ROUNDINGS * view.eps() * rest:
        raise Broken(clause, f"{what}: <w, J v> = {left} and <J' w, v> = {right}", fix)


TRANSPOSE = "Correct transpose_rule or linearize."


@at_two_sizes
def adjoint(subject: Subject, inputs: Inputs, place: str) -> Iterator[None]:
    """<w, J v> = <J' w, v> for every subset of inputs, of a function for each alone and all, and
    for each output alone; of an op also at other sizes, for all together.
    """
    smooth(subject, inputs, reverse=False)
    view = smooth(subject, inputs)
    rng = subject.rng
    v, w = view.random(view.at(view.active), rng), view.cotangents(rng)
    with breaking("X10.7", "jvp and vjp", TRANSPOSE):
        pushed = {mask: jv for mask, _, _, jv in view.derivatives(v, whole=bool(place))}
        pulled = view.derivatives(w, reverse=True, whole=bool(place))
    view.require_finite([pushed, [each[3] for each in pulled]])
    for mask, part, _, back in pulled:
        what = f"by {subject.names(mask)}, {part.output_names}{place}"
        weights, tangents = view.those(part, w), view.those(part, pushed[mask])
        along = view.those(mask, v)
        terms = part.forward_terms(mask, along)
        pairs = (weights, tangents), (back, along)
        _require_adjoint(part, what, *pairs, "X10.7", TRANSPOSE, terms)
        yield


def linear_transpose(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """jax.linear_transpose in every subset of inputs that the op is linear in, with the others
    unchanged or zero, in every precision.
    """
    rule = subject.rules.rule_of(subject.op)
    if rule is None or not is_stated(rule, subject.op, "transpose_rule"):
        raise NotApplicable("no transpose_rule was given", "Override it where the op is linear.")
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
            _require_adjoint(part, what, (w, f(*x)), (back, x), "X10.11", TRANSPOSE)
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


FORM = (
    "Let differentiable_form give an op of the same family and inputs, whose first outputs are "
    "those of the op."
)


def differentiable_form(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """The first outputs of the differentiable form are those of the op, in every precision."""
    rule = subject.rule()
    with breaking("X10.12", "differentiable_form", FORM):
        form = rule.form_for(subject.op, list(map(meta_of, inputs)))
        carrier = Extension(form, (), subject.runtimes)
    if carrier == subject.carrier:
        raise NotApplicable("the rule differentiates the op itself")
    if form.family_id != subject.op.family_id:
        raise Broken("X10.12", f"differentiable_form gives an op of family {form.family_id}", FORM)
    casts = {tuple(map(meta_of, made)): made for made in (inputs, *in_each_precision(inputs))}
    taken = [made for made in casts.values() if subject.metas(made) is not None]

    def both(*xs: jax.Array) -> PyTree:
        outs = apply(form, *xs, runtimes=subject.runtimes)
        return outs[: subject.op.output_count], subject.call(*xs)

    claims = [
        Claim(f"the first outputs of {form!r} for {listed(xs)}", both, xs, None) for xs in taken
    ]
    results = subject.results(claims, "X10.12", FORM)
    for (what, *_), (got, want) in zip(claims, results, strict=True):
        subject.require_equal(what, got, want, "X10.12", FORM)
        yield


MULTIPLIES = ("mul", "dot_general", "div")
CALLS = ("jit", "pjit", "closed_call", "core_call", "remat", "checkpoint")
ADDS = ("add", "add_any", "sub")


class Traced(NamedTuple):
    """The inputs from which a value in a rule is computed."""

    zero: bool = False
    tangent: bool = False
    primal: bool = False


def inactive_slots(subject: OpSubject, inputs: Inputs) -> Iterator[None]:
    """An output that no given tangent reaches gets None, and the rule computes no term from zeros
    that it made for an inactive input.
    """
    if subject.plain_subject() is not None:
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
            if not traced.tangent:
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

    primals, outs, given = (
        [struct(m) for m in metas],
        [struct(m) for m in form.infer(*metas)],
        [struct(metas[i]) for i in mask],
    )
    closed = jax.make_jaxpr(run)(primals, outs, given)
    arguments = [Traced(primal=True)] * (len(primals) + len(outs)) + [Traced(tangent=True)] * len(
        given
    )
    return numbers, *_walk(closed, arguments)


def _walk(closed: ClosedJaxpr, arguments: Sequence[Traced]) -> tuple[list[Traced], int]:
    jaxpr, constants = open_jaxpr(closed)
    known = dict(zip(jaxpr.invars, arguments, strict=True))
    known |= {v: Traced(zero=_is_zero(c)) for v, c in zip(jaxpr.constvars, constants, strict=True)}
    terms = 0

    def look(atom: Atom) -> Traced:
        return Traced(zero=_is_zero(atom.val)) if is_literal(atom) else known[atom]

    for eqn in jaxpr.eqns:
        given = [look(atom) for atom in eqn.invars]
        if eqn.primitive.name in CALLS:
            outs, more = _walk(inner_jaxprs(eqn)[0], given)
            terms += more
        else:
            tangent, primal = any(t.tangent for t in given), any(t.primal for t in given)
            has_zero = any(
                t.zero and atom.aval.shape for t, atom in zip(given, eqn.invars, strict=True)
            )  # a number is not a tensor
            multiplies = eqn.primitive.name in MULTIPLIES or isinstance(
                eqn.params.get("op"), Extension
            )
            terms += has_zero and (
                eqn.primitive.name in ADDS or (multiplies and primal and not tangent)
            )
            zero = bool(given) and all(t.zero for t in given) and len(given) == 1
            outs = [Traced(zero, tangent, primal)] * len(eqn.outvars)
        known.update(zip(eqn.outvars, outs, strict=True))
    return [look(atom) for atom in jaxpr.outvars], terms


def _is_zero(value: Array) -> bool:
    return not np.any(np.asarray(value))
