"""Semirings whose plus does not select, as authors write them."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from ext_tropical import Semiring, register_semiring


class Numbers(Semiring):
    """Sums of products of numbers, but for what a subclass writes."""

    def times(self, x, y):
        return x * y

    def plus(self, x, y):
        return x + y

    def zero(self, dtype):
        return np.zeros((), dtype)

    def one(self, dtype):
        return np.ones((), dtype)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Modulo(Numbers):
    """Residues modulo n."""

    id = "tests.modulo.v1"
    dtypes = ("int32", "int64")
    n: int

    def times(self, x, y):
        return x * y % self.n

    def plus(self, x, y):
        return (x + y) % self.n


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class ByMatmul(Modulo):
    """Residues modulo n, by JAX's product."""

    id = "tests.by_matmul.v1"

    def matmul(self, x, y):
        return jnp.matmul(x, y) % self.n


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Parity(Numbers):
    """GF(2) in bools."""

    id = "tests.parity.v1"
    dtypes = ("bool",)

    def times(self, x, y):
        return x & y

    def plus(self, x, y):
        return x ^ y


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Counting(Numbers):
    """Sums of products."""

    id = "tests.counting.v1"
