"""The best state sequences of a hidden Markov model: a chain of vector-matrix steps, whose winners
are read backwards.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tenferro_jax.einsum.spread import on_automatic_axes
from tenferro_jax.errors import InvalidConfig, ShapeError, Unsupported
from tenferro_jax.shapes import as_array

from ..algebra.semiring import SelectiveSemiring, as_selective
from ..algebra.shipped import max_plus
from ..network.tropical_einsum import tropical_einsum_with_argmax
from ..step.einsum_op import one_dtype
from .alignment_op import folded


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class ViterbiResult:
    """The best state sequence, or with k the k best, as a pytree.

    Attributes:
      score: its score, a scalar in the dtype of the inputs; the semiring's zero if no sequence is
        possible. With k (k,), the best first; zero where there are fewer sequences.
      states: int32 (T,), the states from first to last; -1 if no sequence is possible. With k
        (k, T).
      feasible: a boolean scalar, whether any sequence is possible. With k (k,).
    """

    score: jax.Array
    states: jax.Array
    feasible: jax.Array


def viterbi(
    log_initial: jax.typing.ArrayLike,
    log_transition: jax.typing.ArrayLike,
    log_emission: jax.typing.ArrayLike,
    *,
    k: int | None = None,
    semiring: SelectiveSemiring | str = max_plus,
) -> ViterbiResult:
    """The best of all sequences of T states among S, or the k best.

    The score of a sequence s is log_initial[s0] + log_emission[0, s0] + log_transition[s0, s1] +
    log_emission[1, s1] + ..., with the semiring's times for +. Log probabilities under max_plus,
    costs under min_plus, probabilities under max_mul.

    Args:
      log_initial: (S,), of the first state.
      log_transition: (S, S), from the row's state to the column's.
      log_emission: (T, S), of the observation at each time, given each state. S and T are at least
        1. All have one dtype, which the semiring takes. Scores are added in this dtype: convert
        16-bit floats for long sequences.
      k: how many different sequences, a positive integer; None for one, without the axis of k.
      semiring: a selective semiring, or its name.

    Returns:
      A ViterbiResult: score, int32 states (T,), feasible. Of equally good last states the smallest
      is taken; then, going back, the smallest of the equally good states before each state. The k
      best sequences, if equally good, are in that order too, but under min_max and or_and in any.

    Raises:
      ShapeError, DTypeError: the inputs do not fit.
      InvalidConfig: no selective semiring; or k is not a positive integer of int32.
      Unsupported: k with a symbolic size.

    Gradient: of the score, one at each entry that the sequence uses, as often as it uses it (under
    max_plus and min_plus). Each of the k scores has that of its sequence.

    Cost: T S**2 time; memory for T S winners. With k both are k times as large: each state has a
    list of its k best beginnings (Seshadri and Sundberg, 1994). Many sequences at once: jax.vmap.

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
    algebra = as_selective(semiring, "viterbi")
    named = {
        "log_initial": log_initial,
        "log_transition": log_transition,
        "log_emission": log_emission,
    }
    initial, transition, emission = (
        jnp.asarray(as_array(x, f"viterbi, {name}")) for name, x in named.items()
    )
    _require_shapes(initial.shape, transition.shape, emission.shape)
    one_dtype(
        "viterbi", algebra, [x.dtype for x in (initial, transition, emission)], [*named.values()]
    )
    if k is None:
        return ViterbiResult(*on_automatic_axes(_decode)(initial, transition, emission, algebra))
    most = jnp.iinfo(jnp.int32).max
    if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k <= most:
        raise InvalidConfig(
            where="viterbi, k", given=repr(k), needed=f"None or an integer from 1 to {most}"
        )
    if not all(isinstance(size, int) for size in emission.shape):
        raise Unsupported(
            where="viterbi, k",
            given=f"emission of the symbolic shape {emission.shape}",
            needed="sizes that are numbers, or k=None",
        )
    run = on_automatic_axes(functools.partial(_lists, int(k), algebra))
    return ViterbiResult(*run(initial, transition, emission))


