"""What a plan allocates at once: a bound, measured with XLA on CPU and held by a test that reads XLA's own figures."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping

from tenferro_jax import Plan, Step

from ..algebra.semiring import SelectiveSemiring, Semiring
from .ends import by_least

SCRATCH = 1 << 16
"""Bytes for scalars, blocks and alignment."""


def entries(lengths: Mapping[str, int], labels: Iterable[str]) -> int:
    """Entries of a tensor with these labels, as often as they are named: a diagonal is `set(labels)`."""
    return math.prod(lengths[label] for label in labels)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a plan allocates beside the operands, for given lengths of its labels.

    Attributes:
      plan: the steps.
      itemsize: bytes of an entry of the operands.
      work: bytes of an entry of the dtype that steps compute in.
      semiring: a selective one has winners, which a derivative needs; log_sum_exp takes two passes.
    """

    plan: Plan
    itemsize: int
    work: int
    semiring: Semiring

    @property
    def is_selective(self) -> bool:
        """Whether there are winners."""
        return isinstance(self.semiring, SelectiveSemiring)

    def peak(self, lengths: Mapping[str, int]) -> int:
        """Bytes at once at most: the result and its coordinates, slices of operands, results that wait, a step's scratch."""
        return max(held for held, _ in self._moments(lengths))

    def worst(self, lengths: Mapping[str, int]) -> str:
        """The labels of the step at the peak."""
        return max(self._moments(lengths), key=lambda moment: moment[0])[1]

    def _moments(self, lengths: Mapping[str, int]) -> Iterator[tuple[int, str]]:
        plan = self.plan
        whole = dict(plan.sizes)
        sliced = {label for label, size in whole.items() if lengths[label] != size}
        contracted = len(whole) - len(plan.equation.output)
        result = entries(whole, plan.equation.output) * (self.itemsize + 4 * contracted * self.is_selective)
        held = SCRATCH + result
        if sliced:
            held += result  # a loop may keep the old and the new one
            held += sum(self.itemsize * entries(lengths, term) for term in plan.terms if sliced & set(term))
            if self.work != self.itemsize:  # XLA widens whole operands, outside the loop
                held += sum(self.work * entries(whole, term) for term in plan.terms)
        runs = 1 + len(by_least(plan, lengths, self.semiring))
        if self.is_selective:  # the walk back
            held += runs * 8 * contracted * entries(lengths, plan.equation.output)
        yield held, "".join(plan.terms)
        values = dict.fromkeys(range(len(plan.terms)), 0)
        for number, step in enumerate(plan.steps, len(plan.terms)):
            labels = "".join(dict.fromkeys("".join(step.terms)))
            out = entries(lengths, step.result)
            values[number] = runs * self.itemsize * out
            contracts = any(label not in step.result for label in labels)
            held += values[number] + runs * 4 * out * (self.is_selective and contracts)
            yield held + runs * self.work * self._scratch(lengths, step, out, contracts), labels
            held -= sum(values[i] for i in step.operands)

    def _scratch(self, lengths: Mapping[str, int], step: Step, out: int, contracts: bool) -> int:
        """Entries that a step needs beside operands and results: measured with XLA on CPU, and a test holds it."""
        read = sum(entries(lengths, set(term)) for term in step.terms)
        if not contracts:
            return 2 * out
        copies = 3 if self.is_selective and self.work == self.itemsize else 4  # 16 bits are widened; log_sum_exp takes two passes
        return copies * (out + read)
