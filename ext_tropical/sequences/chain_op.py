"""Markov chains as extension ops: the best sequence of states, the score of all, samples."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import (
    NOT_DIFFERENTIABLE,
    ExtensionOp,
    ExtensionRuntimeSet,
    Kernel,
    extension_op,
    require_equal,
)

from ..arguments import are_numbers, one_dtype
from ..native.library import TYPES, in_program, native, now, on_host, outputs_of, unserved
from ..semirings.registered import OfSemiring, SemiringKey
from ..semirings.semiring import SelectiveSemiring
from ..semirings.shipped import LogSumExp
from ..tangents import tangent_of
from .chain_inputs import Inputs
from .chain_k_best import listed
from .chain_paths import along, best, drawn
from .chain_sums import sums


class Asked(enum.IntEnum):
    """What is asked of a chain, as chains.h has it.

    Attributes:
      SCORE: the score alone.
      DETAIL: the score, and the states or the derivatives by initial, transition and emission.
      SAMPLES: sequences, by uniforms.
      BY_EMISSION: the score and the derivatives by the emission.
    """

    SCORE = 0
    DETAIL = 1
    SAMPLES = 2
    BY_EMISSION = 3


class ChainOp(ExtensionOp):
    """An op of scores: initial (S,), transition (R, S, S), emission (T, S); then a length where
    `has_length`, and columns where `has_columns`, int32.

    R is 1, for all steps, or T - 1. With a band of K > 0 the transition is (R, K, S): [r, k, j] is
    from state j - k into state j. Entries of states below 0 have no influence. With columns (S,)
    the emission is (T, C), of which each state has one column; NaN if there is no such one.
    """

    band: int
    has_length: bool
    has_columns: bool
    k, detailed, curved = 0, False, False  # only a score has lists and derivatives
    moving: ClassVar[tuple[int, ...]] = ()

    def __post_init__(self) -> None:
        if type(self.band) is not int or self.band < 0:
            raise InvalidConfig(
                where=f"{self.family_id}, field band",
                given=repr(self.band),
                needed="a non-negative int: 0 for transitions between all states",
            )

    @property
    def algebra(self) -> Any:
        """The semiring."""
        return LogSumExp()

    @property
    def asked(self) -> Asked:
        """What is asked."""
        return Asked.DETAIL if self.output_count > 1 else Asked.SCORE

    @property
    def input_count(self) -> int:
        """Three to six."""
        return len(self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """How many axes each input has."""
        ranks = [1, 3, 2]
        if self.has_length:
            ranks.append(0)
        if self.has_columns:
            ranks.append(1)
        if self.asked == Asked.SAMPLES:
            ranks.append(2)
        return tuple(ranks)

    def inputs(self, *given: Any) -> Inputs:
        """The inputs of a call by their names: arrays, or what describes them."""
        initial, moves, seen, *others = given
        length = others.pop(0) if self.has_length else None
        columns = others.pop(0) if self.has_columns else None
        return Inputs(initial, moves, seen, length, columns, *others)

    def checked(self, metas: Sequence[TensorMeta]) -> Inputs:
        """The metas of the inputs by their names, if they are a chain's."""
        where, chain = f"extension {self.family_id}", self.inputs(*metas)
        floats = [chain.initial, chain.moves, chain.seen, chain.uniforms]
        one_dtype(where, self.algebra, [m.dtype for m in floats if m is not None])
        integers = [m for m in (chain.length, chain.columns) if m is not None]
        if any(m.dtype != np.int32 for m in integers):
            raise DTypeError(
                where=where,
                given=", ".join(map(str, integers)),
                needed="a length and columns of int32",
            )
        has_ranks = tuple(len(m.shape) for m in metas) == self.ranks
        states = chain.initial.shape[0] if has_ranks else 0
        is_too_wide = isinstance(states, int) and self.band > states
        if 0 in (states, *chain.seen.shape, *chain.moves.shape[:1]) or is_too_wide:
            raise ShapeError(
                where=where,
                given=", ".join(map(str, metas)),
                needed="(S,), (R, S, S), (T, S) and uniforms (N, T), S, R and T at least 1; with a "
                "band (R, K, S), K at most S; with columns (S,) an emission (T, C)",
            )
        steps, rows, into = chain.moves.shape
        count, emitted = chain.seen.shape
        require_equal(rows, self.band or states)
        require_equal(into, states)
        if steps != 1:
            require_equal(steps, count - 1)
        require_equal(chain.columns.shape[0] if chain.columns is not None else emitted, states)
        if chain.uniforms is not None:
            require_equal(chain.uniforms.shape[1], count)
        return chain

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Three states, five times, the last of them behind the length; two samples."""
        rng = np.random.default_rng(0)
        inputs = [rng.normal(0, 1, shape) for shape in [(3,), (1, self.band or 3, 3), (5, 3)]]
        if self.has_length:
            inputs.append(np.asarray(4, np.int32))
        if self.has_columns:
            inputs.append(np.asarray([0, 2, 0], np.int32))
        if self.asked == Asked.SAMPLES:
            inputs.append(rng.random((2, 5)))
        return [inputs]


class SequenceScore(OfSemiring, ExtensionOp):
    """An op of the score of the best sequence, of the k best, or under log_sum_exp of all.

    Where the semiring selects, a second output has the states, int32 (T,), -1 behind the length and
    if no sequence is possible; with k it is always there, (k, T). Under log_sum_exp there are the
    derivatives by the scores that are `moving`, which are the expected uses: 0 if no sequence is
    possible and behind the length; else NaN if the score is NaN or inf.
    """

    semiring: SemiringKey
    k: int
    detailed: bool
    curved: bool
    scores: ClassVar[int]  # how many of the first inputs are scores
    moving: ClassVar[tuple[int, ...]]  # the inputs by which sums have derivatives
    checked: ClassVar[Callable[..., Any]]  # the metas of the inputs by their names
    product: ClassVar[Callable[..., Any]]  # of states and inputs: of the entries that are used

    def __post_init__(self) -> None:
        object.__setattr__(self, "semiring", SemiringKey.of(self.semiring))
        is_log = isinstance(self.algebra, LogSumExp)
        selects = isinstance(self.algebra, SelectiveSemiring)
        if (
            not (selects or (is_log and self.algebra.temperature == 1))
            or type(self.k) is not int
            or not 0 <= self.k < (1 if is_log else 2**31)
        ):
            raise InvalidConfig(
                where=f"{self.family_id}, payload",
                given=repr(self),
                needed="a selective semiring and 0 <= k < 2**31, or log_sum_exp(1) and k = 0",
            )

    @property
    def output_count(self) -> int:
        """The score; and the states, or the derivatives."""
        if isinstance(self.algebra, LogSumExp):
            return (1 + len(self.moving)) if self.detailed else 1
        return 2 if self.detailed or self.k else 1

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        seen = self.checked(inputs).seen
        score = TensorMeta(seen.dtype, (self.k,) if self.k else ())
        states = TensorMeta(np.dtype("int32"), (*score.shape, seen.shape[0]))
        is_log = isinstance(self.algebra, LogSumExp)
        more = [inputs[i] for i in self.moving] if is_log else [states]
        return [score, *more][: self.output_count]

    def differentiable_form(self) -> ExtensionOp:
        """With the details, by which the score is differentiated; details by a program's jvp."""
        is_log = isinstance(self.algebra, LogSumExp)
        curved = self.detailed and is_log
        return dataclasses.replace(self, detailed=True, curved=curved)  # type: ignore[type-var]

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """That of the product along each sequence; under log_sum_exp by the expected uses."""
        moved = [*tangents[: self.scores], *[None] * (len(primals) - self.scores)]
        if isinstance(self.algebra, SelectiveSemiring):
            product = functools.partial(self.product, outputs[1])
            return tangent_of(product, primals, moved), None
        if any(t is not None and i not in self.moving for i, t in enumerate(moved)):
            return [NOT_DIFFERENTIABLE] * len(outputs)
        uses = zip(outputs[1:], (moved[i] for i in self.moving), strict=True)
        score = functools.reduce(jnp.add, (jnp.sum(x * t) for x, t in uses if t is not None))
        if not self.curved:
            return score, *[None] * len(self.moving)

        def derivatives(*inputs: jax.Array) -> tuple[jax.Array, ...]:
            return tuple(self.lower_to_standard_ops(*inputs) or ())[1:]

        return score, *tangent_of(derivatives, primals, moved)


