"""Samples of assignments: the values of all steps under log_sum_exp, then a walk back that draws a
candidate of each step.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Plan
from tenferro_jax.errors import InvalidConfig, ShapeError
from tenferro_jax.extension import extension_op

from ..algebra.shipped import LogSumExp
from ..step.weighted_sum import work_of
from . import log_loops
from .loops import at_places, buffer_of
from .native_network import Question, kernels
from .plan_rows import contracted, layout, strides
from .plan_text import PlanOp, are_numbers, integers, placed, require_countable


@extension_op(package="tenferro-ext-tropical", name="network_samples", version=1)
class NetworkSamples(PlanOp):
    """Assignments of a network without output labels, drawn with probabilities proportional to
    exp(value / T).

    Inputs are the tables and numbers in [0, 1), a row for each step that contracts, in the plan's
    order, a column for each sample. The output is int32: a row for each label, sorted, a column for
    each sample; -1 if the value is not finite. It has no derivative.

    Attributes:
      temperature: T, positive and finite.
      plan: as for the network.
    """

    temperature: float
    plan: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", LogSumExp(self.temperature).temperature)
        if self.steps.output:
            raise InvalidConfig(
                where=f"{self.family_id}, field plan",
                given=f"the output {self.steps.output!r}",
                needed="a plan without output labels",
            )

    @property
    def algebra(self) -> LogSumExp:
        """The semiring."""
        return LogSumExp(self.temperature)

    @property
    def input_count(self) -> int:
        """Tables and numbers."""
        return len(self.steps.terms) + 1

    @property
    def draws(self) -> int:
        """The number of steps that contract."""
        return sum(len(set("".join(of))) > len(result) for _, of, result in self.steps.steps)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        work_of(self.family_id, self.algebra, inputs)
        *tables, numbers = inputs
        self.planned(tables)
        if len(numbers.shape) != 2 or numbers.shape[0] != self.draws:
            raise ShapeError(
                where=f"extension {self.family_id}, input {len(tables)}",
                given=str(numbers),
                needed=f"({self.draws}, samples): a row for each step that contracts",
            )
        return [TensorMeta(np.dtype("int32"), (len(self.steps.contracted), numbers.shape[1]))]

    def infer_output_sharding(
        self, inputs: Sequence[jax.ShapeDtypeStruct]
    ) -> Sequence[jax.NamedSharding]:
        terms = (*self.steps.terms, "  ")
        return placed(f"extension {self.family_id}", terms, inputs, ["  "])

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        *tables, numbers = inputs
        plan = self.planned(tables)
        require_countable(plan, tables)
        _, results = log_loops.log_search(plan, self.temperature, tables)
        return (drawn(plan, self.temperature, buffer_of(tables, results), numbers),)

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        sizes = dict(self.planned(metas[:-1]).sizes)
        return Question(8, integers(sizes, self.steps, self.steps.contracted, ()))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Tables of 2, 3, 4, ... for the labels in their order, and five samples."""
        numbers = np.random.default_rng(1).random((self.draws, 5))
        return [[*self.steps.examples, numbers]]


NetworkSamples.runtimes = kernels(NetworkSamples.family_id)


def drawn(plan: Plan, temperature: float, buffer: jax.Array, numbers: jax.Array) -> jax.Array:
    """Samples, as NetworkSamples has them, in a loop over the steps and their candidates.

    Args:
      buffer: the tables and the results of all steps.
      numbers: in [0, 1).
    """
    sizes, places = dict(plan.sizes), layout(plan).values
    ids = {label: i for i, label in enumerate(sorted(sizes))}
    rows = []
    for i, step in enumerate(plan.steps):
        if not (rest := contracted(step)):
            continue
        left, right = (strides(term, sizes) for term in (step.terms * 2)[:2])
        own, choice = strides(step.result, sizes), strides(rest, sizes)
        first, second = (step.operands * 2)[:2]
        head = [math.prod(map(sizes.__getitem__, rest)), len(step.operands) == 1]
        base = [places[first], places[second], places[len(plan.terms) + i]]
        cells = [(ids[x], left.get(x, 0), right.get(x, 0), own[x]) for x in step.result]
        axes = [(ids[x], left.get(x, 0), right.get(x, 0), choice[x], sizes[x]) for x in rest]
        rows.append((head + base, cells, axes))
    count = numbers.shape[1]
    if not rows:
        return jnp.zeros((len(sizes), count), jnp.int32)
    ranks = [max(len(row[i]) for row in rows) for i in (1, 2)]
    empty = (len(sizes), 0, 0, 0), (len(sizes), 0, 0, 1, 1)  # the last row of labels is no label
    table = jnp.array(
        [
            [
                *head,
                *itertools.chain(*cells, *[empty[0]] * (ranks[0] - len(cells))),
                *itertools.chain(*axes, *[empty[1]] * (ranks[1] - len(axes))),
            ]
            for head, cells, axes in reversed(rows)
        ],
        jnp.int32,
    )

    def step(labels: jax.Array, given: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, None]:
        row, number = given
        candidates, single, *base = row[:5]
        cells = row[5 : 5 + 4 * ranks[0]].reshape(ranks[0], 4)
        axes = row[5 + 4 * ranks[0] :].reshape(ranks[1], 5)
        known = at_places(labels, cells[:, 0])
        left, right, own = (
            x + (known * cells[:, i, None]).sum(0, dtype=jnp.int32) for i, x in enumerate(base, 1)
        )
        value = at_places(buffer, own)

        def digits(candidate: jax.Array) -> jax.Array:
            divisor, size = (axes[:, i].reshape(-1, *[1] * candidate.ndim) for i in (3, 4))
            return candidate // divisor % size

        def weight(candidate: jax.Array) -> jax.Array:
            moved = digits(candidate)
            score = at_places(buffer, left + (moved * axes[:, 1]).sum(dtype=jnp.int32))
            other = at_places(buffer, right + (moved * axes[:, 2]).sum(dtype=jnp.int32))
            score = jnp.where(single, score, score + other)
            return jnp.where(score == -jnp.inf, 0, jnp.exp((score - value) / temperature))

        total = lax.fori_loop(
            jnp.int32(0), candidates, lambda i, sum: sum + weight(i), jnp.zeros_like(value)
        )

        def choose(i: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            chosen, done, sum = state
            own = weight(i)
            sum = sum + own
            takes = ~done & (own > 0)  # the last one that counts, if the sum is rounded down
            return jnp.where(takes, i, chosen), done | (sum > number * total), sum

        nothing = jnp.zeros_like(own), jnp.zeros_like(own, bool), jnp.zeros_like(value)
        chosen, *_ = lax.fori_loop(jnp.int32(0), candidates, choose, nothing)
        return labels.at[axes[:, 0]].set(digits(chosen)), None

    start = jnp.zeros((len(sizes) + 1, count), jnp.int32)
    labels, _ = lax.scan(step, start, (table, numbers[::-1]))
    value = buffer[places[-2]]
    return jnp.where(jnp.isfinite(value), labels[:-1], -1)
