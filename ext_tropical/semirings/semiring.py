"""What a semiring is.

A semiring is a frozen value. "times" makes a candidate from two entries, "plus" makes one value of
all candidates. In selective semirings plus keeps the better of two candidates; they share one
einsum op with winners and gradients. All others but log_sum_exp share one without, such as sums
modulo n. Authors write a semiring as a frozen dataclass and register it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.extension.family import parse_family_id

FLOATS = ("float64", "float32", "bfloat16", "float16")
INTEGERS = ("int32", "int64")


class Semiring:
    """Base of all semirings: frozen dataclasses, whose fields are their parameters.

    Derive from it to sum in any commutative semiring, and write `times`, `plus`, `zero` and `one`.
    Such a sum has no winners and no derivative. Integers that overflow wrap: choose dtypes and
    parameters so that times and plus of two entries fit.

    Attributes:
      id: `<package>.<name>.v<n>`, the identity in payloads and exported programs.
      dtypes: names of the dtypes that operands may have.
      native_number: the semiring's number in `native/problem.h`, where the library of this
        package has it; else None. A subclass does not inherit it, because it may compute otherwise.
      key_class: the class of the keys of its values, made when it is registered.

    Example:
      >>> import dataclasses, jax.numpy as jnp, numpy as np
      >>> from ext_tropical import Semiring, register_semiring, tropical_einsum
      >>> @register_semiring
      ... @dataclasses.dataclass(frozen=True, repr=False)
      ... class Modulo(Semiring):
      ...     id = "my-package.modulo.v1"
      ...     dtypes = ("int32", "int64")
      ...     n: int
      ...     def times(self, x, y):
      ...         return x * y % self.n
      ...     def plus(self, x, y):
      ...         return (x + y) % self.n
      ...     def zero(self, dtype):
      ...         return np.zeros((), dtype)
      ...     def one(self, dtype):
      ...         return np.ones((), dtype)
      >>> a = jnp.array([[1, 2], [3, 4]])
      >>> print(tropical_einsum("ij,jk->ik", a, a, semiring=Modulo(5)))
      [[2 0]
       [0 2]]
    """

    id: ClassVar[str] = ""
    dtypes: ClassVar[tuple[str, ...]] = (*FLOATS, *INTEGERS)
    native_number: ClassVar[int | None] = None
    key_class: ClassVar[type[Any] | None] = None  # of payloads

    def __init_subclass__(cls) -> None:
        cls.native_number = vars(cls).get("native_number")
        cls.key_class = None

    @property
    def name(self) -> str:
        """The short name, the middle of the id."""
        return parse_family_id(self.id).op if self.id else type(self).__name__

    def __repr__(self) -> str:
        values = [f"{name}={value!r}" for name, value in self.parameters.items()]
        return self.name + (f"({', '.join(values)})" if values else "")

    @property
    def parameters(self) -> Mapping[str, bool | int | float | str]:
        """The fields that a payload holds, in the order of the class."""
        fields: Any = dataclasses.fields(self) if dataclasses.is_dataclass(self) else ()
        return {f.name: getattr(self, f.name) for f in fields}

    def times(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """The candidate of two entries: elementwise, commutative, differentiable by JAX if plus
        selects; must accept NumPy arrays too.
        """
        raise NotImplementedError

    def plus(self, x: jax.Array, y: jax.Array) -> jax.Array:
        """One value of two, elementwise; NaN if one of them is NaN. NumPy arrays too."""
        raise NotImplementedError

    def matmul(self, x: jax.Array, y: jax.Array) -> jax.Array | None:
        """plus over k of times(x[..., i, k], y[..., k, j]), where JAX has a faster form of it, as
        jnp.matmul(x, y) % n. None, the default: there is none, or not for these sizes.

        Not asked for where plus selects.
        """
        return None

    def zero(self, dtype: np.dtype) -> ArrayLike:
        """The neutral element of "plus": the value of an empty contraction."""
        raise NotImplementedError

    def one(self, dtype: np.dtype) -> ArrayLike:
        """The neutral element of "times"."""
        raise NotImplementedError

    def identity(self, dtype: np.dtype) -> ArrayLike:
        """The value at which a sum or a search begins: it loses to every candidate. It is the zero,
        unless entries may be worse than the zero, as -1 is under max_mul.
        """
        return self.zero(dtype)


class SelectiveSemiring(Semiring):
    """A semiring whose "plus" is one of its two arguments. Winners, assignments and gradients come
    from `better`.

    Write `times`, `one` and either `reduction` or both `better` and `zero`.

    Attributes:
      reduction: "max" if the greater of two entries is the better one, "min" if the smaller one is;
        then JAX's own reduction is used, also between devices, and the zero is by default the worst
        number of the dtype. "": `better` says it. A subclass that writes `better` states it anew.

    Example:
      >>> import dataclasses, jax.numpy as jnp, numpy as np
      >>> from ext_tropical import SelectiveSemiring, register_semiring
      >>> @register_semiring
      ... @dataclasses.dataclass(frozen=True, repr=False)
      ... class CappedPlus(SelectiveSemiring):
      ...     id = "my-package.capped_plus.v1"
      ...     reduction = "max"
      ...     cap: float
      ...     def times(self, x, y):
      ...         return jnp.minimum(x + y, self.cap)
      ...     def one(self, dtype):
      ...         return np.zeros((), dtype)
      >>> CappedPlus(5.0)
      capped_plus(cap=5.0)
    """

    reduction: ClassVar[str] = ""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        own = vars(cls)
        if "better" in own:
            cls.reduction = own.get("reduction", "")

    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """Whether candidate y replaces candidate x: a strict total order, False if either
        is NaN.
        """
        return y > x if self.reduction == "max" else y < x

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> ArrayLike:
        """A boolean scalar: False only if no product of a non-NaN entry of a with one of b is NaN.
        Floating inputs.

        If it is False, a loop runs that is twice as fast; True is always correct.
        """
        return np.True_

    def plus(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(self.better(y, x) | (y != y), y, x)

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        """plus over an axis of at least one candidate; NaN if one of them is NaN."""
        if not self.reduction:
            least = jnp.asarray(self.identity(candidates.dtype))
            return lax.reduce(candidates, least, self.plus, (axis,))
        value = (jnp.max if self.reduction == "max" else jnp.min)(candidates, axis)
        if not jnp.issubdtype(candidates.dtype, jnp.floating):
            return value
        # XLA CPU's own maximum of floats loses NaN for some shapes, when it is vectorised.
        has_nan = jnp.any(candidates != candidates, axis)
        return jnp.where(has_nan, jnp.asarray(jnp.nan, value.dtype), value)

    def zero(self, dtype: np.dtype) -> ArrayLike:
        """The neutral element of "plus": by default what loses to every number."""
        return lowest(dtype) if self.reduction == "max" else highest(dtype)

    def identity(self, dtype: np.dtype) -> ArrayLike:
        """As `Semiring.identity`: under a `reduction` the worst number."""
        return SelectiveSemiring.zero(self, dtype) if self.reduction else self.zero(dtype)


def lowest(dtype: np.dtype) -> np.ndarray:
    """The least value of the dtype: -inf, or the integer minimum."""
    return _extreme(dtype, -np.inf, "min")


def highest(dtype: np.dtype) -> np.ndarray:
    """The greatest value of the dtype: inf, or the integer maximum."""
    return _extreme(dtype, np.inf, "max")


def _extreme(dtype: np.dtype, infinity: float, name: str) -> np.ndarray:
    if jnp.issubdtype(dtype, jnp.floating):
        return np.asarray(infinity, dtype)
    if dtype == np.bool_:
        return np.asarray(name == "max")
    return np.asarray(getattr(jnp.iinfo(dtype), name), dtype)


# --- which semirings there are, and whether their methods return what is needed -----------------
