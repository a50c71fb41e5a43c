"""A plan on one slice, step by step: values, winners, and the assignments that follow."""

from __future__ import annotations

import dataclasses
import enum
import functools
import itertools
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from opt_einsum import get_symbol

from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.plans import Plan, Step, interpreter
from tenferro_jax.plans.interpreter import run_plan, transposed

from ..arguments import widened
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp, SumProduct, max_mul, min_max
from .einsum_op import Outputs, Ties, TropicalEinsum
from .kernels.selection import is_size
from .labels import Labels
from .layout import product, step_op
from .log_einsum import LogEinsum
from .sum_einsum import SumEinsum


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TropicalStep:
    """The winners of one contraction step.

    Attributes:
      labels: the contracted labels, in order of first appearance.
      shape: their sizes.
      cells: the labels of the winner's axes.
      winner: int32, one for each cell of the step's result; row-major index over `shape`, from 0;
        -1 where a contracted size is 0.
    """

    labels: str = dataclasses.field(metadata={"static": True})
    shape: tuple[int, ...] = dataclasses.field(metadata={"static": True})
    cells: str = dataclasses.field(metadata={"static": True})
    winner: jax.Array

    def coordinates(self) -> Mapping[str, jax.Array]:
        """For each contracted label its index at the winner: int32, shape of the winner; -1 where a
        contracted size is 0.
        """
        rest, found = self.winner, {}
        for label, size in reversed(list(zip(self.labels, self.shape, strict=True))):
            extent = jnp.maximum(jnp.asarray(size, jnp.int32), 1)
            found[label] = jnp.where(self.winner < 0, -1, rest % extent)
            rest = rest // extent
        return {label: found[label] for label in self.labels}


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class TropicalResult:
    """Value and winners of a tropical einsum, as a pytree.

    Attributes:
      value: the result.
      steps: one TropicalStep for each contraction step of the plan, in its order.
      output: the labels of the value's axes.
      semiring: the algebra.
    """

    value: jax.Array
    steps: tuple[TropicalStep, ...]
    output: str = dataclasses.field(metadata={"static": True})
    semiring: SelectiveSemiring = dataclasses.field(metadata={"static": True})

    @property
    def winner(self) -> jax.Array:
        """The winners of the last step, with the axes of the value; 0 if no step contracts."""
        if not self.steps:
            return jnp.zeros(self.value.shape, jnp.int32)
        last = self.steps[-1]
        mapped = self.value.ndim - len(self.output)
        axes = [*range(mapped), *(mapped + last.cells.index(label) for label in self.output)]
        return jnp.transpose(last.winner, axes)

    @property
    def feasible(self) -> jax.Array:
        """Boolean, shape of the value: False where the value is the semiring's zero, so that no
        candidate counts.
        """
        return self.value != jnp.asarray(self.semiring.zero(self.value.dtype))

    @on_automatic_axes
    def coordinates(self) -> Labels:
        """One optimal index of each contracted label for every output entry, read backwards from
        the winners.

        Returns:
          Labels: for each contracted label an int32 array of the value's shape, in alphabetical
          order; all are -1 if a contracted size is 0.

        Cost: one gather of the value's size for each step but the last.
        """
        shape = self.value.shape
        if len(shape) > len(self.output):  # the result of a vmap
            return jax.vmap(TropicalResult.coordinates)(self)
        if any(isinstance(size, int) and size == 0 for step in self.steps for size in step.shape):
            names = sorted("".join(step.labels for step in self.steps))
            return Labels(names, jnp.full((*shape, len(names)), -1, jnp.int32))
        known: dict[str, jax.Array] = {}
        for step in walked_back(self.steps, self.output, shape):
            known |= step.coordinates()
        found = {label: jnp.broadcast_to(known[label], shape) for label in sorted(known)}
        return Labels.joined(found, shape)


