"""Equation and sizes -> the order of contractions and its slices, without arrays."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike
from opt_einsum import get_symbol

from tenferro_jax import plan_einsum
from tenferro_jax.einsum import Equation, Plan, Step, parse_interleaved
from tenferro_jax.einsum.slices import (
    SlicedPlan,
    byte_count,
    cotengra_slices,
    slice_lengths,
    with_lengths,
)
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported, shortened

from ..algebra.semiring import SelectiveSemiring, Semiring, as_semiring
from ..algebra.shipped import max_plus
from ..step.einsum_op import work_dtype
from .slicing import TropicalMemory, require_possible

Operand: TypeAlias = ArrayLike | Sequence[object]
"""An array or data for one; its labels, in the interleaved form; its shape, for a plan."""
Optimize: TypeAlias = str | bool | Sequence[Sequence[int]]
"""The name of an algorithm, or a path."""


@dataclasses.dataclass(frozen=True, repr=False)
class TropicalSlices(SlicedPlan):
    """The attributes of a TropicalPlan."""

    dtype: np.dtype
    semiring: Semiring

    def __repr__(self) -> str:
        text = shortened(self.plan.equation.text)
        return (
            f"TropicalPlan({text!r}, {len(self.plan.steps)} steps, {self.slices} slices, peak "
            f"{self.peak})"
        )


def plan_of(
    equation: str | Operand,
    *operands: Operand,
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    semiring: Semiring | str = max_plus,
    dtype: DTypeLike | None = None,
    slices: int = 1,
) -> TropicalSlices:
    """What `plan_tropical_einsum` returns, without its methods."""
    no_semiring_among("plan_tropical_einsum", operands)
    given = (equation, *operands)
    if not isinstance(equation, str):
        equation, operands = parse_interleaved(given)
    written = as_written(equation, given)
    shapes = tuple(_shape(x, f"plan_tropical_einsum, operand {i}") for i, x in enumerate(operands))
    if dtype is None:
        dtype = next((x.dtype for x in operands if hasattr(x, "dtype")), "float32")
    algebra = as_semiring(semiring)
    equation = with_components("plan_tropical_einsum", equation, shapes, algebra)
    plan = cached_plan(
        equation,
        shapes,
        _dtype(dtype),
        hashable(optimize),
        byte_count(f"tropical_einsum {shortened(equation)!r}", memory_limit),
        algebra,
        _count(slices),
    )
    if not written.integers:
        return plan
    own = dataclasses.replace(plan.plan.equation, text=written.text)
    return dataclasses.replace(plan, plan=dataclasses.replace(plan.plan, equation=own))


def as_written(equation: str, given: Sequence[Any]) -> Equation:
    """An equation of the interleaved form, whose arguments are given, with their integers."""
    if isinstance(given[0], str):
        return Equation(equation, (), "")
    pairs = given[1 : len(given) - len(given) % 2 : 2]
    labels = {label for term in pairs for label in term if label is not ...}
    names = Equation(" ".join(map(str, sorted(labels))), (), "")
    return Equation(names.shown(equation), (), "")


def _count(slices: object) -> int:
    if isinstance(slices, int | np.integer) and not isinstance(slices, bool) and slices > 0:
        return int(slices)
    raise InvalidConfig(
        where="plan_tropical_einsum, slices", given=repr(slices), needed="a positive integer"
    )


def with_components(
    where: str, equation: str, shapes: Sequence[tuple[int, ...]], semiring: Semiring
) -> str:
    """The equation, with a label for the axis of components if entries have some.

    Raises:
      ShapeError: the first axis of an operand is not that of the components.
    """
    if not semiring.components:
        return equation
    for i, shape in enumerate(shapes):
        if shape[:1] != (semiring.components,):
            raise ShapeError(
                where=f"{where} {shortened(equation)!r}, operand {i}",
                given=f"shape {shape}",
                needed=f"first the {semiring.components} components of an entry of {semiring!r}",
            )
    read = plan_einsum(equation, [shape[1:] for shape in shapes], False).equation
    fresh = (c for c in map(get_symbol, itertools.count()) if c not in equation)
    own, terms = next(fresh), (*read.inputs, read.output)
    names = {ord(c): next(fresh) for c in "".join(terms) if c not in equation}  # of an ellipsis
    *inputs, output = (own + term.translate(names) for term in terms)
    return f"{','.join(inputs)}->{output}"


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
    return tuple(shape)


def _is_size(size: Any) -> bool:
    if isinstance(size, int | np.integer):
        return not isinstance(size, bool) and bool(size >= 0)
    return jax.export.is_symbolic_dim(size)


def _dtype(dtype: DTypeLike) -> Any:
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except TypeError as error:
        raise DTypeError(
            where="plan_tropical_einsum, dtype", given=repr(dtype), needed="a dtype"
        ) from error


def hashable(optimize: Optimize) -> Any:
    """An explicit path as tuples, so that plans can be cached.

    Raises:
      InvalidConfig: neither text, nor a bool, nor a sequence of hashable values.
    """
    if isinstance(optimize, str | bool):
        return "auto" if optimize is True else optimize
    optimize = optimize.tolist() if isinstance(optimize, np.ndarray) else optimize
    try:
        path = tuple(tuple(x) if isinstance(x, list) else x for x in optimize)
        hash(path)
    except TypeError as error:
        raise InvalidConfig(
            where="tropical_einsum, optimize",
            given=f"{optimize!r}: {error}",
            needed="the name of an algorithm, a sequence of tuples of positions, True or False",
            fix="See opt_einsum's paths.",
        ) from error
    return path


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
) -> TropicalSlices:
    """`plan_tropical_einsum`, cached."""
    cut_first: Sequence[str] = ()
    where = f"tropical_einsum {shortened(equation)!r}"
    if optimize == "cotengra" and memory_limit is not None:
        optimize, cut_first = cotengra_slices(
            plan_einsum(equation, shapes, "greedy"), memory_limit // dtype.itemsize
        )
    plan = _ordered(equation, shapes, optimize)
    if not all(isinstance(size, int) for _, size in plan.sizes):
        if memory_limit is not None or slices > 1:
            raise Unsupported(
                where=f"{where}, {'slices' if memory_limit is None else 'memory_limit'}",
                given="symbolic sizes",
                needed="concrete sizes",
                fix="Leave it out, or trace with concrete sizes.",
            )
        return TropicalSlices(plan, plan.sizes, None, dtype, semiring)
    require_possible(equation, plan, dtype.itemsize, memory_limit)
    memory = _memory(plan, dtype, semiring, devices)
    kept = plan.equation.output[:1] if semiring.components else ""
    lengths = slice_lengths(where, memory, memory_limit, slices, cut_first, kept)
    return TropicalSlices(with_lengths(plan, lengths), plan.sizes, memory, dtype, semiring)


@functools.lru_cache(maxsize=256)
def _ordered(equation: str, shapes: tuple[tuple[int, ...], ...], optimize: Optimize) -> Plan:
    """One order of contractions for all semirings and dtypes, also where the search is random; the
    operands of each step in the order of their numbers, because the first winner must not depend on
    layout.
    """
    plan = plan_einsum(equation, shapes, optimize)
    return dataclasses.replace(plan, steps=tuple(map(_in_order, plan.steps)))


def _memory(plan: Plan, dtype: np.dtype, semiring: Semiring, devices: int = 1) -> TropicalMemory:
    is_selective = isinstance(semiring, SelectiveSemiring)
    return TropicalMemory(plan, dtype.itemsize, work_dtype(dtype).itemsize, devices, is_selective)


def cut(
    plan: Plan, lengths: Mapping[str, int], dtype: np.dtype, semiring: Semiring
) -> TropicalSlices:
    """A plan whose labels have these lengths in a slice."""
    memory = _memory(plan, dtype, semiring)
    return TropicalSlices(with_lengths(plan, lengths), plan.sizes, memory, dtype, semiring)


def _in_order(step: Step) -> Step:
    """The step with its operands in the order of their numbers."""
    if list(step.operands) == sorted(step.operands):
        return step
    return dataclasses.replace(step, operands=step.operands[::-1], terms=step.terms[::-1])


def no_semiring_among(where: str, operands: Sequence[object]) -> None:
    """Refuse a semiring that was passed without its keyword.

    Raises:
      DTypeError: one of the operands is a semiring, or its name.
    """
    for x in operands:
        if not isinstance(x, str | type | Semiring):
            continue
        try:
            given = as_semiring(x)
        except InvalidConfig:
            continue  # the operand gets its own error
        raise DTypeError(
            where=where,
            given=f"the semiring {given!r} among the operands",
            needed="arrays as operands",
            fix=f"Pass it by keyword: semiring={given!r}.",
        )
