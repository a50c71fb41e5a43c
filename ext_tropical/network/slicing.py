"""The memory of a plan under a semiring, without arrays."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tenferro_jax.einsum import Plan, Step
from tenferro_jax.einsum.slices import MOST_SLICES, Memory, entries
from tenferro_jax.errors import ShapeError, shortened


@dataclasses.dataclass(frozen=True)
class TropicalMemory(Memory):
    """Bytes that a plan allocates beside the operands, for given lengths of the labels.

    Attributes:
      is_selective: whether there are winners, which a derivative needs; log_sum_exp has none.
    """

    is_selective: bool = False

    @property
    def _contracted(self) -> int:
        return len(self.plan.sizes) - len(self.plan.equation.output)

    def result_size(self) -> int:
        return self.itemsize + 4 * self._contracted * self.is_selective

    def kept_to_the_end(self, lengths: Mapping[str, int]) -> int:  # the walk back
        walk = 8 * self._contracted * entries(lengths, self.plan.equation.output)
        return walk * self.is_selective

    def kept(self, out: int, contracts: bool) -> int:
        return 4 * out * (self.is_selective and contracts)

    def scratch(self, lengths: Mapping[str, int], step: Step, out: int, contracts: bool) -> int:
        read = sum(entries(lengths, set(term)) for term in step.terms)
        if not contracts:
            return 2 * out
        if not self.is_selective:  # log_sum_exp repairs tiles
            return 10 * (out + read)
        return (3 if self.work == self.itemsize else 4) * (out + read)  # 16 bits are widened


MOST_ENTRIES = 2**48
"""More than any machine holds; XLA aborts the process if a size does not fit into 64 bits."""


def require_possible(equation: str, plan: Plan, itemsize: int, memory_limit: int | None) -> None:
    """Refuse results that are larger than any machine, or that too many slices would be
    needed for.
    """
    if all(step.size <= MOST_ENTRIES for step in plan.steps) and memory_limit is None:
        return
    used = {i: {i} for i in range(len(plan.terms))}
    for number, step in enumerate(plan.steps, len(plan.terms)):
        used[number] = set().union(*(used[i] for i in step.operands))
        is_output = set(step.result) == set(plan.equation.output)
        if is_output or memory_limit is None:
            needed, fits = f"at most {MOST_ENTRIES}", step.size <= MOST_ENTRIES
        else:  # a slice makes a result smaller at most by the number of slices
            needed, fits = (
                f"at most {MOST_SLICES} slices within memory_limit",
                step.size * itemsize <= MOST_SLICES * memory_limit,
            )
        if not fits:
            tables = ", ".join(map(str, sorted(used[number])[:5])) + (
                ", ..." if len(used[number]) > 5 else ""
            )
            fewer = "Take fewer of these operands, or drop labels from them"
            raise ShapeError(
                where=f"tropical_einsum {shortened(equation)!r}",
                given=f"a result of {step.size} entries, one for each value of {len(step.result)} "
                f"labels, in step {number}, "
                f"{shortened(step.equation)}, of {len(used[number])} operands: {tables}",
                needed=needed,
                fix="Keep fewer labels in the output."
                if is_output
                else f"{fewer}, or pass another "
                f"optimize{' or a memory_limit' if memory_limit is None else ''}.",
            )