def walked_back(
    steps: Sequence[TropicalStep],
    output: str,
    shape: Sequence[int],
) -> tuple[TropicalStep, ...]:
    """The steps with the winners of one assignment: the winner of the last step, then of the step
    before at that winner, and so on.

    Args:
      steps: of an einsum, in their order.
      output: the labels of the value's axes, which all these winners have.
      shape: of the value.
    """
    known = {
        label: lax.broadcasted_iota(jnp.int32, shape, axis) for axis, label in enumerate(output)
    }
    found: list[TropicalStep] = []
    for step in reversed(steps):
        if sorted(step.cells) == sorted(output):  # no gather, which XLA splits with a collective
            winner = transposed(step.winner, step.cells, output)
        else:
            at = tuple(map(known.__getitem__, step.cells))
            winner = step.winner.at[at].get(mode="promise_in_bounds")
        found.insert(0, dataclasses.replace(step, cells=output, winner=winner))
        known |= found[0].coordinates()
    return tuple(found)


class Assignment(NamedTuple):
    """An optimal assignment for every output entry.

    Attributes:
      value: the best value.
      labels: for each contracted label its index, int32, shape of the value: `Labels`.
      feasible: boolean, shape of the value: False where the value is the semiring's zero; there the
        indices mean nothing.
    """

    value: jax.Array
    labels: Labels
    feasible: jax.Array


class Winners(enum.Enum):
    """What is wanted beside a value."""

    LABELS = "the index of each contracted label"
    STEPS = "the winners of each step"


@dataclasses.dataclass(frozen=True)
class Mode:
    """How every step of an einsum is evaluated.

    Attributes:
      semiring: the algebra.
      ties: how derivatives are shared at ties.
      winners: which winners are wanted.
      in_standard_ops: whether steps are written out, as a lowering needs it.
    """

    semiring: Semiring
    ties: Ties = Ties.FIRST
    winners: Winners | None = None
    in_standard_ops: bool = False


def evaluate(plan: Plan, operands: Sequence[jax.Array], mode: Mode) -> tuple[jax.Array, Any]:
    """Run a plan on arrays with the shapes of the plan, step by step.

    Returns:
      The value, and the winners that the mode asks for.
    """
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
    return value, found_of(mode, value, steps, plan.equation.output)


def found_of(
    mode: Mode, value: jax.Array, steps: Sequence[TropicalStep], output: str
) -> tuple[TropicalStep, ...] | Labels:
    """Of the winners of all steps what the mode asks for."""
    if mode.winners is not Winners.LABELS:
        return tuple(steps)
    semiring: Any = mode.semiring
    return TropicalResult(value, tuple(steps), output, semiring).coordinates()


def _run(
    plan: Plan,
    operands: Sequence[jax.Array],
    mode: Mode,
    least: Collection[int],
) -> tuple[jax.Array, tuple[TropicalStep, ...]]:
    """The steps in order; the reductions of the operands with numbers in `least` take the least
    entry.
    """
    found: list[TropicalStep] = []
    turned = dataclasses.replace(mode, semiring=min_max)

    def evaluated(step: Step, inputs: list[jax.Array]) -> jax.Array:
        is_turned = len(inputs) == 1 and step.operands[0] in least
        value, winners = run_step(inputs, step.terms, step.result, turned if is_turned else mode)
        found.extend(winners)
        return value

    return run_plan(plan, operands, evaluated), tuple(found)


def run_step(
    inputs: list[jax.Array],
    terms: Sequence[str],
    result: str,
    mode: Mode,
) -> tuple[jax.Array, list[TropicalStep]]:
    """One step of a plan; `inputs` may be changed."""
    found: list[TropicalStep] = []

    def contracted(inputs: Sequence[jax.Array], terms: Sequence[str], result: str) -> jax.Array:
        new, cells, old = _renamed(terms, result)
        value, winners = contract(inputs, new, cells, mode)
        for step in winners:
            labels = "".join(map(old.__getitem__, step.labels))
            found.append(dataclasses.replace(step, labels=labels, cells=result))
        return value

    def multiplied(x: jax.Array, y: jax.Array) -> jax.Array:
        found = mode.semiring.times(widened(x), widened(y)).astype(x.dtype)
        if isinstance(mode.semiring, LogSumExp):  # whose derivatives are 0 at -inf
            found = jnp.where(found == -jnp.inf, -jnp.inf, found)
        return found

    return interpreter.run_step(inputs, terms, result, contracted, multiplied), found


