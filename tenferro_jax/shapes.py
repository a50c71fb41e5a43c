"""dtype and shape of tensors, with symbolic dimensions; and conversion of user data to arrays."""

from __future__ import annotations

import contextlib
import inspect
import numbers
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

from .dimensions import SymDim, are_equal, bind_dim, require_constraints, symbols_of, undecided
from .errors import (
    DTypeError,
    InvalidConfig,
    ShapeError,
    TenferroError,
    Unsupported,
    counted,
    first_line,
)
from .jax_seam import is_symbolic_dim, lacks_symbolic, scope_constraints
from .jax_seam import x64_enabled as x64_enabled

PyTree: TypeAlias = object
"""An array, or tuples, lists and dicts of such: what JAX calls a pytree."""

Arrays: TypeAlias = Sequence[jax.Array]
ArrayFunction: TypeAlias = Callable[..., Arrays]
"""A function of arrays that returns some."""


class Shaped(Protocol):
    """Anything with dtype and shape: an array, a tracer, a ShapeDtypeStruct, a graph value."""

    @property
    def dtype(self) -> Any: ...  # noqa: D102

    @property
    def shape(self) -> tuple[SymDim, ...]: ...  # noqa: D102


class TensorMeta(NamedTuple):
    """dtype and shape of a tensor; a dimension is an int or a `jax.export` symbolic dimension.

    Example:
      >>> import numpy as np
      >>> print(TensorMeta(np.dtype("float32"), (2, 3)))
      float32[2,3]
    """

    dtype: Any
    shape: tuple[SymDim, ...]

    @property
    def ndim(self) -> int:
        """The rank."""
        return len(self.shape)

    def __str__(self) -> str:
        name = self.dtype.name if isinstance(self.dtype, np.dtype) else str(self.dtype)
        return f"{name}[{','.join(map(str, self.shape))}]"


class Described:
    """Base class of objects with a `meta`: their shape, dtype and rank."""

    __slots__ = ()
    meta: TensorMeta

    @property
    def shape(self) -> tuple[SymDim, ...]:
        """Shape; dimensions may be symbolic."""
        return self.meta.shape

    @property
    def dtype(self) -> Any:
        """dtype."""
        return self.meta.dtype

    @property
    def ndim(self) -> int:
        """Rank."""
        return self.meta.ndim


def meta_of(value: Shaped) -> TensorMeta:
    """The TensorMeta of anything with dtype and shape: an array, a tracer, a ShapeDtypeStruct, a
    graph value.
    """
    return TensorMeta(canonical_dtype(value.dtype), tuple(value.shape))


def canonical_dtype(dtype: jax.typing.DTypeLike) -> Any:
    """The dtype as JAX stores it (64-bit types narrow while they are off); key dtypes stay
    unchanged.
    """
    if jax.dtypes.issubdtype(dtype, jax.dtypes.extended):
        return dtype
    return jax.dtypes.canonicalize_dtype(dtype)


def is_jax_dtype(dtype: jax.typing.DTypeLike) -> bool:
    """Whether JAX has arrays of this dtype: numbers, booleans, small floats and integers, keys; not
    text, dates or records.

    Example:
      >>> import numpy as np
      >>> [is_jax_dtype(np.dtype(name)) for name in ("float32", "U3", "object")]
      [True, False, False]
    """
    if isinstance(dtype, np.dtype) and dtype.kind in "biufc":
        return dtype.itemsize <= (16 if dtype.kind == "c" else 8)
    try:
        if dtype == jax.dtypes.float0:  # of tangents of integers, which JAX represents in NumPy
            return True
        return any(jax.dtypes.issubdtype(dtype, k) for k in (np.number, bool, jax.dtypes.extended))
    except TypeError:  # not a dtype
        return False


def struct(meta: TensorMeta) -> jax.ShapeDtypeStruct:
    """The ShapeDtypeStruct of a TensorMeta."""
    return jax.ShapeDtypeStruct(meta.shape, meta.dtype)


_PLAIN_TYPES: set[type] = set()
"""The types of concrete JAX arrays that calls have met."""


def is_plain(array: Any) -> bool:
    """Whether an array needs no check and no conversion, as in most eager calls."""
    if type(array) not in _PLAIN_TYPES:
        if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer):
            return False
        _PLAIN_TYPES.add(type(array))
    return array.dtype.itemsize < 8 or x64_enabled()


