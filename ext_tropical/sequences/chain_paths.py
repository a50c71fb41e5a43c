"""Sequences of chains that are found from the last time to the first: the best one, and samples."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from ..steps.kernels.selection import together
from .chain_inputs import ChainOpLike, Inputs, State, finite_max
from .chain_messages import best_messages, extended, log_messages, ordered
from .vectors import folded

WINNERS = 20
"""With at most so many candidates for a state one reduction gives value and winner, and the winners
are kept. XLA CPU is slow with that for more, where the winners on the way back are found again.
"""


def _column(
    op: ChainOpLike, message: jax.Array, moves: jax.Array, t: jax.Array, state: jax.Array
) -> tuple[jax.Array, jax.Array | int]:
    """The candidates that lead to one state, and the number of the first state among them."""
    column = moves[0 if moves.shape[0] == 1 else t - 1][:, state]
    if not op.band:
        return op.algebra.times(message, column), 0
    candidates = lax.dynamic_slice(extended(op, message), (state,), (op.band,))
    first = state - (op.band - 1)
    worst = jnp.asarray(op.algebra.identity(message.dtype))
    there = first + jnp.arange(op.band, dtype=jnp.int32) >= 0
    return jnp.where(there, op.algebra.times(candidates, column), worst), first


def _walked(
    chain: Inputs, last: jax.Array, find: Callable[..., jax.Array], given: State
) -> jax.Array:
    """The states from first to last, int32 (T,), found from the last to the first; -1 behind the
    length, and all if the last one is: for XLA CPU it is slow to replace them after the loop.

    Args:
      chain: its arrays.
      last: the last state.
      find: of a time, the state then and an entry of `given`: the state before.
      given: (T - 1, ...) and arrays of that kind, of the moves.
    """

    def back(state: jax.Array, at: State) -> tuple[jax.Array, jax.Array]:
        t, entry = at
        found = jnp.where(state < 0, -1, find(t, state, entry))
        before = chain.where(t < chain.size, found, state)
        return before, chain.where(t <= chain.size, before, -1)

    # Over descending times instead of reverse=True, because converters of jaxprs support only
    # forward scans.
    count = jax.tree.leaves(given)[0].shape[0]
    given = jax.tree.map(lambda x: jnp.flip(x, 0), (1 + jnp.arange(count, dtype=jnp.int32), given))
    _, states = lax.scan(back, last, given)
    return jnp.append(jnp.flip(states), chain.where(chain.size > count, last, -1))


def _first(found: jax.Array) -> jax.Array:
    """The number of the first True, else of the last entry: XLA's argmax is slow on CPU."""
    number = jnp.arange(found.shape[0], dtype=jnp.int32)
    return jnp.min(jnp.where(found, number, found.shape[0] - 1))


def best(op: ChainOpLike, chain: Inputs) -> tuple[jax.Array, jax.Array]:
    """The score and the states of the best sequence."""
    candidates = chain.moves.shape[1]
    keeps_winners = isinstance(candidates, int) and candidates <= WINNERS
    score, kept, last = best_messages(op, chain, keeps_winners)
    is_possible = score != jnp.asarray(op.algebra.zero(score.dtype))
    if keeps_winners:
        end = jnp.where(is_possible, together(op.algebra, last, 0)[1], -1)
        return score, _walked(chain, end, functools.partial(_winner, op, candidates), kept)
    moves = ordered(op, chain.moves)

    def choose(candidates: jax.Array) -> jax.Array:
        return _first((candidates == op.algebra.best(candidates, 0)) | (candidates != candidates))

    def find(t: jax.Array, state: jax.Array, message: jax.Array) -> jax.Array:
        candidates, first = _column(op, message, moves, t, state)
        return jnp.maximum(first + choose(candidates), 0)

    end = jnp.where(is_possible, choose(last), -1)
    return score, _walked(chain, end, find, kept[:-1])


def _winner(
    op: ChainOpLike, count: int, t: jax.Array, state: jax.Array, winners: jax.Array
) -> jax.Array:
    """The state before, by the winners that were kept."""
    if op.band:
        found = lax.dynamic_index_in_dim(winners, state, keepdims=False)
        return jnp.maximum(state - (op.band - 1) + found, 0)
    # Among so few XLA CPU takes longer to index.
    is_own = jnp.arange(count, dtype=jnp.int32) == state
    return jnp.sum(jnp.where(is_own, winners, 0), dtype=jnp.int32)


def chosen(candidates: jax.Array, uniform: jax.Array) -> jax.Array:
    """The first candidate i with cumsum(w)[i] > uniform sum(w), where w are the weights."""
    weights = jnp.exp(candidates - finite_max(candidates))
    sums = jnp.cumsum(weights)
    greatest = jnp.max(jnp.where(weights > 0, jnp.arange(len(weights), dtype=jnp.int32), 0))
    # XLA adds in pairs: what has no weight may make a sum greater, or the last one less.
    return jnp.minimum(_first((sums > uniform * sums[-1]) & (weights > 0)), greatest)


def drawn(op: ChainOpLike, chain: Inputs) -> jax.Array:
    """The states of each sample."""
    score, messages, last = log_messages(op, chain)
    moves = ordered(op, chain.moves)

    def find(t: jax.Array, state: jax.Array, entry: State) -> jax.Array:
        message, uniform = entry
        candidates, first = _column(op, message, moves, t, state)
        return jnp.maximum(first + chosen(candidates, uniform), 0)

    def walk(uniforms: jax.Array) -> jax.Array:
        # The uniform of the last time that counts, or of the last one of all.
        end = -1 if chain.length is None else jnp.clip(chain.length - 1, 0, len(uniforms) - 1)
        state = jnp.where(abs(score) < jnp.inf, chosen(last, uniforms[end]), -1)
        return _walked(chain, state, find, (messages[:-1], uniforms[:-1]))

    return jax.vmap(walk)(chain.uniforms)


@functools.partial(jax.jit, static_argnums=0)
def along(op: ChainOpLike, chain: Inputs, states: jax.Array) -> jax.Array:
    """The product of the entries that each sequence of states uses; states of -1 use none."""
    times, chain = op.algebra.times, chain.of_states(op.algebra)
    one, count = jnp.asarray(op.algebra.one(chain.seen.dtype)), chain.seen.shape[0]
    before, after = states[..., :-1], states[..., 1:]
    time = lax.broadcasted_iota(jnp.int32, states.shape, states.ndim - 1)
    step = 0 if chain.is_shared else time[..., :-1]
    more = 0 if isinstance(count, int) else 1  # JAX takes no row of T - 1 for a symbolic T
    moves = jnp.pad(chain.moves, [(0, more), (0, 0), (0, 0)])
    moved = moves[step, after - before if op.band else before, after]

    def used(x: jax.Array, some: jax.Array) -> jax.Array:
        return jnp.where(some >= 0, x, one)

    first = states[..., :1]
    parts = [
        used(chain.initial[first], first),
        used(moved, after),
        used(chain.seen[time, states], states),
    ]
    entries = jnp.concatenate(parts, axis=-1)
    if not isinstance(count, int):
        start, entries = jnp.full(states.shape[:-1], one), jnp.moveaxis(entries, -1, 0)
        return lax.scan(lambda product, x: (times(product, x), None), start, entries)[0]
    rows = entries.reshape(-1, entries.shape[-1])
    return jax.vmap(lambda row: folded(times, row, one))(rows).reshape(states.shape[:-1])
