"""L3: the rules in each precision that the op takes, against the same rules in double precision, which finite differences judge."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .differentiation import Mask, Smooth, names, smooth
from .examples import FLOATS, Inputs, cast, is_float
from .subject import Broken, NotApplicable, Subject, breaking

NEARBY = 8
"""Number of points near the example at which derivatives are looked at, to see how much rounding may change them."""


def precisions(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """jvp and vjp in float32, complex64, bfloat16 and float16 against float64.

    They may differ by the rounding of the narrower dtype, and by what the derivative itself changes by near the example:
    where rounding makes a tie, either side of a kink is right.
    """
    found = False
    for reverse in (False, True):
        wide = _or_none(subject, inputs, "float64", reverse) if reverse else smooth(subject, inputs, reverse=False)
        if wide is None:
            yield "reverse mode is declared NOT_DIFFERENTIABLE"
            continue
        masks = [wide.active, *((i,) for i in wide.active if len(wide.active) > 1)]
        program = jax.jit(_program(wide, masks, reverse))
        for dtype in FLOATS[1:]:
            narrow = _or_none(subject, inputs, dtype, reverse)
            same = narrow is not None and (narrow.active, narrow.outputs) == (wide.active, wide.outputs)
            if narrow is not None and same and any(a.dtype != b.dtype for a, b in zip(narrow.inputs, wide.inputs, strict=True)):
                found = True
                yield from _compared(wide, narrow, masks, program, reverse)
    if not found:
        raise NotApplicable("the op takes one precision", "Nothing is to be done.")


def _or_none(subject: Subject, inputs: Inputs, dtype: str, reverse: bool) -> Smooth | None:
    try:
        return smooth(subject, inputs, dtype, reverse=reverse)
    except NotApplicable:
        return None


def _program(view: Smooth, masks: Sequence[Mask], reverse: bool) -> Callable[..., Any]:
    """The outputs, and for each mask the derivatives along a direction."""

    def run(full: Any, directions: Any) -> Any:
        found = []
        for mask, direction in zip(masks, directions, strict=True):
            f, at = view.function(mask, full), tuple(full[i] for i in mask)
            found.append(jax.vjp(f, *at)[1](direction) if reverse else jax.jvp(f, at, tuple(direction))[1])
        return view.function((), full)(), found

    return run


def _compared(wide: Smooth, narrow: Smooth, masks: Sequence[Mask], program: Callable[..., Any], reverse: bool) -> Iterator[None]:
    rng = wide.subject.rng
    least = min((x.dtype for x in narrow.inputs if is_float(x)), key=lambda dtype: jnp.finfo(dtype).bits)
    info = jnp.finfo(least)
    clause, kind = ("X10.7", "vjp") if reverse else ("X10.6", "jvp")
    fix = f"Correct {'transpose_rule or linearize' if reverse else 'linearize'} in {least}."
    directions = [narrow.cotangents(rng) if reverse else narrow.random(narrow.at(mask), rng) for mask in masks]
    like = wide.cotangents(rng)
    widened = [
        tuple(d.astype(w.dtype) for d, w in zip(ds, like if reverse else wide.at(m), strict=True))
        for m, ds in zip(masks, directions, strict=True)
    ]
    with breaking(clause, f"{least} {kind}", fix):
        values, got = jax.block_until_ready(program(narrow.inputs, directions))
    at = cast(narrow.inputs, "float64")
    values_there, want = program(at, widened)
    if _overflows(values, values_there):
        return
    size = 4 * float(info.eps)
    points = [
        tuple((x * (1 + size * rng.uniform(-1, 1, x.shape))).astype(x.dtype) if is_float(x) else x for x in at) for _ in range(NEARBY)
    ]
    near = [program(point, widened)[1] for point in points]
    allowed = max(float(info.eps) ** 0.75, 16 * float(info.eps), wide.subject.tolerance or 0.0)
    for i, mask in enumerate(masks):
        for j, (g, w) in enumerate(zip(got[i], want[i], strict=True)):
            _require_near(
                f"{least} {kind} by {names(mask)}, entry {j}",
                np.asarray(g),
                np.asarray(w),
                [n[i][j] for n in near],
                allowed,
                info,
                clause,
                fix,
            )
            yield


def _overflows(narrow: Any, wide: Any) -> bool:
    return any(not np.array_equal(_finite(a), _finite(b)) for a, b in zip(narrow, wide, strict=True))


def _finite(x: Any) -> np.ndarray:
    return np.isfinite(np.asarray(x).astype(np.complex128))


def _require_near(what: str, got: Any, want: Any, near: Any, allowed: float, info: Any, clause: str, fix: str) -> None:
    with np.errstate(all="ignore"):
        spread = np.max([abs(np.asarray(n) - want) for n in near], axis=0)
        size: Any = abs(want)
        judged = np.isfinite(size) & np.isfinite(spread) & (size < float(info.max) / 16)
        scale = np.max(size, where=judged, initial=0.0)
        difference = abs(got.astype(want.dtype) - want)
        wrong = judged & ~(difference <= allowed * (size + scale) + 2 * spread + float(info.tiny))
    if wrong.any():
        at = tuple(int(i) for i in np.argwhere(wrong)[0])
        place = f" at {list(at)}" if at else ""
        raise Broken(clause, f"{what}: {got[at]!s} where float64 gives {want[at]!s}{place}, {wrong.sum()} of {wrong.size} entries", fix)
