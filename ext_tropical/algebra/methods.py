"""Entries of several components, and whether the methods of a semiring return what is needed."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension.family import parse_family_id

if TYPE_CHECKING:
    from .semiring import Semiring

FLOATS = ("float64", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int64")
OURS = "tenferro-ext-tropical"
"""The package part of the ids of the semirings in this package."""


def times(semiring: Semiring, x: ArrayLike, y: ArrayLike) -> jax.Array:
    """times of arrays whose first axis has the components of an entry, if there are some."""
    return _whole(semiring, semiring.times, x, y)


def plus(semiring: Semiring, x: ArrayLike, y: ArrayLike) -> jax.Array:
    """plus of such arrays."""
    return _whole(semiring, semiring.plus, x, y)


def _whole(semiring: Semiring, method: Callable[..., jax.Array], *arrays: ArrayLike) -> jax.Array:
    if not semiring.components:
        return method(*arrays)
    return jnp.stack(method(*map(tuple, arrays)))  # type: ignore[arg-type]


def filled(value: ArrayLike, shape: tuple[int, ...]) -> jax.Array:
    """An array with the same entry everywhere; its components are on the first axis."""
    entry = np.asarray(value)
    return jnp.full(shape, entry.reshape(entry.shape + (1,) * (len(shape) - entry.ndim)))


def require_methods(semiring: Semiring, dtype: np.dtype | None = None) -> None:
    """Try the methods of a semiring on tiny arrays of a dtype, by default one that it takes.

    Raises:
      InvalidConfig: a method whose result has a wrong type.
    """
    problem = problem_of(semiring, dtype)
    if problem:
        raise InvalidConfig(
            where=f"semiring {semiring.id}",
            given=problem,
            needed="methods as documented in Semiring and SelectiveSemiring",
        )


@functools.lru_cache(maxsize=1024)
def problem_of(semiring: Semiring, dtype: np.dtype | None = None) -> str:
    """The first method of a semiring with a wrong result on tiny arrays of a dtype, by default one
    that it takes, as text; "" if there is none.
    """
    dtypes, known = semiring.dtypes, (*FLOATS, *INTEGERS, "bool")
    if not isinstance(dtypes, tuple) or not dtypes or not all(name in known for name in dtypes):
        return f"dtypes is {dtypes!r}, where a tuple of names of {', '.join(known)} is needed"
    components, selects = semiring.components, hasattr(semiring, "better")
    if type(components) is not int or components < 0 or (components and selects):
        needed = "0" if selects else "an int of at least 0"
        return f"components is {components!r}, where {needed} is needed"
    dtype = _sample_dtype(semiring) if dtype is None else dtype
    for name, returned, shape, kind in _tried(semiring, dtype):
        try:
            out = returned()
            have = (np.shape(out), jnp.dtype(getattr(out, "dtype", type(out))))
        except Exception as error:  # any exception of the author's code
            return f"{name} raises {type(error).__name__}: {' '.join(str(error).split())[:200]}"
        if have != (shape, kind):
            given, needed = f"{have[1].name}{list(have[0])}", f"{kind.name}{list(shape)}"
            return f"{name} returns {given}, where {needed} is needed"
    return ""


def _sample_dtype(semiring: Semiring) -> np.dtype:
    """One of the dtypes, narrow if it can be."""
    dtypes = semiring.dtypes
    return jnp.dtype(
        next((name for name in ("float32", "int32", "bool") if name in dtypes), dtypes[0])
    )


def _tried(semiring: Semiring, dtype: np.dtype) -> Iterator[tuple[str, Any, tuple[int, ...], Any]]:
    """(method, a call of it, shape, dtype) of the required results."""
    x, table = jax.ShapeDtypeStruct((2,), dtype), jax.ShapeDtypeStruct((2, 3), dtype)
    components = semiring.components
    for name in ("zero", "one", "identity"):
        yield (
            f"{name}({dtype.name})",
            lambda name=name: np.asarray(getattr(semiring, name)(dtype)),
            (components,) if components else (),
            dtype,
        )
    for name in ("times", "plus"):
        for i in range(max(components, 1)):
            yield name, lambda name=name, i=i: _part(semiring, name, x, i), (2,), dtype
    if hasattr(semiring, "better"):
        selective: Any = semiring
        truth = np.dtype(bool)
        yield "better", lambda: jax.eval_shape(selective.better, x, x), (2,), truth
        yield "best", lambda: jax.eval_shape(lambda t: selective.best(t, 1), table), (2,), dtype
        if jnp.issubdtype(dtype, jnp.floating):
            yield "may_make_nan", lambda: jax.eval_shape(selective.may_make_nan, x, x), (), truth


def _part(semiring: Semiring, name: str, x: jax.ShapeDtypeStruct, i: int) -> jax.ShapeDtypeStruct:
    """The component of this number of the result of times or plus."""
    method, components = getattr(semiring, name), semiring.components
    if not components:
        return jax.eval_shape(method, x, x)
    out = jax.eval_shape(method, (x,) * components, (x,) * components)
    if not isinstance(out, tuple) or len(out) != components:
        raise TypeError(f"{out!r} is no tuple of {components} arrays")
    return out[i]


def neutral(semiring: Semiring) -> Semiring:
    """The well-formed semiring itself. Its zero and one are tried on zero, one and one plus one.
    Ours are tested, and where plus selects they are needed only if nothing is contracted.

    Raises:
      InvalidConfig: the zero or the one is not neutral, or the zero does not absorb.
    """
    if hasattr(semiring, "better") or parse_family_id(semiring.id).package == OURS:
        return semiring
    if problem := _not_neutral(semiring):
        raise InvalidConfig(
            where=f"semiring {semiring.id}",
            given=problem,
            needed="a zero that is neutral for plus and absorbs, and a one neutral for times",
            fix="broken_laws tests all laws on values of yours.",
        )
    return semiring


@functools.lru_cache(maxsize=1024)
@jax.ensure_compile_time_eval()
def _not_neutral(semiring: Semiring) -> str:
    """What does not hold, as text; or ""."""
    dtype = _sample_dtype(semiring)
    zero, one = (
        np.asarray(x, dtype)[..., None] for x in (semiring.zero(dtype), semiring.one(dtype))
    )
    two = np.asarray(plus(semiring, one, one))
    for x in (zero, one, two):
        for name, out, wanted in (
            ("zero is not neutral for plus: plus(x, zero)", plus(semiring, x, zero), x),
            ("zero does not absorb: times(x, zero)", times(semiring, x, zero), zero),
            ("one is not neutral for times: times(x, one)", times(semiring, x, one), x),
        ):
            if not np.array_equal(out, wanted, equal_nan=True):
                return f"{name} of x = {x[..., 0].tolist()} is {np.asarray(out)[..., 0].tolist()}"
    return ""
