"""Alignments as extension ops: the best one, the score of all, how much each entry counts."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    extension_op,
    require_equal,
)

from ..arguments import one_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring
from ..semirings.shipped import LogSumExp, OfTemperature, max_plus, min_plus
from ..tangents import tangent_of
from .alignment_inputs import AlignmentInputs, AlignmentOpLike, FreeEnd, Gaps
from .alignment_recurrence import along, solved


class AlignmentAsked(enum.Enum):
    """What is asked of an alignment, as alignments.h has it: the library tells the questions apart
    by the number of results.
    """

    SCORE = "score"
    PATH = "score, path"
    COUNTS = "scores, gap, gap_open"

    @property
    def gives(self) -> list[str]:
        """The results: for counts, one for each of these inputs."""
        return self.value.split(", ")


class AlignmentOp(ExtensionOp):
    """An op of the inputs that `AlignmentInputs` has: scores (m, n), gap, gap_open, which counts
    where `affine`, and where `has_lengths` two lengths.
    """

    warps: bool
    affine: bool
    local: bool
    band: int
    has_lengths: bool
    algebra: ClassVar[Any]

    def __post_init__(self) -> None:
        is_band = type(self.band) is int and self.band >= -1
        if not is_band or (self.warps and (self.affine or self.local)):
            raise InvalidConfig(
                where=f"{self.family_id}, payload",
                given=repr(self),
                needed="a band of at least -1; no warping with affine gaps or local",
            )

    @property
    def asked(self) -> AlignmentAsked:
        """What is asked."""
        return AlignmentAsked.SCORE

    @property
    def gaps(self) -> Gaps:
        """What a column without a pair counts."""
        if self.warps:
            return Gaps.WARPED
        return Gaps.AFFINE if self.affine else Gaps.LINEAR

    @property
    def free(self) -> Sequence[str]:
        """The free ends, by the values of `FreeEnd`: none."""
        return ()

    @property
    def input_count(self) -> int:
        """Three, or four."""
        return 4 if self.has_lengths else 3

    @property
    def output_count(self) -> int:
        """One to three."""
        return len(self.asked.gives)

    def inputs(self, *given: Any) -> AlignmentInputs:
        """The inputs of a call by their names: arrays, or what describes them."""
        return AlignmentInputs(*given)

    def checked(self, metas: Sequence[TensorMeta]) -> AlignmentInputs:
        """The metas of the inputs by their names, if they are an alignment's."""
        where, given = f"extension {self.family_id}", self.inputs(*metas)
        scores, gap, gap_open, lengths = given
        one_dtype(where, self.algebra, [scores.dtype, gap.dtype, gap_open.dtype])
        if len(scores.shape) != 2 or 0 in scores.shape or gap.shape or gap_open.shape:
            raise ShapeError(
                where=where, given=", ".join(map(str, metas)), needed="(m, n) and two scalars"
            )
        if lengths is not None:
            if lengths.dtype != np.int32 or len(lengths.shape) != 1:
                raise DTypeError(where=where, given=f"lengths {lengths}", needed="int32 (2,)")
            require_equal(lengths.shape[0], 2)
        return given

    def moved(self, tangents: Sequence[jax.Array | None]) -> list[jax.Array | None]:
        """The tangents of scores, gap and gap_open; None where alignments do not use the entry."""
        scores, gap, gap_open, *_ = tangents
        return [scores, None if self.warps else gap, gap_open if self.affine else None]

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Sequences of four and three elements."""
        scores = np.random.default_rng(0).normal(size=(4, 3))
        inputs: list[jax.typing.ArrayLike] = [scores, np.float64(-0.5), np.float64(-0.7)]
        if self.has_lengths:
            inputs.append(np.array([3, 3], np.int32))
        return [inputs]


@extension_op(package="tenferro-ext-tropical", name="align", version=1)
class Alignment(OfSemiring, AlignmentOp):
    """The score of the best alignment, or under log_sum_exp of all.

    Attributes:
      semiring: a registered selective semiring, log_sum_exp, or its key.
      warps: whether every column is a pair or repeats one of its elements; else there are gaps.
      affine: whether a gap's first element has a score of its own.
      local: whether stretches of the sequences are aligned.
      band: the greatest |i - j|; -1 for none.
      with_path: whether the second output is the columns of the best one, int32 (m + n, 2).
      has_lengths: whether the fourth input is the two lengths.
    """

    semiring: SemiringKey
    warps: bool
    affine: bool
    local: bool
    band: int = -1
    with_path: bool = False
    has_lengths: bool = False

    def __post_init__(self) -> None:
        OfSemiring.__post_init__(self)
        selects = isinstance(self.algebra, SelectiveSemiring)
        if not selects and (self.with_path or not isinstance(self.algebra, LogSumExp)):
            raise InvalidConfig(
                where=f"{self.family_id}, field semiring",
                given=f"{self.algebra!r}{' and a path' if self.with_path else ''}",
                needed="a selective semiring; or log_sum_exp, without a path",
            )
        AlignmentOp.__post_init__(self)

    @property
    def asked(self) -> AlignmentAsked:
        """The score, and the path."""
        return AlignmentAsked.PATH if self.with_path else AlignmentAsked.SCORE

    def counts(self) -> AlignmentCounts:
        """The op of the derivatives under log_sum_exp."""
        return AlignmentCounts(
            temperature=self.algebra.temperature,
            warps=self.warps,
            affine=self.affine,
            local=self.local,
            band=self.band,
            has_lengths=self.has_lengths,
        )

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        scores = self.checked(inputs).scores
        score = TensorMeta(scores.dtype, ())
        if not self.with_path:
            return [score]
        m, n = scores.shape
        return [score, TensorMeta(np.dtype("int32"), (m + n, 2))]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        score, columns = solved(self, self.inputs(*inputs))
        return [score, columns] if self.with_path and columns is not None else [score]

    def differentiable_form(self) -> ExtensionOp:
        """This op with the path, which the derivative follows."""
        return dataclasses.replace(self, with_path=isinstance(self.algebra, SelectiveSemiring))

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """That of the product along the path; under log_sum_exp by counts of the entries."""
        moved = self.moved(tangents)
        if not any(t is not None for t in moved):
            return [None] * self.output_count
        if self.with_path:
            columns = outputs[1]
            place = columns[:, 0], columns[:, 1]

            def product(scores: jax.Array, gap: jax.Array, gap_open: jax.Array) -> jax.Array:
                return along(self, columns, scores[place], gap, gap_open)

            return tangent_of(product, primals[:3], moved), None
        uses = zip(apply(self.counts(), *primals), moved, strict=True)
        parts = (jnp.sum(count * t) for count, t in uses if t is not None)
        return [functools.reduce(jnp.add, parts)]


@extension_op(package="tenferro-ext-tropical", name="align_counts", version=1)
class AlignmentCounts(OfTemperature, AlignmentOp):
    """How often an alignment uses each score, gap and gap_open, in the mean over all alignments
    with weights exp(score / T): the derivatives of the score under log_sum_exp. 0 if there is none.

    Attributes:
      temperature: T, positive and finite.
      warps, affine, local, band, has_lengths: as `Alignment` has them.
    """

    temperature: float
    warps: bool
    affine: bool
    local: bool
    band: int = -1
    has_lengths: bool = False

    def __post_init__(self) -> None:
        OfTemperature.__post_init__(self)
        AlignmentOp.__post_init__(self)

    @property
    def asked(self) -> AlignmentAsked:
        """Counts."""
        return AlignmentAsked.COUNTS

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        self.checked(inputs)
        return list(inputs[:3])

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        def score(*inputs: jax.Array) -> jax.Array:
            return solved(self, self.inputs(*inputs)).score

        return jax.grad(score, (0, 1, 2))(*inputs)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """That of the recurrence over anti-diagonals."""
        moved = self.moved(tangents)
        if not any(t is not None for t in moved):
            return [None] * 3
        lengths: list[jax.Array | None] = [None] * (len(primals) - 3)  # which have no tangent
        counts = tangent_of(self.lower_to_standard_ops, primals, [*moved, *lengths])
        return self.moved(counts)


# --- free ends ------------------------------------------------------------------------------------


def require_ends(op: AlignmentOpLike) -> None:
    """Refuse ends that are none, that come twice or in another order, and those of a local one."""
    if [*op.free] != [end for end in FreeEnd if end in op.free] or (op.free and op.local):
        raise InvalidConfig(
            where=f"{op.family_id}, field ends",
            given=repr(op),
            needed=f"some of {', '.join(FreeEnd)}, in this order; none if local",
        )


@extension_op(package="tenferro-ext-tropical", name="align_semiglobal", version=1)
class SemiglobalAlignment(Alignment):
    """An alignment from which elements at some ends of the sequences may be left out. The payload
    of `Alignment` stays as it was.

    Attributes:
      ends: the values of `FreeEnd`, in its order.
    """

    ends: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        Alignment.__post_init__(self)
        require_ends(self)

    @property
    def free(self) -> Sequence[str]:
        """The free ends."""
        return self.ends

    def counts(self) -> AlignmentCounts:
        """The op of the derivatives under log_sum_exp, with the same ends."""
        given = dataclasses.asdict(super().counts())
        return SemiglobalCounts(**given, ends=self.ends)


@extension_op(package="tenferro-ext-tropical", name="align_semiglobal_counts", version=1)
class SemiglobalCounts(AlignmentCounts):
    """What `AlignmentCounts` says, of a `SemiglobalAlignment`.

    Attributes:
      ends: the values of `FreeEnd`, in its order.
    """

    ends: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        AlignmentCounts.__post_init__(self)
        require_ends(self)

    @property
    def free(self) -> Sequence[str]:
        """The free ends."""
        return self.ends


# --- the native CPU kernel ------------------------------------------------------------------------
#
# Inside a compiled program by XLA's FFI; on concrete arrays by a call that compiles nothing.


MOST_ELEMENTS = 1 << 29  # the longest sequence whose elements the library can count


class Rules(enum.IntFlag):
    """The bits of `rules` in alignments.h."""

    WARPS = 1
    AFFINE = 2
    LOCAL = 4
    FIRST_BEGIN = 8
    FIRST_END = 16
    SECOND_BEGIN = 32
    SECOND_END = 64


def attributes(op: AlignmentOpLike) -> dict[str, Any]:
    """The numbers of a call, in the order of the direct one."""
    rules = Rules(0)
    rules |= Rules.WARPS if op.warps else 0
    rules |= Rules.AFFINE if op.affine else 0
    rules |= Rules.LOCAL if op.local else 0
    for end in op.free:
        rules |= Rules[FreeEnd(end).name]
    temperature = op.algebra.temperature if isinstance(op.algebra, LogSumExp) else 1.0
    return {
        "algebra": np.int64(op.algebra.native_number),
        "temperature": np.float64(temperature),
        "rules": np.int64(rules),
        "band": np.int64(op.band),
    }


def _declines(op: AlignmentOp, *metas: TensorMeta) -> str:
    """Why XLA computes an alignment, or "" if the library does."""
    problem = unserved(metas, metas[0].dtype, ("float32", "float64"))
    if not problem and max(*metas[0].shape, op.band) > MOST_ELEMENTS:
        problem = f"a sequence has more than {MOST_ELEMENTS} elements"
    if op.algebra not in (max_plus, min_plus) and not isinstance(op.algebra, LogSumExp):
        problem = "it has max_plus, min_plus and log_sum_exp"
    return problem or native().problem


def _run(op: AlignmentOp, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    outs, numbers = outputs_of(op, arrays), attributes(op)
    return in_program("align", outs, arrays, "broadcast_all", instructions="", **numbers)


def _eager(op: AlignmentOp, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    numbers = [x.item() for x in attributes(op).values()]
    # The library takes the inputs in this order, with nothing for lengths that are not there.
    inputs: list[Any] = [*op.inputs(*given)]
    sizes = given[0].shape
    now("align", TYPES[given[0].dtype.name], *numbers, *sizes, inputs, outs, len(outs))
    return outs


for family in (Alignment, AlignmentCounts, SemiglobalAlignment, SemiglobalCounts):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager)
    )
