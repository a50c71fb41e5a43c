"""tropical_einsum with numbered axes: dot_general, and the reduction of one array."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike
from opt_einsum import get_symbol

from tenferro_jax.errors import InvalidConfig, ShapeError
from tenferro_jax.shapes import as_array

from ..algebra.semiring import Semiring
from ..algebra.shipped import max_plus, min_plus
from ..network.tropical_einsum import tropical_einsum

Axes: TypeAlias = tuple[Sequence[int], Sequence[int]]
DotDimensionNumbers: TypeAlias = tuple[Axes, Axes]
"""((contracted axes of lhs, of rhs), (batch axes of lhs, of rhs)), as for `jax.lax.dot_general`."""


def dot_general_equation(
    shapes: tuple[Sequence[Any], Sequence[Any]], dimension_numbers: Any = None
) -> str:
    """The equation of a contraction; the output's labels are the batch, the rest of lhs, the rest
    of rhs.

    Args:
      shapes: of lhs and rhs.
      dimension_numbers: ((lhs contracted axes, rhs contracted axes), (lhs batch axes, rhs batch
        axes)); None contracts the last axis of lhs with the first of rhs.

    Raises:
      InvalidConfig: not of this form, axes that are not in pairs, or an axis twice.
      ShapeError: an axis that an operand does not have, or one of size 1 paired with a longer one,
        which does not broadcast.

    Example:
      >>> dot_general_equation(((2, 3, 4), (2, 4, 5)), (((2,), (1,)), ((0,), (0,))))
      'abc,acd->abd'
      >>> dot_general_equation(((2, 3), (3, 4)))
      'ab,bc->ac'
    """
    ranks = len(shapes[0]), len(shapes[1])
    pairs = _matmul(ranks) if dimension_numbers is None else _pairs(dimension_numbers)
    (contracted, batch), (lhs, rhs) = pairs, ranks
    for side, (name, rank) in enumerate((("lhs", lhs), ("rhs", rhs))):
        axes = [*contracted[side], *batch[side]]
        for axis in axes:
            if not 0 <= axis < rank:
                raise ShapeError(
                    where=f"tropical_dot_general, axes of {name}",
                    given=f"axis {axis} of an operand of rank {rank}",
                    needed="axes from 0 below the rank",
                    fix="Count axes from the first one.",
                )
        if len(set(axes)) < len(axes):
            raise _malformed(dimension_numbers, "each axis once", f"Name each axis of {name} once.")
    for i, j in zip((*contracted[0], *batch[0]), (*contracted[1], *batch[1]), strict=True):
        sizes = shapes[0][i], shapes[1][j]
        if 1 in sizes and sizes != (1, 1):
            raise ShapeError(
                where=f"tropical_dot_general, axis {i} of lhs with axis {j} of rhs",
                given=f"sizes {sizes[0]} and {sizes[1]}",
                needed="equal sizes, as for jax.lax.dot_general",
                fix="tropical_einsum broadcasts.",
            )
    symbols = map(get_symbol, itertools.count())
    left = [next(symbols) for _ in range(lhs)]
    paired = {
        right: left[axis]
        for axis, right in zip(
            (*contracted[0], *batch[0]), (*contracted[1], *batch[1]), strict=True
        )
    }
    right = [paired.get(axis) or next(symbols) for axis in range(rhs)]
    kept = [left[axis] for axis in batch[0]]
    kept += [label for axis, label in enumerate(left) if axis not in (*contracted[0], *batch[0])]
    kept += [label for axis, label in enumerate(right) if axis not in (*contracted[1], *batch[1])]
    return f"{''.join(left)},{''.join(right)}->{''.join(kept)}"


def _matmul(ranks: tuple[int, int]) -> DotDimensionNumbers:
    if 0 in ranks:
        raise ShapeError(
            where="tropical_dot_general",
            given=f"operands of rank {ranks[0]} and {ranks[1]}",
            needed="at least rank 1, or dimension_numbers",
            fix="Pass dimension_numbers=(((), ()), ((), ())) for a product without contraction.",
        )
    return ((ranks[0] - 1,), (0,)), ((), ())


def _pairs(numbers: DotDimensionNumbers) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    needed = (
        "((lhs contracted, rhs contracted), (lhs batch, rhs batch)), each a sequence of "
        "integers, as for jax.lax.dot_general"
    )
    try:
        contracted, batch = ([tuple(map(_integer, axes)) for axes in pair] for pair in numbers)
        if any(len(left) != len(right) for left, right in (contracted, batch)):
            raise _malformed(
                numbers, "as many axes of lhs as of rhs", "Pair each axis of lhs with one of rhs."
            )
    except (TypeError, ValueError) as error:
        if isinstance(error, InvalidConfig):
            raise
        raise _malformed(numbers, needed, "Nest the axes that way.") from error
    return contracted, batch


def _malformed(numbers: object, needed: str, fix: str) -> InvalidConfig:
    return InvalidConfig(
        where="tropical_dot_general, dimension_numbers", given=repr(numbers), needed=needed, fix=fix
    )


def reduction_equation(
    rank: int,
    axis: int | Sequence[int] | None = None,
) -> tuple[str, tuple[int, ...]]:
    """The equation of a reduction, and the reduced axes counted from the first.

    Args:
      rank: of the array.
      axis: one axis or a sequence of them, negative ones from the last; None for all.

    Raises:
      InvalidConfig: not an integer, or an axis twice.
      ShapeError: an axis that the array does not have.

    Example:
      >>> reduction_equation(3, -1)
      ('abc->ab', (2,))
    """
    try:
        given = (
            range(rank)
            if axis is None
            else tuple(map(_integer, axis if isinstance(axis, Sequence) else (axis,)))
        )
    except TypeError as error:
        raise _bad_axis(
            axis, "an integer or a sequence of integers", "Pass the axis to reduce."
        ) from error
    for each in given:
        if not -rank <= each < rank:
            raise ShapeError(
                where="tropical_reduce_sum, axis",
                given=f"axis {each} of an array of rank {rank}",
                needed=f"an axis from {-rank} to {rank - 1}" if rank else "none",
            )
    axes = tuple(each % rank for each in given)
    if len(set(axes)) < len(axes):
        raise _bad_axis(axis, "each axis once", "Name each axis once.")
    labels = "".join(map(get_symbol, range(rank)))
    return f"{labels}->{''.join(label for i, label in enumerate(labels) if i not in axes)}", axes


def _integer(value: Any) -> int:
    if isinstance(value, bool):
        raise TypeError("a bool is no axis")
    return operator.index(value)


def _bad_axis(axis: object, needed: str, fix: str) -> InvalidConfig:
    return InvalidConfig(
        where="tropical_reduce_sum, axis", given=repr(axis), needed=needed, fix=fix
    )


def tropical_dot_general(
    lhs: ArrayLike,
    rhs: ArrayLike,
    dimension_numbers: DotDimensionNumbers | None = None,
    *,
    semiring: Semiring | str = max_plus,
) -> jax.Array:
    """Contraction by the dimension numbers of `jax.lax.dot_general`; not for entries of several
    components.

    Args:
      lhs: an array, as for `tropical_einsum`.
      rhs: an array of the same dtype.
      dimension_numbers: ((lhs contracted axes, rhs contracted axes), (lhs batch axes, rhs batch
        axes)); by default the last axis of lhs is contracted with the first of rhs.
      semiring: a semiring or its name.

    Returns:
      An array of the batch sizes, the sizes left of lhs, the sizes left of rhs.

    Raises:
      InvalidConfig: malformed dimension_numbers.
      ShapeError, DTypeError: the operands do not fit.

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
      InvalidConfig: axis is not an integer or a sequence of distinct integers.
      ShapeError: an axis that x does not have.
      DTypeError: x is not an operand for `tropical_einsum`.

    Gradient: all to the first of equal entries, in row-major order.

    Example:
      >>> import jax.numpy as jnp
      >>> x = jnp.array([[1.0, 5.0], [2.0, 3.0]])
      >>> float(tropical_reduce_sum(x)), tropical_reduce_sum(x, axis=0).tolist()
      (5.0, [2.0, 5.0])
    """
    array = as_array(x, "tropical_reduce_sum")
    equation, axes = reduction_equation(array.ndim, axis)
    result = tropical_einsum(equation, array, semiring=semiring)
    return jnp.expand_dims(result, axes) if keepdims else result
