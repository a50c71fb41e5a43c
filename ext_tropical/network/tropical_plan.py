"""Equation and sizes -> the order of contractions, and the slices that keep it within a memory
limit, without arrays.

A slice covers a part of some labels: all steps run on the slices of the operands, and the results
are concatenated (labels of the output) or merged by the semiring's plus (contracted labels). Slices
have equal lengths, so that one program serves all of them.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike, DTypeLike

from tenferro_jax import plan_einsum
from tenferro_jax.einsum import Plan, Step, parse_interleaved
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported, shortened

from ..algebra.semiring import SelectiveSemiring, Semiring, as_semiring, no_semiring_among
from ..algebra.shipped import max_mul, max_plus
from ..step.einsum_op import work_dtype

Operand: TypeAlias = ArrayLike | Sequence[object]
"""An array or data for one; its labels, in the interleaved form; its shape, for a plan."""
Optimize: TypeAlias = str | bool | Sequence[Sequence[int]]
"""The name of an algorithm, or a path."""


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
    reductions = [step for step in plan.steps if len(step.operands) == 1]
    gone = {
        step.operands[0]: math.prod(sizes[label] for label in set(step.terms[0]) - set(step.result))
        for step in reductions
    }
    reduced = [
        operand
        for operand, entries in gone.items()
        if not (isinstance(entries, int) and entries == 1)
    ]
    return [
        least
        for count in range(1, 1 + len(reduced))
        for least in itertools.combinations(reduced, count)
    ]


SCRATCH = 1 << 16
"""Bytes for scalars, blocks and alignment."""


def entries(lengths: Mapping[str, int], labels: Iterable[str]) -> int:
    """Entries of a tensor with these labels, repeated ones included; for a diagonal pass
    `set(labels)`.
    """
    return math.prod(lengths[label] for label in labels)


@dataclasses.dataclass(frozen=True)
class Memory:
    """Bytes that a plan allocates beside the operands, for given lengths of the labels.

    Attributes:
      plan: the steps.
      itemsize: bytes of an entry of the operands.
      work: bytes of an entry of the dtype that steps compute in.
      is_selective: whether there are winners, which a derivative needs; log_sum_exp takes two
        passes.
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
        copies = (
            3 if self.is_selective and self.work == self.itemsize else 4
        )  # 16 bits are widened; log_sum_exp takes two passes
        return copies * (out + read)


MOST_ENTRIES = 2**48
"""More than any machine holds; XLA aborts the process if a size does not fit into 64 bits."""
MOST_SLICES = 2**31 - 1
"""Slices are counted in int32."""


@dataclasses.dataclass(frozen=True, repr=False)
class TropicalPlan:
    """The steps of an einsum, run for one slice after another.

    Attributes:
      plan: the steps of one slice; its sizes are those of a slice.
      whole: (label, size) of every label.
      peak: the most bytes allocated at one time, with the result and without the operands; None
        with symbolic sizes.
    """

    plan: Plan
    whole: tuple[tuple[str, int], ...]
    peak: int | None

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
        """How many slices run one after another."""
        return math.prod(count for count, _ in self.sliced.values())

    @property
    def cost(self) -> int:
        """Multiplications of all slices."""
        return self.slices * self.plan.cost

    def __repr__(self) -> str:
        text = shortened(self.plan.equation.text)
        return (
            f"TropicalPlan({text!r}, {len(self.plan.steps)} steps, {self.slices} slices, peak "
            f"{self.peak})"
        )

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


def plan_tropical_einsum(
    equation: str | Operand,
    *operands: Operand,
    optimize: Optimize = "auto",
    memory_limit: int | None = None,
    semiring: Semiring | str = max_plus,
    dtype: DTypeLike | None = None,
) -> TropicalPlan:
    """Plan an einsum: the order of its contractions and its slices.

    Args:
      equation: as for `tropical_einsum`.
      *operands: arrays or shapes.
      optimize: as for `tropical_einsum`.
      memory_limit: bytes; slices are chosen so that `peak` is at most that.
      semiring: a semiring or its name. For a selective one the memory of winners counts, because a
        derivative needs them.
      dtype: of the operands, 32 bits wide while 64-bit types are off; by default that of the first
        array, or float32.

    Returns:
      A TropicalPlan, to print and compare.

    Raises:
      InvalidConfig, ShapeError: the equation cannot be read or does not fit.
      DTypeError: not a dtype.
      InvalidConfig: an unknown algorithm or semiring, a path that does not fit, or a memory limit
        that no slices reach; the text gives the least possible limit.
      Unsupported: a memory limit with symbolic sizes, or cotengra if it is not installed.

    Example:
      >>> print(plan_tropical_einsum("ij,jk,kl->il", (64, 512), (512, 512), (512, 64),
      ...     memory_limit=1_000_000))
      step  operands  equation   multiplications  entries
         3  0, 1      ij,jk->ik          1048576     8192
         4  2, 3      kl,ik->il           524288     4096
      1572864 multiplications, at most 8192 entries at once, order ij,jk,kl->il
      16 slices one after another (4 of j x 4 of k), 25165824 multiplications in all
      at most 819200 bytes at once beside the operands
    """
    no_semiring_among("plan_tropical_einsum", operands)
    if not isinstance(equation, str):
        equation, operands = parse_interleaved((equation, *operands))
    shapes = tuple(_shape(x, f"plan_tropical_einsum, operand {i}") for i, x in enumerate(operands))
    if dtype is None:
        dtype = next((x.dtype for x in operands if hasattr(x, "dtype")), "float32")
    algebra = as_semiring(semiring)
    return cached_plan(
        equation,
        shapes,
        _dtype(dtype),
        hashable(optimize),
        byte_count(equation, memory_limit),
        algebra,
    )


