"""tropical_einsum with numbered axes: dot_general, and the reduction of one array."""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from numpy.lib.array_utils import normalize_axis_tuple
from opt_einsum import get_symbol

from tenferro_jax.errors import ShapeError, typed_call
from tenferro_jax.shapes import as_array, shown

from ..arguments import require_bool
from ..semirings.semiring import Semiring
from ..semirings.shipped import max_plus, min_plus
from .call import tropical_einsum

Axes: TypeAlias = tuple[Sequence[int], Sequence[int]]
DotDimensionNumbers: TypeAlias = tuple[Axes, Axes]
"""((contracted axes of lhs, of rhs), (batch axes of lhs, of rhs)), as for `jax.lax.dot_general`."""


def dot_general_equation(
    shapes: tuple[Sequence[int], Sequence[int]],
    dimension_numbers: DotDimensionNumbers | None = None,
) -> str:
    """The equation of a contraction; the output's labels are the batch, the rest of lhs, the rest
    of rhs.

    Args:
      shapes: of lhs and rhs.
      dimension_numbers: ((lhs contracted axes, rhs contracted axes), (lhs batch axes, rhs batch
        axes)); None contracts the last axis of lhs with the first of rhs.

    Raises:
      ShapeError: what `jax.lax.dot_general` refuses.

    Example:
      >>> dot_general_equation(((2, 3, 4), (2, 4, 5)), (((2,), (1,)), ((0,), (0,))))
      'abc,acd->abd'
      >>> dot_general_equation(((2, 3), (3, 4)))
      'ab,bc->ac'
    """
    numbers: Any = dimension_numbers
    if numbers is None:
        numbers = ((len(shapes[0]) - 1,), (0,)), ((), ())
    try:
        (contracted, others), (batch, others_of_rhs) = (
            [tuple(map(operator.index, axes)) for axes in pair] for pair in numbers
        )
        product = functools.partial(jax.lax.dot_general, dimension_numbers=numbers)
        jax.eval_shape(product, *(jax.ShapeDtypeStruct(shape, np.int32) for shape in shapes))
    except (TypeError, ValueError, IndexError) as error:
        raise ShapeError(
            where="tropical_dot_general",
            given=f"shapes {tuple(shapes[0])} and {tuple(shapes[1])}, dimension_numbers {numbers}",
            needed="what jax.lax.dot_general takes; tropical_einsum also broadcasts",
            fix=str(error),
        ) from error
    symbols = map(get_symbol, itertools.count())
    left = [next(symbols) for _ in shapes[0]]
    paired = dict(zip((*others, *others_of_rhs), (left[i] for i in (*contracted, *batch))))
    right = [paired.get(i) or next(symbols) for i in range(len(shapes[1]))]
    kept = [
        *(left[i] for i in batch),
        *(label for i, label in enumerate(left) if i not in (*contracted, *batch)),
        *(label for i, label in enumerate(right) if i not in paired),
    ]
    return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


def reduction_equation(
    rank: int,
    axis: int | Sequence[int] | None = None,
) -> tuple[str, tuple[int, ...]]:
    """The equation of a reduction, and the reduced axes counted from the first.

    Args:
      rank: of the array.
      axis: one axis or a sequence of them, negative ones from the last; None for all.

    Raises:
      ShapeError: what NumPy refuses as axes.

    Example:
      >>> reduction_equation(3, -1)
      ('abc->ab', (2,))
    """
    try:
        axes = normalize_axis_tuple(range(rank) if axis is None else axis, rank)
    except (TypeError, ValueError) as error:  # an AxisError is a ValueError
        raise ShapeError(
            where="tropical_reduce_sum, axis",
            given=f"{shown(axis)} for an array of rank {rank}",
            needed="an axis of the array, or a sequence of different ones",
            fix=str(error),
        ) from error
    labels = "".join(map(get_symbol, range(rank)))
    return f"{labels}->{''.join(label for i, label in enumerate(labels) if i not in axes)}", axes


@typed_call
def tropical_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers | None = None,
    *,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """Contraction by the dimension numbers of `jax.lax.dot_general`.

    Args:
      lhs: an array, as for `tropical_einsum`.
      rhs: an array of the same dtype.
      dimension_numbers: ((lhs contracted axes, rhs contracted axes), (lhs batch axes, rhs batch
        axes)); by default the last axis of lhs is contracted with the first of rhs.
      semiring: a semiring or its name.

    Returns:
      An array of the batch sizes, the sizes left of lhs, the sizes left of rhs.

    Raises:
      ShapeError, DTypeError: the operands do not fit, or the dimension_numbers.

    Gradient, Cost: as `tropical_einsum`.

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.array([[1.0, 3.0], [2.0, 4.0]])
      >>> print(tropical_dot_general(a, 10 * a))
      [[23. 43.]
       [24. 44.]]
    """
    lhs, rhs = (
        as_array(x, f"tropical_dot_general, {name}") for name, x in (("lhs", lhs), ("rhs", rhs))
    )
    return tropical_einsum(
        dot_general_equation((jnp.shape(lhs), jnp.shape(rhs)), dimension_numbers),
        lhs,
        rhs,
        semiring=semiring,
    )


@typed_call
def min_plus_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers | None = None,
) -> jax.Array:
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


@typed_call
def tropical_reduce_sum(
    x: ArrayLike,
    axis: int | Sequence[int] | None = None,
    keepdims: bool = False,
    *,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """The semiring's plus over some axes: under max_plus the maximum of the entries.

    Args:
      x: an array, as for `tropical_einsum`.
      axis: one axis or several, negative ones from the last; None for all.
      keepdims: whether reduced axes stay, with size 1.
      semiring: a semiring or its name.

    Returns:
      An array of x's dtype. NaN where a reduced entry is NaN; the semiring's zero where a reduced
      size is 0.

    Raises:
      ShapeError: axis is not an axis of x or a sequence of different ones.
      DTypeError: x is not an operand for `tropical_einsum`.

    Gradient: all to the first of equal entries, in row-major order.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([[1.0, 5.0], [2.0, 3.0]])
      >>> float(tropical_reduce_sum(x)), tropical_reduce_sum(x, axis=0).tolist()
      (5.0, [2.0, 5.0])
    """
    keepdims = require_bool("tropical_reduce_sum, keepdims", keepdims)
    array = as_array(x, "tropical_reduce_sum")
    equation, axes = reduction_equation(array.ndim, axis)
    result = tropical_einsum(equation, array, semiring=semiring)
    return jnp.expand_dims(result, axes) if keepdims else result
