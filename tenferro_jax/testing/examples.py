"""The inputs for the checks: the given ones, and others made from them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import InvalidConfig
from ..extension.contract import ExtensionOp
from ..extension.function_op import FunctionOp
from ..extension.kernels import NO_RUNTIMES, ExtensionRuntimeSet
from ..shapes import Shaped, as_operand, is_inexact, meta_of, x64_enabled

Array: TypeAlias = np.ndarray | jax.Array
Arrays: TypeAlias = Sequence[Array]
Inputs = tuple[np.ndarray, ...]
"""One example: an array for each input."""

FLOATS = ("float64", "float32", "bfloat16", "float16")


def of_function(
    op: ExtensionOp | Callable[..., object],
    examples: Sequence[Any],
    runtimes: ExtensionRuntimeSet | None,
) -> tuple[ExtensionOp, Sequence[Any], ExtensionRuntimeSet]:
    """The op of a function and its examples as arrays, any other op as it is; and the kernels,
    by default those of the op.

    Raises:
      InvalidConfig: the examples are of different ops, because their arrays are nested in
        another way.
    """
    function, payload = op, {}
    if isinstance(op, functools.partial):
        function, payload = op.func, op.keywords
    if not isinstance(function, FunctionOp):
        kernels = getattr(op, "runtimes", NO_RUNTIMES) if runtimes is None else runtimes
        return op, examples, kernels  # type: ignore[return-value]  # Subject refuses others
    calls = [
        function.bound(example if isinstance(example, tuple) else (example,), payload)
        for example in examples
    ]
    made = {call[0] for call in calls} or {function.op(**payload)}
    if len(made) > 1:
        raise InvalidConfig(
            where=f"check of {function.op.family_id}",
            given="examples whose arrays are nested in different ways",
            needed="one nesting",
            fix="Check each by itself.",
        )
    kernels = function.op.runtimes if runtimes is None else runtimes
    return made.pop(), [tuple(arrays) for _, arrays in calls], kernels


def read_examples(op: ExtensionOp, given: Sequence[object]) -> tuple[Inputs, ...]:
    """The examples as tuples of NumPy arrays; by default those of the op.

    Raises:
      InvalidConfig: there are no examples, or a value is not an array; or the number of arrays of
        an example is not that of the inputs.
    """
    where = f"check of {op.family_id}"
    found = tuple(given)
    if not found:
        try:
            found = tuple(tuple(e) if isinstance(e, list) else e for e in op.example_inputs())
        except Exception as error:
            raise InvalidConfig(
                where=where,
                given=f"example_inputs(): {type(error).__name__}: {error}",
                needed="a sequence of examples, each with an array for each input",
                fix="Correct it, or pass the examples after the op.",
            ) from error
    found = found or (() if op.input_count else ((),))
    if not found:
        raise InvalidConfig(
            where=where,
            given="no example inputs",
            needed="at least one array for each input",
            fix="Pass them after the op, or override example_inputs; choose sizes that differ, "
            "and values away from ties and kinks.",
        )
    return tuple(_example(op, example, where) for example in found)


def _example(op: ExtensionOp, example: object, where: str) -> Inputs:
    arrays = example if isinstance(example, tuple) else (example,)
    if len(arrays) != op.input_count:
        raise InvalidConfig(
            where=where,
            given=f"an example of {len(arrays)} arrays",
            needed=f"{op.input_count}, one for each input",
            fix="Pass one example as check(op, x, y), more as examples=[(x2, y2), ...].",
        )
    made = []
    for i, array in enumerate(arrays):
        place = f"{where}, input {i}"
        made.append(_own(as_operand(array, place), place))
    return tuple(made)


def _own(array: np.ndarray | jax.Array, where: str) -> np.ndarray:
    """A read-only copy."""
    if not is_number(array.dtype):
        raise InvalidConfig(
            where=where,
            given=f"an array of {array.dtype}",
            needed="numbers or booleans",
            fix="Pass numbers; for a random key its jax.random.key_data, and wrap_key_data in the "
            "op.",
        )
    copy = np.array(array)
    copy.setflags(write=False)
    return copy


def listed(inputs: Iterable[Shaped]) -> str:
    """The dtypes and shapes of the inputs as text."""
    return ", ".join(str(meta_of(x)) for x in inputs)


def first_wrong(wrong: np.ndarray, got: np.ndarray, want: np.ndarray, said: str) -> str:
    """The first wrong entry as text, and the number of wrong entries; "" if there is none. `said`
    names the expected values.
    """
    if not wrong.any():
        return ""
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    place = f" at {list(at)}" if at else ""
    return (
        f"{got[at]!s} where {said.format(want[at])}{place}, {wrong.sum()} of {wrong.size} entries"
    )


def is_number(dtype: np.dtype) -> bool:
    """Whether it is a dtype of numbers or booleans, and none of keys."""
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def is_half(dtype: np.dtype) -> bool:
    """Whether it is a floating dtype narrower than float32."""
    return bool(jnp.issubdtype(dtype, jnp.floating)) and dtype.itemsize < 4


def cast(inputs: Inputs, dtype: str) -> Inputs:
    """Real floating inputs in another precision, complex ones in the corresponding precision."""
    complexes = {"float64": np.complex128, "float32": np.complex64}
    made = []
    for x in inputs:
        if jnp.issubdtype(x.dtype, jnp.floating):
            x = x.astype(dtype)
        elif jnp.issubdtype(x.dtype, jnp.complexfloating) and dtype in complexes:
            x = x.astype(complexes[dtype])
        made.append(x)
    return tuple(made)


def in_32_bits(arrays: Sequence[np.ndarray]) -> Inputs:
    """The arrays as JAX takes them while 64-bit types are off."""
    with jax.enable_x64(False):
        return tuple(np.asarray(jnp.asarray(x)) for x in arrays)


def sizes_of(inputs: Inputs) -> list[int]:
    """The different sizes of all axes, largest first."""
    return sorted({size for x in inputs for size in x.shape}, reverse=True)


def resized(inputs: Inputs, old: int, new: int) -> Inputs:
    """Every axis of size `old` cut, or repeated, to `new`: sizes that must agree still agree, and
    indices stay in range.
    """
    made = []
    indices = any(map(is_inexact, inputs)) and 0 < new < old
    for x in inputs:
        if indices and x.dtype.kind in "iu":
            bounds = np.iinfo(x.dtype)
            x = np.clip(x, max(-new, bounds.min), min(new - 1, bounds.max))
        for axis in [axis for axis, size in enumerate(x.shape) if size == old]:
            x = np.take(x, np.arange(new) % old, axis=axis)
        made.append(x)
    return tuple(made)


def of_other_sizes(inputs: Inputs, news: Sequence[int]) -> Iterator[Inputs]:
    """The inputs with each of their sizes replaced by each of `news`."""
    for old in sizes_of(inputs):
        for new in news:
            if old and new != old:
                yield resized(inputs, old, new)


def grown(inputs: Inputs) -> Inputs:
    """The inputs with all sizes larger by one."""
    for size in sizes_of(inputs):  # largest first, so that no size is changed twice
        inputs = resized(inputs, size, size + 1) if size else inputs
    return inputs


def differ(inputs: Inputs, others: Inputs) -> bool:
    """Whether a dtype differs."""
    return any(a.dtype != b.dtype for a, b in zip(inputs, others, strict=True))


def in_other_dtypes(inputs: Inputs) -> Iterator[Inputs]:
    """The inputs in each other precision that the setting of 64-bit types has."""
    casts = (cast(inputs, dtype) for dtype in FLOATS[0 if x64_enabled() else 1 :])
    return (each for each in casts if differ(each, inputs))


def rows(inputs: Inputs, count: int) -> list[Inputs]:
    """`count` different examples near this one: floats scaled a little, which keeps signs, order
    and definiteness; others rolled.
    """

    def moved(x: np.ndarray, k: int) -> np.ndarray:
        return (x * (1 + k / 16)).astype(x.dtype) if is_inexact(x) else np.roll(x, k)

    made = []
    for k in range(count):
        made.append(tuple(moved(x, k) for x in inputs))
    return made


def largest(x: Array) -> float:
    """The largest finite absolute value; 0 of nothing."""
    size = np.abs(in_double(x))
    return float(np.max(size, where=np.isfinite(size), initial=0.0))


def inner(a: Iterable[Array], b: Iterable[Array]) -> float:
    """Sum of products over all arrays: JAX's pairing, without conjugates. For complex numbers the
    real part, because the derivative of abs(z)**2 is linear only over the reals."""
    return float(sum(np.sum(in_double(x) * in_double(y)).real for x, y in zip(a, b, strict=True)))


def in_double(x: Array) -> np.ndarray:
    """An array in double precision."""
    x = np.asarray(x)
    return x.astype(np.complex128 if np.iscomplexobj(x) else np.float64)