def contract(
    inputs: Sequence[jax.Array],
    terms: Sequence[str],
    result: str,
    mode: Mode,
) -> tuple[jax.Array, list[TropicalStep]]:
    """One step that contracts at least one label, by the extension op of its equation."""
    equation = f"{','.join(terms)}->{result}"
    if isinstance(mode.semiring, LogSumExp):
        log = step_op(LogEinsum, mode.semiring.temperature, equation)
        run = log.lower_to_standard_ops if mode.in_standard_ops else functools.partial(apply, log)
        return run(*map(widened, inputs))[0].astype(inputs[0].dtype), []
    if isinstance(mode.semiring, SumProduct):  # XLA's own, which has all derivatives
        total = jnp.einsum(equation, *map(widened, inputs), precision=lax.Precision.HIGHEST)
        return total.astype(inputs[0].dtype), []
    if not isinstance(mode.semiring, SelectiveSemiring):
        return apply(step_op(SumEinsum, mode.semiring, equation), *inputs)[0], []
    sizes: dict[str, int] = {}
    for term, x in zip(terms, inputs, strict=True):
        sizes |= zip(term, x.shape, strict=False)
    outputs = Outputs.VALUE_AND_WINNER if mode.winners else Outputs.VALUE
    op = step_op(TropicalEinsum, mode.semiring, equation, outputs, mode.ties)
    run = op.lower_to_standard_ops if mode.in_standard_ops else functools.partial(apply, op)
    value, *winner = run(*inputs)
    labels = "".join(label for label in terms[0] if label not in result)
    lengths = tuple(map(sizes.__getitem__, labels))
    return value, [TropicalStep(labels, lengths, result, w) for w in winner]


def _renamed(terms: Sequence[str], result: str) -> tuple[list[str], str, dict[str, str]]:
    """Terms and result renamed to the first symbols, so that equal steps are one op; and the old
    name of each symbol.
    """
    labels = dict.fromkeys("".join(terms))
    names = dict(zip(labels, map(get_symbol, range(len(labels))), strict=True))
    new = str.maketrans(names)
    old = dict(zip(names.values(), labels, strict=True))
    return [term.translate(new) for term in terms], result.translate(new), old


def by_least(plan: Plan, sizes: Mapping[str, int], semiring: Semiring) -> list[tuple[int, ...]]:
    """The additional runs of a max_mul plan: for each run the operands that it reduces to their
    least entries.

    Under max_mul the least entry makes the greatest product with a negative partner: the maximum of
    x[a] * y over a is max(x) * y if y is positive and min(x) * y if it is negative, the greater of
    both for every y. So the plan runs once with the greatest and once with the least entry of each
    operand that it reduces first.

    There are none under other semirings, whose laws hold for all entries, and none for three or
    more operands.

    Example:
      >>> from tenferro_jax import plan_einsum
      >>> by_least(plan_einsum("ij,jk->", [(2, 3), (3, 4)]), {"i": 2, "j": 3, "k": 4}, max_mul)
      [(0,), (1,), (0, 1)]
    """
    if semiring != max_mul or len(plan.terms) != 2 or 0 in sizes.values():
        return []
    reduced: list[int] = []
    for step in plan.steps:
        gone = set(step.terms[0]) - set(step.result)
        if len(step.operands) == 1 and not is_size(product(sizes, gone), 1):
            reduced.append(step.operands[0])
    runs = (itertools.combinations(reduced, 1 + i) for i in range(len(reduced)))
    return list(itertools.chain.from_iterable(runs))
