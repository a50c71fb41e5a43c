"""Many assignments of a network without output labels: samples, and the best ones. Both compute the
values of all steps and walk back; they differ in what the steps keep and in how the walk chooses.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import apply, extension_op
from tenferro_jax.plans import Plan

from ..semirings.shipped import OfTemperature
from ..steps.layout import unused_label
from ..tangents import filled
from . import loops, plan_rows
from .loops import Found, Lanes, Rule, at_places, buffer_of, sweep
from .plan_rows import contracted
from .question import DRAWS, PLACE, SAMPLE, Asked, Question, kernels
from .walk import Choice, NetworkEntries, Place, walk


@extension_op(package="tenferro-ext-tropical", name="network_samples", version=1)
class NetworkSamples(OfTemperature, Question):
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
        super().__post_init__()
        _require_no_output(self)

    asked = Asked.SAMPLES

    @property
    def draws(self) -> int:
        """The number of steps that contract."""
        return sum(map(bool, map(contracted, self.network.steps)))

    def extents(self, inputs: Sequence[TensorMeta]) -> Mapping[str, int]:
        """Whatever the number of samples."""
        return {DRAWS: self.draws, SAMPLE: (*inputs[-1].shape, 0, 0)[1]}

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        *tables, numbers = inputs
        value, buffer = loops.log_search(plan, self.temperature, tables)
        numbers = jnp.asarray(numbers)

        def choose(place: Place, rank: jax.Array) -> Choice:
            number = at_places(numbers, place.step.draw[:, 0])
            return Choice(_drawn(place, buffer, number, self.temperature), rank, rank)

        return (jnp.where(jnp.isfinite(value), walk(plan, choose, numbers.shape[1]), -1),)

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Tables as of every question, and five samples."""
        (inputs,) = super().example_inputs()
        return [[*inputs[:-1], np.random.default_rng(1).random((self.draws, 5))]]


