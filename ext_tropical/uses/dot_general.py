"""tropical_einsum under the names of other libraries: dot_general and the reduction of one array."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from tenferro_jax.shapes import as_array

from ..algebra.selective import max_plus, min_plus
from ..algebra.semiring import Semiring
from ..network.einsum import tropical_einsum
from .axes import dot_general_equation, reduction_equation


def tropical_dot_general(lhs: Any, rhs: Any, dimension_numbers: Any = None, *, semiring: Semiring | str = max_plus) -> Any:
    """Contraction by the dimension numbers of `jax.lax.dot_general`.

    Args:
      lhs, rhs: arrays of one dtype, as for `tropical_einsum`.
      dimension_numbers: ((lhs contracted axes, rhs contracted axes), (lhs batch axes, rhs batch axes)); left out, the last
        axis of lhs is contracted with the first of rhs.
      semiring: a semiring or its name.

    Returns:
      An array of the batch sizes, the sizes left of lhs, the sizes left of rhs.

    Raises:
      InvalidConfig: malformed dimension_numbers.
      ShapeError, DTypeError, X64Error: the operands do not fit.

    Gradient, Cost: as `tropical_einsum`.

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.array([[1.0, 3.0], [2.0, 4.0]])
      >>> print(tropical_dot_general(a, 10 * a))
      [[23. 43.]
       [24. 44.]]
    """
    lhs, rhs = (as_array(x, f"tropical_dot_general, {name}") for name, x in (("lhs", lhs), ("rhs", rhs)))
    return tropical_einsum(dot_general_equation((jnp.shape(lhs), jnp.shape(rhs)), dimension_numbers), lhs, rhs, semiring=semiring)


def min_plus_dot_general(lhs: Any, rhs: Any, dimension_numbers: Any = None) -> Any:
    """`tropical_dot_general` under min_plus.

    Args, Returns, Raises, Gradient, Cost: as there.

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.array([[1.0, 3.0], [2.0, 4.0]])
      >>> print(min_plus_dot_general(a, 10 * a))
      [[11. 31.]
       [12. 32.]]
    """
    return tropical_dot_general(lhs, rhs, dimension_numbers, semiring=min_plus)


def tropical_reduce_sum(
    x: Any, axis: int | Sequence[int] | None = None, keepdims: bool = False, *, semiring: Semiring | str = max_plus
) -> Any:
    """The semiring's plus over some axes: under max_plus the maximum of the entries.

    Args:
      x: an array, as for `tropical_einsum`.
      axis: one axis or several, negative ones from the last; None for all.
      keepdims: whether reduced axes stay, with size 1.
      semiring: a semiring or its name.

    Returns:
      An array of x's dtype. NaN where a reduced entry is NaN; the semiring's zero where a reduced size is 0.

    Raises:
      InvalidConfig: axis is no integer, nor a sequence of distinct ones.
      ShapeError: an axis that x does not have.
      DTypeError, X64Error: x is no operand.

    Gradient: all to the first of equal entries, in row-major order.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([[1.0, 5.0], [2.0, 3.0]])
      >>> float(tropical_reduce_sum(x)), tropical_reduce_sum(x, axis=0).tolist()
      (5.0, [2.0, 5.0])
    """
    x = as_array(x, "tropical_reduce_sum")
    equation, axes = reduction_equation(x.ndim, axis)
    result = tropical_einsum(equation, x, semiring=semiring)
    return jnp.expand_dims(result, axes) if keepdims else result
