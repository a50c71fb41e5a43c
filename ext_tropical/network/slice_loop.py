"""Run the slices of a plan one after another, in one compiled loop; and its derivative."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from ..algebra import methods
from ..algebra.semiring import SelectiveSemiring
from ..algebra.shipped import LogSumExp
from ..step.einsum_op import widened
from ..step.sum_einsum import no_derivative
from .network_op import solved
from .steps import Mode, reshaped
from .tropical_plan import SlicedPlan

State: TypeAlias = tuple[jax.Array, Mapping[str, jax.Array]]
"""A value, and the index of each contracted label."""


def whole(
    plan: SlicedPlan,
    mode: Mode,
    operands: Sequence[jax.Array],
) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    """The value of all slices, and the coordinates if the mode asks for winners, in one compiled
    loop.

    The derivative follows the coordinates: the value is times of the operands' entries there. Under
    log_sum_exp it is the sum of the slices' derivatives, each by its share of the value.
    """

    @jax.custom_jvp
    def run(*operands: jax.Array) -> tuple[jax.Array, Mapping[str, jax.Array]]:
        return _loop(plan, mode, operands)

    @run.defjvp
    def _jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        if not isinstance(mode.semiring, SelectiveSemiring | LogSumExp):
            raise no_derivative(mode.semiring)
        if isinstance(mode.semiring, LogSumExp):
            value, _ = _loop(plan, mode, primals)
            return (value, {}), (
                _shared_tangent(plan, mode, mode.semiring, value, primals, tangents),
                {},
            )
        value, at = _loop(plan, mode.having_labels(), primals)
        _, tangent = jax.jvp(functools.partial(_product_at, plan, mode, at), primals, tangents)
        if not mode.winners:
            at = {}
        return (value, at), (
            tangent,
            {label: np.zeros(index.shape, jax.dtypes.float0) for label, index in at.items()},
        )

    return run(*operands)


def _loop(
    plan: SlicedPlan,
    mode: Mode,
    operands: Sequence[jax.Array],
) -> tuple[jax.Array, Mapping[str, jax.Array]]:
    operands = reshaped(operands, plan.plan.terms, dict(plan.whole))
    start = beginning(plan, mode, operands[0].dtype)
    return lax.fori_loop(
        0,
        plan.slices,
        lambda i, found: joined(plan, mode, operands, jnp.asarray(i, jnp.int32), found),
        start,
    )


def _product_at(
    plan: SlicedPlan,
    mode: Mode,
    at: Mapping[str, jax.Array],
    *operands: jax.Array,
) -> jax.Array:
    """times of the entries of the operands at an assignment of all labels."""
    sizes = dict(plan.whole)
    arrays = reshaped(operands, plan.plan.terms, sizes)
    shape = [sizes[label] for label in plan.output]
    index = {
        label: lax.broadcasted_iota(jnp.int32, shape, axis)
        for axis, label in enumerate(plan.output)
    } | dict(at)
    entries = [
        widened(x).at[tuple(index[label] for label in term)].get(mode="promise_in_bounds")
        for x, term in zip(arrays, plan.plan.terms, strict=True)
    ]
    return functools.reduce(mode.semiring.times, entries).astype(arrays[0].dtype)


def _shared_tangent(
    plan: SlicedPlan,
    mode: Mode,
    semiring: LogSumExp,
    value: jax.Array,
    operands: Sequence[jax.Array],
    tangents: Sequence[jax.Array],
) -> jax.Array:
    terms, whole = plan.plan.terms, dict(plan.whole)
    operands, tangents = reshaped(operands, terms, whole), reshaped(tangents, terms, whole)

    @jax.checkpoint  # one slice's intermediate results at a time, in reverse mode too
    def moved(start: Mapping[str, jax.Array], tangents: Sequence[jax.Array]) -> jax.Array:
        def slice_value(*parts: jax.Array) -> jax.Array:
            return solved(plan.plan, parts, mode)[0]

        block, change = jax.jvp(
            slice_value, part(plan, terms, operands, start), part(plan, terms, tangents, start)
        )
        (total,) = part(plan, (plan.output,), (value,), start)
        return semiring.share(block, total) * change

    def step(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        start = start_of(plan, i)
        (before,) = part(plan, (plan.output,), (total,), start)
        return _updated(plan, total, before + moved(start, tangents), start), None

    return lax.scan(step, jnp.zeros_like(value), jnp.arange(plan.slices, dtype=jnp.int32))[0]


def start_of(plan: SlicedPlan, i: jax.Array) -> dict[str, jax.Array]:
    """The start of slice i, for every label."""
    start = dict.fromkeys(dict(plan.whole), jnp.int32(0))
    for label, (count, length) in reversed(plan.sliced.items()):
        start[label], i = (i % count) * length, i // count
    return start


def part(
    plan: SlicedPlan,
    terms: Sequence[str],
    arrays: Sequence[jax.Array],
    start: Mapping[str, jax.Array],
) -> tuple[jax.Array, ...]:
    """The slices of arrays with the labels of some terms."""
    sizes = dict(plan.plan.sizes)
    return tuple(
        lax.dynamic_slice(x, [start[label] for label in term], [sizes[label] for label in term])
        if term
        else x
        for x, term in zip(arrays, terms, strict=True)
    )


def _updated(
    plan: SlicedPlan,
    x: jax.Array,
    block: jax.Array,
    start: Mapping[str, jax.Array],
) -> jax.Array:
    """An array of the result's shape with a slice replaced."""
    return (
        lax.dynamic_update_slice(x, block, [start[label] for label in plan.output])
        if plan.output
        else block
    )


