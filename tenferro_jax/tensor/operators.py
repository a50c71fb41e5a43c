"""Operators that are several ops: true division, Python's remainder, powers, matrix product."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from ..einsum.build import build_einsum
from ..einsum.plan import plan_einsum
from ..errors import DTypeError, ShapeError
from ..ops import analytic, arithmetic, logic
from ..ops.logic import Direction
from .broadcasting import broadcast_together
from .promotion import as_dtype, inexact_dtype, promoted
from .record import Recorder


def together(recorder: Recorder[Any], values: Sequence[Any], where: str) -> list[Any]:
    """The values as tensors of one dtype and shape."""
    return broadcast_together(recorder, promoted(recorder, values, where), where)


def quotient(recorder: Recorder[Any], x: Any, y: Any) -> Any:
    """x / y, integers converted to floating numbers first."""
    pair = promoted(recorder, [x, y], "Div")
    pair = [as_dtype(recorder, v, inexact_dtype(v.dtype)) for v in pair]
    return recorder.add(arithmetic.Div(), *broadcast_together(recorder, pair, "Div"))[0]


def remainder(recorder: Recorder[Any], x: Any, y: Any) -> Any:
    """x % y with the sign of y, as Python and NumPy have it; of integers by zero 0, as JAX has it."""
    x, y = together(recorder, [x, y], "remainder")
    (rest,) = recorder.add(arithmetic.Rem(), x, y)
    zero = broadcast_together(recorder, [rest, recorder.constant(np.zeros((), x.dtype))], "remainder")[1]
    below, y_below = (recorder.add(logic.Compare(Direction.Lt), v, zero)[0] for v in (rest, y))
    (other_sign,) = recorder.add(logic.Xor(), below, y_below)
    (nonzero,) = recorder.add(logic.Compare(Direction.Ne), rest, zero)
    (wrong,) = recorder.add(logic.And(), other_sign, nonzero)
    (shifted,) = recorder.add(arithmetic.Add(), rest, y)
    (result,) = recorder.add(logic.Select(), wrong, shifted, rest)
    if jnp.issubdtype(x.dtype, np.inexact):
        return result
    (by_zero,) = recorder.add(logic.Compare(Direction.Eq), y, zero)
    return recorder.add(logic.Select(), by_zero, zero, result)[0]


def power(recorder: Recorder[Any], x: Any, y: Any) -> Any:
    """x ** y; a Python integer y keeps the dtype of x.

    Raises:
      DTypeError: two integer tensors.
    """
    x, exponent = promoted(recorder, [x, y], "power")
    if type(y) is int:
        return recorder.add(analytic.IntegerPow(y), x)[0]
    if not jnp.issubdtype(x.dtype, np.inexact):
        fix = "Convert one to floating numbers, or use a Python integer."
        raise DTypeError(where="power", given=f"an exponent of dtype {exponent.dtype} for {x.dtype}", needed="floating or complex", fix=fix)
    return recorder.add(analytic.Pow(), *broadcast_together(recorder, [x, exponent], "power"))[0]


def matmul(recorder: Recorder[Any], x: Any, y: Any) -> Any:
    """NumPy's matrix product: a vector is a row on the left, a column on the right; batch axes broadcast.

    Raises:
      ShapeError: a scalar, or sizes that differ.
    """
    x, y = promoted(recorder, [x, y], "matmul")
    if not x.shape or not y.shape:
        fix = "Use * for scalars."
        raise ShapeError(where="matmul", given=f"{x.meta} and {y.meta}", needed="rank 1 or more", fix=fix)
    left, right = ("j" if x.ndim == 1 else "...ij"), ("j" if y.ndim == 1 else "...jk")
    output = "..." + ("" if x.ndim == 1 else "i") + ("" if y.ndim == 1 else "k")
    return build_einsum(plan_einsum(f"{left},{right}->{output}", [x.shape, y.shape]), recorder, [x, y])
