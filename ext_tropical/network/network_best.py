"""The k best assignments of a network: each cell of each step has a list of its best candidates."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.einsum import Plan
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import ShardingRule, apply, extension_op

from ..algebra.shipped import max_plus
from ..step.layout import unused_label
from . import plan_rows
from .loops import Found, Lanes, State, at_places, buffer_of, sweep
from .native_network import Question, kernels
from .network_entries import NetworkEntries, filled
from .plan_rows import SEGMENT, SEGMENTS, layout
from .plan_text import PlanOp, are_numbers, integers, require_countable, split_along
from .walks import Place, walked


@extension_op(package="tenferro-ext-tropical", name="network_best", version=1)
class NetworkBest(PlanOp):
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
        if self.steps.output or type(self.count) is not int or self.count < 1:
            raise InvalidConfig(
                where=f"{self.family_id}",
                given=f"the output {self.steps.output!r} and the count {self.count!r}",
                needed="a plan without output labels, and a positive integer",
            )

    @property
    def algebra(self) -> object:
        """The semiring."""
        return max_plus

    @property
    def input_count(self) -> int:
        """The number of tables."""
        return len(self.steps.terms)

    @property
    def output_count(self) -> int:
        """Values and labels."""
        return 2

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        if {m.dtype.name for m in inputs} not in ({"float32"}, {"float64"}):
            raise DTypeError(
                where=f"extension {self.family_id}",
                given=f"tables of {', '.join(sorted({m.dtype.name for m in inputs}))}",
                needed="float32 or float64 for all",
            )
        self.planned(inputs)
        labels = (len(self.steps.contracted), self.count)
        return [
            TensorMeta(inputs[0].dtype, (self.count,)),
            TensorMeta(np.dtype("int32"), labels),
        ]

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return split_along("", self.steps.terms, [["place"], ["labels", "place"]])

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if not are_numbers(inputs):
            return None
        plan = self.planned(inputs)
        require_countable(plan, inputs)
        return best_ways(plan, inputs, self.count)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of the tangents' entries at each assignment."""
        label = unused_label(self.steps.terms)
        sizes = (*dict(self.planned(primals).sizes).items(), (label, self.count))
        at = NetworkEntries(",".join(self.steps.terms), label, sizes, is_sum=True)
        values, labels = outputs
        (out,) = apply(at, jnp.maximum(labels, 0), *filled(primals, tangents))
        return (jnp.where(values == -jnp.inf, 0, out), None)

    def question(self, metas: Sequence[TensorMeta]) -> Question:
        """What the native library is asked for these inputs."""
        sizes = dict(self.planned(metas).sizes)
        return Question(9, integers(sizes, self.steps, self.steps.contracted, ()))

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Tables of 2, 3, 4, ... for the labels in their order."""
        return [self.steps.examples]


NetworkBest.runtimes = kernels(NetworkBest.family_id)


def best_ways(plan: Plan, operands: Sequence[jax.Array], count: int) -> list[jax.Array]:
    """Values and labels, as NetworkBest has them, in loops whose program does not grow with the
    plan.

    Each entry of an operand or result has a list of values in falling order, and with each value of
    a result the candidate and the places of both operands' values in their lists.
    """
    dtype, places = operands[0].dtype, layout(plan).values
    # The pairs of places that a list of `count` can need.
    every = itertools.product(range(count), repeat=2)
    pairs = np.array([(i, j) for i, j in every if (i + 1) * (j + 1) <= count], np.int32)

    def best(sums: jax.Array, numbers: jax.Array, which: jax.Array) -> Found:
        """The head of a list: of equal values the earlier candidate, then the earlier pair; NaN
        first.
        """
        key = jnp.where(sums != sums, -jnp.inf, -sums)
        _, *found = lax.sort((key, numbers, which, sums), num_keys=3)
        numbers, which, sums = (x[..., :count] for x in found)
        return sums, numbers, which

    def fold(x: Found, y: Found) -> Found:
        return best(*(jnp.concatenate(each, -1) for each in zip(x, y, strict=True)))

    def turn(lanes: Lanes, state: State) -> State:
        arrays, before = state

        def candidate(which: int) -> Found:
            number, exists, at = lanes.at(which)
            left, right = (at_places(arrays[0], x) for x in at)
            alone = jnp.asarray(np.where(pairs[:, 1] == 0, 0, -np.inf), dtype)[None, None]
            right = jnp.where(lanes.single[..., None], alone, right[..., pairs[:, 1]])
            sums = jnp.where(exists[..., None], left[..., pairs[:, 0]] + right, -jnp.inf)
            numbers = jnp.broadcast_to(number[..., None], sums.shape)
            axis = sums.ndim - 1
            return best(sums, numbers, lax.broadcasted_iota(jnp.int32, sums.shape, axis))

        found, new = lanes.folded(fold, candidate, before)
        written = (lanes.write(array, 0, x) for array, x in zip(arrays, new, strict=True))
        return tuple(written), found

    flat = buffer_of(operands, jnp.zeros(places[-1] - places[len(operands)], dtype))
    worse = jnp.full((flat.size, count - 1), -jnp.inf, dtype)
    values = jnp.concatenate([flat[:, None], worse], 1)
    none = jnp.zeros((SEGMENTS, SEGMENT, count), jnp.int32)
    arrays = (values, *[jnp.zeros(values.shape, jnp.int32)] * 2)
    state = arrays, (jnp.full(none.shape, -jnp.inf, dtype), none, none)
    (values, numbers, which), _ = sweep(plan_rows.forward(plan), turn, state)

    def choose(
        place: Place, rank: jax.Array, row: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        pair = jnp.asarray(pairs)[which[place.own, rank]]
        return numbers[place.own, rank], pair[:, 0], pair[:, 1]

    own, steps = values[-1], range(len(plan.steps))
    labels = walked(plan, steps, choose, jnp.arange(count, dtype=jnp.int32), jnp.zeros(len(steps)))
    own = jnp.where(own[0] != own[0], own[0], own)
    return [own, jnp.where(own > -jnp.inf, labels, -1)]
