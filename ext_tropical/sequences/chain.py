"""Markov chains: the best sequences of states, the score of all, posteriors and samples."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import InvalidConfig, ShapeError, typed_call, typed_calls
from tenferro_jax.extension import apply
from tenferro_jax.shapes import as_array, require_integers

from ..arguments import (
    narrow,
    require_bool,
    require_key,
    require_numbers,
    require_shape,
    require_size,
)
from ..semirings.registered import as_selective
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import LogSumExp, max_plus
from .chain_arguments import Checked, checked
from .chain_constants import with_shared
from .chain_entropy import by_times, from_expectation
from .chain_inputs import Inputs, each_column, relative
from .chain_op import ChainOp, ChainSamples, ChainScore
from .chain_paths import along
from .duration_inputs import Segmented
from .duration_op import DurationsOp, DurationsSamples, DurationsScore
from .duration_paths import scored
from .duration_recurrence import entropy
from .durations import CheckedDurations, banded, checked_durations
from .leading_axes import lead_of, mapped

_ALL = LogSumExp()


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChainPath:
    """The best state sequence, or with k the k best, as a pytree. Leading axes are those of the
    chain.

    Attributes:
      score: its score, a scalar in the dtype of the inputs; the semiring's zero if no sequence is
        possible. With k (k,), the best first; zero where there are fewer sequences.
      states: int32 (T,), the states from first to last; -1 if no sequence is possible, and behind
        the length. With k (k, T).
    """

    score: jax.Array
    states: jax.Array

    @property
    def feasible(self) -> jax.Array:
        """A boolean scalar, whether any sequence is possible. With k (k,)."""
        return self.states[..., 0] >= 0


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ChainMarginals:
    """The posterior of a chain, as a pytree: 0 if no sequence is possible, NaN if log_partition is
    NaN or inf.

    Attributes:
      states: (..., T, S), the probability of each state at each time; 0 behind the length. With
        columns (..., T, C), of all states of each column.
      transitions: (..., R, S, S), banded (..., R, K, S): how often each transition is expected; R
        is 1 if all steps have the same transition, else T - 1. With durations these are changes
        from one segment to the next: with T - 1 steps the probability of each at each time.
      log_partition: (...), the score of all sequences.
      durations: (..., S, D), how many segments of each state are expected to last 1 to D times; of
        a censored one each duration that it may have has its share. None without durations.
    """

    states: jax.Array
    transitions: jax.Array
    log_partition: jax.Array
    durations: jax.Array | None = None


@jax.tree_util.register_dataclass
@typed_calls
@dataclasses.dataclass(frozen=True)
class Chain:
    """All sequences of T states among S, with scores: a hidden Markov model given what was
    observed, or a linear-chain CRF; as a pytree.

    The score of a sequence s is initial[s0] + emission[0, s0] + transition[s0, s1] +
    emission[1, s1] + ... + final[s at the end]; it is not normalised. For a hidden Markov model
    these are log probabilities, emission[t] those of the observation at t.

    Leading axes broadcast: each batch element is a chain. All floating arrays have one dtype, in
    which scores are added.

    Args:
      initial: (S,) or (..., S), of the first state.
      transition: (S, S), from the row's state to the column's, the same in all steps; or
        (..., R, S, S), where R is 1 or T - 1. If `banded`, (K, S) stands for (S, S), K at most S:
        [k, j] is from state j - k into state j; others are impossible, as in left-to-right models
        and CTC. Entries with j < k are ignored.
      emission: (..., T, S), of each state at each time. S and T are at least 1.
      lengths: integers (...), how many of the times count; None for all. What lies behind them in
        emission and in transitions of single steps has no influence, also NaN. Outside 1..T no
        sequence is possible.
      final: (S,) or (..., S), of the last state; None if there is none.
      banded: whether the transition has a band.
      columns: integers (..., S), the column of the emission that each state has, for states that
        share one; the emission is (..., T, C) then. A state whose column does not exist has NaN
        there. None: C is S.
      durations: (S, D) or (..., S, D), for a hidden semi-Markov model: [s, d - 1] is the score of
        staying in state s for exactly d times, d at most D. A sequence is then one of segments,
        and has the score of each one's duration; a transition is scored from one segment to the
        next. A state twice in a row is one segment: transitions of a state into itself have no
        influence. None: there are no such scores.
      censored: with durations, whether the last segment may go on after the last time. One of d
        times that are seen has the score of all durations of at least d then: log sum exp under
        log_partition and all that follows from it, the best one for `best`. By default the last
        segment ends at the last time that counts.

    The arrays are checked when a method is called. If the T S messages of `best` (T S k with k),
    `marginals`, `sample` or a gradient take more than 16 MB, the native kernel keeps those of
    sqrt(T) times, and computes the others again. With columns `sample` makes an emission (T, S)
    first.

    With durations the cost is T S (D + S) time, and memory for 2 T S numbers of 64 bits. The native
    kernel adds in double, whatever the dtype. With k, for second derivatives, and
    for `entropy` of `censored` durations and of scores of 1e4 and more, a loop in standard ops
    keeps D S k numbers, and under log_sum_exp those of sqrt(T) times; it adds in the tables' dtype,
    as `log_prob` does, and compiles for some seconds. Columns and bands
    become arrays of all states. Durations that are longer than the length have no influence, unless
    `censored`. Of equally good sequences that comes first which has, segment by segment from the
    last one back, the smaller state, then the shorter duration. If `best` has the score inf, its
    states say nothing. Where all sequences have transitions or durations below about -1e11,
    derivatives and marginals may be NaN, and the other answers mean nothing: use -inf for what is
    impossible, and take away what all entries share.

    Raises:
      ShapeError, DTypeError: by each method: the arrays do not fit.

    Example:
      A hidden Markov model of two states and two signs, of which 0, 0, 1 was observed.

      >>> import jax.numpy as jnp
      >>> signs = jnp.log(jnp.array([[0.9, 0.1], [0.2, 0.8]]))
      >>> chain = Chain(
      ...     jnp.log(jnp.array([0.5, 0.5])),
      ...     jnp.log(jnp.array([[0.7, 0.3], [0.3, 0.7]])),
      ...     signs[:, jnp.array([0, 0, 1])].T,
      ... )
      >>> print(chain.log_partition().round(3), (100 * chain.marginals().states[:, 0]).round())
      -2.117 [86. 80. 19.]
      >>> chain.best().states.tolist()
      [0, 0, 1]

      Segments of exactly two times, of which the last one may be cut:

      >>> lasting = jnp.array([[-jnp.inf, 0.0], [-jnp.inf, 0.0]])
      >>> segments = dataclasses.replace(chain, durations=lasting, censored=True)
      >>> segments.best().states.tolist()
      [0, 0, 1]
    """

    initial: ArrayLike
    transition: ArrayLike
    emission: ArrayLike
    lengths: ArrayLike | None = None
    _: dataclasses.KW_ONLY
    final: ArrayLike | None = None
    banded: bool = dataclasses.field(default=False, metadata={"static": True})
    columns: ArrayLike | None = None
    durations: ArrayLike | None = None
    censored: bool = dataclasses.field(default=False, metadata={"static": True})

    def __post_init__(self) -> None:
        for name in ("banded", "censored"):
            given = getattr(self, name)
            object.__setattr__(self, name, require_bool(f"Chain, {name}", given))

    def _checked(self, where: str, semiring: Semiring) -> Checked | CheckedDurations:
        given = {
            "initial": self.initial,
            "transition": self.transition,
            "emission": self.emission,
        }
        for name in ("final", "lengths", "columns", "durations"):
            if getattr(self, name) is not None:
                given[name] = getattr(self, name)
        if self.durations is not None:
            return checked_durations(where, semiring, given, self.banded, self.censored)
        if self.censored:
            raise InvalidConfig(
                where=f"{where}, censored",
                given="True without durations",
                needed="durations, which the last segment may go on for",
            )
        return checked(where, semiring, given, self.banded)

    def best(self, k: int | None = None, semiring: SelectiveSemiring | str = max_plus) -> ChainPath:
        """The best sequence, or the k best: `viterbi` for all forms of chains.

        Args:
          k: as in `viterbi`.
          semiring: as in `viterbi`; scores are multiplied by its times.

        Returns:
          A ChainPath: score (...), states (..., T) and feasible (...); with k score (..., k),
          states (..., k, T) and feasible (..., k), where k is at most S R**(T - 1), with the
          R rows of a transition; those that are impossible are not feasible.
          Equally good sequences come as in `viterbi`.

        Raises:
          InvalidConfig, Unsupported: as `viterbi`.

        Gradient: of the score, as that of `viterbi`.

        Cost: T S**2 time, banded T S K; memory for T S messages. With k as `viterbi`.

        Example:
          >>> import jax.numpy as jnp
          >>> emission = jnp.array([[1.0, 0.0], [0.0, 3.0], [2.0, 0.0]])
          >>> Chain(jnp.zeros(2), jnp.zeros((2, 2)), emission, 2).best().states.tolist()
          [0, 1, -1]
        """
        return _best(self, "Chain.best", k, semiring)

    def log_partition(self) -> jax.Array:
        """The score of all sequences together, log sum exp(score): of a hidden Markov model the log
        probability of what was observed.

        Returns:
          (...) in the dtype of the arrays; -inf if no sequence is possible.

        Gradient: the expected use of each entry; 0 if no sequence is possible. Of any order.

        Cost: that of `best`; with the gradient three times as much. One long chain runs on two
          cores, from both ends, and the chains of a batch on all.

        Example:
          >>> import jax.numpy as jnp
          >>> chain = Chain(jnp.zeros(2), jnp.zeros((2, 2)), jnp.zeros((3, 2)))
          >>> print(jnp.exp(chain.log_partition()).round(3))  # 2**3 sequences
          8.0
        """
        return partition(self, "Chain.log_partition", ChainScore)

    def marginals(self) -> ChainMarginals:
        """The posterior: probabilities of states, and expected numbers of transitions.

        Returns:
          A ChainMarginals: states (..., T, S), with columns (..., T, C); transitions
          (..., R, S, S), banded (..., R, K, S); log_partition (...).

        Gradient: of any order.

        Cost: three times that of `log_partition`, in one pass over the times and back.

        Example:
          >>> import jax.numpy as jnp
          >>> chain = Chain(jnp.zeros(2), jnp.array([[0.0, 0.0], [-jnp.inf, 0.0]]),
          ...               jnp.zeros((3, 2)))
          >>> found = chain.marginals()  # of 000, 001, 011, 111
          >>> print(found.states[:, 1].round(2), found.transitions.round(2)[0])
          [0.25 0.5  0.75] [[0.75 0.5 ]
           [0.   0.75]]
        """
        where = "Chain.marginals"
        op, inputs, shared = self._checked(where, _ALL)
        op = dataclasses.replace(op, detailed=True)
        score, _, moves, *lasting, states = _applied(where, op, inputs)
        if lasting and self.banded:
            moves = banded(moves, np.shape(self.transition)[-2])
        moves = moves[..., : (*np.shape(self.transition)[-3:-2], 1)[0], :, :]  # none of one time
        if self.columns is not None and not op.has_columns:
            given = [states, jnp.asarray(self.columns), jnp.asarray(self.emission)]
            states = mapped(where, each_column, given, 2, 1, 2)
        return ChainMarginals(states, moves, with_shared(score, shared), *lasting)

    def log_prob(self, states: ArrayLike) -> jax.Array:
        """The log probability of sequences: their score less `log_partition`. Its negative is the
        loss of a CRF.

        Args:
          states: integers (..., T); leading axes broadcast with those of the chain. What lies
            behind the length does not count.

        Returns:
          (...); -inf if the sequence is impossible, or has a state outside 0..S - 1.

        Raises:
          ShapeError, DTypeError: states do not fit.

        Gradient: of both parts; 0 if the sequence is impossible.

        Cost: that of `log_partition`.

        Example:
          >>> import jax.numpy as jnp
          >>> chain = Chain(jnp.zeros(2), jnp.zeros((2, 2)), jnp.zeros((3, 2)))
          >>> print(jnp.exp(chain.log_prob(jnp.array([0, 1, 0]))).round(3))
          0.125
        """
        where = "Chain.log_prob"
        op, inputs, _ = self._checked(where, _ALL)
        given = jnp.asarray(as_array(states, f"{where}, states"))
        count = inputs.seen.shape[-2]
        require_integers(f"{where}, states", given)
        if not given.ndim or given.shape[-1] != count:
            raise ShapeError(
                where=f"{where}, states", given=f"shape {given.shape}", needed=f"(..., {count})"
            )
        return _mapped_chain(where, op, _log_prob, inputs, narrow(given))

    def entropy(self) -> jax.Array:
        """The entropy of the distribution of sequences, -sum p log p.

        Returns:
          (...), in nats; -inf if no sequence is possible.

        Gradient: of any order, by that of the marginals.

        Cost: that of `marginals`; of scores of 1e4 and more in float32 a scan over times too; of
        `censored` durations the scan alone.

        Example:
          >>> import jax.numpy as jnp
          >>> chain = Chain(jnp.zeros(2), jnp.zeros((2, 2)), jnp.zeros((3, 2)))
          >>> print(jnp.exp(chain.entropy()).round(3))
          8.0
        """
        where = "Chain.entropy"
        op, inputs, _ = self._checked(where, _ALL)
        has_durations = isinstance(op, DurationsOp)
        in_order = functools.partial(
            _mapped_chain, where, op, entropy if has_durations else by_times, inputs
        )
        if isinstance(op, DurationsOp) and op.censored:
            return in_order()
        found, is_rounded = _from_expectation(dataclasses.replace(op, detailed=True), inputs)

        def again() -> jax.Array:
            return jnp.where(is_rounded, in_order(), found)

        some = jnp.any(is_rounded)
        if isinstance(some, jax.core.Tracer):
            return jax.lax.cond(some, again, lambda: found)
        return again() if some else found

    def sample(self, key: jax.Array, shape: Sequence[int] = ()) -> jax.Array:
        """Independent sequences, drawn with probability exp(score - log_partition).

        Args:
          key: of `jax.random`.
          shape: of the samples of each chain.

        Returns:
          int32 (*shape, ..., T); -1 behind the length, and if no sequence is possible or
          log_partition is NaN or inf.

        Raises:
          InvalidConfig: a shape that is not one.
          Unsupported: a symbolic size.

        Gradient: none.

        Cost: that of `log_partition`, and T S for each sample.

        Example:
          >>> import jax, jax.numpy as jnp
          >>> chain = Chain(jnp.zeros(2), jnp.array([[0.0, -jnp.inf], [-jnp.inf, 0.0]]),
          ...               jnp.zeros((3, 2)))
          >>> drawn = chain.sample(jax.random.key(0), (1000,))  # of 000, 111
          >>> drawn.shape, bool((drawn[:, :1] == drawn).all()), 450 < int(drawn[:, 0].sum()) < 550
          ((1000, 3), True, True)
        """
        where = "Chain.sample"
        require_key(where, key)
        op, inputs, _ = self._checked(where, _ALL)
        require_numbers(where, inputs.seen.shape, "sizes that are numbers")
        sizes = require_shape(f"{where}, shape", shape)
        lead, count = lead_of(where, inputs.given, op.ranks), inputs.seen.shape[-2]

        def wide(x: jax.Array) -> jax.Array:  # uniforms of 8 bits would draw other chances
            return x.astype(jnp.float32) if x.dtype.itemsize < 4 else x

        seen = wide(inputs.seen)
        shape = *lead, math.prod(sizes), count
        ask: ChainOp | DurationsOp
        if isinstance(op, DurationsScore):
            ask = DurationsSamples(op.censored, op.has_length)
            shape = *shape, 2
        else:
            ask = ChainSamples(op.band, op.has_length, op.has_columns)
        if isinstance(inputs, Segmented):
            inputs = inputs._replace(durations=wide(inputs.durations))
        uniforms = jax.random.uniform(key, shape, seen.dtype)
        inputs = inputs._replace(
            initial=wide(inputs.initial), moves=wide(inputs.moves), seen=seen, uniforms=uniforms
        )
        (states,) = _applied(where, ask, inputs)
        states, n = states.reshape(*lead, *sizes, count), len(lead)
        return jnp.moveaxis(states, range(n), range(len(sizes), len(sizes) + n))


def _best(chain: Chain, where: str, k: int | None, semiring: SelectiveSemiring | str) -> ChainPath:
    algebra = as_selective(semiring, where)
    op, inputs, _ = chain._checked(where, algebra)
    if k is not None:
        k = require_size(f"{where}, k", k, 1)
        require_numbers(f"{where}, k", inputs.seen.shape, "sizes that are numbers, or k=None")
        k = min(k, _sequences(inputs, k))
    op = dataclasses.replace(op, k=k or 0, detailed=True)
    return ChainPath(*_applied(where, op, inputs))


def _sequences(inputs: Inputs | Segmented, enough: int) -> int:
    """How many sequences there are at most, or a number of at least `enough`."""
    before, times = inputs.moves.shape[-2], inputs.seen.shape[-2]
    number = inputs.initial.shape[-1]
    for _ in range(times - 1):
        if before == 1 or number >= enough:
            break
        number *= before
    return number


def partition(chain: Chain, where: str, family: type[ChainScore]) -> jax.Array:
    """The score of all sequences by an op of this class."""
    op, inputs, shared = chain._checked(where, _ALL)
    if isinstance(op, ChainScore):
        op = family(op.semiring, op.band, op.has_length, op.has_columns)
    score, *_ = _applied(where, op, inputs)
    return with_shared(score, shared)


def _applied(where: str, op: ChainOp | DurationsOp, inputs: Inputs | Segmented) -> list[jax.Array]:
    """The outputs of an op, mapped over the leading axes of its inputs."""
    return mapped(where, functools.partial(apply, op), inputs.given, *op.ranks)


def _mapped_chain(
    where: str,
    op: ChainScore | DurationsScore,
    run: Callable[..., Any],
    inputs: Inputs | Segmented,
    *states: jax.Array,
) -> Any:
    """A function of an op, its inputs and sequences of states, mapped over leading axes."""

    def one(*arrays: jax.Array) -> Any:
        return run(op, op.inputs(*arrays[: op.input_count]), *arrays[op.input_count :])

    return mapped(where, one, [*inputs.given, *states], *op.ranks, *[1] * len(states))


# --- of one chain ---------------------------------------------------------------------------------


@functools.partial(jax.jit, static_argnums=0)
def _scored(op: ChainScore, chain: Inputs, states: jax.Array) -> jax.Array:
    """The score of one sequence, int32 (T,). The semiring's zero if it is impossible."""
    live = jnp.arange(states.shape[0], dtype=jnp.int32) < chain.size
    there = ~live | ((states >= 0) & (states < chain.initial.shape[0]))
    if op.band:
        apart = states[1:] - states[:-1]
        is_move = (apart >= 0) & (apart < op.band)
        there = there.at[1:].set(there[1:] & (~live[1:] | is_move))
    found = along(op, chain, jnp.where(live & there, states, -1))
    possible = jnp.all(there) & (chain.size >= 1) & (chain.size <= states.shape[0])
    return jnp.where(possible, found, jnp.asarray(op.algebra.zero(found.dtype)))


