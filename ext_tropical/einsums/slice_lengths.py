"""A plan in slices that keep its memory within a limit, without arrays.

A slice covers a part of some labels: all steps run on the slices of the operands, and the results
are concatenated (labels of the output) or merged (contracted labels). Slices have equal lengths, so
that one program serves all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence

import jax
import jax.export
import jax.numpy as jnp
from jax import lax

from tenferro_jax.errors import InvalidConfig, Unsupported
from tenferro_jax.plans.plan import Plan
from tenferro_jax.shapes import as_index, shown

SCRATCH = 1 << 16
"""Bytes for scalars, blocks and alignment."""

MOST_SLICES = 2**31 - 1
"""Slices are counted in int32."""


def entries(lengths: Mapping[str, int], labels: Iterable[str]) -> int:
    """Entries of a tensor with these labels, repeated ones included; for a diagonal pass
    `set(labels)`.
    """
    return math.prod([lengths[label] for label in labels])


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that the steps of a plan allocate beside the operands, for given lengths of the labels.

    Attributes:
      plan: the steps.
      itemsize: bytes of an entry of the operands.
      work: bytes of an entry of the dtype that steps compute in.
      devices: among which the slices are spread.
      scratch: entries that a contraction needs for each one that it reads or writes, as measured
        with XLA on CPU; a test checks this. A sum of products transposes its operands.
      winner: bytes of an index of the best candidate, which is kept for each cell of a contraction,
        and in the result for each contracted label; 0 where there are no winners.
    """

    plan: Plan
    itemsize: int
    work: int
    devices: int = 1
    scratch: int = 1
    winner: int = 0

    def peak(self, lengths: Mapping[str, int]) -> int:
        """The most bytes at one time on a device: the result, slices of operands, intermediate
        results, a step's scratch.
        """
        return max(held for held, _ in self._moments(lengths))

    def worst(self, lengths: Mapping[str, int]) -> str:
        """The labels of the step at the peak."""
        return max(self._moments(lengths), key=lambda moment: moment[0])[1]

    def _moments(self, lengths: Mapping[str, int]) -> Iterator[tuple[int, str]]:
        plan = self.plan
        whole, output = dict(plan.sizes), plan.equation.output
        sliced = {label for label, size in whole.items() if lengths[label] != size}
        winners = self.winner * (len(whole) - len(output))
        result = entries(whole, output) * (self.itemsize + winners)
        # The walk back holds each label's index, and the one of the step that it is at.
        held = SCRATCH + result + 2 * winners * entries(lengths, output)
        if sliced:
            held += result  # a loop may keep the old and the new one
            held += sum(
                self.itemsize * entries(lengths, term) for term in plan.terms if sliced & set(term)
            )
            if self.work != self.itemsize:  # XLA widens whole operands, outside the loop
                held += sum(self.work * entries(whole, term) for term in plan.terms)
        if self.devices > 1:
            held += result  # the parts of other devices
        yield held, "".join(plan.terms)
        values = dict.fromkeys(range(len(plan.terms)), 0)
        for number, step in enumerate(plan.steps, len(plan.terms)):
            labels = "".join(dict.fromkeys("".join(step.terms)))
            out = entries(lengths, step.result)
            read = sum(entries(lengths, set(term)) for term in step.terms)
            contracts = any(label not in step.result for label in labels)
            values[number] = self.itemsize * out
            held += values[number] + self.winner * out * contracts
            scratch = self.scratch * (out + read) if contracts else 2 * out
            yield held + self.work * scratch, labels
            held -= sum(values[i] for i in step.operands)