def require_x64(value: Shaped, where: str) -> None:
    """Refuse a 64-bit NumPy array or spec that JAX would silently narrow.

    Raises:
      DTypeError: `value` has a 64-bit dtype (128-bit if complex) and jax_enable_x64 is off.
    """
    dtype = np.dtype(value.dtype) if isinstance(value.dtype, np.dtype | type | str) else value.dtype
    if isinstance(dtype, np.dtype) and dtype.kind in "fiuc" and canonical_dtype(dtype) != dtype:
        raise DTypeError(
            where=where,
            given=f"a {dtype.name} array while 64-bit types are off",
            needed=f"64-bit types on, or a {canonical_dtype(dtype).name} array",
            fix=f"Run under jax.enable_x64(True), or convert with "
            f".astype(np.{canonical_dtype(dtype).name}).",
        )


def require_x64_leaves(tree: object, where: str) -> None:
    """`require_x64` for every array or spec of a pytree."""
    for i, leaf in enumerate(jax.tree.leaves(tree)):
        if hasattr(leaf, "dtype"):
            require_x64(leaf, f"{where}, input {i}")


def as_operand(value: object, where: str) -> Any:
    """`as_array` for `apply`, graphs and programs: it refuses 64-bit NumPy arrays while 64-bit
    types are off.

    Raises:
      DTypeError: as `as_array`.

    Example:
      >>> as_operand([1.0, 2.0], "my_op, input 0").shape
      (2,)
    """
    if (
        isinstance(value, np.ndarray | np.generic)
        and value.dtype.itemsize >= 8
        and not x64_enabled()
    ):
        require_x64(value, where)
    return as_array(value, where)


def require_integers(where: str, x: Shaped) -> None:
    """Raise DTypeError if an array is not one of integers."""
    if not jnp.issubdtype(x.dtype, jnp.integer):
        raise DTypeError(where=where, given=x.dtype.name, needed="integers")


def as_index(value: object) -> int | None:
    """The integer of whatever Python takes as an index: integers of Python and NumPy, members of an
    IntEnum, arrays of one integer without axes. None for all else: bools, floats, tracers.

    Example:
      >>> import numpy as np
      >>> as_index(np.int8(2)), as_index(np.array(2)), as_index(2.0), as_index(True)
      (2, 2, None, None)
    """
    given: Any = value
    if isinstance(value, bool):
        return None
    try:
        return operator.index(given)
    except TypeError:
        return None


def as_real(value: object) -> float | None:
    """The float of a real number of Python or NumPy, or of an array without axes; None for all
    else: bools, tracers, numbers beyond floats.

    Example:
      >>> import numpy as np
      >>> as_real(np.float32(0.5)), as_real(np.array(2)), as_real("2"), as_real(10**400)
      (0.5, 2.0, None, None)
    """
    number = value
    if isinstance(value, np.ndarray | jax.Array) and value.ndim == 0 and not is_traced(value):
        number = value.item()
    if not isinstance(number, numbers.Real) or isinstance(number, bool):
        return None
    try:
        return float(number)
    except OverflowError:
        return None


def as_bool(value: object) -> bool | None:
    """The bool of a bool of Python or NumPy, or of an array of one without axes; None for all else.

    Example:
      >>> import numpy as np
      >>> as_bool(np.True_), as_bool(np.array(False)), as_bool(1)
      (True, False, None)
    """
    if isinstance(value, bool):
        return value
    if not isinstance(value, np.generic | np.ndarray | jax.Array) or is_traced(value):
        return None
    return bool(value) if value.shape == () and value.dtype == bool else None


def is_traced(value: object) -> bool:
    """Whether a value is one that JAX does not know while it traces a function."""
    return isinstance(value, jax.core.Tracer)


def shown(value: object) -> str:
    """A value in the text of an error: of arrays and tracers dtype and shape, which a user knows.

    Example:
      >>> import numpy as np
      >>> shown("2"), shown(np.ones(2))
      ("'2'", 'an array float64[2]')
    """
    if isinstance(value, jax.core.Tracer):
        return f"a traced {meta_of(value)}"
    if isinstance(value, np.ndarray | jax.Array) and value.ndim:
        return f"an array {TensorMeta(value.dtype, value.shape)}"
    return f"{value!r:.500}"


