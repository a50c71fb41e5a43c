"""Checks of arguments that functions of every room share: one dtype, sizes, shapes, keys, integers;
and how operands are widened.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported
from tenferro_jax.shapes import (
    Shaped,
    as_array,
    as_bool,
    as_index,
    is_key,
    is_traced,
    require_integers,
    shown,
)

from .semirings.registered import is_ours, require_methods
from .semirings.semiring import Semiring


def one_dtype(
    where: str, semiring: Semiring, dtypes: Sequence[Any], given: Sequence[Any] = ()
) -> Any:
    """The dtype of all operands; `given` are the user's arguments, whose dtypes may be wider while
    64-bit types are off.

    Raises:
      DTypeError: they differ, or the semiring does not take it.
      InvalidConfig: a method of an author's semiring returns something else in this dtype.
    """
    if len(set(dtypes)) == 1 and dtypes[0].name in semiring.dtypes:
        if not is_ours(semiring.id):
            require_methods(semiring, work_dtype(dtypes[0]))
        return dtypes[0]
    names = [dtype.name for dtype in dtypes]
    told = {name: name for name in names}
    for name, x in zip(names, given, strict=False):
        if (passed := str(getattr(x, "dtype", name))) != name:
            told[name] = f"{name} (from {passed}, while 64-bit types are off)"
    for name in names:
        if name != names[0]:
            raise DTypeError(
                where=where,
                given=f"operands of dtype {told[names[0]]} and {told[name]}",
                needed="one dtype for all",
                fix="Convert with .astype; there is no promotion, also not of Python numbers.",
            )
    raise DTypeError(
        where=where,
        given=f"dtype {told[names[0]]} under {semiring!r}",
        needed=f"one of {', '.join(semiring.dtypes)}",
        fix="Convert the operands.",
    )


@functools.cache  # the name of a dtype is made each time it is asked for
def work_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which candidates are made and compared, and cotangents added."""
    return np.dtype("float32") if dtype.name in ("bfloat16", "float16") else dtype


def widened(x: jax.Array) -> jax.Array:
    """An array in the dtype that steps compute in.

    A computed 16-bit array was rounded. XLA omits that rounding if widening follows at once, and
    the search would then use other operands than the caller's. The barrier prevents this.
    """
    work = work_dtype(x.dtype)
    return x if work == x.dtype else lax.optimization_barrier(x).astype(work)


def require_size(where: str, size: object, least: int = 0) -> int:
    """A number as an int.

    Raises:
      InvalidConfig: no integer, or too small.
    """
    found = as_index(size)
    if found is not None and found >= least:
        return found
    raise InvalidConfig(
        where=where,
        given=shown(size),
        needed=f"an integer of at least {least}",
        fix=STATIC if is_traced(size) else "",
    )


STATIC = "Sizes and counts are part of the program: in jax.jit mark them static (static_argnames)."


def require_bool(where: str, value: object) -> bool:
    """A bool of Python or NumPy as one of Python.

    Raises:
      InvalidConfig: anything else.
    """
    found = bool(value) if as_index(value) in (0, 1) else as_bool(value)
    if found is None:
        raise InvalidConfig(where=where, given=shown(value), needed="True or False")
    return found


def require_key(where: str, key: object) -> None:
    """Refuse what is no key of `jax.random`, and many keys.

    Raises:
      InvalidConfig: it is none.
    """
    shape, dtype = getattr(key, "shape", ()), getattr(key, "dtype", np.dtype(object))
    if (is_key(dtype) and shape == ()) or (dtype == np.uint32 and len(shape) == 1):
        return
    is_array = isinstance(key, np.ndarray | jax.Array)
    raise InvalidConfig(
        where=f"{where}, key",
        given=f"{dtype} of shape {shape}" if is_array else shown(key),
        needed="one key of jax.random",
        fix="Pass jax.random.key(0); for many keys use jax.vmap.",
    )


def require_concrete(where: str, values: object, fix: str) -> None:
    """Raise Unsupported if a leaf of a pytree is traced."""
    traced = [x for x in jax.tree.leaves(values) if is_traced(x)]
    if traced:
        raise Unsupported(
            where=where,
            given=f"{shown(traced[0])}, inside a transform such as jax.jit",
            needed="concrete arrays, whose values Python can read",
            fix=fix,
        )


def require_numbers(where: str, shape: Sequence[object], needed: str) -> None:
    """Raise Unsupported if a size is symbolic."""
    if not all(isinstance(size, int) for size in shape):
        raise Unsupported(where=where, given=f"the symbolic shape {shape}", needed=needed)


def require_shape(where: str, shape: object) -> tuple[int, ...]:
    """A sequence of sizes as ints.

    Raises:
      InvalidConfig: no sequence, or one of something else.
    """
    is_array = isinstance(shape, np.ndarray) and shape.ndim == 1
    if isinstance(shape, str | bytes) or not (is_array or isinstance(shape, Sequence)):
        raise InvalidConfig(
            where=where,
            given=shown(shape),
            needed="a sequence of integers",
            fix="Write (5,) for 5." if as_index(shape) is not None else "",
        )
    sizes: Any = shape
    return tuple(require_size(where, size) for size in sizes)


def are_numbers(arrays: Sequence[Shaped]) -> bool:
    """Whether all sizes are numbers, and none is symbolic."""
    return all(isinstance(size, int) for x in arrays for size in x.shape)


def narrow(x: ArrayLike) -> jax.Array:
    """Integers in 32 bits; -1 for those that do not fit."""
    wide = jnp.asarray(x)
    if wide.dtype.itemsize > 4:
        wide = jnp.where((wide >= 0) & (wide < 2**31), wide, -1)
    return wide.astype(jnp.int32)


def inside(numbers: jax.Array, count: int, other: int) -> jax.Array:
    """Numbers from 0 to count - 1 as int32, and `other` in place of the rest."""
    wide = numbers if numbers.dtype.itemsize > 2 else numbers.astype(jnp.int32)
    return jnp.where((wide >= 0) & (wide < count), wide, other).astype(jnp.int32)


NUMBERED = "Number nodes that have names, as np.unique(names, return_inverse=True) does."


def nodes_of(given: ArrayLike, count: int, where: str) -> Any:
    """Numbers of nodes, as int32; a NumPy array unless they are traced."""
    try:
        array = as_array(given, where)
    except DTypeError as error:
        error.needed, error.fix = "integers, the numbers of nodes from 0", NUMBERED
        error.put_at(where)
        raise
    if not any(map(is_traced, jax.tree.leaves(given))):
        array = array if isinstance(given, jax.Array) else np.asarray(given)  # also inside jit
    if np.size(array) == 0:
        array = np.zeros(np.shape(array), np.int32)
    require_integers(where, array)
    if isinstance(array, jax.core.Tracer):
        return inside(array, count, -1)
    known = np.asarray(array)
    wrong = np.flatnonzero((known < 0) | (known >= count))
    if len(wrong):
        place = f" at place {wrong[0]}" if known.ndim else ""
        raise InvalidConfig(
            where=where,
            given=f"{known.reshape(-1)[wrong[0]]}{place}",
            needed=f"nodes from 0 to {count - 1}",
        )
    return array.astype(np.int32)
