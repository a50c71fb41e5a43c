"""Tests of the laws of a semiring on values, for authors of semirings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

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
    laws_of = Laws(semiring, values.dtype)
    every = laws_of.of_one(), laws_of.of_two(), laws_of.of_three()
    for count, laws in enumerate(every, 1):
        grids = [values[i] for i in np.indices((len(values),) * count).reshape(count, -1)]
        for name, law in laws.items():
            with np.errstate(all="ignore"):
                holds = np.broadcast_to(law(*grids), grids[0].shape)
            broken = np.flatnonzero(~holds)
            if len(broken):
                found[name] = tuple(grid[broken[0]].item() for grid in grids)
    return found


Law = Callable[..., Any]
"""Whether a law holds, for arrays of values."""


class Laws(NamedTuple):
    """The laws of a semiring.

    Attributes:
      semiring: of the laws.
      dtype: of the values.
    """

    semiring: Any
    dtype: np.dtype

    def of_one(self) -> dict[str, Law]:
        """Of one value."""
        s, dtype = self

        def like(x: np.ndarray, name: str) -> np.ndarray:
            return np.full_like(x, np.asarray(getattr(s, name)(dtype), dtype))

        def keeps_nan(x: np.ndarray) -> np.ndarray:
            nan = np.full_like(x[:1], np.nan)
            return np.isnan(s.times(nan, x[:1])) & np.isnan(s.times(x[:1], nan))

        laws: dict[str, Law] = {}
        laws["one is neutral for times"] = lambda x: s.times(x, like(x, "one")) == x
        laws["zero is neutral for plus"] = lambda x: s.plus(x, like(x, "zero")) == x
        laws["zero absorbs"] = lambda x: s.times(x, like(x, "zero")) == like(x, "zero")
        if jnp.issubdtype(dtype, jnp.floating):
            laws["times keeps NaN"] = keeps_nan
        if hasattr(s, "better"):
            identity = "nothing loses to the identity"
            laws[identity] = lambda x: ~np.asarray(s.better(like(x, "identity"), x))
        return laws

    def of_two(self) -> dict[str, Law]:
        """Of two values."""
        s = self.semiring

        def is_one_better(x: np.ndarray, y: np.ndarray) -> np.ndarray:
            return np.sum([s.better(x, y), s.better(y, x), x == y], 0) == 1

        laws: dict[str, Law] = {}
        laws["times commutes"] = lambda x, y: s.times(x, y) == s.times(y, x)
        laws["plus commutes"] = lambda x, y: s.plus(x, y) == s.plus(y, x)
        if hasattr(s, "better"):
            laws["one of two different values is better, of equal ones none"] = is_one_better
            if s.reduction or type(s).best is not SelectiveSemiring.best:
                best = "best is plus of both"
                laws[best] = lambda x, y: s.best(jnp.stack([x, y]), 0) == s.plus(x, y)
        return laws

    def of_three(self) -> dict[str, Law]:
        """Of three values."""
        s = self.semiring

        def times_associates(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
            return s.times(s.times(x, y), z) == s.times(x, s.times(y, z))

        def plus_associates(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
            return s.plus(s.plus(x, y), z) == s.plus(x, s.plus(y, z))

        def distributes(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
            return s.times(x, s.plus(y, z)) == s.plus(s.times(x, y), s.times(x, z))

        def is_sum_of_products(x: np.ndarray, y: np.ndarray, z: np.ndarray) -> Any:
            """Of (x, y) and (z, x), for each triple."""
            row, column = np.stack([x, y], -1)[..., None, :], np.stack([z, x], -1)[..., None]
            found = s.matmul(row, column)
            if found is None:  # not for these sizes
                return np.True_
            return np.asarray(found)[..., 0, 0] == s.plus(s.times(x, z), s.times(y, x))

        laws: dict[str, Law] = {
            "times associates": times_associates,
            "plus associates": plus_associates,
            "times distributes over plus": distributes,
        }
        if type(s).matmul is not Semiring.matmul:
            laws["matmul is plus of times"] = is_sum_of_products
        return laws
