"""Semirings, and the registry of semirings by id.

A semiring is a frozen value. "times" makes a candidate from two entries, "plus" makes one value of
all candidates. In selective semirings plus keeps the better of two candidates; they share one
einsum op with winners and gradients. All others but log_sum_exp share one without: sums modulo n,
polynomials, pairs. Authors write a semiring as a frozen dataclass and register it.
"""

from __future__ import annotations

import dataclasses
import functools
import threading
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.errors import Duplicate, InvalidConfig
from tenferro_jax.extension.family import parse_family_id

from .methods import FLOATS, INTEGERS, OURS, neutral, require_methods

PLAIN = (bool, int, float, str)
"""The types that parameters of semirings may have."""


class Semiring:
    """Base of all semirings: frozen dataclasses, whose fields are their parameters.

    Derive from it to sum in any commutative semiring, and write `times`, `plus`, `zero` and `one`.
    Such a sum has no winners and no derivative. Integers that overflow wrap: choose dtypes and
    parameters so that times and plus of two entries fit.

    Attributes:
      id: `<package>.<name>.v<n>`, the identity in payloads and exported programs.
      dtypes: names of the dtypes that operands may have.
      components: 0 if an entry is a number. n if it is n numbers, the first axis of operands and
        results; then times and plus take and return tuples of n arrays, and zero and one have n
        numbers. Only where plus does not select.

    Example:
      >>> from ext_tropical import tropical_einsum
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
    components: ClassVar[int] = 0

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

    @classmethod
    def of_parameters(cls, *values: bool | int | float | str) -> Semiring:
        """The semiring whose payload holds these values."""
        return cls(*values)

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
        """The value that loses to every candidate, where the search begins: the zero, unless
        entries may be worse, as -1 under max_mul.
        """
        return self.zero(dtype)


class SelectiveSemiring(Semiring):
    """A semiring whose "plus" is one of its two arguments. Winners, assignments and gradients come
    from `better`.

    Example:
      >>> from ext_tropical import max_plus
      >>> @register_semiring
      ... @dataclasses.dataclass(frozen=True, repr=False)
      ... class CappedPlus(SelectiveSemiring):
      ...     id = "my-package.capped_plus.v1"
      ...     cap: float
      ...     def times(self, x, y):
      ...         return jnp.minimum(x + y, self.cap)
      ...     def better(self, y, x):
      ...         return y > x
      ...     def zero(self, dtype):
      ...         return max_plus.zero(dtype)
      ...     def one(self, dtype):
      ...         return max_plus.one(dtype)
      >>> CappedPlus(5.0)
      capped_plus(cap=5.0)
    """

    def better(self, y: jax.Array, x: jax.Array) -> jax.Array:
        """Whether candidate y replaces candidate x: a strict total order, False if either
        is NaN.
        """
        raise NotImplementedError

    def may_make_nan(self, a: jax.Array, b: jax.Array) -> ArrayLike:
        """A boolean scalar: False only if no product of a non-NaN entry of a with one of b is NaN.
        Floating inputs.

        If it is False, a loop runs that is twice as fast; True is always correct.
        """
        return np.True_

    def plus(self, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.where(self.better(y, x) | (y != y), y, x)

    def best(self, candidates: jax.Array, axis: int) -> jax.Array:
        """plus over an axis of at least one candidate; NaN if one of them is NaN.

        If JAX has a reduction for it, override this method with that one, which XLA splits over a
        mesh.
        """
        return lax.reduce(
            candidates, jnp.asarray(self.identity(candidates.dtype)), self.plus, (axis,)
        )


_classes: dict[str, type[Semiring]] = {}
_lock = threading.Lock()
_Class = TypeVar("_Class", bound=type[Semiring])


def register_semiring(cls: _Class) -> _Class:
    """Register a semiring by its id, so that payloads can name it. A class decorator, written above
    the dataclass.

    If a semiring of this package has the same short name, the short name means that one; use your
    id instead.

    Raises:
      MalformedFamilyId: the id is not `<package>.<name>.v<n>`.
      InvalidConfig: not a frozen dataclass that derives from Semiring.
      Duplicate: another class has the id.

    Example:
      >>> from ext_tropical import max_plus
      >>> @register_semiring
      ... @dataclasses.dataclass(frozen=True, repr=False)
      ... class BestSum(type(max_plus)):
      ...     id = "my-package.best_sum.v1"
      >>> as_semiring("best_sum")
      best_sum
    """
    if not (
        isinstance(cls, type)
        and issubclass(cls, Semiring)
        and getattr(cls, "__dataclass_params__", None)
    ):
        raise _not_a_semiring(cls, "a dataclass that derives from SelectiveSemiring")
    if not cls.__dataclass_params__.frozen:  # type: ignore[attr-defined]
        raise _not_a_semiring(cls, "a frozen dataclass")
    parse_family_id(getattr(cls, "id", None))
    base: Any = SelectiveSemiring if issubclass(cls, SelectiveSemiring) else Semiring
    names = ("times", "zero", "one", "better" if base is SelectiveSemiring else "plus")
    missing = [name for name in names if getattr(cls, name) is getattr(base, name)]
    if missing:
        raise _not_a_semiring(cls, f"a class that writes {', '.join(missing)}")
    with _lock:
        known = _classes.setdefault(cls.id, cls)
    if known is not cls:
        raise Duplicate(
            where=f"register_semiring({cls.__name__})",
            given=f"the id {cls.id!r} of {known.__module__}.{known.__qualname__}",
            needed="an id of its own",
            fix="Choose another name, or a higher version.",
        )
    return cls


def _not_a_semiring(cls: object, needed: str) -> InvalidConfig:
    return InvalidConfig(
        where="register_semiring",
        given=repr(cls),
        needed=needed,
        fix="Write @register_semiring above @dataclass(frozen=True, repr=False).",
    )


def as_semiring(value: object) -> Semiring:
    """The semiring for a value, a short name, an id, or a class (with its defaults).

    Raises:
      InvalidConfig: unknown or not registered (the text lists the known ones), with fields that no
        payload can hold, with methods whose results have a wrong type, or, where plus does not
        select, with a zero or a one that is not neutral.

    Example:
      >>> as_semiring("min_plus")
      min_plus
    """
    if isinstance(value, type) and value in _classes.values():
        value = _with_defaults(value)
    if isinstance(value, Semiring) and _classes.get(value.id) is type(value):
        return neutral(wellformed(value))
    names = {id: parse_family_id(id) for id in _classes} if isinstance(value, str) else {}
    found = [id for id, name in names.items() if value in (id, name.op)]
    ours = [id for id in found if id == value or names[id].package == OURS]
    found = ours or found  # our names stay ours
    if len(found) == 1:
        return neutral(wellformed(_with_defaults(_classes[found[0]])))
    raise _unknown(repr(value), found)


def wellformed(semiring: Semiring) -> Semiring:
    """The semiring itself.

    Raises:
      InvalidConfig: a field that no payload can hold, or a method whose result has a wrong type.
    """
    fields: Any = dataclasses.fields(semiring) if dataclasses.is_dataclass(semiring) else ()
    for field in fields:
        if not isinstance(getattr(semiring, field.name), PLAIN):
            raise InvalidConfig(
                where=f"semiring {semiring.id}, field {field.name}",
                given=repr(getattr(semiring, field.name)),
                needed="a bool, int, float or str, because parameters are written into payloads",
                fix="Pass arrays as operands; write several parameters as several fields.",
            )
    require_methods(semiring)
    return semiring


def _unknown(given: str, sharing: Sequence[str] = ()) -> InvalidConfig:
    """The error for an unregistered semiring, or for a name that several ids share."""
    known = ", ".join(sorted({parse_family_id(id).op for id in _classes}))
    if len(sharing) > 1:
        known = f"one of the ids {', '.join(sharing)}, which share the name"
    return InvalidConfig(
        where="semiring",
        given=given,
        needed=f"a registered semiring: {known}",
        fix="Pass the value or its name; decorate your own class with @register_semiring.",
    )


def _with_defaults(cls: Any) -> Semiring:
    """The semiring of a registered class whose parameters all have a default."""
    if missing := [
        f.name
        for f in dataclasses.fields(cls)
        if f.default is f.default_factory is dataclasses.MISSING
    ]:
        raise InvalidConfig(
            where=f"semiring {cls.id}",
            given=f"{cls.__name__} without its parameter{'s' * (len(missing) > 1)} "
            f"{', '.join(missing)}",
            needed="a value for each parameter that has no default",
            fix=f"Pass semiring={cls.__name__}({', '.join(f'{name}=...' for name in missing)}).",
        )
    return cls()


def as_selective(value: object, wanted: str) -> SelectiveSemiring:
    """A semiring that has winners.

    Args:
      value: as for `as_semiring`.
      wanted: the operation that needs winners, for the error.

    Raises:
      InvalidConfig: unknown, or not selective.
    """
    semiring = as_semiring(value)
    if not isinstance(semiring, SelectiveSemiring):
        raise InvalidConfig(
            where=wanted,
            given=repr(semiring),
            needed="a selective semiring, whose plus returns one of its arguments",
            fix="There are no winners. Use max_plus for the best entry; under log_sum_exp the "
            "gradient says how much each entry contributes.",
        )
    return semiring


@dataclasses.dataclass(frozen=True)
class SemiringKey:
    """A semiring in a payload.

    Attributes:
      id: of a registered class.
      fields: its parameters.
    """

    id: str
    fields: tuple[bool | int | float | str, ...] = ()

    def __post_init__(self) -> None:
        is_tuple = isinstance(self.id, str) and isinstance(self.fields, tuple)
        if not is_tuple or not all(isinstance(f, PLAIN) for f in self.fields):
            raise InvalidConfig(
                where="SemiringKey",
                given=f"id {self.id!r}, fields {self.fields!r}",
                needed="an id and a tuple of bool, int, float or str",
                fix="Use SemiringKey.of(semiring).",
            )

    def __repr__(self) -> str:
        return repr(self.semiring)

    @property
    def semiring(self) -> Semiring:
        """The semiring.

        Raises:
          InvalidConfig: the id is not registered, or its class does not take these fields.
        """
        return _found(self)

    @classmethod
    def of(cls, semiring: Semiring | str) -> SemiringKey:
        """The key of a registered semiring, or of its name; InvalidConfig as `as_semiring`."""
        semiring = as_semiring(semiring)
        return cls(semiring.id, tuple(semiring.parameters.values()))


@functools.lru_cache(maxsize=1024)
def _found(key: SemiringKey) -> Semiring:
    cls: Any = _classes.get(key.id)
    if cls is None:
        raise _unknown(repr(key.id))
    try:
        return cls.of_parameters(*key.fields)
    except TypeError as error:
        raise InvalidConfig(
            where=f"semiring {key.id}",
            given=f"fields {key.fields}",
            needed=f"the fields of {cls.__name__}",
            fix=str(error),
        ) from error