def _drawn(place: Place, buffer: jax.Array, number: jax.Array, temperature: float) -> jax.Array:
    """The candidate of each walk at which the sum of weights reaches its number of the whole."""
    step, top = place.step, at_places(buffer, place.own)

    def weight(candidate: jax.Array) -> jax.Array:
        at = place.operands(jnp.broadcast_to(candidate, top.shape))
        left, right = (at_places(buffer, x) for x in at)
        score = jnp.where(step.is_single > 0, left, left + right)
        counts = (candidate < step.candidates) & (score != -jnp.inf)
        return jnp.where(counts, jnp.exp((score - top) / temperature), 0)

    zero, most = jnp.zeros_like(top), jnp.max(step.candidates)
    total = lax.fori_loop(jnp.int32(0), most, lambda i, sum: sum + weight(i), zero)

    def turn(i: jax.Array, state: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        chosen, done, sum = state
        own = weight(i)
        sum = sum + own
        takes = ~done & (own > 0)  # the last one that counts, if the sum is rounded down
        return jnp.where(takes, i, chosen), done | (sum > number * total), sum

    state = jnp.zeros(top.shape, jnp.int32), jnp.zeros(top.shape, bool), zero
    chosen, _, _ = lax.fori_loop(jnp.int32(0), most, turn, state)
    return chosen


@extension_op(package="tenferro-ext-tropical", name="network_best", version=1)
class NetworkBest(Question):
    """The greatest values of a network without output labels under max_plus, of distinct
    assignments.

    Inputs are the tables, float32 or float64. Outputs are the values in falling order, (count,),
    and int32 (labels in sorted order, count); -inf and -1 where there are fewer assignments.

    Attributes:
      plan: as for the network.
      count: how many.
    """

    plan: str
    count: int

    def __post_init__(self) -> None:
        _require_no_output(self)
        if type(self.count) is not int or self.count < 1:
            raise InvalidConfig(
                where=f"{self.family_id}, field count",
                given=repr(self.count),
                needed="a positive integer",
            )

    asked = Asked.BEST

    def extents(self, inputs: Sequence[TensorMeta]) -> Mapping[str, int]:
        """The number of assignments."""
        return {PLACE: self.count}

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        """Each entry of an operand or result has a list of values in falling order, and with each
        value of a result the candidate and the places of both operands' values in their lists.
        """
        dtype, count = inputs[0].dtype, self.count
        pairs = _pairs(count)
        best_alone = buffer_of(plan, inputs, dtype)[:, None]
        values = jnp.pad(best_alone, ((0, 0), (0, count - 1)), constant_values=-jnp.inf)
        nothing = jnp.zeros(values.shape, jnp.int32)
        rows, rule = plan_rows.forward(plan), _best_rule(count, pairs, dtype)
        values, numbers, which = sweep(rows, rule, (values, nothing, nothing))

        def choose(place: Place, rank: jax.Array) -> Choice:
            pair = jnp.asarray(pairs)[which[place.own, rank]]
            return Choice(numbers[place.own, rank], pair[..., 0], pair[..., 1])

        labels, own = walk(plan, choose, count, range(count)), values[-1]
        own = jnp.where(own[0] != own[0], own[0], own)  # NaN is the value of every place
        return [own, jnp.where(own > -jnp.inf, labels, -1)]

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of the tangents' entries at each assignment."""
        label = unused_label(self.network.terms)
        sizes = (*dict(self.planned(primals).sizes).items(), (label, self.count))
        at = NetworkEntries(",".join(self.network.terms), label, sizes, is_sum=True)
        values, labels = outputs
        (out,) = apply(at, jnp.maximum(labels, 0), *filled(primals, tangents))
        return (jnp.where(values == -jnp.inf, 0, out), None)


def _pairs(count: int) -> np.ndarray:
    """The pairs of places that a list of `count` can need: (i + 1) (j + 1) - 1 are better."""
    every = itertools.product(range(count), repeat=2)
    return np.array([(i, j) for i, j in every if (i + 1) * (j + 1) <= count], np.int32)


def _best_rule(count: int, pairs: np.ndarray, dtype: np.dtype) -> Rule:
    """A candidate of a cell is a list: values in falling order, the number of the candidate of the
    step, and which of the pairs.
    """
    left_place, right_place = pairs.T
    alone = jnp.asarray(np.where(right_place == 0, 0, -np.inf), dtype)  # there is no right one

    def best(sums: jax.Array, numbers: jax.Array, which: jax.Array) -> Found:
        """The head of a list: of equal values the earlier candidate, then the earlier pair; NaN
        first.
        """
        key = jnp.where(sums != sums, -jnp.inf, -sums)
        _, numbers, which, sums = lax.sort((key, numbers, which, sums), num_keys=3)
        return sums[..., :count], numbers[..., :count], which[..., :count]

    def fold(x: Found, y: Found) -> Found:
        return best(*(jnp.concatenate(each, -1) for each in zip(x, y, strict=True)))

    def candidate(lanes: Lanes, which: int, arrays: Found) -> Found:
        number, exists, places = lanes.at(which)
        left, right = (at_places(arrays[0], place) for place in places)
        right = jnp.where(lanes.is_single[..., None], alone, right[..., right_place])
        sums = jnp.where(exists[..., None], left[..., left_place] + right, -jnp.inf)
        numbers = jnp.broadcast_to(number[..., None], sums.shape)
        return best(sums, numbers, lax.broadcasted_iota(jnp.int32, sums.shape, 2))

    return Rule(candidate, fold, lambda lanes, found: found)


def _require_no_output(op: NetworkSamples | NetworkBest) -> None:
    output = op.network.equation.output
    if output:
        raise InvalidConfig(
            where=f"{op.family_id}, field plan",
            given=f"the output {output!r}",
            needed="a plan without output labels",
        )


for _op in (NetworkSamples, NetworkBest):
    _op.runtimes = kernels(_op.family_id)
