"""Run a plan: its steps one after another, with values and winners; and its slices, merged one
after another.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from opt_einsum import get_symbol

from tenferro_jax.einsum import Plan
from tenferro_jax.extension import apply

from ..algebra.semiring import SelectiveSemiring, Semiring
from ..algebra.shipped import LogSumExp, max_mul, min_max
from ..step.einsum_op import Outputs, Ties, TropicalEinsum, widened
from ..step.log_einsum import log_einsum_step
from ..step.tropical_runtimes import TROPICAL_RUNTIMES
from .result import TropicalResult, TropicalStep, walked_back
from .tropical_plan import TropicalPlan, by_least


@dataclasses.dataclass(frozen=True)
class Mode:
    """How every step of an einsum is evaluated.

    Attributes:
      semiring: the algebra.
      ties: how derivatives are shared at ties.
      with_winners: whether winners are wanted.
    """

    semiring: Semiring
    ties: Ties = Ties.FIRST
    with_winners: bool = False

    def having_winners(self) -> Mode:
        """The same with winners."""
        return dataclasses.replace(self, with_winners=True)


def evaluate(
    plan: Plan,
    operands: Sequence[jax.Array],
    mode: Mode,
) -> tuple[jax.Array, tuple[TropicalStep, ...]]:
    """Run a plan on arrays with the shapes of the plan.

    Returns:
      The value, and the winners of each contracting step if the mode asks for them.
    """
    operands = reshaped(operands, plan.terms, dict(plan.sizes))
    value, steps = _run(plan, operands, mode, ())
    for least in by_least(plan, dict(plan.sizes), mode.semiring):
        other, found = _run(plan, operands, mode, least)
        wins = max_mul.better(other, value) | ((other != other) & (value == value))
        pairs = zip(
            *(walked_back(x, plan.equation.output, value.shape) for x in (steps, found)),
            strict=True,
        )
        steps = tuple(
            dataclasses.replace(old, winner=jnp.where(wins, new.winner, old.winner))
            for old, new in pairs
        )
        value = jnp.where(wins, other, value)
    return value, steps


def _run(
    plan: Plan,
    operands: Sequence[jax.Array],
    mode: Mode,
    least: Collection[int],
) -> tuple[jax.Array, tuple[TropicalStep, ...]]:
    """The steps in order; the reductions of the operands with numbers in `least` take the least
    entry.
    """
    values: list[Any] = list(operands)
    labels = list(plan.terms)
    found: list[TropicalStep] = []
    for step in plan.steps:
        inputs = [values[j] for j in step.operands]
        for j in step.operands:
            values[j] = None  # read once
        turned = len(inputs) == 1 and step.operands[0] in least
        value, winners = _step(
            inputs,
            step.terms,
            step.result,
            dataclasses.replace(mode, semiring=min_max) if turned else mode,
        )
        values.append(value)
        labels.append(step.result)
        found += winners
    return _transposed(values[-1], labels[-1], plan.equation.output), tuple(found)


def _step(
    inputs: list[jax.Array],
    terms: Sequence[str],
    result: str,
    mode: Mode,
) -> tuple[jax.Array, list[TropicalStep]]:
    if len(inputs) == 1:
        inputs[0], term = _diagonal(inputs[0], terms[0])
        terms = (term,)
    contracted = "".join(label for label in terms[0] if label not in result)
    if contracted:
        new, cells, old = _renamed(terms, result)
        value, found = contract(inputs, new, cells, mode)
        return value, [
            dataclasses.replace(
                step, labels="".join(map(old.__getitem__, step.labels)), cells=result
            )
            for step in found
        ]
    if len(inputs) == 1:
        return _transposed(inputs[0], terms[0], result), []
    spread = [_spread(widened(x), term, result) for x, term in zip(inputs, terms, strict=True)]
    return mode.semiring.times(*spread).astype(inputs[0].dtype), []


def contract(
    inputs: Sequence[jax.Array],
    terms: Sequence[str],
    result: str,
    mode: Mode,
) -> tuple[jax.Array, list[TropicalStep]]:
    """One step that contracts at least one label, by the extension op of its equation."""
    if isinstance(mode.semiring, LogSumExp):
        return log_einsum_step(f"{','.join(terms)}->{result}", *inputs, semiring=mode.semiring), []
    sizes = {
        label: size
        for term, x in zip(terms, inputs, strict=True)
        for label, size in zip(term, x.shape, strict=False)
    }
    op = step_op(
        mode.semiring,
        f"{','.join(terms)}->{result}",
        Outputs.VALUE_AND_WINNER if mode.with_winners else Outputs.VALUE,
        mode.ties,
    )
    value, *winner = apply(op, *inputs, runtimes=TROPICAL_RUNTIMES)
    labels = "".join(label for label in terms[0] if label not in result)
    return value, [
        TropicalStep(labels, tuple(sizes[label] for label in labels), result, w) for w in winner
    ]


def _renamed(terms: Sequence[str], result: str) -> tuple[list[str], str, dict[str, str]]:
    """Terms and result renamed to the first symbols, so that equal steps are one op; and the old
    name of each symbol.
    """
    names = dict(
        zip(dict.fromkeys("".join(terms)), map(get_symbol, itertools.count()), strict=False)
    )
    *new, last = ("".join(names[label] for label in term) for term in (*terms, result))
    return new, last, {name: label for label, name in names.items()}


@functools.lru_cache(maxsize=4096)
def step_op(
    semiring: SelectiveSemiring, equation: str, outputs: Outputs, ties: Ties
) -> TropicalEinsum:
    """The op of a step, made once for each payload."""
    return TropicalEinsum(semiring, equation, outputs, ties)  # type: ignore[arg-type]


def _transposed(x: jax.Array, labels: str, wanted: str) -> jax.Array:
    return x if labels == wanted else jnp.transpose(x, [labels.index(label) for label in wanted])


def _spread(x: jax.Array, term: str, result: str) -> jax.Array:
    """x with the axes of the result in order; axes that x lacks have size 1."""
    x = _transposed(x, term, "".join(label for label in result if label in term))
    return jnp.expand_dims(x, [i for i, label in enumerate(result) if label not in term])


def _diagonal(x: jax.Array, term: str) -> tuple[jax.Array, str]:
    """The entries whose indices agree on all axes of a label, for every label; each label once, in
    order of first appearance.
    """
    labels = "".join(dict.fromkeys(term))
    for label in labels:
        axes = [i for i, other in enumerate(term) if other == label]
        if len(axes) > 1:
            index = lax.iota(jnp.int32, x.shape[axes[0]])
            x = (
                jnp.moveaxis(x, axes, range(len(axes)))
                .at[(index,) * len(axes)]
                .get(mode="promise_in_bounds")
            )
            term = label + "".join(other for other in term if other != label)
    return _transposed(x, term, labels), labels


def reshaped(
    operands: Sequence[jax.Array],
    terms: Sequence[str],
    sizes: Mapping[str, int],
) -> list[jax.Array]:
    """The operands as JAX arrays, without the axes of size 1 that an ellipsis repeats."""
    arrays = map(jnp.asarray, operands)
    return [
        x.reshape([sizes[label] for label in term]) if len(term) < x.ndim else x
        for x, term in zip(arrays, terms, strict=True)
    ]


def whole(
    plan: TropicalPlan,
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
        if isinstance(mode.semiring, LogSumExp):
            value, _ = _loop(plan, mode, primals)
            return (value, {}), (
                _shared_tangent(plan, mode, mode.semiring, value, primals, tangents),
                {},
            )
        value, at = _loop(plan, mode.having_winners(), primals)
        _, tangent = jax.jvp(functools.partial(_product_at, plan, mode, at), primals, tangents)
        if not mode.with_winners:
            at = {}
        return (value, at), (
            tangent,
            {label: np.zeros(index.shape, jax.dtypes.float0) for label, index in at.items()},
        )

    return run(*operands)


def _loop(
    plan: TropicalPlan,
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
    plan: TropicalPlan,
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
    plan: TropicalPlan,
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
            return evaluate(plan.plan, parts, mode)[0]

        block, change = jax.jvp(
            slice_value, _part(plan, terms, operands, start), _part(plan, terms, tangents, start)
        )
        (total,) = _part(plan, (plan.output,), (value,), start)
        return semiring.share(block, total) * change

    def step(total: jax.Array, i: jax.Array) -> tuple[jax.Array, None]:
        start = _start(plan, i)
        (before,) = _part(plan, (plan.output,), (total,), start)
        return _updated(plan, total, before + moved(start, tangents), start), None

    return lax.scan(step, jnp.zeros_like(value), jnp.arange(plan.slices, dtype=jnp.int32))[0]


def _start(plan: TropicalPlan, i: jax.Array) -> dict[str, jax.Array]:
    """The start of slice i, for every label."""
    start = dict.fromkeys(dict(plan.whole), jnp.int32(0))
    for label, (count, length) in reversed(plan.sliced.items()):
        start[label], i = (i % count) * length, i // count
    return start


def _part(
    plan: TropicalPlan,
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
    plan: TropicalPlan,
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
    steps: Sequence[TropicalStep],
    these: Mapping[str, jax.Array],
    those: Mapping[str, jax.Array],
) -> jax.Array:
    """Whether these coordinates come first in the order in which winners are read, which begins
    with the labels of the last step.
    """
    earlier: Any = False
    for label in reversed("".join(step.labels for step in reversed(steps))):
        earlier = (these[label] < those[label]) | ((these[label] == those[label]) & earlier)
    return earlier


def beginning(
    plan: TropicalPlan,
    mode: Mode,
    dtype: np.dtype,
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The state before the first slice: a value that loses to every candidate."""
    semiring, sizes = mode.semiring, dict(plan.whole)
    shape = [sizes[label] for label in plan.output]
    labels = sorted(sizes.keys() - set(plan.output)) if mode.with_winners else ()
    return jnp.full(shape, semiring.identity(dtype)), {
        label: jnp.zeros(shape, jnp.int32) for label in labels
    }


def joined(
    plan: TropicalPlan,
    mode: Mode,
    operands: Sequence[jax.Array],
    i: jax.Array,
    found: tuple[jax.Array, dict[str, jax.Array]],
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """The state after slice i, from the state before."""
    start = _start(plan, i)
    value, steps = evaluate(plan.plan, _part(plan, plan.plan.terms, operands, start), mode)
    known, at = found
    before, *old = _part(plan, (plan.output,) * (1 + len(at)), (known, *at.values()), start)
    merged = mode.semiring.plus(before, value)
    updated = {}
    if at:
        semiring: Any = mode.semiring  # with winners it is selective
        here = TropicalResult(value, steps, plan.output, semiring).coordinates()
        moved = {label: index + start[label] for label, index in here.items()}
        wins = (semiring.better(value, before) | (value != value)) & (before == before)
        wins |= ((value == before) | ((value != value) & (before != before))) & _is_earlier(
            steps, moved, dict(zip(at, old, strict=True))
        )
        for (label, index), kept in zip(at.items(), old, strict=True):
            updated[label] = _updated(plan, index, jnp.where(wins, moved[label], kept), start)
    return _updated(plan, known, merged, start), updated
