"""What is common to all questions to a network of tables: each is one extension op.

On CPU one native call runs all steps of the plan: inside a compiled program by XLA's FFI, and on
concrete arrays by a direct call, for which nothing is compiled. Elsewhere `loops` gives a program
whose size does not grow with the plan.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    LinearInput,
    ShardingRule,
    require_equal,
)
from tenferro_jax.plans import Plan
from tenferro_jax.shapes import Shaped

from ..arguments import are_numbers
from ..native.library import TYPES, in_program, native, now, on_host, unserved
from ..semirings.semiring import Semiring
from ..semirings.shipped import max_plus
from ..steps.layout import factors_of
from ..steps.weighted_sum import work_of
from .plan_text import integers, labels_of, plan_in, planned

Axes = Sequence[str]
"""The label of each axis of an array, or a longer name of an axis that has none."""

LABELS = "labels"
"""The first axis of an array of assignments: a row for each label that the output lacks, sorted."""

SAMPLE = "sample"
"""The axis of independent samples."""

DRAWS = "draws"
"""The axis of the steps that contract, for each of which a sample needs a number."""

PLACE = "place"
"""The axis of the best assignments, in order."""

TABLES = "tables"
"""The axis of all tables."""


class AxesOfArrays(NamedTuple):
    """The axes of arrays.

    Attributes:
      inputs: of each input.
      outputs: of each output.
    """

    inputs: Sequence[Axes]
    outputs: Sequence[Axes]


class Asked(enum.Enum):
    """The questions to a plan: the number that network.h has for each, and what it takes and gives.

    `tables`, all of them; `active`, some of them, or tangents or cotangents of these; `value`, or a
    tangent or cotangent of it; `labels`, an assignment for each entry of the value; `entries`, at
    an assignment one of each active table; `numbers` in [0, 1), by which `samples` are drawn, an
    assignment each; `values`, the best ones in order, and their `assignments`.
    """

    VALUE = 0, "tables -> value"
    LABELS = 1, "tables -> value, labels"
    TOTAL = 2, "labels, active -> value"
    ENTRIES = 3, "labels, active -> entries"
    ADD_TOTAL = 4, "labels, value -> active"
    ADD_ENTRIES = 5, "labels, entries -> active"
    LOG_TANGENT = 6, "tables, active -> value"
    LOG_COTANGENT = 7, "tables, value -> active"
    SAMPLES = 8, "tables, numbers -> samples"
    BEST = 9, "tables -> values, assignments"
    LOG_BEND = 10, "tables, active, active -> value"
    LOG_CURVATURE = 11, "tables, value, active -> active"
    SUM = 12, "tables -> value"
    SCALED_SUM = 13, "tables -> value, exponents"
    SUM_TANGENT = 14, "tables, exponents, actives -> value"
    SUM_COTANGENT = 15, "tables, exponents, value, actives -> active"

    def __init__(self, number: int, text: str) -> None:
        takes, gives = text.split(" -> ")
        self.number = number
        self.takes, self.gives = takes.split(", "), gives.split(", ")


_AXES: dict[str, Sequence[Axes]] = {
    "numbers": [[DRAWS, SAMPLE]],
    "samples": [[LABELS, SAMPLE]],
    "values": [[PLACE]],
    "assignments": [[LABELS, PLACE]],
}
"""Those of arrays that are the same for all plans."""

_planned = functools.lru_cache(maxsize=256)(planned)


class Question(ExtensionOp):
    """A question to a network of tables, whose payload has the plan as text, in its field `plan`.

    A family sets `algebra`, the semiring; `asked`, the question; and `about`, the numbers
    of the active tables, if there are some. `lanes` is how many of the output's first labels are
    those of batches; -1: the first one, if most results have it. Shapes, dtypes, the split over
    devices and the native call follow from these. `in_loops` answers in standard ops.
    """

    lanes = -1

    @property
    def algebra(self) -> Any:
        """The semiring: max_plus, unless a family has another one; for entries it is all one."""
        return max_plus

    @property
    def asked(self) -> Asked:
        """The question."""
        raise NotImplementedError

    @property
    def about(self) -> Sequence[int]:
        """The numbers of the active tables."""
        return ()

    @property
    def arrays(self) -> AxesOfArrays:
        """The axes of each input and of each output."""
        plan, asked = self.network, self.asked
        output = plan.equation.output
        axes = _AXES | {
            "tables": plan.terms,
            "active": [plan.terms[i] for i in self.about],
            "value": [output],
            "exponents": [output],
            "labels": [[LABELS, *output]],
            "entries": [[TABLES, *output]],
        }
        inputs = [own for role in asked.takes for own in axes[role]]
        return AxesOfArrays(inputs, [own for role in asked.gives for own in axes[role]])

    def in_loops(self, plan: Plan, *inputs: jax.Array) -> Sequence[jax.Array]:
        """The outputs in standard ops, for sizes that are numbers."""
        raise NotImplementedError

    @property
    def network(self) -> Plan:
        """The plan, without sizes."""
        return plan_in(self.plan, self.place_of())  # type: ignore[attr-defined]

    def planned(self, inputs: Sequence[Shaped]) -> Plan:
        """The plan of inputs, or of their metas."""
        shapes = tuple(tuple(x.shape) for x in inputs[: len(self.network.terms)])
        # An equality of symbolic sizes is a guard of each call.
        find = _planned if are_numbers(inputs) else planned
        return find(self.plan, shapes, self.place_of())  # type: ignore[attr-defined]

    def extents(self, inputs: Sequence[TensorMeta]) -> Mapping[str, int]:
        """The sizes of axes without labels, beside those of assignments."""
        return {}

    def dtype(self, inputs: Sequence[TensorMeta]) -> np.dtype:
        """The dtype of all arrays but those of assignments; refuses others."""
        return work_of(self.family_id, self.algebra, inputs)

    @property
    def input_count(self) -> int:
        """As many as `arrays` says."""
        return len(self.arrays.inputs)

    @property
    def output_count(self) -> int:
        """As many as `arrays` says."""
        return len(self.arrays.outputs)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        dtype, plan, arrays = self.dtype(inputs), self.planned(inputs), self.arrays
        sizes = dict(plan.sizes)
        sizes[LABELS] = len(labels_of(plan))
        sizes.update(self.extents(inputs))
        for i, (meta, axes) in enumerate(zip(inputs, arrays.inputs, strict=True)):
            shape = tuple([sizes[x] for x in axes])
            if meta.shape == shape:
                continue
            if len(meta.shape) != len(shape):
                raise ShapeError(
                    where=f"{self.place_of()}, input {i}", given=str(meta), needed=f"shape {shape}"
                )
            for size, wanted in zip(meta.shape, shape, strict=True):
                require_equal(size, wanted)
        metas = []
        for axes in arrays.outputs:
            own = np.dtype(np.int32) if LABELS in axes else dtype
            metas.append(TensorMeta(own, tuple([sizes[x] for x in axes])))
        return metas

    def sharding_rule(self, inputs: Sequence[TensorMeta]) -> ShardingRule:
        return split_along([*self.network.equation.output, SAMPLE], *self.arrays)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        # The loops count entries.
        return self.in_loops(self.planned(inputs), *inputs) if are_numbers(inputs) else None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Normal numbers, of 2, 3, 4, ... for the labels in their order; booleans where the
        semiring has them.
        """
        labels = dict.fromkeys("".join(self.network.terms))
        sizes = dict(zip(labels, itertools.count(2), strict=False))
        rng = np.random.default_rng(0)
        shapes = [tuple([sizes.get(x, 1) for x in axes]) for axes in self.arrays.inputs]
        arrays = [np.asarray(rng.normal(size=shape)) for shape in shapes]
        if self.algebra.dtypes == ("bool",):
            return [[x > 0 for x in arrays]]
        return [arrays]


