"""A sliced plan on arrays: the slices one after another, joined as they come."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from .einsum_op import work_dtype
from .evaluation import Mode, evaluate, reshaped
from .plan import TropicalPlan
from .result import TropicalResult
from .semiring import SelectiveSemiring


def whole(plan: TropicalPlan, mode: Mode, operands: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
    """The value of all slices, and the coordinates where the mode asks for winners; in one compiled loop.

    The derivative follows the coordinates: the value is times of the operands' entries there.
    """

    @jax.custom_jvp
    def run(*operands: Any) -> tuple[Any, Mapping[str, Any]]:
        return _loop(plan, mode, operands)

    @run.defjvp
    def _jvp(primals: Any, tangents: Any) -> Any:
        value, at = _loop(plan, mode.having_winners(), primals)
        _, tangent = jax.jvp(functools.partial(_product_at, plan, mode, at), primals, tangents)
        if not mode.with_winners:
            at = {}
        return (value, at), (tangent, {label: np.zeros(index.shape, jax.dtypes.float0) for label, index in at.items()})

    return run(*operands)


def _loop(plan: TropicalPlan, mode: Mode, operands: Sequence[Any]) -> tuple[Any, Mapping[str, Any]]:
    operands = reshaped(operands, plan.plan.terms, dict(plan.whole))
    start = beginning(plan, mode, operands[0].dtype)
    return lax.fori_loop(0, plan.slices, lambda i, found: joined(plan, mode, operands, jnp.asarray(i, jnp.int32), found), start)


def _product_at(plan: TropicalPlan, mode: Mode, at: Mapping[str, Any], *operands: Any) -> Any:
    """times of the entries of the operands at an assignment of all labels."""
    sizes = dict(plan.whole)
    arrays = reshaped(operands, plan.plan.terms, sizes)
    shape = [sizes[label] for label in plan.output]
    index = {label: lax.broadcasted_iota(jnp.int32, shape, axis) for axis, label in enumerate(plan.output)} | dict(at)
    work = work_dtype(arrays[0].dtype)
    entries = [
        x.astype(work).at[tuple(index[label] for label in term)].get(mode="promise_in_bounds")
        for x, term in zip(arrays, plan.plan.terms, strict=True)
    ]
    return functools.reduce(mode.semiring.times, entries).astype(arrays[0].dtype)


def beginning(plan: TropicalPlan, mode: Mode, dtype: Any) -> tuple[Any, dict[str, Any]]:
    """What is known before the first slice: nothing is as good as any candidate."""
    semiring, sizes = mode.semiring, dict(plan.whole)
    shape = [sizes[label] for label in plan.output]
    worst = semiring.identity(dtype) if isinstance(semiring, SelectiveSemiring) else semiring.zero(dtype)
    labels = sorted(sizes.keys() - set(plan.output)) if mode.with_winners else ()
    return jnp.full(shape, worst), {label: jnp.zeros(shape, jnp.int32) for label in labels}


def joined(plan: TropicalPlan, mode: Mode, operands: Sequence[Any], i: Any, found: Any) -> tuple[Any, dict[str, Any]]:
    """What is known after slice i, given what was known before."""
    sizes = dict(plan.plan.sizes)
    start = dict.fromkeys(sizes, jnp.int32(0))
    for label, (count, length) in reversed(plan.sliced.items()):
        start[label], i = (i % count) * length, i // count
    parts = [
        lax.dynamic_slice(x, [start[label] for label in term], [sizes[label] for label in term])
        for x, term in zip(operands, plan.plan.terms, strict=True)
    ]
    value, steps = evaluate(plan.plan, parts, mode)
    corner, block = [start[label] for label in plan.output], [sizes[label] for label in plan.output]
    known, at = found
    before = lax.dynamic_slice(known, corner, block)
    merged = mode.semiring.plus(before, value)
    updated = {}
    if at:
        here = TropicalResult(value, steps, plan.output, mode.semiring).coordinates()  # type: ignore[arg-type]
        wins = (mode.semiring.better(value, before) | (value != value)) & (before == before)  # type: ignore[attr-defined]
        for label, index in at.items():
            chosen = jnp.where(wins, here[label] + start[label], lax.dynamic_slice(index, corner, block))
            updated[label] = lax.dynamic_update_slice(index, chosen, corner)
    return lax.dynamic_update_slice(known, merged, corner), updated
