"""Finite differences.

Central differences at h, h/2, h/4 are extrapolated to an error of order h^6, one-sided ones to h^3.
If the one-sided derivatives of both sides differ at every h, there is a kink (or noise) and no
derivative. Otherwise the error is estimated from the differences of the three estimates and the
last step of the extrapolation, and from the rounding of the values; the h with the smallest error
counts. For functions that are smooth on the scale of 1 the error is 1e-9 or better.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from .examples import Array

STEPS = (2.0**-5, 2.0**-8, 2.0**-11, 2.0**-14)
SMOOTH = 1e-5
"""Relative difference of the two one-sided derivatives below which an entry counts as smooth."""

ENOUGH = 1e-8
"""Relative error at which no smaller step is tried."""


class Derivative(NamedTuple):
    """The derivative of one output along a direction.

    Attributes:
      value: the estimate, entry by entry; 0 where there is none.
      error: its estimated error, likewise.
      smooth: where it exists.
    """

    value: np.ndarray
    error: np.ndarray
    smooth: np.ndarray


def directional(
    fn: Callable[..., Sequence[Array]],
    at: Sequence[np.ndarray],
    direction: Sequence[np.ndarray],
    grain: float = 0.0,
    terms: Sequence[float] = (),
) -> list[Derivative]:
    """The derivatives of all outputs of `fn`, floating or complex arrays, along a direction.
    `grain` is the eps of the coarsest arithmetic in it, if that is not the one of the outputs;
    `terms` is the size of the terms of each output, if entries may be zero up to their rounding.

    Example:
      >>> (found,) = directional(lambda x: [abs(x) ** 3 + abs(x[::-1])], [np.array([0.5, 0.0])],
      ...     [np.array([1.0, 1.0])])
      >>> found.value.round(6).tolist(), found.smooth.tolist()
      ([0.0, 1.0], [False, True])
    """

    def values(t: float) -> list[np.ndarray]:
        return [np.asarray(y) for y in fn(*(x + t * v for x, v in zip(at, direction, strict=True)))]

    centre = values(0.0)
    found = [
        Derivative(np.zeros_like(y), np.zeros(y.shape), np.zeros(y.shape, bool)) for y in centre
    ]
    for h in STEPS:
        ends = {t: values(t) for s in (h, h / 2, h / 4) for t in (s, -s)}
        found = [
            _merged(old, _at_step([{t: e[i] for t, e in ends.items()}, y], h, grain, size))
            for i, (old, y, size) in enumerate(
                zip(found, centre, terms or [0.0] * len(centre), strict=True)
            )
        ]
        if all((d.smooth & (d.error <= ENOUGH * abs(d.value))).all() for d in found):
            break
    return [
        Derivative(np.where(d.smooth, d.value, 0), np.where(d.smooth, d.error, 0), d.smooth)
        for d in found
    ]


def _at_step(samples: Sequence[Any], h: float, grain: float, size: float) -> Derivative:
    ends, centre = samples
    with np.errstate(all="ignore"):
        slopes = [(ends[s] - ends[-s]) / (2 * s) for s in (h, h / 2, h / 4)]
        central, before = _extrapolated(slopes, (4, 16)), _extrapolated(slopes[1:], (4,))
        ahead = _extrapolated([(ends[s] - centre) / s for s in (h, h / 2, h / 4)], (2, 4))
        behind = _extrapolated([(centre - ends[-s]) / s for s in (h, h / 2, h / 4)], (2, 4))
        eps = max(grain, float(jnp.finfo(centre.dtype).eps))
        noise = 64 * eps * np.maximum(np.maximum(abs(ends[h]), abs(ends[-h])), size) / h
        gap = abs(ahead - behind)
        smooth = gap <= SMOOTH * abs(central) + 4 * noise
        error = np.maximum.reduce(
            [noise, abs(central - before), abs(central - ahead), abs(central - behind)]
        )
    smooth &= np.isfinite(central) & np.isfinite(gap)
    return Derivative(central, error, smooth)


def _extrapolated(estimates: Sequence[np.ndarray], factors: Sequence[int]) -> np.ndarray:
    """Richardson: the error of the k-th column falls by factors[k] whenever the step is halved."""
    row = list(estimates)
    for factor in factors:
        row = [(factor * fine - coarse) / (factor - 1) for coarse, fine in itertools.pairwise(row)]
    return row[0]


def _merged(old: Derivative, new: Derivative) -> Derivative:
    """For each entry the step with the smaller error, among the steps at which it is smooth."""
    keep = old.smooth & ~(new.smooth & (new.error < old.error))
    value, error = (
        np.where(keep, a, b) for a, b in ((old.value, new.value), (old.error, new.error))
    )
    return Derivative(value, error, old.smooth | new.smooth)