def at_linear(
    found: Iterable[jax.Array | None], inputs: Sequence[jax.Array | LinearInput]
) -> list[jax.Array | None]:
    """Cotangents, and None for each input that is not linear."""
    return [
        x if isinstance(given, LinearInput) else None
        for x, given in zip(found, inputs, strict=True)
    ]


def split_along(
    free: Sequence[str],
    terms: Sequence[Axes],
    outputs: Sequence[Axes],
    on_device: Callable[..., Sequence[jax.Array]] | None = None,
) -> ShardingRule:
    """How an op splits over devices along some labels.

    Args:
      free: the labels; others, and those of which an array has a diagonal, stay whole.
      terms: for each input the label of each axis, or a longer name if it has none.
      outputs: for each output.
      on_device: as in `ShardingRule`.
    """
    arrays: list[Axes] = [*terms, *outputs]
    whole: set[str] = set()
    for term in arrays:
        whole.update(c for c in term if c not in free or list(term).count(c) > 1)
    named: list[list[str]] = []
    kept: set[str] = set()
    for term in arrays:
        names = [factor_of(c, list(term[:i]).count(c)) for i, c in enumerate(term)]
        kept.update(name for name, c in zip(names, term, strict=True) if c in whole)
        named.append(names)
    factors = factors_of(named[: len(terms)], named[len(terms) :])
    return ShardingRule(factors, whole=tuple(sorted(kept)), on_device=on_device)


