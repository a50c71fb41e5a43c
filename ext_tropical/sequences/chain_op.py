"""Markov chains as extension ops: the best sequence of states, the score of all, samples."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
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
from .chain_paths import along, best, drawn, listed
from .chain_recurrence import Values, each_state, sums


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
    k, curved = 0, False  # only a score has lists and derivatives

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
    def asks(self) -> int:
        """The number of the question: 0 the score, 1 with details, 2 samples, whose last input is
        uniforms (N, T), 3 the score with the derivatives by the emission alone.
        """
        return 2 if isinstance(self, ChainSamples) else int(self.output_count > 1)

    @property
    def input_count(self) -> int:
        """Three to six."""
        return len(self.ranks)

    @property
    def ranks(self) -> tuple[int, ...]:
        """How many axes each input has."""
        return 1, 3, 2, *(0,) * self.has_length, *(1,) * self.has_columns, *(2,) * (self.asks == 2)

    def checked(self, inputs: Sequence[TensorMeta]) -> TensorMeta:
        """The emission's meta, if the inputs are a chain's."""
        initial, transition, emission, *others = inputs
        where, numbers = f"extension {self.family_id}", self.has_length + self.has_columns
        floats, uniforms = [*inputs[:3], *others[numbers:]], others[numbers:]
        one_dtype(where, self.algebra, [m.dtype for m in floats])
        if any(m.dtype != np.int32 for m in others[:numbers]):
            raise DTypeError(
                where=where,
                given=", ".join(map(str, others)),
                needed="a length and columns of int32",
            )
        (states,) = initial.shape if len(initial.shape) == 1 else (0,)
        if (
            tuple(len(m.shape) for m in inputs) != self.ranks
            or 0 in (*emission.shape, transition.shape[0], states)
            or (isinstance(states, int) and self.band > states)
        ):
            raise ShapeError(
                where=where,
                given=", ".join(map(str, inputs)),
                needed="(S,), (R, S, S), (T, S) and uniforms (N, T), S, R and T at least 1; with a "
                "band (R, K, S), K at most S; with columns (S,) an emission (T, C)",
            )
        count, emitted = emission.shape
        steps, rows, into = transition.shape
        pairs = [(rows, self.band or states), (into, states), *[(steps, count - 1)] * (steps != 1)]
        pairs += [(others[self.has_length].shape[0] if self.has_columns else emitted, states)]
        for a, b in [*pairs, *((m.shape[1], count) for m in uniforms)]:
            require_equal(a, b)
        return emission

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Three states, five times, the last of them behind the length; two samples."""
        rng, shapes = np.random.default_rng(0), [(3,), (1, self.band or 3, 3), (5, 3)]
        floats = map(rng.normal, [0] * 3, [1] * 3, shapes)
        numbers = [4] * self.has_length + [[0, 2, 0]] * self.has_columns
        return [
            [
                *floats,
                *map(np.asarray, numbers, [np.int32] * len(numbers)),
                *[rng.random((2, 5))] * (self.asks == 2),
            ]
        ]

    def of_states(self, inputs: Sequence[jax.Array]) -> list[jax.Array]:
        """The inputs with an emission (T, S), replaced where it does not count: NaN would get into
        derivatives; and with the length 0 for one that is out of range.
        """
        initial, transition, emission, *others = inputs
        if self.has_columns:
            emission = each_state(emission, others.pop(self.has_length))
        if self.has_length:
            others[0] = jnp.where(others[0] <= emission.shape[0], others[0], 0)
            live = jnp.arange(emission.shape[0], dtype=jnp.int32) < others[0]
            one = jnp.asarray(self.algebra.one(emission.dtype))
            emission = jnp.where(live[:, None], emission, one)
        return [initial, transition, emission, *others]