@dataclasses.dataclass(frozen=True, repr=False)
class SlicedPlan:
    """The slices of a plan.

    Attributes:
      plan: the steps of one slice; its sizes are those of a slice.
      whole: (label, size) of every label.
      memory: what the steps allocate; None with symbolic sizes.
    """

    plan: Plan
    whole: tuple[tuple[str, int], ...]
    memory: Memory | None = dataclasses.field(hash=False)  # its plan is hashed once

    @functools.cached_property
    def peak(self) -> int | None:
        """The most bytes allocated at one time, with the result and without the operands; None with
        symbolic sizes.
        """
        return None if self.memory is None else self.memory.peak(dict(self.plan.sizes))

    @property
    def output(self) -> str:
        """The labels of the result."""
        return self.plan.equation.output

    @property
    def sliced(self) -> dict[str, tuple[int, int]]:
        """For each sliced label (number of slices, length of a slice); labels of the output come
        first.
        """
        whole = dict(self.whole)
        lengths = {
            label: size
            for label, size in self.plan.sizes
            if size is not whole[label] and size != whole[label]
        }
        order = sorted(lengths, key=lambda label: (label not in self.output, label))
        return {label: (whole[label] // lengths[label], lengths[label]) for label in order}

    @property
    def slices(self) -> int:
        """How many slices there are."""
        return math.prod(count for count, _ in self.sliced.values())

    @property
    def cost(self) -> int:
        """Multiplications of all slices."""
        return self.slices * self.plan.cost

    def __str__(self) -> str:
        lines = [str(self.plan)]
        if self.slices > 1:
            parts = " x ".join(f"{count} of {label}" for label, (count, _) in self.sliced.items())
            lines.append(
                f"{self.slices} slices one after another ({parts}), {self.cost} multiplications "
                f"in all"
            )
        if self.peak is not None:
            lines.append(f"at most {self.peak} bytes at once beside the operands")
        return "\n".join(lines)

    def start(self, i: jax.Array) -> dict[str, jax.Array]:
        """The start of slice i, for every label."""
        start = dict.fromkeys(dict(self.whole), jnp.int32(0))
        for label, (count, length) in reversed(self.sliced.items()):
            start[label], i = (i % count) * length, i // count
        return start

    def parts(
        self, terms: Sequence[str], arrays: Sequence[jax.Array], start: Mapping[str, jax.Array]
    ) -> tuple[jax.Array, ...]:
        """The slices of arrays with the labels of some terms."""
        sizes = dict(self.plan.sizes)
        return tuple(
            lax.dynamic_slice(x, [start[label] for label in term], [sizes[label] for label in term])
            if term
            else x
            for x, term in zip(arrays, terms, strict=True)
        )

    def replaced(self, x: jax.Array, block: jax.Array, start: Mapping[str, jax.Array]) -> jax.Array:
        """An array of the result's shape with the block of a slice replaced."""
        if not self.output:
            return block
        return lax.dynamic_update_slice(x, block, [start[label] for label in self.output])

    def added(self, x: jax.Array, block: jax.Array, start: Mapping[str, jax.Array]) -> jax.Array:
        """An array of the result's shape plus the block of a slice. Its transpose passes x on
        and reads a block, which that of `replaced` does not.
        """
        if not self.output:
            return x + block
        axes = tuple(range(x.ndim))
        return lax.scatter_add(
            x,
            jnp.stack([start[label] for label in self.output]),
            block,
            lax.ScatterDimensionNumbers(axes, (), axes),
            indices_are_sorted=True,
            unique_indices=True,
            mode="promise_in_bounds",
        )


def byte_count(where: str, memory_limit: object) -> int:
    """A memory limit as an int.

    Raises:
      InvalidConfig: not a positive integer.
    """
    found = as_index(memory_limit)
    if found is not None and found > 0:
        return found
    raise InvalidConfig(
        where=f"{where}, memory_limit",
        given=shown(memory_limit),
        needed="a positive number of bytes, an integer",
        fix="Pass an int such as 2**30.",
    )


def with_lengths(plan: Plan, lengths: Mapping[str, int]) -> Plan:
    """The plan of one slice."""
    steps = [
        dataclasses.replace(
            step,
            cost=entries(lengths, set("".join(step.terms))),
            size=entries(lengths, step.result),
        )
        for step in plan.steps
    ]
    return dataclasses.replace(plan, sizes=tuple(lengths.items()), steps=tuple(steps))


def slice_lengths(
    where: str,
    memory: Memory,
    memory_limit: int | None,
    least: int = 1,
) -> dict[str, int]:
    """The length of every label in a slice.

    Labels are shortened, each time the one that helps most, until the peak is within the limit, and
    then the one with which so many devices take the least time. All stay whole if one has no
    entries.

    Args:
      where: of an error.
      memory: of the plan.
      memory_limit: bytes, or None.
      least: slices that are wanted, one for each device, if there are so many entries.

    Raises:
      InvalidConfig: no slices are within the limit, or too many are needed.
      Unsupported: symbolic sizes.
    """
    plan = memory.plan
    whole = dict(plan.sizes)
    if any(map(jax.export.is_symbolic_dim, whole.values())):
        asked = "over" if memory.devices > 1 else "slices"
        raise Unsupported(
            where=f"{where}, {asked if memory_limit is None else 'memory_limit'}",
            given="symbolic sizes",
            needed="concrete sizes",
            fix="Leave it out, or trace with concrete sizes.",
        )
    # A step over nothing has its own result in no slice.
    kept = "".join(whole) if 0 in whole.values() else ""
    lengths = dict(whole)
    if memory_limit is not None:
        _shorten(where, memory, lengths, memory_limit, kept)

    def slices(lengths: Mapping[str, int]) -> int:
        return math.prod(n // lengths[label] for label, n in whole.items() if n)

    def time(lengths: Mapping[str, int]) -> tuple[int, int, int]:
        """On `least` devices; then the number of slices, and the peak."""
        count = slices(lengths)
        return -(-count // least) * with_lengths(plan, lengths).cost, count, memory.peak(lengths)

    while (count := slices(lengths)) < least:
        enough = -(-least // count)
        free = {c: n for c, n in lengths.items() if n > 1 and c not in kept}
        tried = [lengths | {c: _part(n, enough)} for c, n in free.items() if n >= enough]
        tried = tried or [lengths | {c: 1} for c in free]
        if not tried:
            break
        lengths = min(tried, key=time)
    if slices(lengths) > MOST_SLICES:
        raise InvalidConfig(
            where=f"{where}, memory_limit",
            given=f"{memory_limit} bytes, which takes {slices(lengths)} slices",
            needed=f"at most {MOST_SLICES} slices",
            fix="Raise the limit, or contract less at once.",
        )
    return lengths


def _shorten(
    where: str, memory: Memory, lengths: dict[str, int], memory_limit: int, kept: str
) -> None:
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
                where=f"{where}, memory_limit",
                given=f"{memory_limit} bytes",
                needed=f"at least {least} bytes: the result, {SCRATCH} of scratch, and one entry "
                f"of everything else",
                fix="Raise the limit, or contract less at once.",
            )
        best = min(tried, key=lambda label: (tried[label], label))
        lengths[best] = shorter[best]


def _part(length: int, count: int) -> int:
    """The largest length of which at least so many are one."""
    return next(length // n for n in range(count, length + 1) if length % n == 0)


def _shorter(length: int) -> int:
    """The largest proper divisor."""
    return next((length // d for d in range(2, math.isqrt(length) + 1) if length % d == 0), 1)
