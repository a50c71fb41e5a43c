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


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Ways(Semiring):
    """(the best score, in how many ways)."""

    id = "tests.ways.v1"
    dtypes = ("float64", "float32")
    components = 2

    def times(self, x, y):
        return x[0] + y[0], x[1] * y[1]

    def plus(self, x, y):
        best = jnp.maximum(x[0], y[0])
        return best, jnp.where(x[0] == best, x[1], 0) + jnp.where(y[0] == best, y[1], 0)

    def zero(self, dtype):
        return np.array([-np.inf, 0], dtype)

    def one(self, dtype):
        return np.array([0, 1], dtype)


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Polynomial(Semiring):
    """Polynomials up to a degree, the constant first."""

    id = "tests.polynomial.v1"
    degree: int

    @property
    def components(self):
        return self.degree + 1

    def times(self, x, y):
        return tuple(sum(x[i] * y[n - i] for i in range(n + 1)) for n in range(self.components))

    def plus(self, x, y):
        return tuple(a + b for a, b in zip(x, y, strict=True))

    def zero(self, dtype):
        return np.zeros(self.components, dtype)

    def one(self, dtype):
        return np.eye(1, self.components, dtype=dtype)[0]
