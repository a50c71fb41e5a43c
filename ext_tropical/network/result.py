"""Winners of the steps of an einsum, and the assignments that follow from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..algebra.semiring import SelectiveSemiring


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
        return jnp.transpose(
            last.winner,
            [*range(mapped), *(mapped + last.cells.index(label) for label in self.output)],
        )

    @property
    def feasible(self) -> jax.Array:
        """Boolean, shape of the value: False where the value is the semiring's zero, so that no
        candidate counts.
        """
        return self.value != jnp.asarray(self.semiring.zero(self.value.dtype))

    def coordinates(self) -> Mapping[str, jax.Array]:
        """One optimal index of each contracted label for every output entry, read backwards from
        the winners.

        Returns:
          {label: int32 array of the value's shape}, the contracted labels in alphabetical order;
          all are -1 if a contracted size is 0.

        Cost: one gather of the value's size for each step.
        """
        shape = self.value.shape
        if len(shape) > len(self.output):  # the result of a vmap
            return jax.vmap(TropicalResult.coordinates)(self)
        if any(isinstance(size, int) and size == 0 for step in self.steps for size in step.shape):
            nowhere = jnp.full(shape, -1, jnp.int32)
            return dict.fromkeys(sorted("".join(step.labels for step in self.steps)), nowhere)
        steps = walked_back(self.steps, self.output, shape)
        known = {label: index for step in steps for label, index in step.coordinates().items()}
        return {label: jnp.broadcast_to(known[label], shape) for label in sorted(known)}


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
        winner = step.winner.at[tuple(known[label] for label in step.cells)].get(
            mode="promise_in_bounds"
        )
        found.insert(0, dataclasses.replace(step, cells=output, winner=winner))
        known |= found[0].coordinates()
    return tuple(found)


class Assignment(NamedTuple):
    """An optimal assignment for every output entry.

    Attributes:
      value: the best value.
      labels: for each contracted label its index, int32, shape of the value.
      feasible: boolean, shape of the value: False where the value is the semiring's zero; there the
        indices mean nothing.
    """

    value: jax.Array
    labels: Mapping[str | int, jax.Array]
    feasible: jax.Array