def factor_of(label: str, earlier: int = 0) -> str:
    """The name in a sharding rule of a label that its term has so often before."""
    return (label if label.isascii() else f"u{ord(label)}") + "'" * earlier


# --- the native library --------------------------------------------------------------------------


@functools.lru_cache(maxsize=256)
def _call(
    op: Question, described: tuple[tuple[np.dtype, tuple[int, ...]], ...]
) -> tuple[dict[str, Any], tuple[TensorMeta, ...]]:
    """The attributes of the custom call, and its outputs."""
    metas, algebra = [TensorMeta(dtype, shape) for dtype, shape in described], op.algebra
    type_number = TYPES[metas[-1].dtype.name]
    temperature = getattr(algebra, "temperature", 1.0)
    attributes = {
        "plan": integers(op.planned(metas), op.about, op.lanes),
        "type": np.int64(type_number),
        "algebra": np.int64(algebra.native_number),
        "question": np.int64(op.asked.number),
        "temperature": np.float64(temperature),
    }
    return attributes, tuple(op.infer_output_meta(metas))


def _declines(op: Question, *metas: TensorMeta) -> str:
    """Why XLA computes a network, or "" if the library does."""
    return unknown(op.algebra, metas[-1].dtype) if are_numbers(metas) else "sizes are symbolic"


def unknown(algebra: Semiring, dtype: np.dtype) -> str:
    """Why the library computes nothing under this semiring in this dtype, or ""."""
    if algebra.native_number is None:
        return f"it lacks {algebra!r}"
    return unserved([], dtype, TYPES) or native().problem


def run_in_program(op: Question, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The outputs by the library inside a program."""
    attributes, outputs = _call(op, tuple((x.dtype, tuple(x.shape)) for x in arrays))
    return in_program("network", outputs, arrays, "sequential", instructions="", **attributes)


def run_at_once(op: Question, *arrays: np.ndarray) -> list[np.ndarray]:
    """The outputs of concrete arrays by the library, for which nothing is compiled."""
    attributes, outputs = _call(op, tuple((x.dtype, x.shape) for x in arrays))
    given, outs = on_host(outputs, arrays)
    buffers = np.array([(x.ctypes.data, x.size) for x in (*given, *outs)], np.int64)
    plan, *numbers = attributes.values()
    numbers = [x.item() for x in numbers]
    now("network", plan, plan.size, *numbers, buffers, len(given), len(outs))
    return outs


def kernels(
    family_id: str,
    run: Callable[..., tuple[jax.Array, ...]] = run_in_program,
    eager: Callable[..., list[np.ndarray]] = run_at_once,
) -> ExtensionRuntimeSet:
    """The kernel of a family of networks."""
    return ExtensionRuntimeSet(
        Kernel(family_id, "cpu", run, declines=_declines, name="native", eager=eager)
    )
