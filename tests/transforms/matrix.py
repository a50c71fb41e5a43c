"""Transforms times kinds of ops: every pair runs, or its refusal is shown to be real."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tenferro_jax import InvalidConfig, Unsupported
from tenferro_jax.extension import limitations
from tenferro_jax.limitation import Limitation

from ..cases import CASES, KINDS, ids

TRANSFORMS: list[str] = []


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Pairs that cannot exist.

    Attributes:
      limitation: why, and what to do instead.
      error: the class that the user gets.
      message: a part of its text, as a regular expression.
      transforms, kinds: the pairs.
    """

    limitation: Limitation
    error: type[Exception]
    message: str
    transforms: tuple[str, ...]
    kinds: tuple[str, ...] = KINDS


REFUSALS: tuple[Refusal, ...] = ()


def refusal_of(transform: str, kind: str) -> Refusal | None:
    """The refusal of a pair, or None where the pair runs."""
    return next((r for r in REFUSALS if transform in r.transforms and kind in r.kinds), None)


def sweep(transform: str) -> Callable[[Callable[..., None]], Any]:
    """Run a test for every case as a check of the transform; where the pair is refused, the test must end in that error."""
    if transform not in TRANSFORMS:
        TRANSFORMS.append(transform)

    def decorate(check: Callable[..., None]) -> Any:
        @functools.wraps(check)
        def test(case: Any, **arguments: Any) -> None:
            refusal = refusal_of(transform, case.kind)
            if refusal is None:
                check(case, **arguments)
            else:
                with pytest.raises(refusal.error, match=refusal.message):
                    check(case, **arguments)

        return pytest.mark.parametrize("case", CASES, ids=ids(CASES))(test)

    return decorate


def agree(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    """The same number of arrays, the same shapes and dtypes; integers exactly, others within the tolerance."""
    got, want = list(got), list(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        near = 0 if w.dtype.kind == "i" else tolerance
        np.testing.assert_allclose(g, w, rtol=near, atol=near)


def agree_numerically(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Derivatives against finite differences."""
    agree(got, want, tolerance)
