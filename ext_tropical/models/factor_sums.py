"""Tables as factors, whose products are summed: numbers of any sign in place of scores."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from tenferro_jax.errors import DTypeError, Unsupported
from tenferro_jax.extension import apply

from ..arguments import are_numbers, widened
from ..networks.plan_text import text_of
from ..networks.sums import NetworkSum
from ..semirings.shipped import sum_product
from .factors import Factors, asked


class SignAndLog(NamedTuple):
    """A number, which may be beyond the range of its dtype.

    Attributes:
      sign: -1, 0 or 1.
      logabs: the log of its magnitude.
    """

    sign: jax.Array
    logabs: jax.Array


class Products(Factors):
    """What can be asked of factors."""

    @asked
    def sum_product(self) -> jax.Array:
        """The sum over all assignments of the product of the entries that they select, a scalar:
        the tables are factors of any sign here, not scores.

        Where no entry is below 0, `Network(equation, *map(jnp.log, tables))` has the marginals and
        the samples of the same factors, and its `log_partition` is the log of this sum.

        Raises:
          DTypeError: tables of integers, or of complex numbers.

        Gradient: any order, forward and reverse.

        Precision: every table and every intermediate one has a power of two beside it, so that none
        overflows or vanishes if the sum does not. Entries of a table below its largest times 1e-230
        may be lost; in float32, where steps are so large that they are not computed in float64,
        1e-30. Slices of a `memory_limit` are added as they are.

        Cost: a multiplication for each candidate of the plan that `print` shows; with the gradient
        three. A batch of `vmap` is one call on CPU.

        Example:
          >>> import jax
          >>> from ext_tropical import Network
          >>> net = Network("ab,b->", [[1.0, -2.0], [0.5, 1.0]], [2.0, 3.0])
          >>> print(net.sum_product(), jax.grad(Network.sum_product)(net).tables[1])
          0.0 [ 1.5 -1. ]
        """
        dtype = self.floating("sum_product")
        if (tables := _of_one_call(self)) is None:
            return self.contracted(sum_product)
        return apply(NetworkSum(text_of(self.plan().plan)), *tables)[0].astype(dtype)

    @asked
    def slog_sum_product(self) -> SignAndLog:
        """The sign of `sum_product` and the log of its magnitude, as `jnp.linalg.slogdet`: also
        where the sum itself is beyond the range of the dtype.

        Returns:
          A SignAndLog: sign, which is -1, 0 or 1, and logabs, -inf for 0; scalars.

        Raises:
          DTypeError: as `sum_product`.
          Unsupported: slices of a `memory_limit`, or a symbolic size.

        Gradient: of logabs, any order; not finite where the sum is 0.

        Example:
          >>> import jax.numpy as jnp
          >>> from ext_tropical import Network
          >>> net = Network("ab,bc->", jnp.full((2, 2), 1e-30), jnp.full((2, 2), -1e-30))
          >>> found = net.slog_sum_product()
          >>> print(found.sign, found.logabs.round(3), net.sum_product())
          -1.0 -136.076 -0.0
        """
        dtype = self.floating("slog_sum_product")
        found = _sign_and_log(self)
        return SignAndLog(found.sign.astype(dtype), found.logabs.astype(dtype))

    def floating(self, question: str) -> Any:
        """The dtype of the tables; refuses integers."""
        dtypes = {x.dtype for x in self.tables}
        if not all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes):
            raise DTypeError(
                where=f"Network.{question}",
                given=f"tables of {', '.join(sorted(map(str, dtypes)))}",
                needed="tables of one floating dtype",
            )
        return dtypes.pop()


def _of_one_call(net: Factors) -> list[jax.Array] | None:
    """The tables, widened, if one op takes them; else None."""
    tables = list(map(widened, net.tables))
    is_number = len(tables) == 1 and not tables[0].ndim  # of no step
    if is_number or not are_numbers(tables) or net.plan().slices > 1:
        return None
    if any(0 in x.shape for x in tables):
        return None
    return tables


def _sign_and_log(net: Factors) -> SignAndLog:
    """The sum over all assignments of the product of the entries that they select."""
    if (tables := _of_one_call(net)) is not None:
        x, exponent = apply(NetworkSum(text_of(net.plan().plan), is_scaled=True), *tables)
        return SignAndLog(jnp.sign(x), jnp.log(jnp.abs(x)) + exponent.astype(x.dtype) * math.log(2))
    if not are_numbers(net.tables):
        raise Unsupported(
            where="Network.slog_sum_product",
            given="symbolic sizes",
            needed="sizes that are numbers",
            fix="Take sum_product; or a batch of symbolic size, by vmap.",
        )
    if net.plan().slices > 1:
        raise Unsupported(
            where="Network.slog_sum_product",
            given=f"a plan of {net.plan().slices} slices",
            needed="one slice, which has one power of two",
            fix="Leave out memory_limit, or take sum_product.",
        )
    x = widened(net.contracted(sum_product))
    return SignAndLog(jnp.sign(x), jnp.log(jnp.abs(x)))
