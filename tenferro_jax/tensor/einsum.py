"""einsum of any number of arrays or lazy tensors."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from ..dimensions import SymDim
from ..einsum.einsum_plan import Optimize, Plan, hashable, plan_einsum
from ..einsum.interpreter import run_plan, run_step, transposed, without_repeated_axes
from ..einsum.notation import parse_interleaved
from ..einsum.slices import (
    Memory,
    SlicedPlan,
    byte_count,
    plan_for,
    slice_lengths,
    with_lengths,
)
from ..einsum.spread import Spread, spread_over, sum_of_slices
from ..errors import DTypeError, InvalidConfig, Unsupported, shortened
from ..jax_seam import is_symbolic_dim
from ..ops.contraction import DotGeneral, precision_names
from ..ops.fields import Precision
from ..shapes import as_array, canonical_dtype
from .record import NUMBERS, Handle, is_number, number
from .tensor import recorded

Operand: TypeAlias = Handle | ArrayLike | Sequence[object]
"""A tensor, or data; or the labels of the one before it."""


def einsum(
    equation: str | Operand,
    *operands: Operand,
    optimize: Optimize = "auto",
    precision: jax.lax.PrecisionLike = None,
    preferred_element_type: DTypeLike | None = None,
    memory_limit: int | None = None,
    over: str | tuple[str, ...] | None = None,
) -> Any:
    """Sum of products over the labels that the output lacks.

    out[o] = sum over the rest of x1[t1] * x2[t2] * ...

    Args:
      equation: as in NumPy: "ij,jk->ik"; without "->" the labels that appear once, in alphabetical
        order; a label twice in one term takes the diagonal; "..." are axes that broadcast, and a
        label of size 1 broadcasts too. Or NumPy's interleaved form, instead of equation and
        operands: einsum(x, [0, 1], y, [1, 2], [0, 2]), see `parse_interleaved`.
      *operands: any number of arrays, tracers, numbers or lazy tensors, also mixed. NumPy and
        Python data are converted as in `jax.numpy`. Dtypes promote as `jax.numpy` does by default;
        integers are summed in their own dtype; for booleans the sum is "or", the product
        "and".
      optimize: the order of contractions: an algorithm of opt_einsum ("auto", "optimal", "dp",
        "greedy", ...), "cotengra", or an explicit path; see `plan_einsum`. True means "auto", False
        the order as written.
      precision: of the dot products, as in `jax.numpy.einsum`: a `jax.lax.Precision` or its name, a
        pair of them, or a `jax.lax.DotAlgorithmPreset` or its name.
      preferred_element_type: the dtype of the result, and of products and sums if it is wider
        than the operands' dtype; a narrower one rounds once, at the end.
      memory_limit: the most bytes that may be allocated beside the operands; the einsum then runs
        in slices, one after another. Their sums are added in the order of the slices. Under vmap it
        is for each element; a derivative also allocates the gradients.
      over: the name of a mesh axis, or a tuple of names, whose devices share the slices: at least
        as many slices as devices, each device within memory_limit, with whole operands and the
        whole result, and one sum at the end. The mesh is that of `jax.set_mesh`, or of the first
        operand with a NamedSharding.

    Returns:
      An array, or a TracedTensor if an operand is one.

    Raises:
      InvalidConfig: the equation cannot be read; the text points at the character; another number
        of operands than of terms; or an unknown algorithm or precision, or a path that does not
        fit.
      ShapeError: a rank or a size does not fit, or two symbolic sizes may
        not be equal.
      DTypeError: not arrays, an unknown dtype, a real dtype for complex operands, or
        integers or a dtype that need 64 bits while 64-bit types are off.
      Unsupported: a memory limit or mesh axis with symbolic sizes, `over` with lazy tensors or
        inside a shard_map.

    Gradient: of any order, forward and reverse, through standard ops; slice by slice with
    memory_limit.

    Cost: that of the plan; planning runs once for each (equation, shapes, optimize).

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
    names, result = precision_names(precision), _result_dtype(preferred_element_type)
    memory_limit = byte_count("einsum", memory_limit)
    values: list[Any] = [
        x if isinstance(x, Handle) or is_number(x) else as_array(x, f"einsum, operand {i}")
        for i, x in enumerate(operands)
    ]
    if any(is_number(x) for x in values):
        with jax.numpy_dtype_promotion("standard"):
            dtype = jnp.result_type(*[x if is_number(x) else x.dtype for x in values])
        values = [number(x, dtype, "einsum") if is_number(x) else x for x in values]
    spread = spread_over("einsum", over, values)
    is_lazy = any(isinstance(x, Handle) for x in values)
    if is_lazy and spread:
        raise Unsupported(
            where="einsum, over",
            given="lazy tensors",
            needed="arrays, because a graph names no mesh",
            fix="Leave over out, or pass arrays.",
        )
    shapes = tuple(tuple(x.shape) for x in values)
    dtypes: tuple[np.dtype, ...] = ()
    sums: np.dtype | None = None
    if memory_limit is not None or spread:
        with jax.numpy_dtype_promotion("standard"):
            dtypes = tuple(np.dtype(x.dtype) for x in values)
            sums = jnp.result_type(*dtypes, *([] if result is None else [result]))
    devices = spread.devices if spread else 1
    cut = _sliced(equation, shapes, hashable(optimize), memory_limit, dtypes, sums, devices)
    run = _function(cut, names, result, spread)
    if is_lazy:
        return recorded(run, tuple(values), {}, keep=True)
    return run(*values)


