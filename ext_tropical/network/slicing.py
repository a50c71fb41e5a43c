"""The memory of a plan, and the slices that keep it within a limit, without arrays."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from tenferro_jax.einsum import Plan, Step
from tenferro_jax.errors import InvalidConfig, ShapeError, shortened

SCRATCH = 1 << 16
"""Bytes for scalars, blocks and alignment."""


def entries(lengths: Mapping[str, int], labels: Iterable[str]) -> int:
    """Entries of a tensor with these labels, repeated ones included; for a diagonal pass
    `set(labels)`.
    """
    return math.prod([lengths[label] for label in labels])


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a plan allocates beside the operands, for given lengths of the labels.

    Attributes:
      plan: the steps.
      itemsize: bytes of an entry of the operands.
      work: bytes of an entry of the dtype that steps compute in.
      is_selective: whether there are winners, which a derivative needs; log_sum_exp has none.
    """

    plan: Plan
    itemsize: int
    work: int
    is_selective: bool

    def peak(self, lengths: Mapping[str, int]) -> int:
        """The most bytes at one time: the result and its coordinates, slices of operands,
        intermediate results, a step's scratch.
        """
        return max(held for held, _ in self._moments(lengths))

    def worst(self, lengths: Mapping[str, int]) -> str:
        """The labels of the step at the peak."""
        return max(self._moments(lengths), key=lambda moment: moment[0])[1]

    def _moments(self, lengths: Mapping[str, int]) -> Iterator[tuple[int, str]]:
        plan = self.plan
        whole = dict(plan.sizes)
        sliced = {label for label, size in whole.items() if lengths[label] != size}
        contracted = len(whole) - len(plan.equation.output)
        result = entries(whole, plan.equation.output) * (
            self.itemsize + 4 * contracted * self.is_selective
        )
        held = SCRATCH + result
        if sliced:
            held += result  # a loop may keep the old and the new one
            held += sum(
                self.itemsize * entries(lengths, term) for term in plan.terms if sliced & set(term)
            )
            if self.work != self.itemsize:  # XLA widens whole operands, outside the loop
                held += sum(self.work * entries(whole, term) for term in plan.terms)
        if self.is_selective:  # the walk back
            held += 8 * contracted * entries(lengths, plan.equation.output)
        yield held, "".join(plan.terms)
        values = dict.fromkeys(range(len(plan.terms)), 0)
        for number, step in enumerate(plan.steps, len(plan.terms)):
            labels = "".join(dict.fromkeys("".join(step.terms)))
            out = entries(lengths, step.result)
            values[number] = self.itemsize * out
            contracts = any(label not in step.result for label in labels)
            held += values[number] + 4 * out * (self.is_selective and contracts)
            yield held + self.work * self._scratch(lengths, step, out, contracts), labels
            held -= sum(values[i] for i in step.operands)

    def _scratch(self, lengths: Mapping[str, int], step: Step, out: int, contracts: bool) -> int:
        """Entries that a step needs beside operands and results, as measured with XLA on CPU; a
        test checks this.
        """
        read = sum(entries(lengths, set(term)) for term in step.terms)
        if not contracts:
            return 2 * out
        if not self.is_selective:  # log_sum_exp repairs tiles
            return 10 * (out + read)
        return (3 if self.work == self.itemsize else 4) * (out + read)  # 16 bits are widened


MOST_ENTRIES = 2**48
"""More than any machine holds; XLA aborts the process if a size does not fit into 64 bits."""


MOST_SLICES = 2**31 - 1
"""Slices are counted in int32."""


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


def shorten_slices(
    equation: str, memory: Memory, lengths: dict[str, int], memory_limit: int, kept: str
) -> None:
    """Shorten the slices of labels, each time the label that helps most, until the peak is within
    the limit. Those in `kept` stay whole.
    """
    least = memory.peak(
        {label: size if label in kept else min(size, 1) for label, size in lengths.items()}
    )
    while (peak := memory.peak(lengths)) > memory_limit:
        long = [c for c in memory.worst(lengths) if lengths[c] > 1 and c not in kept] or [
            c for c in lengths if lengths[c] > 1 and c not in kept
        ]
        shorter = {label: _shorter(lengths[label]) for label in long}
        tried = {label: memory.peak(lengths | {label: length}) for label, length in shorter.items()}
        tried = {label: bytes for label, bytes in tried.items() if bytes < peak} or tried
        if not tried:
            raise InvalidConfig(
                where=f"tropical_einsum {shortened(equation)!r}, memory_limit",
                given=f"{memory_limit} bytes",
                needed=f"at least {least} bytes: the result, {SCRATCH} of scratch, and one entry "
                f"of everything else",
                fix="Raise the limit, or contract less at once.",
            )
        best = min(tried, key=lambda label: (tried[label], label))
        lengths[best] = shorter[best]


def _shorter(length: int) -> int:
    """The largest proper divisor."""
    return next((length // d for d in range(2, math.isqrt(length) + 1) if length % d == 0), 1)


def cotengra_slices(plan: Plan, entries: int) -> tuple[Any, Sequence[str]]:
    """A path by cotengra, and the labels to slice so that no step's result has more entries."""
    try:
        import cotengra  # noqa: PLC0415
    except ImportError:
        return "cotengra", ()  # plan_einsum raises the error with the package to install
    terms = [tuple(dict.fromkeys(term)) for term in plan.terms]
    tree = cotengra.array_contract_tree(
        terms, tuple(plan.equation.output), dict(plan.sizes), optimize="auto"
    )
    tree = tree.slice_and_reconfigure(target_size=max(entries, 1))
    return tuple(map(tuple, tree.get_path())), tuple(tree.sliced_inds)