def _is_earlier(
    plan: SlicedPlan,
    these: Mapping[str, jax.Array],
    those: Mapping[str, jax.Array],
) -> jax.Array:
    """Whether these coordinates come first in the order in which winners are read, which begins
    with the labels of the last step.
    """
    earlier: Any = False
    contracted = [
        [label for label in dict.fromkeys("".join(step.terms)) if label not in step.result]
        for step in plan.plan.steps
    ]
    for label in (label for labels in contracted for label in reversed(labels)):
        earlier = (these[label] < those[label]) | ((these[label] == those[label]) & earlier)
    return earlier


def beginning(
    plan: SlicedPlan,
    mode: Mode,
    dtype: np.dtype,
) -> State:
    """The state before the first slice: a value that loses to every candidate."""
    semiring, sizes = mode.semiring, dict(plan.whole)
    shape = tuple(sizes[label] for label in plan.output)
    labels = sorted(sizes.keys() - set(plan.output)) if mode.winners else ()
    return methods.filled(semiring.identity(dtype), shape), {
        label: jnp.zeros(shape, jnp.int32) for label in labels
    }


def joined(
    plan: SlicedPlan,
    mode: Mode,
    operands: Sequence[jax.Array],
    i: jax.Array,
    found: State,
) -> State:
    """The state after slice i, from the state before."""
    return merged(plan, mode, i, piece(plan, mode, operands, i), found)


def piece(plan: SlicedPlan, mode: Mode, operands: Sequence[jax.Array], i: jax.Array) -> State:
    """The value of slice i, and the indices of its labels among all if the mode asks for
    winners.
    """
    start = start_of(plan, i)
    here: Any
    value, here = solved(
        plan.plan,
        part(plan, plan.plan.terms, operands, start),
        mode.having_labels() if mode.winners else mode,
    )
    return value, (
        {label: index + start[label] for label, index in here.items()} if mode.winners else {}
    )


def merged(plan: SlicedPlan, mode: Mode, i: jax.Array, new: State, found: State) -> State:
    """The state with the result of slice i."""
    start = start_of(plan, i)
    (value, moved), (known, at) = new, found
    before, *old = part(plan, (plan.output,) * (1 + len(at)), (known, *at.values()), start)
    total = methods.plus(mode.semiring, before, value)
    updated = {}
    if at:
        semiring: Any = mode.semiring  # with winners it is selective
        wins = (semiring.better(value, before) | (value != value)) & (before == before)
        wins |= ((value == before) | ((value != value) & (before != before))) & _is_earlier(
            plan, moved, dict(zip(at, old, strict=True))
        )
        for (label, index), kept in zip(at.items(), old, strict=True):
            updated[label] = _updated(plan, index, jnp.where(wins, moved[label], kept), start)
    return _updated(plan, known, total, start), updated
