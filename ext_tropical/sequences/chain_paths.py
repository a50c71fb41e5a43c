"""Sequences of chains that are found from the last time to the first: the best one, the k best,
samples.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.semiring import SelectiveSemiring
from ..steps.kernels.selection import together
from .alignment_op import folded
from .chain_recurrence import (
    Op,
    State,
    Values,
    extended,
    finite_max,
    length_of,
    messages_of,
    ordered,
    over_times,
    replaced,
)

WINNERS = 20
"""With at most so many candidates for a state one reduction gives value and winner, and the winners
are kept. XLA CPU is slow with that for more, where the winners on the way back are found again.
"""


def _column(
    op: Op, message: jax.Array, transition: jax.Array, t: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array | int]:
    """The candidates that lead to one state, and the number of the first state among them."""
    column = transition[0 if transition.shape[0] == 1 else t - 1][:, state]
    if not op.band:
        return op.algebra.times(message, column), 0
    known = lax.dynamic_slice(extended(op, message), (state,), (op.band,))
    first = state - (op.band - 1)
    worst = jnp.asarray(op.algebra.identity(message.dtype))
    there = first + jnp.arange(op.band, dtype=jnp.int32) >= 0
    return jnp.where(there, op.algebra.times(known, column), worst), first


def _walked(
    op: Op, length: jax.Array | int, last: jax.Array, find: Callable[..., jax.Array], given: State
) -> jax.Array:
    """The states from first to last, int32 (T,), found from the last to the first; -1 behind the
    length, and all if the last one is: for XLA CPU it is slow to replace them after the loop.

    Args:
      op: what may lead to a state.
      length: of the sequence.
      last: the last state.
      find: of a time, the state then and an entry of `given`: the state before.
      given: (T - 1, ...) and arrays of that kind, of the moves.
    """

    def back(state: jax.Array, at: State) -> tuple[jax.Array, jax.Array]:
        t, entry = at
        before = replaced(op, t < length, jnp.where(state < 0, -1, find(t, state, entry)), state)
        return before, replaced(op, t <= length, before, -1)

    # Over descending times instead of reverse=True, because converters of jaxprs support only
    # forward scans.
    count = jax.tree.leaves(given)[0].shape[0]
    given = jax.tree.map(lambda x: jnp.flip(x, 0), (1 + jnp.arange(count, dtype=jnp.int32), given))
    _, states = lax.scan(back, last, given)
    return jnp.append(jnp.flip(states), replaced(op, length > count, last, -1))


def _first(found: jax.Array) -> jax.Array:
    """The number of the first True, else of the last entry: XLA's argmax is slow on CPU."""
    return jnp.min(
        jnp.where(found, jnp.arange(found.shape[0], dtype=jnp.int32), found.shape[0] - 1)
    )


