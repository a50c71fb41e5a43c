"""Equation and sizes -> the order of contractions, its memory and its slices, without arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from opt_einsum import get_symbol
from opt_einsum.parser import convert_interleaved_input

from tenferro_jax import plan_einsum
from tenferro_jax.errors import (
    DTypeError,
    InvalidConfig,
    ShapeError,
    TenferroError,
    shortened,
    typed_call,
)
from tenferro_jax.plans import Plan
from tenferro_jax.plans.plan import hashable
from tenferro_jax.shapes import as_index, shown

from ..arguments import require_size, work_dtype
from ..semirings.registered import as_semiring
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import max_plus
from .slice_lengths import MOST_SLICES, Memory, byte_count, slice_lengths, with_lengths
from .slices import TropicalPlan

Operand: TypeAlias = ArrayLike | Sequence[object]
"""An array or data for one; its labels, in the interleaved form; its shape, for a plan."""
Optimize: TypeAlias = str | bool | Sequence[Sequence[int]]
"""The name of an algorithm, or a path."""


P = ParamSpec("P")
T = TypeVar("T")


def names_itself(fn: Callable[P, T]) -> Callable[P, T]:
    """A function of an equation whose errors all begin with its name and the equation."""

    @functools.wraps(fn)
    def call(*args: P.args, **how: P.kwargs) -> T:
        try:
            return fn(*args, **how)
        except TenferroError as error:
            written = [repr(shortened(x)) for x in args[:1] if isinstance(x, str)]
            place = " ".join([fn.__name__, *written])
            detail = re.sub(rf"^{re.escape(place)}(, )?", "", error.where)
            detail = detail if detail != error.where else detail_of(error.where)
            error.put_at(", ".join(filter(None, [place, detail])))
            raise

    return call


_PLACES = re.compile(
    r"^(equation of a tropical step|(plan_)?tropical_einsum(_with_argmax)?|best_assignment|"
    r"einsum equation|einsum|(extension )?tenferro-ext-tropical\.\w+\.v\d+)\b"
    r"( '[^']*')?(, )?"
)
"""What parts of a call name as their place, which its author never wrote."""


def detail_of(where: str) -> str:
    """The place of an error without what parts of a call name as theirs: an argument, or ""."""
    return _PLACES.sub("", where)


@names_itself
@typed_call
def plan_tropical_einsum(
    equation: str | Operand,
    *operands: Operand,
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    semiring: Semiring | str = max_plus,
    dtype: DTypeLike | None = None,
    slices: int = 1,
) -> TropicalPlan:
    """Plan an einsum: the order of its contractions and its slices.

    Args:
      equation: as for `tropical_einsum`.
      *operands: arrays or shapes.
      optimize: as for `tropical_einsum`.
      memory_limit: bytes; slices are chosen so that `peak` is at most that.
      semiring: a semiring or its name. For a selective one the memory of winners counts, because a
        derivative needs them.
      dtype: of the operands, 32 bits wide while 64-bit types are off; by default that of the first
        array, or float32.
      slices: how many there are at least, such as the number of workers, if the labels have so many
        entries.

    Returns:
      A TropicalPlan, to print and compare, and to run slice by slice.

    Raises:
      InvalidConfig, ShapeError: the equation cannot be read or does not fit.
      DTypeError: not a dtype.
      InvalidConfig: an unknown algorithm or semiring, a path that does not fit, or a memory limit
        that no slices reach; the text gives the least possible limit.
      Unsupported: a memory limit with symbolic sizes.

    Example:
      >>> print(plan_tropical_einsum("ij,jk,kl->il", (64, 512), (512, 512), (512, 64),
      ...     memory_limit=1_000_000))
      step  operands  equation   multiplications  entries
         3  0, 1      ij,jk->ik          1048576     8192
         4  2, 3      kl,ik->il           524288     4096
      1572864 multiplications, at most 8192 entries at once, equation ij,jk,kl->il
      16 slices one after another (4 of j x 4 of k), 25165824 multiplications in all
      at most 819200 bytes at once beside the operands
    """
    equation, given, _ = read("plan_tropical_einsum", equation, operands)
    where = f"tropical_einsum {shortened(equation)!r}"
    shapes = tuple(_shape(x, f"plan_tropical_einsum, operand {i}") for i, x in enumerate(given))
    if dtype is None:
        dtype = next((x.dtype for x in given if hasattr(x, "dtype")), "float32")
    return cached_plan(
        equation,
        shapes,
        _dtype(dtype),
        hashable(optimize),
        None if memory_limit is None else byte_count(where, memory_limit),
        as_semiring(semiring),
        require_size("plan_tropical_einsum, slices", slices, 1),
    )


def _dtype(dtype: DTypeLike) -> Any:
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except TypeError as error:
        raise DTypeError(
            where="plan_tropical_einsum, dtype", given=repr(dtype), needed="a dtype"
        ) from error


def _shape(x: object, where: str) -> tuple[int, ...]:
    """The shape of an array, or a shape."""
    shape = getattr(x, "shape", x)
    if (
        not isinstance(shape, Sequence)
        or isinstance(shape, str | bytes)
        or not all(map(_is_size, shape))
    ):
        raise ShapeError(
            where=where, given=repr(x), needed="an array, or a sequence of non-negative sizes"
        )
    return tuple(size if (known := as_index(size)) is None else known for size in shape)


def _is_size(size: object) -> bool:
    found, given = as_index(size), cast(Any, size)
    return jax.export.is_symbolic_dim(given) if found is None else found >= 0


@functools.lru_cache(maxsize=256)
def cached_plan(
    equation: str,
    shapes: tuple[tuple[int, ...], ...],
    dtype: np.dtype,
    optimize: Optimize,
    memory_limit: int | None,
    semiring: Semiring,
    slices: int = 1,
    devices: int = 1,
) -> TropicalPlan:
    """`plan_tropical_einsum`, cached."""
    where = f"tropical_einsum {shortened(equation)!r}"
    plan = ordered(equation, shapes, optimize)
    is_whole = memory_limit is None and slices == 1
    if is_whole and any(jax.export.is_symbolic_dim(n) for _, n in plan.sizes):
        return TropicalPlan(
            plan=plan, whole=plan.sizes, memory=None, dtype=dtype, semiring=semiring
        )
    itemsize, work = dtype.itemsize, work_dtype(dtype).itemsize
    scratch, winner = 10, 0  # log_sum_exp repairs tiles
    if isinstance(semiring, SelectiveSemiring):  # a derivative needs the winners
        scratch, winner = 3 if work == itemsize else 4, 4  # 16 bits are widened
    memory = Memory(
        plan=plan, itemsize=itemsize, work=work, devices=devices, scratch=scratch, winner=winner
    )
    require_possible(where, plan, dtype.itemsize, memory_limit)
    if is_whole:
        return TropicalPlan(
            plan=plan, whole=plan.sizes, memory=memory, dtype=dtype, semiring=semiring
        )
    lengths = slice_lengths(where, memory, memory_limit, slices)
    return TropicalPlan(
        plan=with_lengths(plan, lengths),
        whole=plan.sizes,
        memory=memory,
        dtype=dtype,
        semiring=semiring,
    )


@functools.lru_cache(maxsize=256)
def ordered(equation: str, shapes: tuple[tuple[int, ...], ...], optimize: Optimize) -> Plan:
    """One order of contractions for all semirings and dtypes, also where the search is random; the
    operands of each step in the order of their numbers, because the first winner must not depend on
    layout.
    """
    plan = plan_einsum(equation, shapes, optimize)
    steps = [
        step
        if list(step.operands) == sorted(step.operands)
        else dataclasses.replace(step, operands=step.operands[::-1], terms=step.terms[::-1])
        for step in plan.steps
    ]
    return dataclasses.replace(plan, steps=tuple(steps))


def read(
    where: str, equation: str | Operand, operands: Sequence[Any]
) -> tuple[str, Sequence[Operand], Mapping[str, Any]]:
    """Equation and operands of both forms; and for each letter of NumPy's interleaved form the
    label that was written.

    Raises:
      InvalidConfig: no text, and no operands with their labels.
    """
    if isinstance(equation, str):
        return equation, operands, {}
    given = equation, *operands
    try:
        text, arrays = convert_interleaved_input(given)
    except (TypeError, KeyError) as error:
        raise InvalidConfig(
            where=where,
            given=f"{shown(equation)} first",
            needed="an equation such as 'ij,jk->ik', or labels behind each operand",
            fix="Pass the equation first; labels are integers or letters.",
        ) from error
    labels = {*itertools.chain.from_iterable(given[1 : 2 * len(arrays) : 2])} - {...}
    return text, arrays, dict(zip(map(get_symbol, itertools.count()), sorted(labels)))


MOST_ENTRIES = 2**48
"""More than any machine holds; XLA aborts the process if a size does not fit into 64 bits."""


def too_large(plan: Plan, itemsize: int, memory_limit: int | None) -> tuple[int, int] | None:
    """The first result that is larger than any machine, or that too many slices would be needed
    for: the number of its step from 0, and the most entries; or None.
    """
    for number, step in enumerate(plan.steps):
        most = MOST_ENTRIES
        if memory_limit is not None and not _is_output(plan, number):
            # A slice makes a result smaller at most by the number of slices.
            most = MOST_SLICES * memory_limit // itemsize
        if step.size > most:
            return number, most
    return None


def _is_output(plan: Plan, number: int) -> bool:
    return set(plan.steps[number].result) == set(plan.equation.output)


def require_possible(where: str, plan: Plan, itemsize: int, memory_limit: int | None) -> None:
    """Refuse a result that is `too_large`."""
    found = too_large(plan, itemsize, memory_limit)
    if found is None:
        return
    number, most = found
    step, is_output = plan.steps[number], _is_output(plan, number)
    is_sliced = memory_limit is not None and not is_output
    raise ShapeError(
        where=where,
        given=f"a result of {step.size} entries, one for each value of {len(step.result)} "
        f"labels, in step {len(plan.terms) + number}, {shortened(step.equation)}",
        needed=f"at most {MOST_SLICES} slices within memory_limit"
        if is_sliced
        else f"at most {most}",
        fix="Keep fewer labels in the output."
        if is_output
        else "Take fewer operands, or drop labels from them, or pass another optimize or "
        "memory_limit.",
    )
