"""L3: derivatives agree with finite differences, are linear, and have the adjoint that they claim."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import ADRuleError, NotDifferentiableError, TenferroError
from ..extension import ExtensionAdRule, apply
from .differentiation import Mask, Smooth, names, smooth
from .examples import FLOATS, Inputs, is_float
from .finite_difference import Derivative, directional
from .subject import Broken, Claim, NotApplicable, Subject, as_broken, breaking

WITHIN = 5e-5
"""Relative difference from the finite difference that a derivative may have; a rule off by a twentieth of a percent is found."""

LINEARIZE = "Correct linearize."
TRANSPOSE = "Correct transpose_rule, or what linearize emits."


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
    """Along random directions, against finite differences of the values."""
    view = smooth(subject, inputs, reverse=False)
    rng = subject.rng
    masks = list(view.masks())
    fns = [view.function(mask) for mask in masks]
    directions = [view.random(view.at(mask), rng) for mask in masks]
    with breaking("X10.6", "jvp", LINEARIZE):
        tangents = jax.jit(lambda ds: [jax.jvp(f, view.at(m), d)[1] for f, m, d in zip(fns, masks, ds, strict=True)])(directions)
    for mask, direction, got in zip(masks, directions, tangents, strict=True):
        want = directional(_values(view, mask), view.at(mask), direction)
        for note in _agree(f"jvp by {names(mask)}", got, want, "X10.6", LINEARIZE):
            yield note or view.undeclared or None


def _values(view: Smooth, mask: Mask) -> Callable[..., list[np.ndarray]]:
    def run(*moving: Any) -> list[np.ndarray]:
        full = list(view.inputs)
        for i, x in zip(mask, moving, strict=True):
            full[i] = x
        answer = view.subject.oracle or view.subject.call
        outs = answer(*full)
        return [np.asarray(outs[i]) for i in view.outputs]

    return run


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


def adjoint(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """<w, J v> = <J' w, v> for every subset of inputs, and for each output alone, the others without cotangent."""
    view = smooth(subject, inputs)
    rng = subject.rng
    all_outputs = tuple(range(len(view.outputs)))
    choices = [all_outputs, *((i,) for i in all_outputs)] if len(all_outputs) > 1 else [all_outputs]
    cases: list[Any] = []
    runs: list[Any] = []
    for mask in view.masks():
        v, w = view.random(view.at(mask), rng), view.cotangents(rng)
        for chosen in choices:
            f = view.function(mask)
            cases.append((f"by {names(mask)}, output {', '.join(map(str, chosen))}", v, [w[i] for i in chosen]))
            runs.append((lambda *xs, f=f, chosen=chosen: [f(*xs)[i] for i in chosen], view.at(mask)))

    def both(all_v: Any, all_w: Any) -> Any:
        return [(jax.jvp(f, at, v)[1], jax.vjp(f, *at)[1](w)) for (f, at), v, w in zip(runs, all_v, all_w, strict=True)]

    with breaking("X10.7", "vjp", TRANSPOSE):
        found = jax.jit(both)([c[1] for c in cases], [c[2] for c in cases])
    for (what, v, w), (jv, jtw) in zip(cases, found, strict=True):
        left, right = _inner(w, jv), _inner(jtw, v)
        size = max(_inner(map(abs, w), map(abs, map(np.asarray, jv))), _inner(map(abs, map(np.asarray, jtw)), map(abs, v)))
        if not abs(left - right) <= 1e-9 * size:
            raise Broken("X10.7", f"{what}: <w, J v> = {left} and <J' w, v> = {right}", TRANSPOSE)
        yield


def _inner(a: Any, b: Any) -> float:
    """Sum of products over all arrays: JAX's pairing, without conjugates. Of complex numbers the real part: a derivative of abs(z)**2
    is linear over the reals alone."""
    return float(sum(np.sum(np.asarray(x) * np.asarray(y)).real for x, y in zip(a, b, strict=True)))


def linear_transpose(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """jax.linear_transpose with respect to each input that the op is linear in."""
    rule = subject.rules.lookup_rule(subject.op.family_id)
    if rule is None or type(rule).transpose_rule is ExtensionAdRule.transpose_rule:
        raise NotApplicable("no transpose_rule was given", "Override it where the op is linear.")
    view = smooth(subject, inputs)
    rng = subject.rng
    found = False
    for i in view.active:
        f, (x,) = view.function((i,)), view.at((i,))
        values = _values(view, (i,))
        y, doubled, nothing = (values(z) for z in (x, 2 * x, np.zeros_like(x)))
        if subject.difference(doubled, [2 * a for a in y]) or any(a.any() for a in nothing):
            continue
        found = True
        weights = view.random(y, rng)
        what = f"transpose by input {i}"
        with breaking("X10.11", what, TRANSPOSE):
            (back,) = jax.linear_transpose(f, x)(weights)
        left, right = _inner(weights, y), _inner([back], [x])
        if not abs(left - right) <= 1e-9 * _inner(map(abs, weights), map(abs, y)):
            raise Broken("X10.11", f"{what}: <w, A x> = {left} and <A' w, x> = {right}", TRANSPOSE)
        yield
    if not found:
        raise NotApplicable("the op is linear in no input", "Nothing is to be done.")


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
    want = directional(pullback, at, direction)
    for note in _agree("second derivative", forward, want, "X10.14", fix):
        yield note or None
    if all(not np.iscomplexobj(x) for x in at):
        subject.require_equal(
            "reverse over reverse, <d, H u> against <H d, u>", [_inner(reverse, direction)], [_inner(forward, direction)], "X10.14", fix
        )
        yield None


def missing_rule(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """Without a rule every derivative is refused by name, from inside transforms alike."""
    floating = [i for i, x in enumerate(inputs) if is_float(x)]
    if not floating:
        raise NotApplicable("no input is floating or complex", "Nothing is to be done.")

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
