"""Tests of the laws of a semiring on values, for authors of semirings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig, typed_call
from tenferro_jax.shapes import as_array

from .registered import as_semiring, wellformed
from .semiring import SelectiveSemiring, Semiring


@typed_call
def broken_laws(semiring: Semiring | str, values: ArrayLike) -> dict[str, tuple[Any, ...]]:
    """Test the laws that einsum relies on with every triple of some values. Among them: matmul, if
    it is written, is plus of times.

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
      >>> from ext_tropical import max_mul
      >>> from ext_tropical import broken_laws
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
            needed=f"shape (n,), no NaN, of dtype {', '.join(semiring.dtypes)}",
            fix="Pass a few typical entries; for floats NaN is always tested.",
        )
    found: dict[str, tuple[Any, ...]] = {}
    for count, laws in enumerate(_laws(semiring, values.dtype), 1):
        grids = [values[i] for i in np.indices((len(values),) * count).reshape(count, -1)]
        for name, law in laws.items():
            with np.errstate(all="ignore"):
                holds = np.broadcast_to(law(*grids), grids[0].shape)
            broken = np.flatnonzero(~holds)
            if len(broken):
                found[name] = tuple(grid[broken[0]].item() for grid in grids)
    return found


def _laws(s: Any, dtype: np.dtype) -> Sequence[dict[str, Callable[..., Any]]]:
    """The laws of one value, of two and of three."""

    def like(x: np.ndarray, name: str) -> np.ndarray:
        return np.full_like(x, np.asarray(getattr(s, name)(dtype), dtype))

    one: dict[str, Callable[..., Any]] = {
        "one is neutral for times": lambda x: s.times(x, like(x, "one")) == x,
        "zero is neutral for plus": lambda x: s.plus(x, like(x, "zero")) == x,
        "zero absorbs": lambda x: s.times(x, like(x, "zero")) == like(x, "zero"),
    }
    two: dict[str, Callable[..., Any]] = {
        "times commutes": lambda x, y: s.times(x, y) == s.times(y, x),
        "plus commutes": lambda x, y: s.plus(x, y) == s.plus(y, x),
    }
    three: dict[str, Callable[..., Any]] = {
        "times associates": lambda x, y, z: s.times(s.times(x, y), z) == s.times(x, s.times(y, z)),
        "plus associates": lambda x, y, z: s.plus(s.plus(x, y), z) == s.plus(x, s.plus(y, z)),
        "times distributes over plus": lambda x, y, z: (
            s.times(x, s.plus(y, z)) == s.plus(s.times(x, y), s.times(x, z))
        ),
    }
    if jnp.issubdtype(dtype, jnp.floating):
        nan: Any = np.full(1, np.nan, dtype)
        one["times keeps NaN"] = lambda x: (
            np.isnan(s.times(nan, x[:1])) & np.isnan(s.times(x[:1], nan))
        )
    if hasattr(s, "better"):
        one["nothing loses to the identity"] = lambda x: (
            ~np.asarray(s.better(like(x, "identity"), x))
        )
        two["one of two different values is better, of equal ones none"] = lambda x, y: (
            np.sum([s.better(x, y), s.better(y, x), x == y], 0) == 1
        )
        if s.reduction or type(s).best is not SelectiveSemiring.best:
            two["best is plus of both"] = lambda x, y: s.best(jnp.stack([x, y]), 0) == s.plus(x, y)

    def is_sum_of_products(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
        """Of (x, y) and (z, x), for each triple."""
        found = s.matmul(np.stack([x, y], -1)[..., None, :], np.stack([z, x], -1)[..., None])
        if found is None:  # not for these sizes
            return np.True_
        return np.asarray(found)[..., 0, 0] == s.plus(s.times(x, z), s.times(y, x))

    if type(s).matmul is not Semiring.matmul:
        three["matmul is plus of times"] = is_sum_of_products
    return one, two, three