@functools.partial(jax.jit, static_argnums=3)
def _decode(
    initial: jax.Array, transition: jax.Array, emission: jax.Array, semiring: SelectiveSemiring
) -> tuple[jax.Array, jax.Array, jax.Array]:
    def forward(
        carry: tuple[jax.Array, jax.Array],
        seen: jax.Array,
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        best = semiring.times(carry[0], seen)
        arrived = tropical_einsum_with_argmax("i,ij->j", best, transition, semiring=semiring)
        return (arrived.value, best), arrived.winner

    (_, best), winners = lax.scan(forward, (initial, initial), emission)
    last = tropical_einsum_with_argmax("i->", best, semiring=semiring)

    def back(state: jax.Array, t: jax.Array) -> tuple[jax.Array, jax.Array]:
        before = winners[t, state]
        return before, before

    winners = winners.at[-1].set(last.winner)  # the additional last step has no next state
    # Over descending times instead of reverse=True, because converters of jaxprs support only
    # forward scans.
    _, backwards = lax.scan(back, last.winner, jnp.arange(emission.shape[0])[::-1])
    return last.value, jnp.where(last.feasible, backwards[::-1], -1), last.feasible


def _heads(
    count: int, semiring: SelectiveSemiring, lists: jax.Array, weights: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best products of entries of sorted lists (S, k) with weights (S, N), in order.

    Returns:
      (values, rows, ranks) of shape (count, N).
    """
    zero = jnp.asarray(semiring.zero(lists.dtype))
    rows = jnp.arange(len(lists), dtype=jnp.int32)[:, None]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)
    lists = jnp.append(lists, jnp.full((len(lists), 1), zero), axis=1)

    def head(x: jax.Array, y: jax.Array) -> jax.Array:
        """A list may have ended, or a state be impossible."""
        return jnp.where(x == zero, zero, semiring.times(x, y))

    def next_one(
        state: tuple[jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
        heads, places = state
        value = semiring.best(heads, 0)
        first = (heads == value[None]) | (heads != heads)
        row = jnp.min(jnp.where(first, rows, len(lists) - 1), 0)  # XLA's argmax is slow on CPU
        rank = places[row, columns]
        after = jnp.minimum(rank + 1, lists.shape[1] - 1)
        new = head(lists[row, after], weights[row, columns])
        taken = rows == row[None]
        heads = jnp.where(taken, new[None], heads)
        return (heads, jnp.where(taken, after[None], places)), (value, row, rank)

    heads = head(jnp.broadcast_to(lists[:, :1], weights.shape), weights)
    _, found = lax.scan(next_one, (heads, jnp.zeros(weights.shape, jnp.int32)), length=count)
    return found


def _listed(
    count: int,
    semiring: SelectiveSemiring,
    initial: jax.Array,
    transition: jax.Array,
    emission: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    zero, one = (jnp.asarray(f(initial.dtype)) for f in (semiring.zero, semiring.one))

    def forward(lists: jax.Array, seen: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        values, *before = _heads(count, semiring, lists, transition)
        seen = jnp.broadcast_to(seen[:, None], lists.shape)
        return semiring.times(values.T, seen), tuple(before)

    first = semiring.times(initial, emission[0])[:, None]
    lists = jnp.append(first, jnp.full((len(initial), count - 1), zero), axis=1)
    lists, before = lax.scan(forward, lists, emission[1:])
    values, states, ranks = _heads(count, semiring, lists, jnp.full((len(initial), 1), one))

    def back(
        state: tuple[jax.Array, jax.Array], winners: tuple[jax.Array, ...]
    ) -> tuple[tuple[jax.Array, jax.Array], jax.Array]:
        rows, places = (x[state[1], state[0]] for x in winners)
        return (rows, places), rows

    last = states[:, 0], ranks[:, 0]
    _, others = lax.scan(back, last, tuple(x[::-1] for x in before))
    found = jnp.append(others[::-1], states.T, axis=0).T
    score = values[:, 0]
    return score, jnp.where((score != zero)[:, None], found, -1), score != zero


_lists = jax.custom_jvp(jax.jit(_listed, static_argnums=(0, 1)), nondiff_argnums=(0, 1))


@_lists.defjvp
def _lists_jvp(
    count: int,
    semiring: SelectiveSemiring,
    primals: tuple[jax.Array, ...],
    tangents: tuple[jax.Array, ...],
) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
    """The tangents of the products along the sequences."""
    out = _lists(count, semiring, *primals)
    states = out[1]
    one = jnp.asarray(semiring.one(primals[0].dtype))

    def along(initial: jax.Array, transition: jax.Array, emission: jax.Array) -> jax.Array:
        entries = [
            initial[states[:, :1]],
            transition[states[:, :-1], states[:, 1:]],
            jnp.take_along_axis(emission, states.T, axis=1).T,
        ]
        used = jnp.where((states >= 0).all(1)[:, None], jnp.concatenate(entries, 1), one)
        return jax.vmap(lambda row: folded(semiring.times, row, one))(used)

    _, slope = jax.jvp(along, primals, tangents)
    states, feasible = (np.zeros(x.shape, jax.dtypes.float0) for x in out[1:])
    return out, (slope, states, feasible)


def _require_shapes(
    initial: tuple[int, ...],
    transition: tuple[int, ...],
    emission: tuple[int, ...],
) -> None:
    count = initial[0] if len(initial) == 1 else 0
    if (
        count == 0
        or transition != (count, count)
        or len(emission) != 2
        or emission[0] == 0
        or emission[1] != count
    ):
        raise ShapeError(
            where="viterbi",
            given=f"log_initial of shape {initial}, log_transition of shape {transition}, "
            f"log_emission of shape {emission}",
            needed="shapes (S,), (S, S) and (T, S), S and T at least 1",
            fix="One row of log_emission for each time, one column for each state; for many "
            "sequences use jax.vmap.",
        )
