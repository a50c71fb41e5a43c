"""L3: derivatives agree with finite differences, and are linear."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ADRuleError, NotDifferentiableError, TenferroError
from ..extension.op import has_own_rule
from ..extension.primitive import apply
from .differentiation import at_two_sizes, inner, names, smooth, values_of
from .examples import FLOATS, Inputs, is_float
from .finite_difference import Derivative, directional
from .subject import Broken, Claim, NotApplicable, Subject, as_broken, breaking

WITHIN = 1e-6
"""Relative difference from the finite difference that a derivative may have, beside 8 times the difference's own error."""

LINEARIZE = "Correct linearize."


def derivative_metas(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Traced only: both modes, every subset of inputs, every precision."""
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
            missing = any(is_float(x) for i, x in enumerate(view.inputs) if i not in mask)
            try:
                jax.eval_shape(lambda *xs, f=f: jax.jvp(f, xs, xs), *at)
            except Exception as error:
                broken = as_broken(error, "X10.8", what, LINEARIZE)
                if missing and not isinstance(error, ADRuleError):
                    broken.clause, broken.fix = "X10.4", "Leave out inactive slots: a tangent that is None is a zero."
                raise broken from error
            try:
                jax.eval_shape(lambda *xs, f=f, w=w: jax.vjp(f, *xs)[1](w), *at)
            except NotDifferentiableError:
                yield "reverse mode is declared NOT_DIFFERENTIABLE"
                continue
            except TenferroError:
                raise
            except Exception as error:
                fix = "Emit in linearize what is linear in the tangents, or write transpose_rule."
                raise as_broken(error, "X10.6", f"{what}: JAX cannot transpose what linearize emits", fix) from error
            yield view.undeclared or None


def jvp(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Along random directions, against finite differences of the values; at other sizes by all inputs together."""
    yield from at_two_sizes(subject, inputs, _jvp)


def _jvp(subject: Subject, inputs: Inputs, place: str) -> Iterator[str | None]:
    view = smooth(subject, inputs, reverse=False)
    rng = subject.rng
    masks = [view.active] if place else list(view.masks())
    fns = [view.function(mask) for mask in masks]
    directions = [view.random(view.at(mask), rng) for mask in masks]
    with breaking("X10.6", f"jvp{place}", LINEARIZE):
        tangents = jax.jit(lambda ds: [jax.jvp(f, view.at(m), d)[1] for f, m, d in zip(fns, masks, ds, strict=True)])(directions)
    for mask, direction, got in zip(masks, directions, tangents, strict=True):
        want = directional(values_of(view, mask), view.at(mask), direction)
        for note in _agree(f"jvp by {names(mask)}{place}", got, want, "X10.6", LINEARIZE):
            yield note or view.undeclared or None


def _agree(what: str, got: Sequence[Any], want: Sequence[Derivative], clause: str, fix: str) -> Iterator[str]:
    """One case an output: agreement where there is a derivative, and a note on the entries where there is none."""
    for g, w in zip(map(np.asarray, got), want, strict=True):
        kinks = w.smooth.size - int(w.smooth.sum())
        if kinks and kinks == w.smooth.size:
            raise NotApplicable(
                "no entry has a derivative at the example: kinks, or values that are not finite", "Give other example inputs."
            )
        wrong = w.smooth & ~(abs(g - w.value) <= WITHIN * abs(w.value) + 8 * w.error)
        if wrong.any():
            at = tuple(int(i) for i in np.argwhere(wrong)[0])
            place = f" at {list(at)}" if at else ""
            text = f"{what}: {g[at]!s} where finite differences give {w.value[at]!s}{place}, {wrong.sum()} of {wrong.size} entries"
            raise Broken(clause, text, fix)
        yield f"{kinks} of {w.smooth.size} entries at a kink, not checked there" if kinks else ""


def linear(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Tangents of a sum are the sum of tangents; a multiple gives the multiple; a zero gives zero."""
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
    fix = "Emit in linearize what is linear in the tangents; nonlinear factors may hang on primals alone."
    subject.require_equal("J 0", j0, [np.zeros_like(a) for a in combined], "X10.6", fix)
    yield
    subject.require_equal("J (3u - v/2) against 3 J u - (J v)/2", jw, combined, "X10.6", fix)
    yield


def inactive_inputs(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """With None for a tangent the others give what they give beside a zero."""
    view = smooth(subject, inputs, reverse=False)
    if len(view.active) < 2:
        raise NotApplicable("one input alone has derivatives", "Nothing is to be done.")
    rng = subject.rng
    directions = dict(zip(view.active, view.random(view.at(view.active), rng), strict=True))
    whole, at = view.function(view.active), view.at(view.active)
    masks = list(view.masks())[1:]
    padded = [tuple(d if i in mask else np.zeros_like(d) for i, d in directions.items()) for mask in masks]
    wanted = jax.jit(lambda ds: [jax.jvp(whole, at, d)[1] for d in ds])(padded)
    claims = []
    for mask, want in zip(masks, wanted, strict=True):
        push = functools.partial(_pushed, view.function(mask), view.at(mask))
        claims.append(Claim(f"jvp by {names(mask)}", push, tuple(directions[i] for i in mask), want))
    yield from subject.hold(claims, "X10.3", "A tangent that is None is a zero: leave its term out.")


def _pushed(f: Callable[..., Any], at: Any, *direction: Any) -> Any:
    return jax.jvp(f, at, direction)[1]


def second_order(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Forward over reverse against finite differences of the first derivative; reverse over reverse agrees with it."""
    if subject.order < 2:
        raise NotApplicable("order=1 was asked for", "Pass order=2.")
    view = smooth(subject, inputs)
    at, rng = view.at(view.active), subject.rng
    w, direction = view.cotangents(rng), view.random(at, rng)
    f = view.function(view.active)

    @jax.jit
    def pullback(*xs: Any) -> Any:
        return jax.vjp(f, *xs)[1](w)

    def second(xs: Any, d: Any) -> Any:
        _, back = jax.vjp(pullback, *xs)
        return jax.jvp(pullback, xs, d)[1], back(d)

    fix = "Emit in the rule what has derivatives itself, or pass order=1 and say so in the docstring."
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
            raise Broken("X10.14", f"reverse over reverse: <d, H u> = {left} and <H d, u> = {right}", fix)
        yield None


def missing_rule(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Without a rule every derivative is refused by name, from inside transforms alike."""
    floating = [i for i, x in enumerate(inputs) if is_float(x)]
    if not floating:
        raise NotApplicable("no input is floating or complex", "Nothing is to be done.")
    if has_own_rule(subject.op):
        raise NotApplicable("the op's class states its rule", "Nothing is to be done.")

    def bare(*xs: Any) -> Any:
        return apply(subject.op, *xs, runtimes=subject.runtimes)

    def looped(*xs: Any) -> Any:
        return jax.lax.cond(True, bare, bare, *xs)

    for name, fn in {"a call": bare, "jit": jax.jit(bare), "checkpoint": jax.checkpoint(bare), "cond": looped}.items():
        try:
            jax.eval_shape(lambda *xs, fn=fn: jax.vjp(fn, *xs)[0], *inputs)
        except ADRuleError as error:
            if error.family_id == subject.op.family_id:
                yield
                continue
        raise Broken("X10.2", f"inside {name} a derivative without a rule was not refused by name", "Leave the primitive to the library.")
