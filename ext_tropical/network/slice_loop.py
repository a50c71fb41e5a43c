"""Run the slices of a plan one after another, in one compiled loop or one on each device; and its
derivative."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum.interpreter import without_repeated_axes
from tenferro_jax.einsum.spread import Spread, on_automatic_axes, sum_of_slices
from tenferro_jax.errors import Unsupported

from ..algebra import methods
from ..algebra.semiring import SelectiveSemiring
from ..algebra.shipped import LogSumExp, max_plus
from ..step.einsum_op import widened
from ..step.sum_einsum import no_derivative
from .network_op import solved
from .steps import Mode
from .tropical_plan import TropicalSlices

State: TypeAlias = tuple[jax.Array, Mapping[str, jax.Array]]
"""A value, and the index of each contracted label; of some slices under log_sum_exp the largest
value m, and the sum of exp((value - m) / T), by this name.
"""

SUM = "sum"

Sums: TypeAlias = tuple[jax.Array, jax.Array]
"""m and the sum."""


def whole(
    plan: TropicalSlices,
    mode: Mode,
    spread: Spread | None,
    operands: Sequence[jax.Array],
) -> State:
    """The value of all slices, and the coordinates if the mode asks for winners, in one compiled
    loop, or one on each device.

    The derivative follows the coordinates: the value is times of the operands' entries there.
    """
    if isinstance(mode.semiring, LogSumExp):
        return _log_value(plan, mode, spread, mode.semiring, operands), {}

    @jax.custom_jvp
    def run(*operands: jax.Array) -> State:
        return _loop(plan, mode, spread, operands)

    @run.defjvp
    def _jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        if not isinstance(mode.semiring, SelectiveSemiring):
            raise no_derivative(mode.semiring)
        value, at = _loop(plan, mode.having_labels(), spread, primals)
        product = on_automatic_axes(functools.partial(_product_at, plan, mode))
        _, tangent = jax.jvp(functools.partial(product, at), primals, tangents)
        if not mode.winners:
            at = {}
        return (value, at), (
            tangent,
            {label: np.zeros(index.shape, jax.dtypes.float0) for label, index in at.items()},
        )

    return run(*operands)


def _loop(
    plan: TropicalSlices,
    mode: Mode,
    spread: Spread | None,
    operands: Sequence[jax.Array],
) -> State:
    operands = without_repeated_axes(operands, plan.plan.terms, dict(plan.whole))

    def of(first: jax.Array | int, last: jax.Array | int, operands: Sequence[jax.Array]) -> State:
        return lax.fori_loop(
            first,
            last,
            lambda i, found: joined(plan, mode, operands, jnp.asarray(i, jnp.int32), found),
            beginning(plan, mode, operands[0].dtype),
        )

    if spread is None:
        return of(0, plan.slices, operands)

    def here(*operands: jax.Array) -> State:
        found = of(*spread.own(plan.slices), operands)
        lead = 1 if mode.semiring.components else 0
        return spread.merged(functools.partial(_better, plan, mode), found, lead)

    return spread.everywhere(here, *operands)


def _product_at(
    plan: TropicalSlices,
    mode: Mode,
    at: Mapping[str, jax.Array],
    *operands: jax.Array,
) -> jax.Array:
    """times of the entries of the operands at an assignment of all labels."""
    sizes = dict(plan.whole)
    arrays = without_repeated_axes(operands, plan.plan.terms, sizes)
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


def joined_sums(semiring: LogSumExp, x: Sums, y: Sums) -> Sums:
    """The sums of the slices of both."""
    largest = max_plus.plus(x[0], y[0])
    totals = (total * semiring.share(own, largest) for own, total in (x, y))
    return largest, functools.reduce(jnp.add, totals)


def _log_value(
    plan: TropicalSlices,
    mode: Mode,
    spread: Spread | None,
    semiring: LogSumExp,
    operands: Sequence[jax.Array],
) -> jax.Array:
    """The value under log_sum_exp. Its derivative is the sum of the slices' derivatives, each by
    its share, which the rounded value does not tell.
    """

    @jax.custom_jvp
    def sums(*operands: jax.Array) -> State:
        return _loop(plan, mode, spread, operands)

    @sums.defjvp
    def _jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        largest, total = sums(*primals)
        slope = _shared_tangent(plan, mode, spread, semiring, largest, primals, tangents)
        return (largest, total), (jnp.zeros_like(largest), {SUM: slope / semiring.temperature})

    return finished(mode, sums(*operands), operands[0].dtype)[0]


def finished(mode: Mode, found: State, dtype: np.dtype) -> State:
    """The value of all slices in the dtype of the operands, and the labels."""
    if not isinstance(mode.semiring, LogSumExp):
        return found
    largest, total = found[0], found[1][SUM]
    known = jnp.isfinite(largest)
    value = largest + mode.semiring.temperature * jnp.log(jnp.where(known, total, 1))
    return jnp.where(known, value, largest).astype(dtype), {}


def _shared_tangent(
    plan: TropicalSlices,
    mode: Mode,
    spread: Spread | None,
    semiring: LogSumExp,
    largest: jax.Array,
    operands: Sequence[jax.Array],
    tangents: Sequence[jax.Array],
) -> jax.Array:
    """The sum of the slices' tangents, each times exp((its value - the largest) / T)."""
    terms, whole = plan.plan.terms, dict(plan.whole)
    operands, tangents = (
        without_repeated_axes(operands, terms, whole),
        without_repeated_axes(tangents, terms, whole),
    )

    def block(start: Mapping[str, jax.Array], largest: jax.Array, *arrays: jax.Array) -> jax.Array:
        def slice_value(*parts: jax.Array) -> jax.Array:
            return widened(solved(plan.plan, parts, mode)[0])

        sides = arrays[: len(terms)], arrays[len(terms) :]
        here, moved = (plan.parts(terms, side, start) for side in sides)
        own, change = jax.jvp(slice_value, here, moved)
        (total,) = plan.parts((plan.output,), (largest,), start)
        return semiring.share(own, total) * change

    result = jax.ShapeDtypeStruct(largest.shape, largest.dtype)
    return sum_of_slices(plan, spread, block, result, largest, *operands, *tangents)


