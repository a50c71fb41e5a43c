"""Samples of assignments: the values of all steps under log_sum_exp, then a walk back that draws a
candidate of each step.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Plan
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import ShardingRule, extension_op

from ..algebra.shipped import LogSumExp
from ..step.weighted_sum import work_of
from . import log_loops
from .loops import at_places, buffer_of
from .native_network import Question, kernels
from .plan_rows import contracted
from .plan_text import PlanOp, are_numbers, integers, require_countable, same_shapes, split_along
from .walks import Place, walked


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
        rows = (self.draws, *numbers.shape[1:2])  # whatever the number of samples
        same_shapes(f"extension {self.family_id}", inputs[-1:], [rows])
        return [TensorMeta(np.dtype("int32"), (len(self.steps.contracted), numbers.shape[1]))]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return split_along(
            ["sample"], [*self.steps.terms, ["draws", "sample"]], [["labels", "sample"]]
        )

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        *tables, numbers = inputs
        plan = self.planned(tables)
        require_countable(plan, tables)
        _, (results,) = log_loops.log_search(plan, self.temperature, tables)
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
    """Samples, as NetworkSamples has them.

    Args:
      buffer: the tables and the results of all steps.
      numbers: in [0, 1).
    """

    def choose(
        place: Place, rank: jax.Array, number: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        value = at_places(buffer, place.own)

        def weight(candidate: jax.Array) -> jax.Array:
            left, right = (at_places(buffer, x) for x in place.operands(candidate))
            score = jnp.where(place.single, left, left + right)
            return jnp.where(score == -jnp.inf, 0, jnp.exp((score - value) / temperature))

        total = lax.fori_loop(
            jnp.int32(0), place.candidates, lambda i, sum: sum + weight(i), jnp.zeros_like(value)
        )

        def turn(i: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
            chosen, done, sum = state
            own = weight(i)
            sum = sum + own
            takes = ~done & (own > 0)  # the last one that counts, if the sum is rounded down
            return jnp.where(takes, i, chosen), done | (sum > number * total), sum

        state = jnp.zeros_like(rank), jnp.zeros_like(rank, bool), jnp.zeros_like(value)
        chosen, *_ = lax.fori_loop(jnp.int32(0), place.candidates, turn, state)
        return chosen, rank, rank

    steps = [i for i, step in enumerate(plan.steps) if contracted(step)]
    ranks = jnp.zeros(numbers.shape[1], jnp.int32)
    labels = walked(plan, steps, choose, ranks, numbers)
    return jnp.where(jnp.isfinite(buffer[-1]), labels, -1)