def best(
    op: Op, initial: jax.Array, transition: jax.Array, emission: jax.Array, *others: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The score and the states of the best sequence."""
    count = transition.shape[1]
    winners = isinstance(count, int) and count <= WINNERS
    score, kept, last = messages_of(op, initial, transition, emission, *others, winners=winners)
    transition = ordered(op, transition)

    def choose(candidates: jax.Array) -> jax.Array:
        return _first((candidates == op.algebra.best(candidates, 0)) | (candidates != candidates))

    def find(t: jax.Array, state: jax.Array, entry: jax.Array) -> jax.Array:
        if winners and op.band:
            found = lax.dynamic_index_in_dim(entry, state, keepdims=False)
            return jnp.maximum(state - (op.band - 1) + found, 0)
        if winners:  # among so few XLA CPU takes longer to index
            return jnp.sum(
                jnp.where(jnp.arange(count, dtype=jnp.int32) == state, entry, 0), dtype=jnp.int32
            )
        candidates, first = _column(op, entry, transition, t, state)
        return jnp.maximum(first + choose(candidates), 0)

    end = jnp.where(
        score != jnp.asarray(op.algebra.zero(score.dtype)),
        together(op.algebra, last, 0)[1] if winners else choose(last),
        -1,
    )
    return score, _walked(
        op, length_of(op, emission, others), end, find, kept if winners else kept[:-1]
    )


def drawn(
    op: Op, initial: jax.Array, transition: jax.Array, emission: jax.Array, *others: jax.Array
) -> jax.Array:
    """The states of each sample."""
    score, messages, last = messages_of(op, initial, transition, emission, *others)

    def choose(candidates: jax.Array, uniform: jax.Array) -> jax.Array:
        weights = jnp.exp(candidates - finite_max(candidates))
        sums = jnp.cumsum(weights)
        greatest = jnp.max(jnp.where(weights > 0, jnp.arange(len(weights), dtype=jnp.int32), 0))
        # XLA adds in pairs: what has no weight may make a sum greater, or the last one less.
        return jnp.minimum(_first((sums > uniform * sums[-1]) & (weights > 0)), greatest)

    length, transition = length_of(op, emission, others), ordered(op, transition)

    def find(t: jax.Array, state: jax.Array, entry: Values) -> jax.Array:
        message, uniform = entry
        candidates, first = _column(op, message, transition, t, state)
        return jnp.maximum(first + choose(candidates, uniform), 0)

    def walk(uniforms: jax.Array) -> jax.Array:
        end = jnp.clip(length - 1, 0, len(uniforms) - 1) if op.has_length else -1
        state = jnp.where(abs(score) < jnp.inf, choose(last, uniforms[end]), -1)
        return _walked(op, length, state, find, (messages[:-1], uniforms[:-1]))

    return jax.vmap(walk)(others[-1])


# --- the k best: each state has a sorted list of its k best beginnings (Seshadri, Sundberg, 1994)


def _heads(
    count: int, semiring: SelectiveSemiring, lists: jax.Array, weights: jax.Array, band: int = 0
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best products of entries of sorted lists (S, k) with weights (S, N), in order. With a
    band of K list i counts for column j from i to i + K - 1.

    Returns:
      (values, rows, ranks) of shape (count, N).
    """
    zero = jnp.asarray(semiring.zero(lists.dtype))
    rows = jnp.arange(len(lists), dtype=jnp.int32)[:, None]
    columns = jnp.arange(weights.shape[1], dtype=jnp.int32)
    lists = jnp.append(lists, jnp.full((len(lists), 1), zero), axis=1)

    def head(x: jax.Array, y: jax.Array, apart: jax.Array) -> jax.Array:
        """A list may have ended, or a state be impossible, or outside the band."""
        outside = (apart < 0) | (apart >= band) if band else False
        return jnp.where((x == zero) | outside, zero, semiring.times(x, y))

    def next_one(
        state: tuple[jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]:
        heads, places = state
        value = semiring.best(heads, 0)
        first = (heads == value[None]) | (heads != heads)
        row = jnp.min(jnp.where(first, rows, len(lists) - 1), 0)  # XLA's argmax is slow on CPU
        rank = places[row, columns]
        after = jnp.minimum(rank + 1, lists.shape[1] - 1)
        new = head(lists[row, after], weights[row, columns], columns - row)
        taken = rows == row[None]
        heads = jnp.where(taken, new[None], heads)
        return (heads, jnp.where(taken, after[None], places)), (value, row, rank)

    heads = head(jnp.broadcast_to(lists[:, :1], weights.shape), weights, columns[None] - rows)
    _, found = lax.scan(next_one, (heads, jnp.zeros(weights.shape, jnp.int32)), length=count)
    return found


def _dense(band: int, transition: jax.Array) -> jax.Array:
    """The transition between all pairs of states; entries outside the band are not used."""
    if not band:
        return transition
    states = transition.shape[-1]
    row, column = (lax.broadcasted_iota(jnp.int32, (states, states), axis) for axis in (0, 1))
    return transition[:, jnp.clip(column - row, 0, band - 1), column]


def listed(
    op: Op, initial: jax.Array, transition: jax.Array, emission: jax.Array, *others: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The scores and the states of the k best sequences, as `ChainScore` has them."""
    count, semiring, length = op.k, op.algebra, length_of(op, emission, others)
    matrices, total = _dense(op.band, transition), emission.shape[0]
    zero, one = (jnp.asarray(f(emission.dtype)) for f in (semiring.zero, semiring.one))
    stay = [lax.broadcasted_iota(jnp.int32, (count, len(initial)), axis) for axis in (1, 0)]

    def forward(lists: jax.Array, given: State) -> tuple[jax.Array, State]:
        t, own, seen = given
        matrix = matrices[0] if own is None else own
        values, *before = _heads(count, semiring, lists, matrix, op.band)
        new = semiring.times(values.T, jnp.broadcast_to(seen[:, None], lists.shape))
        new, *before = replaced(op, t < length, (new, *before), (lists, *stay))
        return new, tuple(before)

    first = semiring.times(initial, emission[0])[:, None]
    lists = jnp.append(first, jnp.full((len(initial), count - 1), zero), axis=1)
    lists, before, taken = over_times(op, forward, lists, matrices, emission, length)
    values, states, ranks = _heads(count, semiring, lists, jnp.full((len(initial), 1), one))

    def back(state: State, winners: State) -> State:
        rows, places = (x[state[1], state[0]] for x in winners)
        return (rows, places), rows

    _, earlier = lax.scan(back, (states[:, 0], ranks[:, 0]), tuple(x[::-1] for x in before))
    found = jnp.append(earlier[::-1], states.T, axis=0).T
    score = jnp.where(length >= 1, semiring.times(values[:, 0], taken), zero)
    there = (score != zero)[:, None] & (jnp.arange(total, dtype=jnp.int32) < length)[None]
    return score, jnp.where(there, found, -1)


@functools.partial(jax.jit, static_argnums=0)
def along(op: Op, states: jax.Array, *inputs: jax.Array) -> jax.Array:
    """The product of the entries that each sequence of states uses; states of -1 use none."""
    initial, transition, emission, *_ = op.of_states(inputs)
    one, count = jnp.asarray(op.algebra.one(emission.dtype)), emission.shape[0]
    before, after = states[..., :-1], states[..., 1:]
    time = lax.broadcasted_iota(jnp.int32, states.shape, states.ndim - 1)
    row = 0 if transition.shape[0] == 1 else time[..., :-1]
    more = int(not isinstance(count, int))  # JAX takes no row of T - 1 for a symbolic T
    moves = jnp.pad(transition, [(0, more), (0, 0), (0, 0)])[
        row, after - before if op.band else before, after
    ]
    seen = emission[time, states]

    def used(x: jax.Array, some: jax.Array) -> jax.Array:
        return jnp.where(some >= 0, x, one)

    entries = jnp.concatenate(
        [
            used(initial[states[..., :1]], states[..., :1]),
            used(moves, after),
            used(seen, states),
        ],
        axis=-1,
    )
    if not isinstance(count, int):
        start, entries = jnp.full(states.shape[:-1], one), jnp.moveaxis(entries, -1, 0)
        return lax.scan(lambda product, x: (op.algebra.times(product, x), None), start, entries)[0]
    rows = entries.reshape(-1, entries.shape[-1])
    return jax.vmap(lambda row: folded(op.algebra.times, row, one))(rows).reshape(states.shape[:-1])
