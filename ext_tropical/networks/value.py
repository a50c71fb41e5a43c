"""The value of a network and its first best assignment, as one extension op; and which einsums run
as one.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax import TensorMeta
from tenferro_jax.errors import InvalidConfig
from tenferro_jax.extension import ExtensionOp, apply, extension_op
from tenferro_jax.plans import Plan, Step
from tenferro_jax.plans.interpreter import without_repeated_axes

from ..arguments import are_numbers, one_dtype, widened, work_dtype
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp, SumProduct, max_plus, min_plus
from ..steps.einsum_op import Ties
from ..steps.evaluate import Mode, Winners, evaluate, run_step
from ..steps.labels import Labels
from . import loops, walk
from .log_derivatives import NetworkShares
from .plan_text import batched_text, labels_of, text_of
from .question import Asked, Question, kernels, unknown
from .sums import NetworkSum
from .walk import NetworkEntries


@extension_op(package="tenferro-ext-tropical", name="network", version=1)
class TropicalNetwork(OfSemiring, Question):
    """The value of a network: a whole einsum along its plan, of tables with at least one entry.

    Attributes:
      semiring: a registered semiring, selective or log_sum_exp, or its key.
      plan: the order of contractions, as text: "ab,bc,cd->ad|0,1:ac|2,3:ad".
      with_labels: whether the second output is the first assignment that attains the value: int32
        (contracted labels in sorted order, *shape of the value); for a selective semiring.
    """

    semiring: SemiringKey
    plan: str
    with_labels: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        is_log = isinstance(self.algebra, LogSumExp) and self.with_labels is False
        if not is_log and not (self.is_selective and isinstance(self.with_labels, bool)):
            raise InvalidConfig(
                where=f"{self.family_id}, fields semiring and with_labels",
                given=f"{self.algebra!r}, {self.with_labels!r}",
                needed="a selective semiring, or log_sum_exp without labels",
            )
        _ = self.network  # refuses a text that is no plan

    @property
    def is_selective(self) -> bool:
        """Whether there are winners."""
        return isinstance(self.algebra, SelectiveSemiring)

    @property
    def asked(self) -> Asked:
        """The value, or also its assignment."""
        return Asked.LABELS if self.with_labels else Asked.VALUE

    def dtype(self, inputs: Sequence[TensorMeta]) -> np.dtype:
        """That of the tables."""
        if not self.is_selective:
            return super().dtype(inputs)
        return one_dtype(self.family_id, self.algebra, [m.dtype for m in inputs])

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if are_numbers(inputs):
            return super().lower_to_standard_ops(*inputs)
        plan, wanted = self.planned(inputs), Winners.LABELS if self.with_labels else None
        mode = Mode(self.algebra, winners=wanted, in_standard_ops=True)
        value, labels = evaluate(plan, inputs, mode)
        if not self.with_labels:
            return (value,)
        rows = [labels[label] for label in labels_of(plan)]
        return value, jnp.stack(rows) if rows else jnp.zeros((0, *value.shape), jnp.int32)

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        if not self.is_selective:
            return (loops.log_search(plan, self.algebra.temperature, inputs, self._large)[0],)
        value, winners = loops.search(plan, self.algebra, inputs, self.with_labels, self._large)
        return (value, *([] if winners is None else [walk.coordinates(plan, winners)]))

    def _large(self, step: Step, inputs: Sequence[jax.Array]) -> tuple[jax.Array, ...]:
        """Value and winner of a step that is too large for the loops, in standard ops."""
        wanted = Winners.STEPS if self.with_labels else None
        mode = Mode(self.algebra, winners=wanted, in_standard_ops=True)
        value, found = run_step(list(inputs), step.terms, step.result, mode)
        return value, *(x.winner for x in found)

    def differentiable_form(self) -> ExtensionOp:
        """This op with the labels, which the derivative follows."""
        return dataclasses.replace(self, with_labels=self.is_selective)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """Of a selective semiring the tangent of times at the assignment; of log_sum_exp the mean
        of the candidates' tangents, step by step.
        """
        active = tuple(i for i, t in enumerate(tangents) if t is not None)
        moved = [t for t in tangents if t is not None]
        if not self.is_selective:
            return apply(
                NetworkShares(self.algebra.temperature, self.plan, active), *primals, *moved
            )
        sizes = cast(tuple[tuple[str, int], ...], self.planned(primals).sizes)
        plan = self.network
        at = NetworkEntries(",".join(plan.terms), plan.equation.output, sizes)
        terms = ",".join(plan.terms[i] for i in active)
        is_sum = self.algebra in (max_plus, min_plus)
        chosen = dataclasses.replace(at, terms=terms, is_sum=is_sum)
        (out,) = apply(chosen, outputs[1], *map(widened, moved))
        if not is_sum:
            (entries,) = apply(at, outputs[1], *map(widened, primals))
            directions = jnp.zeros_like(entries).at[np.array(active)].set(out, unique_indices=True)
            _, out = jax.jvp(self._product, (entries,), (directions,))
        return (out.astype(outputs[0].dtype), None)

    def _product(self, rows: jax.Array) -> jax.Array:
        """The rows multiplied in the semiring."""
        return lax.scan(lambda x, y: (self.algebra.times(x, y), None), rows[0], rows[1:])[0]

    def batched(
        self, in_axes: tuple[int | None, ...]
    ) -> tuple[ExtensionOp, tuple[int, ...]] | None:
        form = dataclasses.replace(self, plan=batched_text(self.network, in_axes))
        return form, (0, 1) if self.with_labels else (0,)


TropicalNetwork.runtimes = kernels(TropicalNetwork.family_id)


def is_network(plan: Plan, operands: Sequence[jax.Array], mode: Mode) -> bool:
    """Whether a plan runs as one op: three or more operands, a semiring of this package, sizes that
    are known and positive, the first winner of each tie, no winners of single steps, and steps that
    are worth it.
    """
    if len(plan.terms) <= 2 or not plan.steps:
        return False
    if not isinstance(mode.semiring, SelectiveSemiring | LogSumExp | SumProduct):
        return False
    if mode.winners is Winners.STEPS or mode.ties is not Ties.FIRST:
        return False
    if not all(isinstance(size, int) and size > 0 for _, size in plan.sizes):
        return False
    return _is_worth_it(plan, mode.semiring, operands[0].dtype, any(map(_spreads, operands)))


STEPS_WORTH_IT = 16
"""The number of steps above which compiling each of them costs more than large steps gain."""
SMALL_STEP = 1 << 10
"""The candidates of a step above which XLA's route of a network takes longer than its own ops."""
WORTH_DEVICES = 1 << 22
"""The candidates of a step, some milliseconds, above which it pays to split its contracted labels
over devices, as each step does alone and the op does not.
"""


