"""The slices of a plan of a semiring, run in one compiled loop or over the devices of a mesh; and
the derivatives of the loop.

The state begins with `beginning`; then `merged` takes the `piece` of each slice.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.errors import shortened
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.plans.interpreter import without_repeated_axes

from ..arguments import widened, work_dtype
from ..networks.plan_rows import contracted
from ..networks.value import solved
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp, SumProduct, max_plus
from ..steps.evaluate import Mode, Winners
from ..steps.sum_einsum import no_derivative
from .devices import Spread, sum_of_slices
from .slice_lengths import SlicedPlan

State: TypeAlias = tuple[jax.Array, Mapping[str, jax.Array]]
"""A value, and the index of each contracted label; of some slices under log_sum_exp the largest
value m, and the sum of exp((value - m) / T), by this name.
"""

SUM = "sum"

Sums: TypeAlias = tuple[jax.Array, jax.Array]
"""m and the sum."""


def whole(
    plan: SlicedPlan,
    mode: Mode,
    spread: Spread | None,
    operands: Sequence[jax.Array],
) -> State:
    """The value of all slices, and the coordinates if the mode asks for winners, in one compiled
    loop, or one on each device.

    The derivative follows the coordinates: the value is times of the operands' entries there. Under
    log_sum_exp it is the sum of the slices' derivatives, each by its share, which the rounded value
    does not tell.
    """
    if isinstance(mode.semiring, SumProduct):
        return _sum(plan, mode, spread, operands), {}

    @jax.custom_jvp
    def run(*operands: jax.Array) -> State:
        return _loop(plan, mode, spread, operands)

    @run.defjvp
    def _jvp(primals: tuple[jax.Array, ...], tangents: tuple[jax.Array, ...]) -> Any:
        if isinstance(mode.semiring, LogSumExp):
            largest, total = run(*primals)
            slope = _shared_tangent(plan, mode, spread, mode.semiring, largest, primals, tangents)
            return (largest, total), (
                jnp.zeros_like(largest),
                {SUM: slope / mode.semiring.temperature},
            )
        if not isinstance(mode.semiring, SelectiveSemiring):
            raise no_derivative(mode.semiring)
        value, at = _loop(plan, dataclasses.replace(mode, winners=Winners.LABELS), spread, primals)
        product = on_automatic_axes(functools.partial(_product_at, plan, mode))
        _, tangent = jax.jvp(functools.partial(product, at), primals, tangents)
        if not mode.winners:
            at = {}
        return (value, at), (
            tangent,
            {label: np.zeros(index.shape, jax.dtypes.float0) for label, index in at.items()},
        )

    return finished(mode, run(*operands), operands[0].dtype)


def _loop(
    plan: SlicedPlan,
    mode: Mode,
    spread: Spread | None,
    operands: Sequence[jax.Array],
) -> State:
    operands = without_repeated_axes(operands, plan.plan.terms, dict(plan.whole))

    def of(first: jax.Array | int, last: jax.Array | int, operands: Sequence[jax.Array]) -> State:
        def turn(i: jax.Array, found: State) -> State:
            i = jnp.asarray(i, jnp.int32)
            return merged(plan, mode, i, piece(plan, mode, operands, i), found)

        return lax.fori_loop(
            first,
            last,
            turn,
            beginning(plan, mode, operands[0].dtype),
        )

    if spread is None:
        return of(0, plan.slices, operands)

    def here(*operands: jax.Array) -> State:
        found = of(*spread.own(plan.slices), operands)
        return spread.merged(functools.partial(_better, plan, mode), found)

    return spread.everywhere(here, *operands)


def _product_at(
    plan: SlicedPlan,
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


def finished(mode: Mode, found: State, dtype: np.dtype) -> State:
    """The value of all slices in the dtype of the operands, and the labels."""
    if not isinstance(mode.semiring, LogSumExp):
        return found
    largest, total = found[0], found[1][SUM]
    known = jnp.isfinite(largest)
    value = largest + mode.semiring.temperature * jnp.log(jnp.where(known, total, 1))
    return jnp.where(known, value, largest).astype(dtype), {}


def _shared_tangent(
    plan: SlicedPlan,
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
        sides = arrays[: len(terms)], arrays[len(terms) :]
        here, moved = (plan.parts(terms, side, start) for side in sides)
        own, change = jax.jvp(lambda *xs: widened(solved(plan.plan, xs, mode)[0]), here, moved)
        (total,) = plan.parts((plan.output,), (largest,), start)
        return semiring.share(own, total) * change

    result = jax.ShapeDtypeStruct(largest.shape, largest.dtype)
    return sum_of_slices(plan, spread, block, result, largest, *operands, *tangents)


def _sum(
    plan: SlicedPlan, mode: Mode, spread: Spread | None, operands: Sequence[jax.Array]
) -> jax.Array:
    """Ordinary sums: the sum of the slices, which is differentiated slice by slice."""
    terms, sizes = plan.plan.terms, dict(plan.whole)

    def block(start: Mapping[str, jax.Array], *arrays: jax.Array) -> jax.Array:
        return widened(solved(plan.plan, plan.parts(terms, arrays, start), mode)[0])

    shape = tuple(sizes[label] for label in plan.output)
    arrays = without_repeated_axes(operands, terms, sizes)
    dtype = operands[0].dtype
    result = jax.ShapeDtypeStruct(shape, work_dtype(dtype))
    return sum_of_slices(plan, spread, block, result, *arrays).astype(dtype)


def beginning(
    plan: SlicedPlan,
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
    return jnp.full(shape, semiring.identity(dtype), dtype), {
        label: jnp.zeros(shape, jnp.int32) for label in labels
    }


def piece(plan: SlicedPlan, mode: Mode, operands: Sequence[jax.Array], i: jax.Array) -> State:
    """The value of slice i, and the indices of its labels among all if the mode asks for
    winners.
    """
    start = plan.start(i)
    value, here = solved(
        plan.plan,
        plan.parts(plan.plan.terms, operands, start),
        dataclasses.replace(mode, winners=Winners.LABELS) if mode.winners else mode,
    )
    return value, (
        {label: index + start[label] for label, index in here.items()} if mode.winners else {}
    )


def merged(plan: SlicedPlan, mode: Mode, i: jax.Array, new: State, found: State) -> State:
    """The state with the result of slice i."""
    if isinstance(mode.semiring, LogSumExp):
        own = widened(new[0])
        new = own, {SUM: jnp.ones_like(own)}
    start, (known, at) = plan.start(i), found
    before, *old = plan.parts((plan.output,) * (1 + len(at)), (known, *at.values()), start)
    value, labels = _better(plan, mode, (before, dict(zip(at, old, strict=True))), new)
    updated = {label: plan.replaced(x, labels[label], start) for label, x in at.items()}
    return plan.replaced(known, value, start), updated


def _better(plan: SlicedPlan, mode: Mode, old: State, new: State) -> State:
    """plus of two values, and for each entry the labels of the one that wins."""
    (before, kept), (value, moved) = old, new
    if isinstance(mode.semiring, LogSumExp):
        sums = joined_sums(mode.semiring, (before, kept[SUM]), (value, moved[SUM]))
        return sums[0], {SUM: sums[1]}
    total = mode.semiring.plus(before, value)
    if not kept:
        return total, {}
    semiring: Any = mode.semiring  # with winners it is selective
    wins = (semiring.better(value, before) | (value != value)) & (before == before)
    # Of equal values those labels win that come first in the order in which winners are read, which
    # begins with the labels of the last step.
    earlier: Any = False
    for label in (label for step in plan.plan.steps for label in reversed(contracted(step))):
        earlier = (moved[label] < kept[label]) | ((moved[label] == kept[label]) & earlier)
    wins |= ((value == before) | ((value != value) & (before != before))) & earlier
    return total, {label: jnp.where(wins, moved[label], index) for label, index in kept.items()}


@dataclasses.dataclass(frozen=True, repr=False)
class TropicalPlan(SlicedPlan):
    """The steps of an einsum, run for one slice after another, to print.

    Attributes:
      plan: the steps of one slice; its sizes are those of a slice.
      whole: (label, size) of every label.
      memory: what the steps allocate; None with symbolic sizes.
      dtype: of the operands.
      semiring: the algebra.

    Example:
      >>> from ext_tropical import plan_tropical_einsum
      >>> shape = (300, 300)
      >>> plan = plan_tropical_einsum("ij,jk,ki->", *[shape] * 3, memory_limit=1_000_000)
      >>> plan.slices, plan.peak <= 1_000_000
      (16, True)
    """

    dtype: np.dtype
    semiring: Semiring

    def __repr__(self) -> str:
        return (
            f"TropicalPlan({shortened(self.plan.equation.text)!r}, {len(self.plan.steps)} steps, "
            f"{self.slices} slices, peak {self.peak})"
        )