@extension_op(package="tenferro-ext-tropical", name="chain", version=1)
class ChainScore(SequenceScore, ChainOp):
    """The score of the best sequence, of the k best, or under log_sum_exp of all.

    Attributes:
      semiring: a registered selective semiring, log_sum_exp(1), or its key.
      band: K of a transition of states to the next ones; 0 for one of all pairs.
      has_length: whether the fourth input is a length: how many rows of emission count. Outside
        1..T there is no sequence.
      has_columns: whether the last input has a column of the emission for each state.
      k: how many best sequences; 0 for one, without an axis.
      detailed: whether there are more outputs, as `SequenceScore` has them.
      curved: whether the derivatives are differentiated.
    """

    semiring: SemiringKey
    band: int = 0
    has_length: bool = False
    has_columns: bool = False
    k: int = 0
    detailed: bool = False
    curved: bool = False
    scores = 3
    moving: ClassVar[tuple[int, ...]] = 0, 1, 2

    def __post_init__(self) -> None:
        SequenceScore.__post_init__(self)
        ChainOp.__post_init__(self)

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        chain = self.inputs(*inputs)
        if are_numbers(inputs):
            return self._in_steps(chain)

        def longer(x: jax.Array) -> jax.Array:
            if x.shape[0] == 1:
                return x
            return jnp.pad(x, [(0, 1), *[(0, 0)] * (x.ndim - 1)])

        # With a row behind the length, because JAX has no scan of T - 1 steps for a symbolic T.
        length = jnp.asarray(chain.seen.shape[0]).astype(jnp.int32)
        if chain.length is not None:
            length = jnp.where(chain.length > length, 0, chain.length)
        chain = chain._replace(moves=longer(chain.moves), seen=longer(chain.seen), length=length)
        outs = self._in_steps(chain)
        pairs = zip(outs, outputs_of(self, inputs), strict=True)
        return [x[tuple(map(slice, m.shape))] for x, m in pairs]

    def _in_steps(self, chain: Inputs) -> Sequence[jax.Array]:
        """The outputs by scans over times."""
        if isinstance(self.algebra, LogSumExp):
            return sums(self, chain)
        chain = chain.of_states(self.algebra)
        return listed(self, chain) if self.k else best(self, chain)[: self.output_count]

    def product(self, states: jax.Array, *inputs: jax.Array) -> jax.Array:
        """The product of the entries that sequences use."""
        return along(self, self.inputs(*inputs), states)


