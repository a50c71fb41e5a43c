"""Which dtype an operation on several tensors has: JAX's lattice, whatever jax_numpy_dtype_promotion says."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..errors import DTypeError
from ..ops.conversion import Convert
from ..shapes import TensorMeta, struct, x64_enabled
from .record import Handle, Recorder, concrete

SCALARS = (bool, int, float, complex)


def promoted(recorder: Recorder[Any], values: Sequence[Any], where: str) -> list[Any]:
    """The values as tensors of one dtype: Python numbers are weak and take the dtype that they are added to.

    Raises:
      DTypeError: a value that is no tensor, array or number, or a number that the dtype cannot hold.
      X64Error: a 64-bit array while 64-bit types are off.
    """
    values = [v if isinstance(v, Handle) or type(v) in SCALARS else recorder.constant(concrete(v, where)) for v in values]
    dtype = common_dtype(*(type(v) if type(v) in SCALARS else v.dtype for v in values))
    return [as_dtype(recorder, v, dtype) if isinstance(v, Handle) else recorder.constant(number(v, dtype, where)) for v in values]


def common_dtype(*dtypes: Any) -> Any:
    """The dtype to which dtypes and types of Python numbers promote.

    Example:
      >>> import numpy as np
      >>> common_dtype(np.dtype("int32"), np.dtype("bfloat16")).name, common_dtype(np.dtype("float16"), float).name
      ('bfloat16', 'float16')
    """
    same = isinstance(dtypes[0], np.dtype) and all(d is dtypes[0] for d in dtypes)
    return dtypes[0] if same else _common_dtype(dtypes, x64_enabled())


@functools.lru_cache(maxsize=1024)
def _common_dtype(dtypes: tuple[Any, ...], x64: bool) -> Any:
    del x64  # part of the key: it changes the defaults
    try:
        with jax.numpy_dtype_promotion("standard"):
            return np.dtype(jnp.result_type(*(d(0) if isinstance(d, type) else d for d in dtypes)))
    except (TypeError, ValueError) as error:
        given = " and ".join(d.__name__ if isinstance(d, type) else str(d) for d in dtypes)
        raise DTypeError(where="promotion", given=given, needed="dtypes that have a common one", fix="Convert with cast.") from error


def inexact_dtype(dtype: Any) -> Any:
    """The floating or complex dtype in which a function such as exp takes a tensor.

    Example:
      >>> import numpy as np
      >>> inexact_dtype(np.dtype("int8")).name, inexact_dtype(np.dtype("bfloat16")).name
      ('float32', 'bfloat16')
    """
    return dtype if jnp.issubdtype(dtype, np.inexact) else _inexact_dtype(dtype, x64_enabled())


@functools.lru_cache(maxsize=64)
def _inexact_dtype(dtype: Any, x64: bool) -> Any:
    del x64
    try:
        with jax.numpy_dtype_promotion("standard"):
            return jax.eval_shape(jnp.exp, struct(TensorMeta(dtype, ()))).dtype
    except (TypeError, ValueError) as error:
        raise DTypeError(where="promotion", given=str(dtype), needed="numbers", fix="Convert with cast.") from error


def as_dtype(recorder: Any, value: Any, dtype: Any) -> Any:
    """The value in another dtype; itself if it has that one."""
    return value if value.dtype == dtype else recorder.add(Convert(dtype), value)[0]


def number(value: Any, dtype: Any, where: str) -> Any:
    """A Python number as a scalar array of a dtype.

    Raises:
      DTypeError: the dtype cannot hold it.
    """
    try:
        with np.errstate(over="ignore"):  # a floating dtype holds it as inf, as JAX has it
            return np.asarray(value, dtype)
    except (OverflowError, TypeError, ValueError) as error:
        fix = "Convert the tensor to a wider dtype first."
        raise DTypeError(where=where, given=f"the number {value}", needed=f"one that {dtype} holds", fix=fix) from error