def as_array(value: object, where: str) -> Any:
    """Convert an argument of a function of arrays as `jax.numpy` does: arrays and tracers are kept,
    NumPy and Python data become arrays.

    While 64-bit types are off float64 becomes float32 and complex128 complex64; 64-bit integers
    become 32 bits wide if every value fits (`jax.numpy.asarray` would wrap values that do not fit).

    Args:
      value: the argument.
      where: the first words of errors.

    Raises:
      DTypeError: integers that need 64 bits or more, or a JAX array of a 64-bit dtype, while
        64-bit types are off; or not an array, an array that JAX does not accept (masked, not in
        this machine's byte order), or integers beyond 64 bits.

    Example:
      >>> import jax, numpy as np
      >>> with jax.enable_x64(False):
      ...     as_array(np.ones(2), "my_function, operand 0").dtype.name
      'float32'
    """
    if isinstance(value, jax.Array):
        if value.dtype.itemsize >= 8 and not x64_enabled():
            require_x64(value, where)
        return value
    if isinstance(value, str | bytes):
        raise _no_array(where, repr(value))
    if isinstance(value, np.ndarray | np.generic):
        is_masked = isinstance(value, np.ma.MaskedArray)
        if is_masked or not value.dtype.isnative or not is_jax_dtype(value.dtype):
            raise _unfit(where, value)
        if value.dtype.itemsize < 8 or x64_enabled() or canonical_dtype(value.dtype) == value.dtype:
            return value
    for entry in jax.tree.leaves(value) if isinstance(value, list | tuple) else []:
        if isinstance(entry, np.ma.MaskedArray):  # of which JAX takes lists, without the masks
            raise _unfit(where, entry)
    if isinstance(value, jax.Ref):
        fix = "Pass its value, ref[...], and write what is returned: ref[...] = f(ref[...])."
        raise _no_array(where, "a jax.Ref", fix)
    try:
        array = jnp.asarray(value)
        narrow = [] if x64_enabled() or array.dtype.kind not in "iu" else jax.tree.leaves(value)
        leaves = [np.asarray(leaf) for leaf in narrow if not isinstance(leaf, int | jax.Array)]
    except OverflowError as error:
        raise DTypeError(
            where=where,
            given=f"a {type(value).__name__}: {error}",
            needed="integers of 64 bits, of 32 bits while 64-bit types are off, that fit into the "
            "dtype of the NumPy data among them",
            fix="Scale the integers, or pass floats or a NumPy array of their dtype.",
        ) from error
    except (TypeError, ValueError) as error:
        raise _no_array(where, f"{type(value).__name__}: {error}") from error
    for leaf in leaves:
        if leaf.dtype.itemsize == 8 and leaf.size:
            known = np.iinfo(array.dtype)
            if leaf.min() < known.min or leaf.max() > known.max:
                raise DTypeError(
                    where=where,
                    given=f"integers from {leaf.min()} to {leaf.max()} while 64-bit types are off",
                    needed="64-bit types on, or integers that fit into 32 bits",
                    fix="Run under jax.enable_x64(True), or scale the integers.",
                )
    return array


def _unfit(where: str, array: np.ndarray | np.generic) -> DTypeError:
    fix = "Fill masked entries, and convert to numbers in this machine's byte order."
    return _no_array(where, f"a {type(array).__name__} of dtype {array.dtype.str}", fix)


def _no_array(
    where: str, given: str, fix: str = "Convert with jax.numpy.asarray first."
) -> DTypeError:
    return DTypeError(
        where=where, given=given, needed="an array, a number or a list of numbers", fix=fix
    )