def _shape(x: object, where: str) -> tuple[int, ...]:
    """The shape of an array, or a shape."""
    shape = getattr(x, "shape", x)
    if (
        not isinstance(shape, Sequence)
        or isinstance(shape, str | bytes)
        or not all(map(_is_size, shape))
    ):
        raise ShapeError(
            where=where, given=repr(x), needed="an array, or a sequence of non-negative sizes"
        )
    return tuple(shape)


def _is_size(size: Any) -> bool:
    if isinstance(size, int | np.integer):
        return not isinstance(size, bool) and bool(size >= 0)
    return jax.export.is_symbolic_dim(size)


def _dtype(dtype: DTypeLike) -> Any:
    try:
        return jax.dtypes.canonicalize_dtype(jnp.dtype(dtype))
    except TypeError as error:
        raise DTypeError(
            where="plan_tropical_einsum, dtype", given=repr(dtype), needed="a dtype"
        ) from error


def hashable(optimize: Optimize) -> Any:
    """An explicit path as tuples, so that plans can be cached.

    Raises:
      InvalidConfig: neither text, nor a bool, nor a sequence of hashable values.
    """
    if isinstance(optimize, str | bool):
        return "auto" if optimize is True else optimize
    optimize = optimize.tolist() if isinstance(optimize, np.ndarray) else optimize
    try:
        path = tuple(tuple(x) if isinstance(x, list) else x for x in optimize)
        hash(path)
    except TypeError as error:
        raise InvalidConfig(
            where="tropical_einsum, optimize",
            given=f"{optimize!r}: {error}",
            needed="the name of an algorithm, a sequence of tuples of positions, True or False",
            fix="See opt_einsum's paths.",
        ) from error
    return path


@functools.lru_cache(maxsize=1024)
def cached_plan(
    equation: str,
    shapes: tuple[tuple[int, ...], ...],
    dtype: np.dtype,
    optimize: Optimize,
    memory_limit: int | None,
    semiring: Semiring,
) -> TropicalPlan:
    """`plan_tropical_einsum`, cached."""
    cut: Sequence[str] = ()
    if optimize == "cotengra" and memory_limit is not None:
        optimize, cut = _cotengra(
            plan_einsum(equation, shapes, "greedy"), memory_limit // dtype.itemsize
        )
    plan = plan_einsum(equation, shapes, optimize)
    plan = dataclasses.replace(plan, steps=tuple(map(_in_order, plan.steps)))
    if not all(isinstance(size, int) for _, size in plan.sizes):
        if memory_limit is not None:
            raise Unsupported(
                where=f"tropical_einsum {shortened(equation)!r}, memory_limit",
                given="symbolic sizes",
                needed="concrete sizes",
                fix="Leave memory_limit out, or trace with concrete sizes.",
            )
        return TropicalPlan(plan, plan.sizes, None)
    _require_possible(equation, plan, dtype.itemsize, memory_limit)
    is_selective = isinstance(semiring, SelectiveSemiring)
    memory = Memory(plan, dtype.itemsize, work_dtype(dtype).itemsize, is_selective)
    lengths = dict(plan.sizes)
    if memory_limit is not None:
        lengths |= dict.fromkeys(cut, 1)
        _slice(equation, memory, lengths, memory_limit)
    steps = [
        dataclasses.replace(
            step,
            cost=entries(lengths, set("".join(step.terms))),
            size=entries(lengths, step.result),
        )
        for step in plan.steps
    ]
    sliced = dataclasses.replace(plan, sizes=tuple(lengths.items()), steps=tuple(steps))
    found = TropicalPlan(sliced, plan.sizes, memory.peak(lengths))
    if found.slices > MOST_SLICES:
        raise InvalidConfig(
            where=f"tropical_einsum {shortened(equation)!r}, memory_limit",
            given=f"{memory_limit} bytes, which takes {found.slices} slices",
            needed=f"at most {MOST_SLICES} slices",
            fix="Raise the limit, or contract less at once.",
        )
    return found


def _require_possible(equation: str, plan: Plan, itemsize: int, memory_limit: int | None) -> None:
    """Refuse results that are larger than any machine, or that too many slices would be
    needed for.
    """
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


def _in_order(step: Step) -> Step:
    """The step with its operands in the order of their numbers, because the first winner must not
    depend on layout.
    """
    if list(step.operands) == sorted(step.operands):
        return step
    return dataclasses.replace(step, operands=step.operands[::-1], terms=step.terms[::-1])


def byte_count(equation: str, memory_limit: int | None) -> int | None:
    """A memory limit as an int.

    Raises:
      InvalidConfig: neither None nor a positive integer.
    """
    if memory_limit is None or (
        isinstance(memory_limit, int | np.integer)
        and not isinstance(memory_limit, bool)
        and memory_limit > 0
    ):
        return None if memory_limit is None else int(memory_limit)
    raise InvalidConfig(
        where=f"tropical_einsum {shortened(equation)!r}, memory_limit",
        given=repr(memory_limit),
        needed="a positive number of bytes, an integer",
        fix="Pass an int such as 2**30.",
    )


def _slice(equation: str, memory: Memory, lengths: dict[str, int], memory_limit: int) -> None:
    """Shorten the slices of labels, each time the label that helps most, until the peak is within
    the limit.
    """
    least = memory.peak(
        dict.fromkeys(lengths, 1) | {label: 0 for label, size in lengths.items() if size == 0}
    )
    while (peak := memory.peak(lengths)) > memory_limit:
        long = [label for label in memory.worst(lengths) if lengths[label] > 1] or [
            label for label in lengths if lengths[label] > 1
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


def _cotengra(plan: Plan, entries: int) -> tuple[Any, Sequence[str]]:
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
