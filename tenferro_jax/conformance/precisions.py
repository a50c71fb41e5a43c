"""L3: rules in each precision of the op, compared with the same rules in double precision, which
are compared with finite differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..shapes import is_inexact
from .examples import Array, Inputs, cast, first_wrong
from .smooth import Smooth, in_each_dtype, smooth
from .subject import Broken, NotApplicable, Subject, breaking

NEARBY = 8
"""Number of points near the example at which derivatives are computed, to see how much rounding may
change them.
"""


def precisions(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Compares jvp and vjp in float32, complex64, bfloat16 and float16 with float64; of a function
    the values too.

    They may differ by the rounding of the narrower dtype, and by the change of the derivative near
    the example: if rounding makes a tie, either side of a kink is correct.
    """
    modes = [reverse for reverse in (False, True) if _has(subject, inputs, reverse)]
    (_, view), *narrower = in_each_dtype(subject, inputs, reverse=True in modes)
    if not narrower:
        raise NotApplicable("it takes one precision")
    program = jax.jit(functools.partial(_derivatives, view, modes))
    grown = [1.0, 1.0, 1.0]
    for dtype, narrow in narrower:
        try:
            yield from _compared(view, narrow, program, grown)
        except Broken as broken:
            if not (reason := subject.limit(broken)):
                if subject.keyed:
                    text = f"from a random key JAX draws other numbers in {dtype}"
                    raise NotApplicable(text, "Pass the random numbers as an argument.") from broken
                raise
            yield f"not in {dtype}: {reason}"


def _has(subject: Subject, inputs: Inputs, reverse: bool) -> bool:
    try:
        smooth(subject, inputs, reverse=reverse)
    except NotApplicable:
        return False
    return True


def _derivatives(
    view: Smooth,
    modes: Sequence[bool],
    full: Inputs,
    v: Sequence[Array],
    w: Sequence[Array],
) -> tuple[Any, Any, Any]:
    """The outputs, the tangents along v, if there is forward mode, and in reverse the cotangents
    for w.
    """
    at = tuple(full[i] for i in view.active)
    if modes == [True]:
        outs, pull = jax.vjp(view.function(view.active, full), *at)
        return outs, (), pull(w)
    outs, push = jax.linearize(view.function(view.active, full), *at)
    return outs, push(*v), jax.linear_transpose(push, *at)(w) if True in modes else ()


def _compared(
    wide: Smooth, narrow: Smooth, program: Callable[..., Any], grown: list[float]
) -> Iterator[None]:
    """One case for each value and derivative; `grown` is by how much the first of the dtypes, which
    is float32, was seen to enlarge rounding, and the others may do that too.
    """
    rng = wide.subject.rng
    at = cast(narrow.inputs, "float64")
    if wide.subject.refuses(narrow.inputs) or wide.subject.refuses(at):
        return
    least = min(
        (x.dtype for x in narrow.inputs if is_inexact(x)),
        key=lambda dtype: float(jnp.finfo(dtype).bits),
    )
    info = jnp.finfo(least)
    v, w = narrow.random(narrow.at(narrow.active), rng), narrow.cotangents(rng)
    with breaking("X10.6", f"derivatives in {least}", f"Correct the rule in {least}."):
        got = jax.block_until_ready(program(narrow.inputs, v, w))
    directions = [
        tuple(d.astype(like.dtype) for d, like in zip(ds, likes, strict=True))
        for ds, likes in ((v, wide.at(wide.active)), (w, wide.cotangents(rng)))
    ]
    want = program(at, *directions)
    if any(
        not np.array_equal(_finite(a), _finite(b)) for a, b in zip(got[0], want[0], strict=True)
    ):
        return
    size = 4 * float(info.eps)
    points = [
        tuple(
            (x * (1 + size * rng.uniform(-1, 1, x.shape))).astype(x.dtype) if is_inexact(x) else x
            for x in at
        )
        for _ in range(NEARBY)
    ]
    near = [
        program(point, *directions) for point in (at, *points) if not wide.subject.refuses(point)
    ]
    eps = max(float(info.eps), wide.subject.grain)
    allowed = max(eps**0.75, 8 * eps, wide.subject.tolerance or 0.0)
    active = wide.active
    terms: list[list[float]] = [
        [0.0] * len(want[0]),
        wide.forward_terms(active, v),
        wide.reverse_terms(active, w),
    ]
    limits = [max(allowed, 4 * growth * eps) for growth in grown]
    if least == np.float32:
        grown[:] = [_growth(*each) / eps for each in zip(got, want, terms, strict=True)]
    for k, (clause, kind, rule) in enumerate(
        (
            ("", "value", "the function"),
            ("X10.6", "jvp", "linearize"),
            ("X10.7", "vjp", "transpose_rule, or what linearize emits,"),
        )
    ):
        if not k and not wide.subject.values_in_each_precision:
            continue
        for j, (g, wanted) in enumerate(zip(got[k], want[k], strict=True)):
            around = [n[k][j] for n in near]
            rest = 4 * eps * terms[k][j]
            off = _difference(np.asarray(g), np.asarray(wanted), around, limits[k], rest, info)
            if off:
                raise Broken(
                    clause, f"{kind} in {least}, entry {j}: {off}", f"Correct {rule} in {least}."
                )
            yield


def _growth(got: Sequence[Array], want: Sequence[Array], terms: Sequence[float]) -> float:
    """The largest difference, in units of the largest entry, or of its terms."""
    found = [1e-9]
    for g, w, size in zip(map(np.asarray, got), map(np.asarray, want), terms, strict=False):
        scale = np.max(abs(w), initial=size)
        if scale and np.isfinite(scale) and np.isfinite(g).all():
            found.append(float(np.max(abs(g.astype(w.dtype) - w)) / scale))
    return max(found)


def _finite(x: Array) -> np.ndarray:
    return np.isfinite(np.asarray(x).astype(np.complex128))


def _difference(
    got: np.ndarray,
    want: np.ndarray,
    near: Sequence[Array],
    allowed: float,
    rest: float,
    info: jnp.finfo,
) -> str:
    with np.errstate(all="ignore"):
        spread = np.max([abs(np.asarray(n) - want) for n in near], axis=0)
        size: Any = abs(want)
        judged = np.isfinite(size) & np.isfinite(spread) & (size < float(info.max) / 16)
        scale = np.max(size, where=judged, initial=0.0)
        difference = abs(got.astype(want.dtype) - want)
        floor = max(allowed * scale, rest) + float(info.tiny)
        wrong = judged & ~(difference <= floor + allowed * size + 2 * spread)
    return first_wrong(wrong, got, want, "float64 gives {}")