def solve_sizes(
    declared: Sequence[TensorMeta], given: Sequence[TensorMeta], names: Sequence[str]
) -> dict[str, SymDim]:
    """Sizes of the symbols in `declared` input shapes, taken from the `given` shapes; `names` are
    the names of the inputs in errors.

    A symbol gets its size from a dimension that is only this symbol; other dimensions are left to a
    caller that can solve them.

    Raises:
      ShapeError, DTypeError: a rank or a dtype differs.
      ShapeError: a size differs, a symbol would need two sizes, or its size is 0, which JAX's
        shape rules exclude; a constraint of the symbols does not hold; or the given sizes are
        symbolic and JAX cannot decide.
    """
    sizes: dict[str, SymDim] = {}
    for want, have, name in zip(declared, given, names, strict=True):
        if want.ndim != have.ndim or want.dtype != have.dtype:
            kind = ShapeError if want.ndim != have.ndim else DTypeError
            raise kind(where=name, given=str(have), needed=str(want))
        for w, h in zip(want.shape, have.shape, strict=True):
            if is_symbolic_dim(w) and str(w).isidentifier():
                sizes.setdefault(str(w), h)
    for want, have, name in zip(declared, given, names, strict=True):
        for axis, (w, h) in enumerate(zip(want.shape, have.shape, strict=True)):
            if w is h or (
                is_symbolic_dim(w)
                and str(w) not in sizes
                and not symbols_of(str(w)) <= sizes.keys()
            ):
                continue
            if (size := bind_dim(w, sizes)) == h:
                continue
            where = f"{name}, axis {axis} (declared {w})"
            if are_equal(size, h) is None:
                raise undecided(size, h, where)
            raise ShapeError(
                where=where,
                given=f"size {h} in {have}",
                needed=f"size {size}",
            )
    require_constraints(symbol_constraints(declared), sizes)
    return sizes


def is_inexact(value: Shaped) -> bool:
    """Whether something with a dtype has derivatives: it is floating or complex."""
    return bool(jax.dtypes.issubdtype(value.dtype, np.inexact))


def with_zeros(values: Iterable[object], like: Iterable[Shaped]) -> list[Any]:
    """Tangents or cotangents of everything in `like`: the values, in order, where it is floating or
    complex, and elsewhere the zeros that JAX takes.
    """
    left = iter(values)
    return [next(left) if is_inexact(x) else np.zeros(x.shape, jax.dtypes.float0) for x in like]


def is_key(dtype: jax.typing.DTypeLike) -> bool:
    """Whether a dtype is that of random keys."""
    return bool(jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key))


def symbol_constraints(metas: Sequence[TensorMeta]) -> tuple[str, ...]:
    """The constraints of the symbols in shapes, as `jax.export.symbolic_shape` takes them."""
    scope = next(
        (size.scope for meta in metas for size in meta.shape if is_symbolic_dim(size)), None
    )
    return () if scope is None else scope_constraints(scope)


@contextlib.contextmanager
def errors_of_jax(
    where: str, fn: Callable[..., object], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> Iterator[None]:
    """Inside, JAX calls `fn` for these specs. What it refuses because of missing arguments or of
    symbolic sizes is raised as an error of ours, or with a note where sizes are symbolic.

    Raises:
      InvalidConfig: the function does not take these arguments.
      ShapeError: JAX cannot compare symbolic sizes.
      Unsupported: JAX has no form of an operation for symbolic sizes.
    """
    try:
        yield
    except TenferroError:
        raise
    except Exception as error:
        if isinstance(error, TypeError):
            require_arguments(where, fn, args, kwargs)
        sizes = {
            str(d): d for x in jax.tree.leaves((args, kwargs)) for d in getattr(x, "shape", ())
        }
        symbolic = ", ".join(text for text, size in sizes.items() if is_symbolic_dim(size))
        if not symbolic:
            raise
        given = f"{first_line(error)} (symbolic sizes {symbolic})"
        fix = "Use concrete sizes, or symbols of jax.export.symbolic_shape with constraints."
        if isinstance(error, jax.errors.InconclusiveDimensionOperation):
            needed = "sizes that JAX can compare"
            raise ShapeError(where=where, given=given, needed=needed, fix=fix) from error
        if lacks_symbolic(error):
            needed = "operations that JAX has for symbolic sizes"
            raise Unsupported(
                where=where, given=given, needed=needed, fix="Use concrete sizes there."
            ) from error
        error.add_note(f"{where}: the sizes {symbolic} are symbolic. {fix}")
        raise


def require_arguments(
    where: str, fn: Callable[..., object], args: tuple[PyTree, ...], kwargs: dict[str, PyTree]
) -> None:
    """Refuse specs that are too few or too many for the parameters of a function."""
    try:
        parameters = inspect.signature(fn)
    except (TypeError, ValueError):  # of a builtin
        return
    try:
        parameters.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidConfig(
            where=f"{where} of {getattr(fn, '__name__', 'a function')}",
            given=f"{', '.join([counted(len(args), 'spec'), *kwargs])}: {first_line(error)}",
            needed=f"a spec for each of its arguments: {', '.join(parameters.parameters)}",
            fix="Pass arrays or jax.ShapeDtypeStructs after the function.",
        ) from error