@functools.lru_cache(maxsize=1024)
def _sliced(
    equation: str,
    shapes: tuple[tuple[SymDim, ...], ...],
    optimize: Optimize,
    memory_limit: int | None,
    dtypes: Sequence[np.dtype],
    sums: np.dtype | None,
    devices: int,
) -> SlicedPlan:
    """The plan of an einsum; in slices if it has a memory limit or several devices, and then the
    dtypes of the operands and of the sums are needed.
    """
    find = functools.partial(plan_einsum, equation, shapes)
    if sums is None:
        plan = find(optimize)
        return SlicedPlan(plan, plan.sizes, None)
    where = f"einsum {shortened(equation)!r}"
    plan, first = plan_for(find, optimize, memory_limit, sums.itemsize)
    work = max(sums.itemsize, 4)  # XLA on CPU widens 16 bits
    memory = Memory(plan, sums.itemsize, work, devices)
    copies = sum(  # operands of another dtype are converted first
        sums.itemsize * math.prod(shape)
        for shape, dtype in zip(shapes, dtypes, strict=True)
        if dtype != sums
    )
    if memory_limit is not None and memory_limit <= copies:
        raise InvalidConfig(
            where=f"{where}, memory_limit",
            given=f"{memory_limit} bytes",
            needed=f"more than {copies} bytes, which the operands take as {sums.name}",
            fix="Convert the operands before, or raise the limit.",
        )
    left = None if memory_limit is None else memory_limit - copies
    lengths = slice_lengths(where, memory, left, devices, first)
    return SlicedPlan(with_lengths(plan, lengths), plan.sizes, memory)


@functools.lru_cache(maxsize=256)
def _function(
    plan: SlicedPlan, precision: Precision, result: np.dtype | None, spread: Spread | None
) -> Callable[..., jax.Array]:
    """The plan as a function of arrays, which JAX compiles once for their dtypes."""

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
        if plan.slices > 1:
            x = _sum_of_slices(plan, spread, arrays, precision, sums)
        else:
            x = _run_plan(plan.plan, arrays, precision, sums)
        return x if result is None else x.astype(result)

    # JAX's compilation cache uses it in a file name
    run.__name__ = run.__qualname__ = f"einsum {plan.plan.equation.text[:40]}"
    return run if any(is_symbolic_dim(size) for _, size in plan.whole) else jax.jit(run)


def _sum_of_slices(
    plan: SlicedPlan,
    spread: Spread | None,
    operands: Sequence[jax.Array],
    precision: Precision,
    sums: np.dtype | None,
) -> jax.Array:
    whole = dict(plan.whole)
    arrays = without_repeated_axes(operands, plan.plan.terms, whole)

    def block(start: Mapping[str, jax.Array], *arrays: jax.Array) -> jax.Array:
        parts = plan.parts(plan.plan.terms, arrays, start)
        return _converted(_run_plan(plan.plan, parts, precision, sums), sums)

    shape = tuple(whole[label] for label in plan.output)
    result = jax.ShapeDtypeStruct(shape, arrays[0].dtype if sums is None else sums)
    return sum_of_slices(plan, spread, block, result, *arrays)


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
    plan: Plan, operands: Sequence[jax.Array], precision: Precision, sums: np.dtype | None
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
    operands: Sequence[jax.Array],
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
    (lhs_contracting, lhs_batch), (rhs_contracting, rhs_batch) = (
        [tuple(map(term.index, group)) for group in (contracted, batch)] for term in terms
    )
    if operands[0].dtype != operands[1].dtype:  # one of them is a sum
        operands = [_converted(x, sums) for x in operands]
    accumulation = None if sums == operands[0].dtype else sums
    dot = DotGeneral(
        lhs_contracting, rhs_contracting, lhs_batch, rhs_batch, precision, accumulation
    )
    return dot.apply(*operands)
