"""Chains with durations as extension ops: the best sequence, the score of all, samples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, ShapeError
from tenferro_jax.extension import (
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    extension_op,
    require_equal,
)

from ..arguments import one_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import SemiringKey
from ..semirings.shipped import LogSumExp, max_plus, min_plus
from .chain_op import Asked, SequenceScore
from .duration_inputs import Segmented
from .duration_paths import drawn, product_of
from .duration_recurrence import best, sums

SCORES = 4
"""The first inputs, which have derivatives."""


class DurationsOp(ExtensionOp):
    """An op of scores: initial (S,), transition (R, S, S), durations (S, D), emission (T, S); then
    a length where `has_length`, int32. R is 1, for all steps, or T - 1. The diagonals of the
    transition have no influence.
    """

    censored: bool
    has_length: bool
    k, detailed, curved = 0, False, False  # only a score has lists and derivatives
    has_columns = False

    @property
    def algebra(self) -> Any:
        """The semiring."""
        return LogSumExp()

    @property
    def asked(self) -> Asked:
        """What is asked, as durations.h has it: a score, details or samples."""
        return Asked.DETAIL if self.output_count > 1 else Asked.SCORE

    @property
    def input_count(self) -> int:
        """Four to six."""
        return len(self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """How many axes each input has."""
        ranks = [1, 3, 2, 2]
        if self.has_length:
            ranks.append(0)
        if self.asked == Asked.SAMPLES:
            ranks.append(3)
        return tuple(ranks)

    def inputs(self, *given: Any) -> Segmented:
        """The inputs of a call by their names: arrays, or what describes them."""
        initial, moves, durations, seen, *others = given
        length = others.pop(0) if self.has_length else None
        return Segmented(initial, moves, durations, seen, length, *others)

    def checked(self, metas: Sequence[TensorMeta]) -> Segmented:
        """The metas of the inputs by their names, if they are a chain's."""
        where, chain = f"extension {self.family_id}", self.inputs(*metas)
        scores: list[Any] = [chain.initial, chain.moves, chain.durations, chain.seen]
        floats = [*scores, chain.uniforms]
        one_dtype(where, self.algebra, [m.dtype for m in floats if m is not None])
        if chain.length is not None and chain.length.dtype != np.int32:
            raise DTypeError(where=where, given=str(chain.length), needed="a length of int32")
        has_ranks = tuple(len(m.shape) for m in metas) == self.ranks
        sizes = [size for m in scores for size in m.shape]
        if not has_ranks or 0 in sizes:
            raise ShapeError(
                where=where,
                given=", ".join(map(str, metas)),
                needed="(S,), (R, S, S), (S, D), (T, S) and uniforms (N, T, 2), all of S, R, D and "
                "T at least 1",
            )
        (states,), (steps, *square), (lasting, _), (count, seen) = (m.shape for m in scores)
        for size in (*square, lasting, seen):
            require_equal(size, states)
        if steps != 1:
            require_equal(steps, count - 1)
        if chain.uniforms is not None:
            require_equal(chain.uniforms.shape[1], count)
            require_equal(chain.uniforms.shape[2], 2)
        return chain

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Two states, durations up to three, five times, the last of them behind the length; two
        samples.
        """
        rng = np.random.default_rng(0)
        inputs = [rng.normal(0, 1, shape) for shape in [(2,), (1, 2, 2), (2, 3), (5, 2)]]
        if self.has_length:
            inputs.append(np.asarray(4, np.int32))
        if self.asked == Asked.SAMPLES:
            inputs.append(rng.random((2, 5, 2)))
        return [inputs]


@extension_op(package="tenferro-ext-tropical", name="chain_durations", version=1)
class DurationsScore(SequenceScore, DurationsOp):
    """The score of the best sequence, of the k best, or under log_sum_exp of all.

    Attributes:
      semiring: a registered selective semiring, log_sum_exp(1), or its key.
      censored: whether the last segment may go on after the last time: it has the best score of a
        duration that is at least as long, or their sum.
      has_length: whether the fifth input is a length: how many rows of the emission count. Outside
        1..T there is no sequence.
      k: how many best sequences; 0 for one, without an axis.
      detailed: whether there are more outputs, as `SequenceScore` has them.
      curved: whether the derivatives are differentiated.
    """

    semiring: SemiringKey
    censored: bool = False
    has_length: bool = False
    k: int = 0
    detailed: bool = False
    curved: bool = False
    scores = SCORES
    moving = (0, 1, 2, 3)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        chain = self.inputs(*inputs)
        if isinstance(self.algebra, LogSumExp):
            return sums(self, chain)
        return best(self, chain)[: self.output_count]

    def product(self, states: jax.Array, *inputs: jax.Array) -> jax.Array:
        """The product of the entries that sequences use."""
        one = functools.partial(product_of, self, self.inputs(*inputs))
        return (jax.vmap(one) if self.k else one)(states)[0]


@extension_op(package="tenferro-ext-tropical", name="chain_durations_samples", version=1)
class DurationsSamples(DurationsOp):
    """Sequences drawn with probabilities exp(score - score of all), int32 (N, T), as the last
    input, uniforms (N, T, 2) in [0, 1), says: for a segment that ends at t the first one chooses
    its state, if the next one is known, and the second one its duration. Each is the first i with
    cumsum(w)[i] > u sum(w), where w are its weights. -1 behind the length, and if no sequence is
    possible or the score of all is inf or NaN.

    Attributes:
      censored, has_length: as `DurationsScore` has them.
    """

    censored: bool = False
    has_length: bool = False

    @property
    def asked(self) -> Asked:
        """Samples."""
        return Asked.SAMPLES

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        self.checked(inputs)
        return [TensorMeta(np.dtype("int32"), inputs[-1].shape[:2])]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        return [drawn(self, self.inputs(*inputs))]


# --- the native CPU kernel ------------------------------------------------------------------------
#
# Inside a compiled program by XLA's FFI; on concrete arrays by a call that compiles nothing.


def _declines(op: DurationsOp, *metas: TensorMeta) -> str:
    """Why XLA computes a chain, or "" if the library does."""
    problem = unserved(metas, metas[0].dtype, ("float32", "float64"))
    serves = op.algebra in (max_plus, min_plus) or isinstance(op.algebra, LogSumExp)
    if not problem and (not serves or op.k):
        return "it has max_plus, min_plus and log_sum_exp, and one best sequence"
    return problem or native().problem


def _run(op: DurationsOp, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    fields = {"algebra": op.algebra.native_number, "asks": op.asked, "is_cut": op.censored}
    numbers = jax.tree.map(np.int64, fields | {"has_length": op.has_length})
    outs = outputs_of(op, arrays)
    return in_program("chain_durations", outs, arrays, "broadcast_all", instructions="", **numbers)


def _eager(op: DurationsOp, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    chain = op.inputs(*arrays)
    steps, (states, longest) = chain.moves.shape[0], chain.durations.shape
    samples = 0 if chain.uniforms is None else len(chain.uniforms)
    fields = op.algebra.native_number, int(op.asked), int(op.censored)
    sizes = states, chain.seen.shape[0], steps, longest, samples
    # The library takes the inputs in this order, with nothing for those that are not there.
    inputs = [*op.inputs(*given)]
    type_ = TYPES[arrays[0].dtype.name]
    now("chain_durations", type_, *fields, *sizes, inputs, outs, len(outs))
    return outs


for family in (DurationsScore, DurationsSamples):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager)
    )
