"""Alignments as extension ops: the best one, the score of all, how much each entry counts."""

from __future__ import annotations

import ctypes
import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import BackendFailure, DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    apply,
    extension_op,
    require_equal,
)

from ..algebra.semiring import SelectiveSemiring, SemiringKey
from ..algebra.shipped import LogSumExp, max_plus, min_plus
from ..network.question import TYPES
from ..step.einsum_op import one_dtype
from ..step.native.library import ALIGN, native
from .anti_diagonals import Rules, along, solved


class AlignmentOp(ExtensionOp):
    """An op of scores (m, n), gap, gap_open, which counts where `affine`, and two lengths where
    `has_lengths`.
    """

    warps: bool
    affine: bool
    local: bool
    band: int
    has_lengths: bool

    def __post_init__(self) -> None:
        band_is_known = type(self.band) is int and self.band >= -1
        if not band_is_known or (self.warps and (self.affine or self.local)):
            raise InvalidConfig(
                where=f"{self.family_id}, payload",
                given=repr(self),
                needed="a band of at least -1; no warping with affine gaps or local",
            )

    @property
    def algebra(self) -> Any:
        """The semiring."""
        raise NotImplementedError

    @property
    def rules(self) -> Rules:
        """What an alignment may be."""
        band = None if self.band < 0 else self.band
        return Rules(self.algebra, self.warps, self.affine, self.local, band)

    @property
    def input_count(self) -> int:
        """Three, or four."""
        return 3 + self.has_lengths

    def checked(self, inputs: Sequence[TensorMeta]) -> TensorMeta:
        """The scores' meta, if the inputs are an alignment's."""
        scores, gap, gap_open, *lengths = inputs
        where = f"extension {self.family_id}"
        one_dtype(where, self.algebra, [m.dtype for m in inputs[:3]])
        if len(scores.shape) != 2 or 0 in scores.shape or gap.shape or gap_open.shape:
            raise ShapeError(
                where=where, given=", ".join(map(str, inputs)), needed="(m, n) and two scalars"
            )
        for meta in lengths:
            if meta.dtype != np.int32 or len(meta.shape) != 1:
                raise DTypeError(where=where, given=f"lengths {meta}", needed="int32 (2,)")
            require_equal(meta.shape[0], 2)
        return scores

    @property
    def counted(self) -> tuple[bool, bool, bool, bool]:
        """Whether each input is a score that alignments use."""
        return (True, not self.warps, self.affine, False)

    def moved(self, tangents: Sequence[jax.Array | None]) -> list[int]:
        """The inputs that count and have tangents."""
        return [i for i, t in enumerate(tangents) if t is not None and self.counted[i]]

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Sequences of four and three elements."""
        scores = np.random.default_rng(0).normal(size=(4, 3))
        lengths = [np.array([3, 3], np.int32)] * self.has_lengths
        return [[scores, np.float64(-0.5), np.float64(-0.7), *lengths]]


@extension_op(package="tenferro-ext-tropical", name="align", version=1)
class Alignment(AlignmentOp):
    """The score of the best alignment, or under log_sum_exp of all.

    Attributes:
      semiring: a registered selective semiring, log_sum_exp, or its key.
      warps, affine, local: as `Rules` has them.
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
        object.__setattr__(self, "semiring", SemiringKey.of(self.semiring))
        selects = isinstance(self.algebra, SelectiveSemiring)
        if not selects and (self.with_path or not isinstance(self.algebra, LogSumExp)):
            raise InvalidConfig(
                where=f"{self.family_id}, field semiring",
                given=f"{self.algebra!r}{' and a path' * self.with_path}",
                needed="a selective semiring; or log_sum_exp, without a path",
            )
        super().__post_init__()

    @property
    def algebra(self) -> Any:
        """The semiring."""
        return self.semiring.semiring

    @property
    def output_count(self) -> int:
        """The score, and the path."""
        return 1 + self.with_path

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        scores = self.checked(inputs)
        path = TensorMeta(np.dtype("int32"), (scores.shape[0] + scores.shape[1], 2))
        return [TensorMeta(scores.dtype, ()), path][: self.output_count]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        return solved(self.rules, *inputs)[: self.output_count]

    def differentiable_form(self) -> ExtensionOp:
        """This op with the path, which the derivative follows."""
        selects = isinstance(self.algebra, SelectiveSemiring)
        return dataclasses.replace(self, with_path=selects)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """That of the product along the path; under log_sum_exp by counts of the entries."""
        moved = self.moved(tangents)
        given: Any = [tangents[i] for i in moved]
        if not moved:
            return [None] * self.output_count
        if not self.with_path:
            counts = apply(AlignmentCounts.of(self), *primals)
            parts = (jnp.sum(counts[i] * t) for i, t in zip(moved, given, strict=True))
            return [functools.reduce(jnp.add, parts)]

        def product(*some: jax.Array) -> jax.Array:
            entries = list(primals[:3])
            for i, x in zip(moved, some, strict=True):
                entries[i] = x
            return along(self.rules, outputs[1], *entries)

        _, slope = jax.jvp(product, [primals[i] for i in moved], given)
        return slope, None


