"""The best alignment of two sequences of symbols as an extension op, whose kernel makes no scores
of all pairs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    extension_op,
    require_equal,
)

from ..arguments import one_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.shipped import max_plus, min_plus
from ..tangents import tangent_of
from .alignment_inputs import AlignmentInputs, Gaps, SymbolInputs
from .alignment_op import MOST_ELEMENTS, attributes, require_ends
from .alignment_recurrence import along, solved

RANKS = {"first": 1, "second": 1, "substitution": 2, "gap": 0, "gap_open": 0, "lengths": 1}
"""How many axes each input has."""


@extension_op(package="tenferro-ext-tropical", name="align_symbols", version=1)
class SymbolAlignment(OfSemiring, ExtensionOp):
    """The score of the best alignment of the inputs that `SymbolInputs` has. There is none where a
    symbol that counts is of no kind.

    Attributes:
      semiring: max_plus or min_plus.
      affine: whether a gap's first element has a score of its own.
      local: whether stretches of the sequences are aligned.
      ends: the values of `FreeEnd` of the free ends, in its order.
      with_path: whether the second output is the columns of the best one, int32 (m + n, 2).
    """

    semiring: SemiringKey
    affine: bool
    local: bool
    ends: tuple[str, ...] = ()
    with_path: bool = False

    input_count = len(SymbolInputs._fields)
    warps = False
    band = -1

    def __post_init__(self) -> None:
        super().__post_init__()
        require_ends(self)
        if self.algebra not in (max_plus, min_plus):
            raise InvalidConfig(
                where=f"{self.family_id}, field semiring",
                given=repr(self.algebra),
                needed="max_plus or min_plus",
            )

    @property
    def gaps(self) -> Gaps:
        """What a column without a pair counts."""
        return Gaps.AFFINE if self.affine else Gaps.LINEAR

    @property
    def free(self) -> Sequence[str]:
        """The free ends, by the values of `FreeEnd`."""
        return self.ends

    @property
    def output_count(self) -> int:
        """One, or two with the path."""
        return 2 if self.with_path else 1

    def inputs(self, *given: Any) -> SymbolInputs:
        """The inputs of a call by their names: arrays, or what describes them."""
        return SymbolInputs(*given)

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where, given = f"extension {self.family_id}", self.inputs(*inputs)
        told = ", ".join(map(str, inputs))
        ranks = [len(meta.shape) for meta in given]
        matrices = given.first, given.second, given.substitution
        if ranks != [*RANKS.values()] or any(0 in meta.shape for meta in matrices):
            raise ShapeError(where=where, given=told, needed="(m,), (n,), (k, l), (), (), (2,)")
        require_equal(given.lengths.shape[0], 2)
        dtype = given.substitution.dtype
        one_dtype(where, self.algebra, [dtype, given.gap.dtype, given.gap_open.dtype])
        integers = given.first, given.second, given.lengths
        if any(meta.dtype != np.int32 for meta in integers):
            raise DTypeError(where=where, given=told, needed="int32 symbols and lengths")
        score = TensorMeta(dtype, ())
        if not self.with_path:
            return [score]
        m, n = given.first.shape[0], given.second.shape[0]
        return [score, TensorMeta(np.dtype("int32"), (m + n, 2))]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        given = self.inputs(*inputs)
        scores = AlignmentInputs(
            scores=looked_up(given, given.first[:, None], given.second),
            gap=given.gap,
            gap_open=given.gap_open,
            lengths=known_lengths(given),
        )
        score, columns = solved(self, scores)
        return [score, columns] if self.with_path and columns is not None else [score]

    def differentiable_form(self) -> ExtensionOp:
        """This op with the path, which the derivative follows."""
        return dataclasses.replace(self, with_path=True)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """That of the product along the path."""
        moved = self.inputs(*tangents)
        of_scores = [moved.substitution, moved.gap, moved.gap_open if self.affine else None]
        if all(tangent is None for tangent in of_scores):
            return [None] * self.output_count
        given, columns = self.inputs(*primals), outputs[1]
        first, second = given.first[columns[:, 0]], given.second[columns[:, 1]]

        def product(substitution: jax.Array, gap: jax.Array, gap_open: jax.Array) -> jax.Array:
            pairs = looked_up(given._replace(substitution=substitution), first, second)
            return along(self, columns, pairs, gap, gap_open)

        scores = [given.substitution, given.gap, given.gap_open]
        return tangent_of(product, scores, of_scores), None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Sequences of five and four symbols, of which one does not count."""
        substitution = np.random.default_rng(0).normal(size=(3, 2))
        first, second = np.array([0, 2, 1, 1, 0], np.int32), np.array([0, 1, 1, 0], np.int32)
        lengths = np.array([5, 3], np.int32)
        return [[first, second, substitution, np.float64(-0.5), np.float64(-0.7), lengths]]


def looked_up(
    given: SymbolInputs, first: jax.Array | np.ndarray, second: jax.Array | np.ndarray
) -> jax.Array:
    """The scores of pairs of symbols; of symbols of no kind those of others."""
    return given.substitution.at[first, second].get(mode="clip")


def known_lengths(given: SymbolInputs) -> jax.Array:
    """The lengths, or such as no sequences have if a symbol that counts is of no kind."""
    is_known = _are_known(given.first, given.lengths[0], given.substitution.shape[0])
    is_known = is_known & _are_known(given.second, given.lengths[1], given.substitution.shape[1])
    return jnp.where(is_known, given.lengths, -1)


def _are_known(
    symbols: jax.Array | np.ndarray, length: jax.Array | np.ndarray, kinds: int
) -> jax.Array:
    counts = jnp.arange(symbols.shape[0], dtype=jnp.int32) < length
    return jnp.all(~counts | ((symbols >= 0) & (symbols < kinds)))


# --- the native CPU kernel ------------------------------------------------------------------------


def _declines(op: SymbolAlignment, *metas: TensorMeta) -> str:
    """Why XLA computes an alignment, or "" if the library does."""
    given = op.inputs(*metas)
    problem = unserved(metas, given.substitution.dtype, ("float32", "float64", "int32"))
    if not problem and max(max(meta.shape, default=0) for meta in metas) > MOST_ELEMENTS:
        problem = f"a sequence has more than {MOST_ELEMENTS} elements"
    return problem or native().problem


def _run(op: SymbolAlignment, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    outs, numbers = outputs_of(op, arrays), attributes(op)
    return in_program("align_symbols", outs, arrays, "expand_dims", instructions="", **numbers)


def _eager(op: SymbolAlignment, *arrays: np.ndarray) -> list[np.ndarray]:
    inputs, outs = on_host(outputs_of(op, arrays), arrays)
    given = op.inputs(*inputs)
    numbers = [x.item() for x in attributes(op).values()]
    sizes = len(given.first), len(given.second), *given.substitution.shape
    kind = TYPES[given.substitution.dtype.name]
    now("align_symbols", kind, *numbers, *sizes, inputs, outs, len(outs))
    return outs


SymbolAlignment.runtimes = ExtensionRuntimeSet(
    Kernel(
        SymbolAlignment.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager
    )
)
