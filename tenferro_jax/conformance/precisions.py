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
    """Compares jvp and vjp in float32, complex64, bfloat16 and float16 with float64.

    They may differ by the rounding of the narrower dtype, and by the change of the derivative near
    the example: if rounding makes a tie, either side of a kink is correct.
    """
    reverse = True
    try:
        smooth(subject, inputs)
    except NotApplicable:
        reverse = False
    (_, view), *narrower = in_each_dtype(subject, inputs, reverse=reverse)
    if not narrower:
        raise NotApplicable("the op takes one precision")
    program = jax.jit(functools.partial(_derivatives, view, reverse))
    for _, narrow in narrower:
        yield from _compared(view, narrow, program)


def _derivatives(
    view: Smooth,
    reverse: bool,
    full: Inputs,
    v: Sequence[Array],
    w: Sequence[Array],
) -> tuple[Any, Any, Any]:
    """The outputs, the tangents along v and, in reverse, the cotangents for w."""
    at = tuple(full[i] for i in view.active)
    outs, push = jax.linearize(view.function(view.active, full), *at)
    return outs, push(*v), jax.linear_transpose(push, *at)(w) if reverse else ()


def _compared(wide: Smooth, narrow: Smooth, program: Callable[..., Any]) -> Iterator[None]:
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
        values, *got = jax.block_until_ready(program(narrow.inputs, v, w))
    directions = [
        tuple(d.astype(like.dtype) for d, like in zip(ds, likes, strict=True))
        for ds, likes in ((v, wide.at(wide.active)), (w, wide.cotangents(rng)))
    ]
    values_there, *want = program(at, *directions)
    if any(
        not np.array_equal(_finite(a), _finite(b))
        for a, b in zip(values, values_there, strict=True)
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
        program(point, *directions)[1:]
        for point in (at, *points)
        if not wide.subject.refuses(point)
    ]
    allowed = max(float(info.eps) ** 0.75, 16 * float(info.eps), wide.subject.tolerance or 0.0)
    for k, (clause, kind, rule) in enumerate(
        (
            ("X10.6", "jvp", "linearize"),
            ("X10.7", "vjp", "transpose_rule, or what linearize emits,"),
        )
    ):
        for j, (g, wanted) in enumerate(zip(got[k], want[k], strict=True)):
            off = _difference(
                np.asarray(g), np.asarray(wanted), [n[k][j] for n in near], allowed, info
            )
            if off:
                raise Broken(
                    clause, f"{kind} in {least}, entry {j}: {off}", f"Correct {rule} in {least}."
                )
            yield


def _finite(x: Array) -> np.ndarray:
    return np.isfinite(np.asarray(x).astype(np.complex128))


def _difference(
    got: np.ndarray,
    want: np.ndarray,
    near: Sequence[Array],
    allowed: float,
    info: jnp.finfo,
) -> str:
    with np.errstate(all="ignore"):
        spread = np.max([abs(np.asarray(n) - want) for n in near], axis=0)
        size: Any = abs(want)
        judged = np.isfinite(size) & np.isfinite(spread) & (size < float(info.max) / 16)
        scale = np.max(size, where=judged, initial=0.0)
        difference = abs(got.astype(want.dtype) - want)
        wrong = judged & ~(difference <= allowed * (size + scale) + 2 * spread + float(info.tiny))
    return first_wrong(wrong, got, want, "float64 gives {}")
