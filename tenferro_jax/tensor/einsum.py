"""einsum of any number of arrays or lazy tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..einsum.build import build_einsum
from ..einsum.notation import parse_interleaved
from ..einsum.plan import Optimize, Plan, plan_einsum
from ..errors import DTypeError
from ..jax_seam import is_symbolic_dim
from ..meta import as_array
from ..ops.builder import JaxBuilder
from .promotion import SCALARS, as_dtype, common_dtype, number, promoted
from .record import Handle
from .tensor import RECORDER


def einsum(equation: Any, *operands: Any, optimize: Optimize = "auto") -> Any:
    """Sum of products over the labels that the output lacks: out[o] = sum over the rest of x1[t1] * x2[t2] * ...

    Args:
      equation: as in NumPy: "ij,jk->ik"; without "->" the labels that appear once, in alphabetical order; a label twice
        in one term is a diagonal; "..." are axes that broadcast. Or NumPy's interleaved form, in place of equation and
        operands: einsum(x, [0, 1], y, [1, 2], [0, 2]), see `parse_interleaved`.
      *operands: arrays, tracers and numbers, or lazy tensors (with arrays between them), of any number. NumPy and Python
        data are taken as `jax.numpy` takes them. Dtypes promote as in docs/spec/tensor_semantics.md; integers are summed
        in their dtype.
      optimize: the order of contractions: an algorithm of opt_einsum ("auto", "optimal", "dp", "greedy", ...), "cotengra",
        or an explicit path; see `plan_einsum`.

    Returns:
      An array, or a TracedTensor where an operand is one.

    Raises:
      EquationError: the equation cannot be read; the text points at the character.
      ArityError: another number of operands than of terms.
      ShapeError, UndecidedDimensionError: a rank or a size does not fit, or two symbolic sizes may not be equal.
      DTypeError, X64Error: booleans, no arrays, or integers that need 64 bits while 64-bit types are off.
      InvalidConfig: no such algorithm, or a path that does not fit.

    Gradient: of any order, forward and reverse, through standard ops; order of contractions as in the plan.

    Cost: as the plan says; planning once for each (equation, shapes, optimize).

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.arange(4.0).reshape(2, 2)
      >>> einsum("ij,jk,kk->i", a, a, a).tolist()
      [9.0, 33.0]
      >>> einsum(a, [0, 1], a, [1, 1], [0]).tolist()
      [3.0, 9.0]
    """
    if not isinstance(equation, str):
        equation, operands = parse_interleaved((equation, *operands))
    weak = [type(x) in SCALARS for x in operands]
    operands = [
        x if scalar or isinstance(x, Handle) else as_array(x, f"einsum, operand {i}")
        for i, (scalar, x) in enumerate(zip(weak, operands, strict=True))
    ]
    if any(isinstance(x, Handle) for x in operands):
        tensors = promoted(RECORDER, operands, "einsum")
        _require_numbers(tensors[0].dtype)
        return build_einsum(plan(equation, [x.shape for x in tensors], optimize), RECORDER, tensors)
    if any(weak):
        dtype = common_dtype(*(type(x) if scalar else x.dtype for scalar, x in zip(weak, operands, strict=True)))
        operands = [number(x, dtype, "einsum") if scalar else x for scalar, x in zip(weak, operands, strict=True)]
    return _function(plan(equation, [jnp.shape(x) for x in operands], optimize))(*operands)


def plan(equation: str, shapes: Sequence[Any], optimize: Optimize = "auto") -> Plan:
    """`plan_einsum`, remembered."""
    if not isinstance(optimize, str) or not isinstance(equation, str):
        return plan_einsum(equation, shapes, optimize)
    return _plan(equation, tuple(map(tuple, shapes)), optimize)


_plan = functools.lru_cache(maxsize=1024)(plan_einsum)


@functools.lru_cache(maxsize=256)
def _function(plan: Plan) -> Callable[..., Any]:
    """The plan as a function of arrays, which JAX compiles once for their dtypes."""

    def run(*arrays: Any) -> Any:
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*arrays)
        _require_numbers(dtype)
        builder = JaxBuilder()
        return build_einsum(plan, builder, [as_dtype(builder, jnp.asarray(x), dtype) for x in arrays])

    run.__name__ = run.__qualname__ = f"einsum {plan.equation.text}"
    return run if any(is_symbolic_dim(size) for _, size in plan.sizes) else jax.jit(run)


def _require_numbers(dtype: Any) -> None:
    if dtype.kind == "b":
        raise DTypeError(where="einsum", given="booleans", needed="numbers", fix="Convert them, to int32 for example.")