@extension_op(package="tenferro-ext-tropical", name="chain", version=1)
class ChainScore(OfSemiring, ChainOp):
    """The score of the best sequence, of the k best, or under log_sum_exp of all.

    Attributes:
      semiring: a registered selective semiring, log_sum_exp(1), or its key.
      band: K of a transition of states to the next ones; 0 for one of all pairs.
      has_length: whether the fourth input is a length: how many rows of emission count. Outside
        1..T there is no sequence.
      has_columns: whether the last input has a column of the emission for each state.
      k: how many best sequences; 0 for one, without an axis.
      detailed: whether there are more outputs. Where the semiring selects, the states, int32 (T,),
        -1 behind the length and if no sequence is possible; with k they are always there, (k, T).
        Under log_sum_exp the derivatives by the three inputs, which are the expected uses: 0 if no
        sequence is possible and behind the length; else NaN if the score is NaN or inf.
      curved: whether these derivatives are differentiated.
    """

    semiring: SemiringKey
    band: int = 0
    has_length: bool = False
    has_columns: bool = False
    k: int = 0
    detailed: bool = False
    curved: bool = False
    moving: ClassVar[tuple[int, ...]] = 0, 1, 2  # the inputs by which sums have derivatives

    def __post_init__(self) -> None:
        OfSemiring.__post_init__(self)
        ChainOp.__post_init__(self)
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
        emission = self.checked(inputs)
        score = TensorMeta(emission.dtype, (self.k,) if self.k else ())
        states = TensorMeta(np.dtype("int32"), (*score.shape, emission.shape[0]))
        is_log = isinstance(self.algebra, LogSumExp)
        more = [inputs[i] for i in self.moving] if is_log else [states]
        return [score, *more][: self.output_count]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        if are_numbers(inputs):
            return self.in_steps(*inputs)
        # With a row behind the length, because JAX has no scan of T - 1 steps for a symbolic T.
        moves, seen = (
            x if x.shape[0] == 1 else jnp.pad(x, [(0, 1), *[(0, 0)] * (x.ndim - 1)])
            for x in inputs[1:3]
        )
        whole = jnp.asarray(inputs[2].shape[0]).astype(jnp.int32)
        length = jnp.where(inputs[3] > whole, 0, inputs[3]) if self.has_length else whole
        op = dataclasses.replace(self, has_length=True)
        outs = op.in_steps(inputs[0], moves, seen, length, *inputs[3 + self.has_length :])
        pairs = zip(outs, outputs_of(self, inputs), strict=True)
        return [x[tuple(map(slice, m.shape))] for x, m in pairs]

    def in_steps(self, *inputs: jax.Array) -> Sequence[jax.Array]:
        """The outputs by scans over times."""
        if isinstance(self.algebra, LogSumExp):
            return sums(self, *inputs)
        arrays = self.of_states(inputs)
        return listed(self, *arrays) if self.k else best(self, *arrays)[: self.output_count]

    def differentiable_form(self) -> ExtensionOp:
        """With the details, by which the score is differentiated; details by a program's jvp."""
        is_log = isinstance(self.algebra, LogSumExp)
        return dataclasses.replace(self, detailed=True, curved=self.detailed and is_log)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[Any]:
        """That of the product along each sequence; under log_sum_exp by the expected uses."""
        moved = [*tangents[:3], *[None] * (len(primals) - 3)]
        if isinstance(self.algebra, SelectiveSemiring):
            return tangent_of(functools.partial(along, self, outputs[1]), primals, moved), None
        if any(t is not None and i not in self.moving for i, t in enumerate(moved)):
            return [NOT_DIFFERENTIABLE] * len(outputs)
        those = zip(outputs[1:], (moved[i] for i in self.moving), strict=True)
        score = functools.reduce(jnp.add, (jnp.sum(x * t) for x, t in those if t is not None))
        if not self.curved:
            return score, *[None] * len(self.moving)
        return score, *tangent_of(
            lambda *xs: tuple(self.lower_to_standard_ops(*xs) or ())[1:], primals, moved
        )


@extension_op(package="tenferro-ext-tropical", name="chain_by_emission", version=1)
class ChainByEmission(ChainScore):
    """The score of all sequences, where initial and transition are constants: it has no derivatives
    by them.
    """

    moving = (2,)

    @property
    def asks(self) -> int:
        """0 the score, 3 with the derivatives by the emission; as `ChainOp` where it selects."""
        return 3 if self.detailed and isinstance(self.algebra, LogSumExp) else super().asks


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

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        self.checked(inputs)
        return [TensorMeta(np.dtype("int32"), inputs[-1].shape)]

    def lower_to_standard_ops(self, *inputs: jax.Array) -> Sequence[jax.Array] | None:
        return [drawn(self, *self.of_states(inputs))]


# --- the native CPU kernel ------------------------------------------------------------------------
#
# Inside a compiled program by XLA's FFI; on concrete arrays by a call that compiles nothing.


def _declines(op: ChainOp, *metas: TensorMeta) -> str:
    """Why XLA computes a chain, or "" if the library does."""
    problem = unserved(metas, metas[0].dtype, ("float32", "float64"))
    if op.asks == 3 and not op.band:
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


def _run(op: ChainOp, *arrays: jax.Array) -> Values:
    fields = {x: getattr(op, x) for x in ("band", "asks", "k", "has_length", "has_columns")}
    fields |= {"algebra": op.algebra.native_number, "memory": MEMORY}
    outs, numbers = outputs_of(op, arrays), jax.tree.map(np.int64, fields)
    return in_program("chain", outs, arrays, "expand_dims", instructions="", **numbers)


def _eager(op: ChainOp, *arrays: np.ndarray) -> list[np.ndarray]:
    given, outs = on_host(outputs_of(op, arrays), arrays)
    wanted = (True, True, True, op.has_length, op.has_columns, op.asks == 2)
    inputs = [given.pop(0) if there else None for there in wanted]
    (states,), (steps, *_), (count, emitted) = (x.shape for x in arrays[:3])
    numbers = TYPES[arrays[0].dtype.name], op.algebra.native_number, op.band, op.asks, op.k, MEMORY
    samples = outs[0].shape[0] if op.asks == 2 else 0
    now("chain", *numbers, states, count, steps, emitted, samples, inputs, outs)
    return outs


for family in (ChainScore, ChainByEmission, ChainSamples):
    family.runtimes = ExtensionRuntimeSet(
        Kernel(family.family_id, "cpu", _run, _declines, "native", _eager)
    )
