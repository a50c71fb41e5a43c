"""L3: rules in each precision of the op, compared with the same rules in double precision, which
are compared with finite differences.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..shapes import is_inexact
from .examples import Array, Inputs, cast, first_wrong, largest, listed
from .finite_differences import Smooth, in_each_dtype, smooth
from .functions import Subject, in_terms_of
from .numpy_arrays import all_wide
from .report import Broken, NotApplicable, breaking, causes, one_line, unsupported

NEARBY = 8
"""Number of points near the example at which derivatives are computed, to see how much rounding may
change them.
"""


def precisions(subject: Subject, inputs: Inputs) -> Iterator[str | None]:
    """Compares jvp and vjp in float32, complex64, bfloat16 and float16 with float64; of a function
    the values too.

    They may differ by the rounding of the narrower dtype, which is measured in float32, and by the
    change of the derivative near the example: if rounding makes a tie, either side of a kink is
    correct.
    """
    modes = []
    for reverse in (False, True):
        with contextlib.suppress(NotApplicable):
            smooth(subject, inputs, reverse=reverse)
            modes.append(reverse)
    (_, wide), *narrower = in_each_dtype(subject, inputs, reverse=True in modes)
    lost = [y for y in subject.metas(wide.inputs) or () if not all_wide([y])]
    if lost and subject.given_wide:
        fix = "Return the dtype of the arguments, without astype and dtype=."
        raise Broken("X10.6", f"the result for float64 arguments: {listed(lost)}", fix)
    if subject.wide == "float64" and subject.grain > np.finfo(np.float64).eps:
        yield "float32 arithmetic inside, for float64 arguments"
    if not narrower:
        raise NotApplicable("it takes one precision")
    single = None
    for dtype, view in narrower:
        narrow = view._replace(active=wide.active)
        try:
            yield from _compared(wide, narrow, single, modes)
        except Broken as broken:
            lacking = (one_line(e) for e in causes(broken) if unsupported(e))
            reason = subject.limit(broken) or next(lacking, "")
            if not reason:
                if subject.keyed:
                    text = f"from a random key JAX draws other numbers in {dtype}"
                    raise NotApplicable(text, "Pass the random numbers as an argument.") from broken
                raise
            yield f"not in {dtype}: {reason}"
        else:
            single = narrow if dtype == "float32" else single


def _run(view: Smooth, modes: Sequence[bool], *given: Sequence[Array], whole: bool) -> Any:
    """The outputs for inputs, the tangents for tangents, if there is forward mode, and in reverse
    the cotangents for cotangents; all in the dtypes of this view. `whole`: by a program for all
    inputs and outputs alone, and not by those that the other checks have compiled.
    """
    likes = view.inputs, view.at(view.active), view.cotangents(view.subject.rng)
    point, v, w = (
        tuple(np.asarray(x).astype(like.dtype) for x, like in zip(xs, arrays, strict=True))
        for xs, arrays in zip(given, likes, strict=True)
    )
    there = view._replace(inputs=point)
    found: dict[bool, Any] = {
        mode: there.derivatives((v, w)[mode], reverse=mode, whole=whole)[0] for mode in modes
    }
    outs = found[modes[0]][2]
    return outs, *(found[mode][3] if mode in found else () for mode in (False, True))


def _compared(
    wide: Smooth, narrow: Smooth, single: Smooth | None, modes: Sequence[bool]
) -> Iterator[None]:
    """One case for each value and derivative. The rounding is measured in `single`, where the
    program was found to be right, or else it is that of the largest terms.
    """
    subject, rng, active = wide.subject, wide.subject.rng, wide.active
    at = cast(narrow.inputs, "float64")
    if subject.refuses(narrow.inputs) or subject.refuses(at):
        return
    least = min(
        (x.dtype for x in narrow.inputs if is_inexact(x)),
        key=lambda dtype: float(jnp.finfo(dtype).bits),
    )
    info = jnp.finfo(least)
    v, w = narrow.random(narrow.at(active), rng), narrow.cotangents(rng)
    with breaking("X10.6", f"derivatives in {least}", f"Correct the rule in {least}."):
        got = _run(narrow, modes, narrow.inputs, v, w, whole=True)
    size = 4 * float(info.eps)
    moved = [
        tuple(x * (1 + size * rng.uniform(-1, 1, x.shape)) if is_inexact(x) else x for x in at)
        for _ in range(NEARBY)
    ]
    points = [cast(cast(point, "float32"), "float64") for point in moved]
    points = [at, *(point for point in points if not subject.refuses(point))]
    near = [_run(wide, modes, point, v, w, whole=False) for point in points]
    want = near[0]
    if any(
        not np.array_equal(_finite(a), _finite(b)) for a, b in zip(got[0], want[0], strict=True)
    ):
        return
    eps = max(float(info.eps), subject.grain)
    allowed = max(eps**0.75 if least == np.float32 else 2 * eps, subject.tolerance or 0.0)
    terms = in_terms_of(wide.inputs), wide.terms(v), wide.terms(w)
    roughly = [_run(single, modes, point, v, w, whole=True) for point in points] if single else []
    for k, (clause, kind, rule) in enumerate(
        (
            ("", "value", "the function"),
            ("X10.6", "jvp", "the rule"),
            ("X10.7", "vjp", "the rule or its transpose"),
        )
    ):
        if not k and subject.text:  # the values of an op are those of its routes
            continue
        for j, g in enumerate(got[k]):
            around = [np.asarray(n[k][j]) for n in near]
            rounding = terms[k]
            if single:
                rounding = _rounding([r[k][j] for r in roughly], around)
            off = _difference(np.asarray(g), around, allowed, 4 * eps * rounding, info)
            if off:
                raise Broken(
                    clause, f"{kind} in {least}, entry {j}: {off}", f"Correct {rule} in {least}."
                )
            yield


def _rounding(single: Sequence[Array], wide: Sequence[np.ndarray]) -> float:
    """The largest difference of values in float32 and float64, in units of eps of float32."""
    with np.errstate(all="ignore"):
        off = [np.asarray(s).astype(w.dtype) - w for s, w in zip(single, wide, strict=True)]
    return max(map(largest, off)) / float(jnp.finfo(np.float32).eps)


def _finite(x: Array) -> np.ndarray:
    return np.isfinite(np.asarray(x).astype(np.complex128))


def _difference(
    got: np.ndarray,
    around: Sequence[np.ndarray],
    allowed: float,
    rest: float,
    info: jnp.finfo,
) -> str:
    want = around[0]
    with np.errstate(all="ignore"):
        spread = np.max([abs(near - want) for near in around], axis=0)
        size: Any = abs(want)
        judged = np.isfinite(size) & np.isfinite(spread) & (size < float(info.max) / 16)
        scale = np.max(size, where=judged, initial=0.0)
        difference = abs(got.astype(want.dtype) - want)
        floor = max(allowed * scale, rest) + float(info.tiny)
        wrong = judged & ~(difference <= floor + allowed * size + spread)
    return first_wrong(wrong, got, want, "float64 gives {}")
