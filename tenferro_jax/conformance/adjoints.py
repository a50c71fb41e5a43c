"""L3: the adjoint of linearize, and transpose_rule for each way in which the op is linear."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from ..errors import NotDifferentiableError
from ..extension.rules import is_stated
from .differentiation import Mask, Smooth, at_two_sizes, inner, names, smooth, values_of
from .examples import FLOATS, Inputs, is_float
from .subject import Broken, NotApplicable, Subject, breaking

TRANSPOSE = "Correct transpose_rule, or what linearize emits."


def adjoint(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """<w, J v> = <J' w, v> for every subset of inputs, and for each output alone, the others without cotangent; at other sizes whole."""
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
            cases.append((f"by {names(mask)}, output {', '.join(map(str, chosen))}{place}", v, [w[i] for i in chosen]))
            runs.append((lambda *xs, f=f, chosen=chosen: [f(*xs)[i] for i in chosen], view.at(mask)))

    def both(all_v: Any, all_w: Any) -> Any:
        return [(jax.jvp(f, at, v)[1], jax.vjp(f, *at)[1](w)) for (f, at), v, w in zip(runs, all_v, all_w, strict=True)]

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


def _size(a: Any, b: Any) -> float:
    return inner([abs(np.asarray(x)) for x in a], [abs(np.asarray(y)) for y in b])


def linear_transpose(subject: Subject, inputs: Inputs) -> Iterator[None]:
    """jax.linear_transpose by every subset of inputs that the op is linear in, the others as they are or zero, in every precision."""
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
        if dtype == "float64" or any(a.dtype != b.dtype for a, b in zip(there.inputs, view.inputs, strict=True)):
            yield from _transposes(there, held, dtype)


def _linear(view: Smooth, mask: Mask) -> bool | None:
    """Whether the op is linear in these inputs with the others as they are (False), at least with zeros for the others (True), or not."""
    for zero in (False, True) if len(mask) < len(view.active) else (False,):
        values, x = values_of(view, mask, _others(view, mask, zero)), view.at(mask)
        u = view.random(x, view.subject.rng)
        with np.errstate(all="ignore"):
            at_x, at_u = values(*x), values(*u)
            both = values(*(2 * a - 3 * b for a, b in zip(x, u, strict=True)))
            wanted = [2 * a - 3 * b for a, b in zip(at_x, at_u, strict=True)]
        if zero and not any(np.any(y) for y in at_x):
            continue  # with zeros for the others nothing is left: 0 / a is no linear function of a
        if all(np.isfinite(y).all() for y in both) and not view.subject.difference(both, wanted):
            return zero
    return None


def _others(view: Smooth, mask: Mask, zero: bool) -> Sequence[np.ndarray]:
    return [np.zeros_like(x) if zero and i not in mask and is_float(x) else x for i, x in enumerate(view.inputs)]


def _transposes(view: Smooth, held: Sequence[tuple[Mask, bool]], dtype: str) -> Iterator[None]:
    rng = view.subject.rng
    for mask, zero in held:
        f, x = view.function(mask, _others(view, mask, zero)), view.at(mask)
        y, weights = f(*x), view.cotangents(rng)
        for chosen in _choices(view):
            what = f"{dtype} transpose by {names(mask)}{', the others zero' if zero else ''}, output {', '.join(map(str, chosen))}"
            w = [weights[i] for i in chosen]
            with breaking("X10.11", what, TRANSPOSE):
                try:
                    back = jax.linear_transpose(lambda *xs, f=f, chosen=chosen: [f(*xs)[i] for i in chosen], *x)(w)
                except NotDifferentiableError:
                    continue
            left, right = inner(w, [y[i] for i in chosen]), inner(back, x)
            if not abs(left - right) <= view.rounding() * max(_size(w, [y[i] for i in chosen]), _size(back, x)):
                raise Broken("X10.11", f"{what}: <w, A x> = {left} and <A' w, x> = {right}", TRANSPOSE)
            yield