@extension_op(package="tenferro-ext-tropical", name="align_counts", version=1)
class AlignmentCounts(AlignmentOp):
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

    output_count = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperature", LogSumExp(self.temperature).temperature)
        super().__post_init__()

    @classmethod
    def of(cls, op: Alignment) -> AlignmentCounts:
        """For the score of an alignment."""
        names = ("warps", "affine", "local", "band", "has_lengths")
        return cls(op.algebra.temperature, **{name: getattr(op, name) for name in names})

    @property
    def algebra(self) -> LogSumExp:
        """The semiring."""
        return LogSumExp(self.temperature)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        self.checked(inputs)
        return list(inputs[:3])

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        def score(*entries: jax.Array) -> jax.Array:
            return solved(self.rules, *entries, *inputs[3:])[0]

        return jax.grad(score, (0, 1, 2))(*inputs[:3])

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """That of the recurrence over anti-diagonals."""
        moved = self.moved(tangents)

        def counts(*some: jax.Array) -> Any:
            entries = list(primals)
            for i, x in zip(moved, some, strict=True):
                entries[i] = x
            return self.lower_to_standard_ops(*entries)

        given: Any = [tangents[i] for i in moved]
        if not moved:
            return [None] * 3
        _, slopes = jax.jvp(counts, [primals[i] for i in moved], given)
        return [t if counted else None for t, counted in zip(slopes, self.counted, strict=False)]


# --- the native CPU kernel ------------------------------------------------------------------------
#
# Inside a compiled program by XLA's FFI; on concrete arrays by a call that compiles nothing.


MOST_ELEMENTS = 1 << 29
"""Elements of a sequence that the library can count."""


def _attributes(op: Any) -> dict[str, Any]:
    is_log = isinstance(op.algebra, LogSumExp)
    return {
        "algebra": np.int64(op.algebra.native_number),
        "temperature": np.float64(op.algebra.temperature if is_log else 1.0),
        "rules": np.int64(op.warps + 2 * op.affine + 4 * op.local),
        "band": np.int64(op.band),
    }


def _declines(op: Any, *metas: TensorMeta) -> str:
    """Why XLA computes an alignment, or "" if the library does."""
    scores = metas[0]
    if scores.dtype.name not in ("float32", "float64"):
        return "it computes in float32 and float64"
    if max(*scores.shape, op.band) > MOST_ELEMENTS:
        return f"a sequence has more than {MOST_ELEMENTS} elements"
    if not isinstance(op.algebra, LogSumExp) and op.algebra not in (max_plus, min_plus):
        return "it has max_plus, min_plus and log_sum_exp"
    return native().problem


def _run(op: Any, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    metas = op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in arrays])
    outs = [jax.ShapeDtypeStruct(meta.shape, meta.dtype) for meta in metas]
    target = jax.ffi.ffi_call(ALIGN, outs, vmap_method="broadcast_all")
    return tuple(target(*arrays, instructions="", **_attributes(op)))


def _eager(op: Any, *arrays: np.ndarray) -> list[np.ndarray]:
    metas = op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in arrays])
    outs = [np.empty(meta.shape, meta.dtype) for meta in metas]
    given = [np.ascontiguousarray(x) for x in arrays]
    places = [x.ctypes.data for x in given] + [0] * (4 - len(given))
    text = ctypes.create_string_buffer(200)
    at, library = _attributes(op), native().library
    numbers = (TYPES[given[0].dtype.name], at["algebra"])
    sizes = (at["rules"], at["band"], *given[0].shape)
    answer: Any = library
    state = answer.tropical_align_now(
        *(ctypes.c_int64(int(x)) for x in numbers),
        ctypes.c_double(at["temperature"]),
        *(ctypes.c_int64(int(x)) for x in sizes),
        (ctypes.c_void_p * 4)(*places),
        (ctypes.c_void_p * len(outs))(*(x.ctypes.data for x in outs)),
        ctypes.c_int64(len(outs)),
        text,
    )
    if state:
        raise BackendFailure(
            where=f"native kernel of extension {op.family_id}",
            given=text.value.decode() or "no memory for the nodes",
            needed="a payload and arrays that fit it, and room for the nodes",
        )
    return outs


for family in (Alignment, AlignmentCounts):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", _run, _declines, "native", _eager)
    )
