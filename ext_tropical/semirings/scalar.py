"""Scalars whose + and * are those of a semiring, for Python's own algorithms and for NumPy object
arrays.
"""

from __future__ import annotations

import dataclasses
import math
from typing import ClassVar, Self

from tenferro_jax.errors import DTypeError
from tenferro_jax.shapes import as_real


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Scalar:
    """A frozen float. NaN as in the einsums: a sum or product with a NaN is NaN, and so are inf -
    inf and 0 * inf.
    """

    value: float = math.nan  # each semiring has its own default default
    _one: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        name, given = type(self).__name__, self.value
        number = as_real(int(given) if isinstance(given, bool) else given)
        if number is None:
            raise DTypeError(
                where=name,
                given=f"{self.value!r} of type {type(self.value).__name__}",
                needed="a real number",
                fix=f"Pass {name}(float(x)).",
            )
        object.__setattr__(self, "value", number)

    @classmethod
    def zero(cls) -> Self:
        """The neutral element of +."""
        return cls()

    @classmethod
    def one(cls) -> Self:
        """The neutral element of *."""
        return cls(cls._one)

    def __add__(self, other: object) -> Self:
        if type(other) is not type(self):
            return NotImplemented
        return (
            other if math.isnan(other.value) or self._loses_to(other) else self
        )  # nothing beats NaN

    def __radd__(self, other: object) -> Self:
        return (
            self if type(other) is int and other == 0 else NotImplemented
        )  # sum() and np.einsum start from the integer 0

    def __mul__(self, other: object) -> Self:
        return type(self)(self.value + other.value) if type(other) is type(self) else NotImplemented

    def _loses_to(self, other: Self) -> bool:
        return other.value > self.value

    def __eq__(self, other: object) -> bool:
        return (
            self.value == other.value
            if isinstance(other, _Scalar) and type(other) is type(self)
            else NotImplemented
        )

    def __hash__(self) -> int:
        return hash((type(self), self.value))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.value})"


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class MaxPlus(_Scalar):
    """A scalar of max_plus: + is the maximum, * the sum; MaxPlus() is the neutral element of +.

    Args:
      value: a real number, kept as a float; -inf when left out.

    Raises:
      DTypeError: the value is not a real number, or an integer too large for a float.

    Example:
      >>> MaxPlus(3) + MaxPlus(5), MaxPlus(3) * MaxPlus(5), MaxPlus()
      (MaxPlus(5.0), MaxPlus(8.0), MaxPlus(-inf))
      >>> import numpy as np
      >>> a = np.array([[MaxPlus(0), MaxPlus(1)], [MaxPlus(2), MaxPlus(0)]])
      >>> np.einsum("ij,jk->ik", a, a)[0, 0].value
      3.0
    """

    value: float = -math.inf


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class MinPlus(_Scalar):
    """A scalar of min_plus: + is the minimum, * the sum; MinPlus() is the neutral element of +.

    Args:
      value: a real number, kept as a float; inf when left out.

    Raises:
      DTypeError: the value is not a real number, or an integer too large for a float.

    Example:
      >>> MinPlus(3) + MinPlus(5), MinPlus(3) * MinPlus(5), MinPlus()
      (MinPlus(3.0), MinPlus(8.0), MinPlus(inf))
    """

    value: float = math.inf

    def _loses_to(self, other: Self) -> bool:
        return other.value < self.value


@dataclasses.dataclass(frozen=True, slots=True, eq=False, repr=False)
class MaxMul(_Scalar):
    """A scalar of max_mul: + is the maximum, * the product; MaxMul() is the neutral element of +.

    The laws of a semiring hold for non-negative values.

    Args:
      value: a real number, kept as a float; 0 when left out.

    Raises:
      DTypeError: the value is not a real number, or an integer too large for a float.

    Example:
      >>> MaxMul(0.5) + MaxMul(0.25), MaxMul(0.5) * MaxMul(0.25), MaxMul(), MaxMul.one()
      (MaxMul(0.5), MaxMul(0.125), MaxMul(0.0), MaxMul(1.0))
    """

    value: float = 0.0
    _one: ClassVar[float] = 1.0

    def __mul__(self, other: object) -> Self:
        return type(self)(self.value * other.value) if type(other) is type(self) else NotImplemented