def _is_earlier(
    plan: TropicalSlices,
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
    plan: TropicalSlices,
    mode: Mode,
    dtype: np.dtype,
) -> State:
    """The state before the first slice: a value that loses to every candidate."""
    semiring, sizes = mode.semiring, dict(plan.whole)
    shape = tuple(sizes[label] for label in plan.output)
    if isinstance(semiring, LogSumExp):
        zeros = widened(jnp.zeros(shape, dtype))
        return zeros - jnp.inf, {SUM: zeros}
    labels = sorted(sizes.keys() - set(plan.output)) if mode.winners else ()
    return methods.filled(semiring.identity(dtype), shape), {
        label: jnp.zeros(shape, jnp.int32) for label in labels
    }


def joined(
    plan: TropicalSlices,
    mode: Mode,
    operands: Sequence[jax.Array],
    i: jax.Array,
    found: State,
) -> State:
    """The state after slice i, from the state before."""
    return merged(plan, mode, i, piece(plan, mode, operands, i), found)


def piece(plan: TropicalSlices, mode: Mode, operands: Sequence[jax.Array], i: jax.Array) -> State:
    """The value of slice i, and the indices of its labels among all if the mode asks for
    winners.
    """
    start = plan.start(i)
    here: Any
    value, here = solved(
        plan.plan,
        plan.parts(plan.plan.terms, operands, start),
        mode.having_labels() if mode.winners else mode,
    )
    return value, (
        {label: index + start[label] for label, index in here.items()} if mode.winners else {}
    )


def merged(plan: TropicalSlices, mode: Mode, i: jax.Array, new: State, found: State) -> State:
    """The state with the result of slice i."""
    if isinstance(mode.semiring, LogSumExp):
        own = widened(new[0])
        new = own, {SUM: jnp.ones_like(own)}
    start, (known, at) = plan.start(i), found
    before, *old = plan.parts((plan.output,) * (1 + len(at)), (known, *at.values()), start)
    value, labels = _better(plan, mode, (before, dict(zip(at, old, strict=True))), new)
    updated = {label: plan.replaced(x, labels[label], start) for label, x in at.items()}
    return plan.replaced(known, value, start), updated


def _better(plan: TropicalSlices, mode: Mode, old: State, new: State) -> State:
    """plus of two values, and for each entry the labels of the one that wins."""
    (before, kept), (value, moved) = old, new
    if isinstance(mode.semiring, LogSumExp):
        sums = joined_sums(mode.semiring, (before, kept[SUM]), (value, moved[SUM]))
        return sums[0], {SUM: sums[1]}
    total = methods.plus(mode.semiring, before, value)
    if not kept:
        return total, {}
    semiring: Any = mode.semiring  # with winners it is selective
    wins = (semiring.better(value, before) | (value != value)) & (before == before)
    wins |= ((value == before) | ((value != value) & (before != before))) & _is_earlier(
        plan, moved, kept
    )
    return total, {label: jnp.where(wins, moved[label], index) for label, index in kept.items()}


@functools.lru_cache(maxsize=64)
def _slice_program(plan: TropicalSlices, mode: Mode) -> Any:
    return jax.jit(functools.partial(joined, plan, mode), donate_argnums=2)


def one_by_one(where: str, plan: TropicalSlices, mode: Mode, *operands: jax.Array) -> State:
    """The slices from Python, with a progress bar."""
    if any(isinstance(x, jax.core.Tracer) for x in operands):
        raise Unsupported(
            where=f"{where}, progress",
            given="operands inside a transform",
            needed="concrete arrays, because a compiled loop cannot show progress",
            fix="Leave progress out.",
        )
    try:
        from tqdm import trange  # noqa: PLC0415
    except ImportError as error:
        raise Unsupported(
            where=f"{where}, progress",
            given="no package tqdm",
            needed="tqdm installed",
            fix="Run: pip install 'tenferro-jax[progress]'.",
        ) from error
    step = _slice_program(plan, mode)
    found = beginning(plan, mode, operands[0].dtype)
    for i in trange(plan.slices, desc=where, unit="slice"):
        found = step(operands, jnp.int32(i), found)
    return finished(mode, found, operands[0].dtype)