def _log_prob(
    op: ChainScore | DurationsScore, chain: Inputs | Segmented, states: jax.Array
) -> jax.Array:
    """Of a sequence of states: both scores without what all states of a time share, which would
    take their digits.
    """
    chain = chain._replace(seen=relative(chain.seen)[0])
    if isinstance(op, DurationsScore):
        score = scored(op, chain, states)
    else:
        score = _scored(op, chain, states)
    whole = apply(op, *chain.given)[0]
    found = score - whole
    above = jax.lax.stop_gradient(jnp.maximum(found, 0))  # by rounding
    return jnp.where(score == -jnp.inf, -jnp.inf, found - above)


@functools.partial(jax.jit, static_argnums=0)
@functools.partial(jax.jit, static_argnums=0, inline=True)  # outside jit one call, not twenty
def _from_expectation(
    op: ChainScore | DurationsScore, inputs: Inputs | Segmented
) -> tuple[jax.Array, jax.Array]:
    return _mapped_chain("Chain.entropy", op, from_expectation, inputs)


@typed_call
def viterbi(
    log_initial: ArrayLike,
    log_transition: ArrayLike,
    log_emission: ArrayLike,
    *,
    k: int | None = None,
    semiring: SelectiveSemiring | str = max_plus,
) -> ChainPath:
    """The best of all sequences of T states among S, or the k best: `Chain.best` of a chain without
    lengths. Leading axes broadcast.

    The score of a sequence s is log_initial[s0] + log_emission[0, s0] + log_transition[s0, s1] +
    log_emission[1, s1] + ..., with the semiring's times for +. Log probabilities under max_plus,
    costs under min_plus, probabilities under max_mul.

    Args:
      log_initial: (S,), of the first state.
      log_transition: (S, S), from the row's state to the column's.
      log_emission: (T, S), of the observation at each time, given each state. S and T are at least
        1. All have one dtype, which the semiring takes. Scores are added in this dtype: convert
        16-bit floats for more than a few steps. In float32 they keep their digits.
      k: how many different sequences, a positive integer; None for one, without the axis of k. All
        if there are fewer: the axis is as long as there are.
      semiring: a selective semiring, or its name.

    Returns:
      A ChainPath: score, int32 states (T,), feasible. If the score is NaN, the states say nothing.
      Of equally good last states the smallest is taken; then, going back, the smallest of the
      equally good states before each state. The k best sequences, if equally good, are in that
      order too, but under min_max and or_and in any.

    Raises:
      ShapeError, DTypeError: the inputs do not fit.
      InvalidConfig: no selective semiring; or k is not a positive integer of int32.
      Unsupported: k with a symbolic size.

    Gradient: of the score, one at each entry that the sequence uses, as often as it uses it (under
    max_plus and min_plus). Each of the k scores has that of its sequence.

    Cost: T S**2 time; memory for T S winners. With k both are k times as large: each state has a
    list of its k best beginnings (Seshadri and Sundberg, 1994).

    Example:
      >>> import jax.numpy as jnp
      >>> stay, move = -0.1, -2.4
      >>> result = viterbi(
      ...     jnp.array([-0.7, -0.7]),
      ...     jnp.array([[stay, move], [move, stay]]),
      ...     jnp.array([[-0.1, -3.0], [-0.1, -2.0], [-3.0, -0.1], [-3.0, -0.1]]),
      ... )
      >>> result.states.tolist(), round(float(result.score), 2)
      ([0, 0, 1, 1], -3.7)
      >>> many = viterbi(
      ...     jnp.array([0.0, -1.0]), jnp.array([[0.0, -3.0], [-3.0, 0.0]]), jnp.zeros((3, 2)), k=3
      ... )
      >>> many.states.tolist(), many.score.tolist()
      ([[0, 0, 0], [1, 1, 1], [0, 0, 1]], [0.0, -1.0, -3.0])
    """
    return _best(Chain(log_initial, log_transition, log_emission), "viterbi", k, semiring)
