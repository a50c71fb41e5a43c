"""What the methods of a semiring must return, tried once on tiny arrays, so that a mistake is told in words and not by XLA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def problem_of(semiring: Any, known: Sequence[str], *, is_selective: bool) -> str:
    """The first thing about the class of a semiring that is not as it must be, or ""; `known` are names of dtypes."""
    dtypes = semiring.dtypes
    if not isinstance(dtypes, tuple) or not dtypes or not all(name in known for name in dtypes):
        return f"dtypes is {dtypes!r}, where a tuple of names of {', '.join(known)} is needed"
    dtype = jnp.dtype(next((name for name in ("float32", "int32", "bool") if name in dtypes), dtypes[0]))
    for name, returned, shape, kind in _tried(semiring, dtype, is_selective):
        try:
            out = returned()
            have = (np.shape(out), jnp.dtype(getattr(out, "dtype", type(out))))
        except Exception as error:  # whatever the author's code raises
            return f"{name} raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if have != (shape, kind):
            return f"{name} returns {have[1].name}{list(have[0])}, where {kind.name}{list(shape)} is needed"
    return ""


def _tried(semiring: Any, dtype: Any, is_selective: bool) -> Iterator[tuple[str, Any, tuple[int, ...], Any]]:
    """(method, what calls it, shape, dtype) of what it must return."""
    x, table = jax.ShapeDtypeStruct((2,), dtype), jax.ShapeDtypeStruct((2, 3), dtype)
    for name in ("zero", "one", "identity"):
        yield f"{name}({dtype.name})", lambda name=name: np.asarray(getattr(semiring, name)(dtype)), (), dtype
    yield "times", lambda: jax.eval_shape(semiring.times, x, x), (2,), dtype
    yield "plus", lambda: jax.eval_shape(semiring.plus, x, x), (2,), dtype
    if is_selective:
        truth = np.dtype(bool)
        yield "better", lambda: jax.eval_shape(semiring.better, x, x), (2,), truth
        yield "best", lambda: jax.eval_shape(lambda t: semiring.best(t, 1), table), (2,), dtype
        if jnp.issubdtype(dtype, jnp.floating):
            yield "may_make_nan", lambda: jax.eval_shape(semiring.may_make_nan, x, x), (), truth
