"""L3: derivatives agree with finite differences, are linear and have adjoints; differentiable
forms.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ADRuleError, TenferroError
from ..extension.carrier import Extension
from ..extension.contract import has_own_rule
from ..extension.primitive import apply
from ..extension.rules import is_stated
from ..shapes import PyTree, is_inexact, meta_of
from .examples import FLOATS, Array, Inputs, cast, first_wrong
from .smooth import (
    DECLARED,
    Derivative,
    Mask,
    Smooth,
    at_two_sizes,
    directional,
    inner,
    names,
    smooth,
    values_of,
)
from .subject import Broken, Claim, NotApplicable, Subject, as_broken, breaking

WITHIN = 1e-6
"""The relative error that a derivative may have, in addition to 8 times the error of the finite
difference.
"""

LINEARIZE = "Correct linearize."


def derivative_metas(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Traces derivatives in both modes, for every subset of inputs and every precision, and
    compares dtypes and shapes.
    """
    for dtype in FLOATS:
        try:
            view = smooth(subject, inputs, dtype, reverse=False)
        except NotApplicable:
            if dtype == "float64":
                raise
            continue
        for mask in view.masks():
            what = f"{dtype}, derivative by {names(mask)}"
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
            yield view.undeclared or None


def jvp(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Compares with finite differences of the values along random directions; at other sizes for
    all inputs together.
    """
    yield from at_two_sizes(subject, inputs, _jvp)


def _jvp(subject: Subject, inputs: Inputs, place: str) -> Iterator[str | None]:
    view = smooth(subject, inputs, reverse=False)
    rng = subject.rng
    masks = [view.active] if place else list(view.masks())
    fns = [view.function(mask) for mask in masks]
    directions = [view.random(view.at(mask), rng) for mask in masks]
    with breaking("X10.6", f"jvp{place}", LINEARIZE):
        tangents = jax.jit(
            lambda ds: [
                jax.jvp(f, view.at(m), d)[1] for f, m, d in zip(fns, masks, ds, strict=True)
            ]
        )(directions)
    for mask, direction, got in zip(masks, directions, tangents, strict=True):
        want = directional(values_of(view, mask), view.at(mask), direction)
        for note in _agree(f"jvp by {names(mask)}{place}", got, want, "X10.6", LINEARIZE):
            yield note or view.undeclared or None


def _agree(
    what: str,
    got: Sequence[Array],
    want: Sequence[Derivative],
    clause: str,
    fix: str,
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
        wrong = w.smooth & ~(abs(g - w.value) <= WITHIN * abs(w.value) + 8 * w.error)
        if text := first_wrong(wrong, g, w.value, "finite differences give {}"):
            raise Broken(clause, f"{what}: {text}", fix)
        yield f"{kinks} of {w.smooth.size} entries at a kink, not checked there" if kinks else ""


def linear(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The tangent of a sum is the sum of the tangents, that of a multiple is the multiple, and that
    of zero is zero.
    """
    view = smooth(subject, inputs, reverse=False)
    at, rng = view.at(view.active), subject.rng
    u, v = view.random(at, rng), view.random(at, rng)
    w = tuple(3 * a - 0.5 * b for a, b in zip(u, v, strict=True))
    zero = tuple(map(np.zeros_like, at))

    push = functools.partial(_pushed, view.function(view.active), at)
    with breaking("X10.6", "jvp", LINEARIZE):
        ju, jv, jw, j0 = jax.jit(lambda ds: [push(*d) for d in ds])([u, v, w, zero])
    view.require_finite([ju, jv, jw, j0])
    combined = [np.asarray(3 * a - 0.5 * b) for a, b in zip(ju, jv, strict=True)]
    fix = "Make linearize linear in the tangents; nonlinear factors may depend only on primals."
    subject.require_equal("J 0", j0, [np.zeros_like(a) for a in combined], "X10.6", fix)
    yield
    subject.require_equal("J (3u - v/2) against 3 J u - (J v)/2", jw, combined, "X10.6", fix)
    yield


def inactive_inputs(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """A tangent of None gives the same result as a tangent of zeros."""
    view = smooth(subject, inputs, reverse=False)
    if len(view.active) < 2:
        raise NotApplicable("one input alone has derivatives", "Nothing is to be done.")
    rng = subject.rng
    directions = dict(zip(view.active, view.random(view.at(view.active), rng), strict=True))
    whole, at = view.function(view.active), view.at(view.active)
    masks = list(view.masks())[1:]
    padded = [
        tuple(d if i in mask else np.zeros_like(d) for i, d in directions.items()) for mask in masks
    ]
    wanted = jax.jit(lambda ds: [jax.jvp(whole, at, d)[1] for d in ds])(padded)
    claims = []
    for mask, want in zip(masks, wanted, strict=True):
        push = functools.partial(_pushed, view.function(mask), view.at(mask))
        claims.append(
            Claim(f"jvp by {names(mask)}", push, tuple(directions[i] for i in mask), want)
        )
    yield from subject.hold(
        claims, "X10.3", "A tangent that is None is a zero: leave its term out."
    )


def _pushed(
    f: Callable[..., Sequence[jax.Array]],
    at: Sequence[np.ndarray],
    *direction: Array,
) -> Sequence[jax.Array]:
    return jax.jvp(f, at, direction)[1]


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

    @jax.jit
    def pullback(*xs: jax.Array) -> Sequence[jax.Array]:
        return jax.vjp(f, *xs)[1](w)

    def second(xs: Sequence[jax.Array], d: Sequence[jax.Array]) -> PyTree:
        _, back = jax.vjp(pullback, *xs)
        return jax.jvp(pullback, xs, d)[1], back(d)

    fix = (
        "Use only differentiable functions in the rule, or pass order=1 and say so in the "
        "docstring."
    )
    with breaking("X10.14", "second order", fix):
        forward, reverse = jax.jit(second)(at, direction)
    view.require_finite([forward, reverse])
    want = directional(pullback, at, direction)
    for note in _agree("second derivative", forward, want, "X10.14", fix):
        yield note or None
    if all(not np.iscomplexobj(x) for x in at):
        left, right = inner(reverse, direction), inner(forward, direction)
        size = inner([abs(np.asarray(r)) for r in reverse], map(abs, direction))
        if not abs(left - right) <= view.rounding() * size:
            raise Broken(
                "X10.14", f"reverse over reverse: <d, H u> = {left} and <H d, u> = {right}", fix
            )
        yield None


def missing_rule(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Without a rule every derivative raises an error that names the family, also inside
    transforms.
    """
    floating = [i for i, x in enumerate(inputs) if is_inexact(x)]
    if not floating:
        raise NotApplicable("no input is floating or complex", "Nothing is to be done.")
    if has_own_rule(subject.op):
        raise NotApplicable("the op's class states its rule", "Nothing is to be done.")

    def bare(*xs: jax.Array) -> tuple[jax.Array, ...]:
        return apply(subject.op, *xs, runtimes=subject.runtimes)

    def looped(*xs: jax.Array) -> tuple[jax.Array, ...]:
        return jax.lax.cond(True, bare, bare, *xs)

    for name, fn in {
        "a call": bare,
        "jit": jax.jit(bare),
        "checkpoint": jax.checkpoint(bare),
        "cond": looped,
    }.items():
        try:
            jax.eval_shape(lambda *xs, fn=fn: jax.vjp(fn, *xs)[0], *inputs)
        except ADRuleError as error:
            if error.family_id == subject.op.family_id:
                yield
                continue
        raise Broken(
            "X10.2",
            f"inside {name} a derivative without a rule was not refused by name",
            "Leave the primitive to the library.",
        )


TRANSPOSE = "Correct transpose_rule or linearize."


def adjoint(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """<w, J v> = <J' w, v> for every subset of inputs, and for each output alone; at other sizes
    for all together.
    """
    yield from at_two_sizes(subject, inputs, _adjoint)


def _adjoint(subject: Subject, inputs: Inputs, place: str) -> Iterator[None]:
    view = smooth(subject, inputs)
    rng = subject.rng
    cases: list[Any] = []
    runs: list[Any] = []
    for mask in [view.active] if place else view.masks():
        v, w = view.random(view.at(mask), rng), view.cotangents(rng)
        for chosen in _choices(view)[: 1 if place else None]:
            f = view.function(mask)
            cases.append(
                (
                    f"by {names(mask)}, output {', '.join(map(str, chosen))}{place}",
                    v,
                    [w[i] for i in chosen],
                )
            )
            runs.append(
                (lambda *xs, f=f, chosen=chosen: [f(*xs)[i] for i in chosen], view.at(mask))
            )

    def both(all_v: Sequence[Sequence[jax.Array]], all_w: Sequence[Sequence[jax.Array]]) -> PyTree:
        return [
            (jax.jvp(f, at, v)[1], jax.vjp(f, *at)[1](w))
            for (f, at), v, w in zip(runs, all_v, all_w, strict=True)
        ]

    with breaking("X10.7", f"vjp{place}", TRANSPOSE):
        found = jax.jit(both)([c[1] for c in cases], [c[2] for c in cases])
    view.require_finite(found)
    for (what, v, w), (jv, jtw) in zip(cases, found, strict=True):
        left, right = inner(w, jv), inner(jtw, v)
        if not abs(left - right) <= view.rounding() * max(_size(w, jv), _size(jtw, v)):
            raise Broken("X10.7", f"{what}: <w, J v> = {left} and <J' w, v> = {right}", TRANSPOSE)
        yield


def _choices(view: Smooth) -> list[tuple[int, ...]]:
    """All outputs together, then each alone."""
    together = tuple(range(len(view.outputs)))
    return [together, *((i,) for i in together)] if len(together) > 1 else [together]


def _size(a: Iterable[Array], b: Iterable[Array]) -> float:
    return inner([abs(np.asarray(x)) for x in a], [abs(np.asarray(y)) for y in b])


def linear_transpose(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """jax.linear_transpose in every subset of inputs that the op is linear in, with the others
    unchanged or zero, in every precision.
    """
    rule = subject.rules.rule_of(subject.op)
    if rule is None or not is_stated(rule, subject.op, "transpose_rule"):
        raise NotApplicable("no transpose_rule was given", "Override it where the op is linear.")
    view = smooth(subject, inputs, linearized=False)
    held = [(mask, zero) for mask in view.masks() if (zero := _linear(view, mask)) is not None]
    if not held:
        raise NotApplicable("the op is linear in no input", "Nothing is to be done.")
    for dtype in FLOATS:
        try:
            there = smooth(subject, inputs, dtype, linearized=False)
        except NotApplicable:
            continue
        if dtype == "float64" or any(
            a.dtype != b.dtype for a, b in zip(there.inputs, view.inputs, strict=True)
        ):
            yield from _transposes(there, held, dtype)


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


def _transposes(view: Smooth, held: Sequence[tuple[Mask, bool]], dtype: str) -> Iterator[None]:
    rng = view.subject.rng
    for mask, zero in held:
        f, x = view.function(mask, _others(view, mask, zero)), view.at(mask)
        y, weights = f(*x), view.cotangents(rng)
        for chosen in _choices(view):
            what = (
                f"{dtype} transpose by {names(mask)}{', the others zero' if zero else ''}, "
                f"output {', '.join(map(str, chosen))}"
            )
            w = [weights[i] for i in chosen]
            with breaking("X10.11", what, TRANSPOSE):
                try:
                    back = jax.linear_transpose(
                        lambda *xs, f=f, chosen=chosen: [f(*xs)[i] for i in chosen], *x
                    )(w)
                except ADRuleError as error:
                    if error.clause != DECLARED:
                        raise
                    continue
            left, right = inner(w, [y[i] for i in chosen]), inner(back, x)
            if not abs(left - right) <= view.rounding() * max(
                _size(w, [y[i] for i in chosen]), _size(back, x)
            ):
                raise Broken(
                    "X10.11", f"{what}: <w, A x> = {left} and <A' w, x> = {right}", TRANSPOSE
                )
            yield


FORM = (
    "Let differentiable_form give an op of the same family and inputs, whose first outputs are "
    "those of the op."
)


def differentiable_form(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """The first outputs of the differentiable form are those of the op, in every precision."""
    rule = subject.rule()
    with breaking("X10.12", "differentiable_form", FORM):
        form = rule.differentiable_form(subject.op)
        carrier = Extension(form, (), subject.runtimes)
    if carrier == subject.carrier:
        raise NotApplicable("the rule differentiates the op itself", "Nothing is to be done.")
    if form.family_id != subject.op.family_id:
        raise Broken("X10.12", f"differentiable_form gives an op of family {form.family_id}", FORM)
    casts = {
        tuple(map(meta_of, made)): made
        for made in (inputs, *(cast(inputs, dtype) for dtype in FLOATS))
    }
    taken = [made for made in casts.values() if subject.metas(made) is not None]

    def both(examples: Sequence[Inputs]) -> PyTree:
        return [
            (
                apply(form, *made, runtimes=subject.runtimes)[: subject.op.output_count],
                subject.call(*made),
            )
            for made in examples
        ]

    with breaking("X10.12", f"{form!r}", FORM):
        found = jax.block_until_ready(jax.jit(both)(taken))
    for made, (got, want) in zip(taken, found, strict=True):
        what = f"the first outputs of {form!r} for {', '.join(str(meta_of(x)) for x in made)}"
        subject.require_equal(what, got, want, "X10.12", FORM)
        yield
