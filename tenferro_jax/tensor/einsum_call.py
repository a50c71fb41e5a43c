"""einsum of any number of arrays or lazy tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ..dimensions import SymDim
from ..errors import DTypeError, require_kind
from ..jax_seam import is_symbolic_dim
from ..ops.contraction import DotGeneral, precision_names
from ..ops.fields import Precision
from ..plans.interpreter import run_plan, run_step, transposed
from ..plans.plan import Optimize, Plan, hashable, plan_einsum
from ..shapes import Arrays, as_array, canonical_dtype
from .record import NUMBERS, Handle, is_number, number
from .tensor import recorded


def einsum(
    equation: str,
    *operands: Handle | ArrayLike,
    optimize: Optimize = "auto",
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
) -> Any:
    """Sum of products over the labels that the output lacks.

    out[o] = sum over the rest of x1[t1] * x2[t2] * ...

    Args:
      equation: as in NumPy: "ij,jk->ik"; without "->" the labels that appear once, in alphabetical
        order; a label twice in one term takes the diagonal; "..." are axes that broadcast, and a
        label of size 1 broadcasts too.
      *operands: any number of arrays, tracers, numbers or lazy tensors, also mixed. NumPy and
        Python data are converted as in `jax.numpy`. Dtypes promote as `jax.numpy` does by default;
        integers are summed in their own dtype; for booleans the sum is "or", the product
        "and".
      optimize: the order of contractions: an algorithm of opt_einsum ("auto", "optimal", "dp",
        "greedy", ...), or an explicit path; see `plan_einsum`. True means "auto", False
        the order as written.
      precision: of the dot products, as in `jax.numpy.einsum`: a `jax.lax.Precision` or its name, a
        pair of them, or a `jax.lax.DotAlgorithmPreset` or its name.
      preferred_element_type: the dtype of the result, and of products and sums if it is wider
        than the operands' dtype; a narrower one rounds once, at the end.

    Returns:
      An array, or a TracedTensor if an operand is one.

    Raises:
      InvalidConfig: the equation cannot be read; another number of operands than of terms; or an
        unknown algorithm or precision, or a path that does not fit.
      ShapeError: a rank or a size does not fit, or two symbolic sizes may not be equal.
      DTypeError: not arrays, an unknown dtype, a real dtype for complex operands, or
        integers or a dtype that need 64 bits while 64-bit types are off.

    Gradient: of any order, forward and reverse, through standard ops.

    Cost: that of the plan; planning runs once for each (equation, shapes, optimize).

    Example:
      >>> import jax.numpy as jnp
      >>> a = jnp.arange(4.0).reshape(2, 2)
      >>> einsum("ij,jk,kk->i", a, a, a).tolist()
      [9.0, 33.0]
    """
    require_kind(equation, str, "einsum", "text such as 'ij,jk->ik'", "Pass the equation first.")
    names, result = precision_names(precision), _result_dtype(preferred_element_type)
    values: list[Any] = []
    for i, x in enumerate(operands):
        is_ready = isinstance(x, Handle) or is_number(x)
        values.append(x if is_ready else as_array(x, f"einsum, operand {i}"))
    if any(is_number(x) for x in values):
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*[x if is_number(x) else x.dtype for x in values])
        values = [number(x, dtype, "einsum") if is_number(x) else x for x in values]
    shapes = tuple(tuple(x.shape) for x in values)
    run = _function(equation, shapes, hashable(optimize), names, result)
    if any(isinstance(x, Handle) for x in values):
        return recorded(run, tuple(values), {}, keep=True)
    return run(*values)


@functools.lru_cache(maxsize=1024)
def _function(
    equation: str,
    shapes: tuple[tuple[SymDim, ...], ...],
    optimize: Optimize,
    precision: Precision,
    result: np.dtype | None,
) -> Callable[..., jax.Array]:
    """The plan as a function of arrays, which JAX compiles once for their dtypes."""
    plan = plan_einsum(equation, shapes, optimize)

    def run(*arrays: jax.Array) -> jax.Array:
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*arrays)
            sums = None if result is None else jnp.promote_types(dtype, result)
        if sums is not None and result is not None and sums.kind == "c" != result.kind:
            raise DTypeError(
                where="einsum, preferred_element_type",
                given=f"{result.name} for {sums.name} operands",
                needed="a complex dtype",
                fix="Take the real part of the result.",
            )
        arrays = tuple(jnp.asarray(x, dtype) for x in arrays)
        x = _run_plan(plan, arrays, precision, sums)
        return x if result is None else x.astype(result)

    # JAX's compilation cache uses it in a file name
    run.__name__ = run.__qualname__ = f"einsum {plan.equation.text[:40]}"
    return run if any(is_symbolic_dim(size) for _, size in plan.sizes) else jax.jit(run)


def _result_dtype(given: DTypeLike | None) -> np.dtype | None:
    if given is None:
        return None
    where = "einsum, preferred_element_type"
    try:
        is_kind = isinstance(given, type) and given in NUMBERS
        dtype = jax.dtypes.canonicalize_dtype(given) if is_kind else jnp.dtype(given)
    except TypeError as error:
        raise DTypeError(
            where=where,
            given=repr(given),
            needed="a dtype",
            fix="Leave it out for the operands' own.",
        ) from error
    if (narrow := canonical_dtype(dtype)) != dtype:
        raise DTypeError(
            where=where,
            given=f"{dtype.name} while 64-bit types are off",
            needed=f"64-bit types on, or {narrow.name}",
            fix=f"Run under jax.enable_x64(True), or pass {narrow.name}.",
        )
    return dtype


def _run_plan(
    plan: Plan, operands: Arrays, precision: Precision, sums: np.dtype | None
) -> jax.Array:
    """The einsum of arrays of one dtype by a plan. For booleans the sum is "or", the product "and".

    Args:
      plan: from `plan_einsum`.
      operands: with the shapes of the plan.
      precision: the field of DotGeneral.
      sums: the dtype of products and sums, the operands' or a wider one; None for the operands'.
    """

    def multiply(x: jax.Array, y: jax.Array) -> jax.Array:
        x, y = _converted(x, sums), _converted(y, sums)
        return x & y if x.dtype == np.bool_ else x * y

    contract = functools.partial(_contracted, precision, sums)
    return run_plan(
        plan,
        operands,
        lambda step, inputs: run_step(inputs, step.terms, step.result, contract, multiply),
    )


def _converted(x: jax.Array, dtype: np.dtype | None) -> jax.Array:
    return x if dtype is None else x.astype(dtype)


def _contracted(
    precision: Precision,
    sums: np.dtype | None,
    operands: Arrays,
    terms: Sequence[str],
    result: str,
) -> jax.Array:
    """The sum over the labels that the result lacks, of one operand or of a product."""
    if len(operands) == 1:
        x, term = _converted(operands[0], sums), terms[0]
        axes = tuple(i for i, label in enumerate(term) if label not in result)
        x = x.any(axes) if x.dtype == np.bool_ else x.sum(axes, dtype=x.dtype)
        return transposed(x, "".join(label for label in term if label in result), result)
    left, right = terms
    shared = [label for label in left if label in right]
    batch = [label for label in shared if label in result]
    contracted = [label for label in shared if label not in result]
    lhs_contracting, rhs_contracting = (tuple(map(term.index, contracted)) for term in terms)
    lhs_batch, rhs_batch = (tuple(map(term.index, batch)) for term in terms)
    if operands[0].dtype != operands[1].dtype:  # one of them is a sum
        operands = [_converted(x, sums) for x in operands]
    accumulation = None if sums == operands[0].dtype else sums
    dot = DotGeneral(
        lhs_contracting,
        rhs_contracting,
        lhs_batch,
        rhs_batch,
        precision=precision,
        accumulation_dtype=accumulation,
    )
    return dot.apply(*operands)