@functools.lru_cache(maxsize=256)
def _is_worth_it(plan: Plan, semiring: Semiring, dtype: np.dtype, spreads: bool) -> bool:
    """Whether no step has more than SMALL_STEP candidates; or there are more than STEPS_WORTH_IT
    steps, which the native library computes or which have at most SMALL_STEP candidates on average.
    On several devices no step may have more than WORTH_DEVICES.
    """
    sizes, counts = dict(plan.sizes), []
    for step in plan.steps:
        labels = set("".join(step.terms))
        counts.append(math.prod(map(sizes.__getitem__, labels)))
    most = max(counts)
    if len(counts) <= STEPS_WORTH_IT or (spreads and most > WORTH_DEVICES):
        return most <= SMALL_STEP
    work = dtype if isinstance(semiring, SelectiveSemiring) else work_dtype(dtype)
    return sum(counts) <= SMALL_STEP * len(counts) or not unknown(semiring, work)


def _spreads(x: jax.Array) -> bool:
    """Whether an array is, or may be, on several devices; a NumPy array is not."""
    place = getattr(jax.typeof(x) if isinstance(x, jax.core.Tracer) else x, "sharding", None)
    is_of_one = type(place) is jax.sharding.SingleDeviceSharding
    return place is not None and not is_of_one and place.num_devices > 1


@functools.lru_cache(maxsize=256)
def _op(plan: Plan, semiring: Semiring, with_labels: bool) -> TropicalNetwork:
    return TropicalNetwork(SemiringKey.of(semiring), text_of(plan), with_labels)


@functools.lru_cache(maxsize=256)
def _sum_op(plan: Plan) -> NetworkSum:
    return NetworkSum(text_of(plan))


def solved(plan: Plan, operands: Sequence[jax.Array], mode: Mode) -> tuple[jax.Array, Any]:
    """The value of a plan, and the winners that the mode asks for."""
    run = solved_as_network if is_network(plan, operands, mode) else evaluate
    return run(plan, operands, mode)


def solved_as_network(
    plan: Plan, operands: Sequence[jax.Array], mode: Mode
) -> tuple[jax.Array, Labels | None]:
    """As `solved`, by one op."""
    if isinstance(mode.semiring, SumProduct):
        tables = without_repeated_axes(operands, plan.terms, dict(plan.sizes))
        (total,) = apply(_sum_op(plan), *map(widened, tables))
        return total.astype(operands[0].dtype), None
    op = _op(plan, mode.semiring, mode.winners is not None)
    tables = without_repeated_axes(operands, plan.terms, dict(plan.sizes))
    if not op.is_selective:  # 16 bits are widened for the whole network
        dtype = one_dtype(op.family_id, op.algebra, [x.dtype for x in tables])
        return apply(op, *map(widened, tables))[0].astype(dtype), None
    value, *labels = apply(op, *tables)
    if not labels:
        return value, None
    return value, Labels.of_rows(labels_of(plan), labels[0])
