"""Tests of the laws of a semiring on values, for authors of semirings."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.shapes import as_array

from .semiring import SelectiveSemiring, Semiring, as_semiring, wellformed, whole_plus, whole_times


def broken_laws(semiring: Semiring | str, values: ArrayLike) -> dict[str, tuple[Any, ...]]:
    """Test the laws that einsum relies on with every triple of some values. Among them: matmul, if
    it is written, is plus of times.

    Args:
      semiring: a semiring or its name; for a selective one also the laws of `better`.
      values: a one-dimensional array of entries without NaN, of components (components, n); times
        of three of them should be exact.

    Returns:
      For each broken law the first values that break it; empty if all laws hold.

    Raises:
      InvalidConfig: an unknown semiring, or other values.

    Cost: time O(len(values)**3).

    Example:
      >>> import numpy as np
      >>> from ext_tropical import max_mul
      >>> from ext_tropical.algebra.laws import broken_laws
      >>> broken_laws(max_mul, np.array([0.0, 1.0, 2.0], np.float32))
      {}
      >>> entries = np.array([-1.0, 1.0, 2.0], np.float32)
      >>> broken_laws(max_mul, entries)["times distributes over plus"]
      (-1.0, -1.0, 1.0)
    """
    semiring = wellformed(semiring) if isinstance(semiring, Semiring) else as_semiring(semiring)
    values = np.asarray(as_array(values, "broken_laws, values"))
    has_nan = bool((values != values).any())
    whole = (semiring.components,) if semiring.components else ()
    fits = values.ndim and values.shape[:-1] == whole and values.dtype.name in semiring.dtypes
    if not fits or has_nan:
        raise InvalidConfig(
            where="broken_laws, values",
            given=f"{values.dtype.name}{list(values.shape)}" + (" with NaN" if has_nan else ""),
            needed=f"shape {(*whole, 'n')}, no NaN, of dtype {', '.join(semiring.dtypes)}",
            fix="Pass a few typical entries; for floats NaN is always tested.",
        )
    found: dict[str, tuple[Any, ...]] = {}
    for count, laws in (
        (1, _one(semiring, values.dtype)),
        (2, _two(semiring)),
        (3, _three(semiring)),
    ):
        number = np.indices((values.shape[-1],) * count).reshape(count, -1)
        grids = [values[..., i] for i in number]
        for name, law in laws.items():
            with np.errstate(all="ignore"):
                holds = np.broadcast_to(law(*grids), grids[0].shape)
            broken = np.flatnonzero(~(holds.all(0) if whole else holds))
            if len(broken):
                found[name] = tuple(_plain(grid[..., broken[0]]) for grid in grids)
    return found


def _plain(entry: np.ndarray) -> Any:
    return tuple(entry.tolist()) if entry.ndim else entry.item()


_Laws = dict[str, Callable[..., Any]]


def _methods(s: Semiring) -> list[Callable[..., Any]]:
    """times and plus of arrays of entries."""
    return [functools.partial(method, s) for method in (whole_times, whole_plus)]


def _one(s: Semiring, dtype: np.dtype) -> _Laws:
    times, plus = _methods(s)
    entry = (s.components,) if s.components else ()

    def like(x: np.ndarray, name: str) -> np.ndarray:
        value = np.ravel(np.asarray(getattr(s, name)(dtype), dtype))
        return np.broadcast_to(value[:, None] if entry else value[:1], x.shape)

    laws: _Laws = {
        "one is neutral for times": lambda x: times(x, like(x, "one")) == x,
        "zero is neutral for plus": lambda x: plus(x, like(x, "zero")) == x,
        "zero absorbs": lambda x: times(x, like(x, "zero")) == like(x, "zero"),
        "times keeps dtype and shape": lambda x: (
            (times(x, x).dtype, times(x, x).shape) == (dtype, x.shape)
        ),
        "zero and one are entries": lambda x: (
            np.shape(s.zero(dtype)) == np.shape(s.one(dtype)) == entry
        ),
    }
    if jnp.issubdtype(dtype, jnp.floating) and not entry:
        nan: Any = np.full(1, np.nan, dtype)
        laws["times keeps NaN"] = lambda x: (
            np.isnan(times(nan, x[:1])) & np.isnan(times(x[:1], nan))
        )
    if isinstance(s, SelectiveSemiring):
        laws["nothing loses to the identity"] = lambda x: (
            ~np.asarray(s.better(np.full_like(x, np.asarray(s.identity(dtype), dtype)), x))
        )
    return laws


def _two(s: Semiring) -> _Laws:
    times, plus = _methods(s)
    laws: _Laws = {
        "times commutes": lambda x, y: times(x, y) == times(y, x),
        "plus commutes": lambda x, y: plus(x, y) == plus(y, x),
    }
    if isinstance(s, SelectiveSemiring):
        laws["one of two different values is better, of equal ones none"] = lambda x, y: (
            np.sum([s.better(x, y), s.better(y, x), x == y], 0) == 1
        )
        if s.reduction or type(s).best is not SelectiveSemiring.best:
            laws["best is plus of both"] = lambda x, y: s.best(jnp.stack([x, y]), 0) == s.plus(x, y)
    return laws


def _three(s: Semiring) -> _Laws:
    times, plus = _methods(s)
    laws: _Laws = {
        "times associates": lambda x, y, z: times(times(x, y), z) == times(x, times(y, z)),
        "plus associates": lambda x, y, z: plus(plus(x, y), z) == plus(x, plus(y, z)),
        "times distributes over plus": lambda x, y, z: (
            times(x, plus(y, z)) == plus(times(x, y), times(x, z))
        ),
    }
    if type(s).matmul is not Semiring.matmul:
        laws["matmul is plus of times"] = functools.partial(_same_matmul, s)
    return laws


def _same_matmul(s: Semiring, x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
    """Whether matmul of (x, y) and (z, x), for each triple, is plus of both products."""
    times, plus = _methods(s)
    left, right = np.stack([x, y], -1)[..., None, :], np.stack([z, x], -1)[..., None]
    parts = (tuple(left), tuple(right)) if s.components else (left, right)
    found: Any = s.matmul(*parts)
    if found is None:  # not for these sizes
        return np.True_
    found = np.stack(found) if s.components else np.asarray(found)
    return found[..., 0, 0] == plus(times(x, z), times(y, x))
