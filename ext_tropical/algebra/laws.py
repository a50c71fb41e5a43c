"""Tests of the laws of a semiring on values, for authors of semirings."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.shapes import as_array

from .semiring import SelectiveSemiring, Semiring, as_semiring, wellformed


def broken_laws(semiring: Semiring | str, values: ArrayLike) -> dict[str, tuple[Any, ...]]:
    """Test the laws that einsum relies on with every triple of some values.

    Args:
      semiring: a semiring or its name; for a selective one also the laws of `better`.
      values: a one-dimensional array of entries without NaN; times of three of them should be
        exact.

    Returns:
      For each broken law the first values that break it; empty if all laws hold.

    Raises:
      InvalidConfig: an unknown semiring, or other values.

    Cost: time O(len(values)**3).

    Example:
      >>> import numpy as np
      >>> from ext_tropical import broken_laws, max_mul
      >>> broken_laws(max_mul, np.array([0.0, 1.0, 2.0], np.float32))
      {}
      >>> entries = np.array([-1.0, 1.0, 2.0], np.float32)
      >>> broken_laws(max_mul, entries)["times distributes over plus"]
      (-1.0, -1.0, 1.0)
    """
    semiring = wellformed(semiring) if isinstance(semiring, Semiring) else as_semiring(semiring)
    values = np.asarray(as_array(values, "broken_laws, values"))
    has_nan = bool((values != values).any())
    if values.ndim != 1 or values.dtype.name not in semiring.dtypes or has_nan:
        raise InvalidConfig(
            where="broken_laws, values",
            given=f"{values.dtype.name}{list(values.shape)}" + (" with NaN" if has_nan else ""),
            needed=f"one dimension, no NaN, of dtype {', '.join(semiring.dtypes)}",
            fix="Pass a few typical entries; for floats NaN is always tested.",
        )
    found: dict[str, tuple[Any, ...]] = {}
    for count, laws in (
        (1, _one(semiring, values.dtype)),
        (2, _two(semiring)),
        (3, _three(semiring)),
    ):
        grids = [grid.ravel() for grid in np.meshgrid(*[values] * count, indexing="ij")]
        for name, law in laws:
            with np.errstate(all="ignore"):
                broken = np.flatnonzero(~np.broadcast_to(law(*grids), grids[0].shape))
            if len(broken):
                found[name] = tuple(grid[broken[0]].item() for grid in grids)
    return found


_Laws = Iterator[tuple[str, Callable[..., Any]]]


def _one(s: Semiring, dtype: np.dtype) -> _Laws:
    zero, one = (np.asarray(x, dtype).ravel()[0] for x in (s.zero(dtype), s.one(dtype)))
    yield "one is neutral for times", lambda x: s.times(x, np.full_like(x, one)) == x
    yield "zero is neutral for plus", lambda x: s.plus(x, np.full_like(x, zero)) == x
    yield "zero absorbs", lambda x: s.times(x, np.full_like(x, zero)) == zero
    yield (
        "times keeps dtype and shape",
        lambda x: (s.times(x, x).dtype, s.times(x, x).shape) == (dtype, x.shape),
    )
    yield (
        "zero and one are scalars",
        lambda x: np.shape(s.zero(dtype)) == np.shape(s.one(dtype)) == (),
    )
    if jnp.issubdtype(dtype, jnp.floating):
        nan: Any = np.full(1, np.nan, dtype)
        yield (
            "times keeps NaN",
            lambda x: np.isnan(s.times(nan, x[:1])) & np.isnan(s.times(x[:1], nan)),
        )
    if isinstance(s, SelectiveSemiring):
        identity = np.asarray(s.identity(dtype), dtype)
        yield (
            "nothing loses to the identity",
            lambda x: ~np.asarray(s.better(np.full_like(x, identity), x)),
        )


def _two(s: Semiring) -> _Laws:
    yield "times commutes", lambda x, y: s.times(x, y) == s.times(y, x)
    yield "plus commutes", lambda x, y: s.plus(x, y) == s.plus(y, x)
    if isinstance(s, SelectiveSemiring):

        def one_of_three(x: Any, y: Any) -> Any:
            cases = (s.better(x, y), s.better(y, x), x == y)
            counts: Any = (np.asarray(case).astype(int) for case in cases)
            return sum(counts) == 1

        yield "one of two different values is better, of equal ones none", one_of_three


def _three(s: Semiring) -> _Laws:
    times, plus = s.times, s.plus
    yield "times associates", lambda x, y, z: times(times(x, y), z) == times(x, times(y, z))
    yield "plus associates", lambda x, y, z: plus(plus(x, y), z) == plus(x, plus(y, z))
    yield (
        "times distributes over plus",
        lambda x, y, z: times(x, plus(y, z)) == plus(times(x, y), times(x, z)),
    )