@extension_op(package="tenferro-ext-tropical", name="chain_by_emission", version=1)
class ChainByEmission(ChainScore):
    """The score of all sequences, where initial and transition are constants: it has no derivatives
    by them.
    """

    moving = (2,)

    @property
    def asked(self) -> Asked:
        """What is asked; as `ChainOp` where the semiring selects."""
        is_log = isinstance(self.algebra, LogSumExp)
        return Asked.BY_EMISSION if self.detailed and is_log else super().asked


@extension_op(package="tenferro-ext-tropical", name="chain_samples", version=1)
class ChainSamples(ChainOp):
    """Sequences drawn with probabilities exp(score - score of all), int32 (N, T), as the last
    input, uniforms (N, T) in [0, 1), says: the state at t is the first i with
    cumsum(w)[i] > u[t] sum(w), where w are its weights if the next state is known. -1 behind the
    length, and if no sequence is possible or the score of all is inf or NaN.

    Attributes:
      band, has_length, has_columns: as `ChainScore` has them.
    """

    band: int = 0
    has_length: bool = False
    has_columns: bool = False

    @property
    def asked(self) -> Asked:
        """Samples."""
        return Asked.SAMPLES

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        self.checked(inputs)
        return [TensorMeta(np.dtype("int32"), inputs[-1].shape)]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        return [drawn(self, self.inputs(*inputs).of_states(self.algebra))]


# --- the native CPU kernel ------------------------------------------------------------------------
#
# Inside a compiled program by XLA's FFI; on concrete arrays by a call that compiles nothing.


def _declines(op: ChainOp, *metas: TensorMeta) -> str:
    """Why XLA computes a chain, or "" if the library does."""
    problem = unserved(metas, metas[0].dtype, ("float32", "float64"))
    if op.asked == Asked.BY_EMISSION and not op.band:
        return "it derives by the emission alone where there is a band"
    if not problem and (
        op.algebra.native_number is None
        or op.k * metas[0].shape[0] >= 2**32  # a state and its place in a list are one number
    ):
        return "it has max_plus, min_plus, max_mul, min_max and log_sum_exp, k S below 2**32"
    return problem or native().problem


MEMORY = 2**24
"""Bytes: messages that need more are computed twice, and those of sqrt(T) times are kept. That is
faster too where memory is new: the system clears it.
"""


def _run(op: ChainOp, *arrays: jax.Array) -> tuple[jax.Array, ...]:
    fields = {name: getattr(op, name) for name in ("band", "k", "has_length", "has_columns")}
    fields |= {"asks": op.asked, "algebra": op.algebra.native_number, "memory": MEMORY}
    outs, numbers = outputs_of(op, arrays), jax.tree.map(np.int64, fields)
    return in_program("chain", outs, arrays, "expand_dims", instructions="", **numbers)


def _eager(op: ChainOp, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    chain = op.inputs(*arrays)
    (states,), (steps, *_), (count, emitted) = (x.shape for x in chain[:3])
    samples = 0 if chain.uniforms is None else len(chain.uniforms)
    fields = op.algebra.native_number, op.band, op.asked, op.k, MEMORY
    sizes = states, count, steps, emitted, samples
    # The library takes the inputs in this order, with nothing for those that are not there.
    now("chain", TYPES[arrays[0].dtype.name], *fields, *sizes, [*op.inputs(*given)], outs)
    return outs


for family in (ChainScore, ChainByEmission, ChainSamples):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", run=_run, declines=_declines, name="native", eager=_eager)
    )
