"""Sequences of chains with durations: their scores, and samples."""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .chain_inputs import State, relative
from .chain_messages import log_sum_exp_of
from .chain_paths import chosen
from .duration_inputs import DurationsOpLike, Segmented, cleaned, tails
from .duration_recurrence import first_ages, log_ended, log_step
from .vectors import folded


@functools.partial(jax.jit, static_argnums=0)
def product_of(
    op: DurationsOpLike, chain: Segmented, states: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The product of the entries that a sequence of states (T,) uses, and whether each segment is
    as long as a duration. States of -1, behind the length or all, use none.
    """
    chain = cleaned(op, chain)
    one = jnp.asarray(op.algebra.one(chain.seen.dtype))
    count, longest = states.shape[0], chain.durations.shape[1]
    time = jnp.arange(count, dtype=jnp.int32)
    live = states >= 0
    before = jnp.append(jnp.full(1, -1, states.dtype), states[:-1])
    begins = live & (states != before)
    # The next time at which something else begins.
    others = jnp.where(begins | ~live, time, count)
    after = lax.cummin(jnp.append(others[1:], jnp.int32(count)), reverse=True)
    last = after - time - 1
    is_end = after == jnp.sum(live, dtype=jnp.int32)
    place = jnp.clip(last, 0, longest - 1)
    whole, cut = (x[states, place] for x in (chain.durations, tails(op, chain.durations)))
    step = 0 if chain.own_moves is None else jnp.maximum(time - 1, 0)
    parts = [
        jnp.where(live[:1], chain.initial[states[:1]], one),
        jnp.where(begins, jnp.where(is_end, cut, whole), one),
        jnp.where(begins & (time > 0), chain.moves[step, before, states], one),
        jnp.where(live, chain.seen[time, states], one),
    ]
    fits = jnp.all(~begins | (last < longest))
    return folded(op.algebra.times, jnp.concatenate(parts), one), fits


@functools.partial(jax.jit, static_argnums=0)
def scored(op: DurationsOpLike, chain: Segmented, states: jax.Array) -> jax.Array:
    """The score of one sequence, int32 (T,). The semiring's zero if it is impossible."""
    live = jnp.arange(states.shape[0], dtype=jnp.int32) < chain.size
    there = ~live | ((states >= 0) & (states < chain.initial.shape[0]))
    found, fits = product_of(op, chain, jnp.where(live & there, states, -1))
    possible = fits & jnp.all(there) & (chain.size >= 1) & (chain.size <= states.shape[0])
    return jnp.where(possible, found, jnp.asarray(op.algebra.zero(found.dtype)))


class Kept(NamedTuple):
    """What samples need of the pass over the times.

    Attributes:
      ends: (T - 1, S), the scores of what ends at each time but the last.
      last: (S,), of what ends at the last one.
      starts: (D - 1 + T, S), of segments that begin at each time, with what is seen then; -inf
        before the first.
      gains: (D - 1 + T, S), what each later time adds to a segment.
    """

    ends: jax.Array
    last: jax.Array
    starts: jax.Array
    gains: jax.Array


def drawn(op: DurationsOpLike, chain: Segmented) -> jax.Array:
    """The states of each sample, as `DurationsSamples` has them."""
    chain = cleaned(op, chain)
    kept = _kept(op, chain)
    is_known = abs(log_sum_exp_of(kept.last)) < jnp.inf
    found = jax.vmap(functools.partial(_sampled, op, chain, kept))(chain.given[-1])
    live = is_known & (jnp.arange(found.shape[1], dtype=jnp.int32) < chain.size)
    return jnp.where(jnp.broadcast_to(live, found.shape), found, -1)


def _kept(op: DurationsOpLike, chain: Segmented) -> Kept:
    seen, _ = relative(chain.seen)
    count, (states, longest) = seen.shape[0], chain.durations.shape

    def step(ages: State, given: State) -> tuple[State, State]:
        new = log_step(op, chain, ages, given)
        ends, _ = log_ended(ages, chain.durations.T, given[0])
        return new, (ends, new.scores[0], given[2] - (new.taken - ages.taken))

    first = first_ages(chain, seen, has_entropy=False)
    given = 1 + jnp.arange(count - 1, dtype=jnp.int32), chain.own_moves, seen[1:]
    last, (ends, starts, gains) = lax.scan(step, first, given)
    at_end, _ = log_ended(last, tails(op, chain.durations).T, chain.size)
    before = jnp.full((longest - 1, states), -jnp.inf, seen.dtype)
    starts = jnp.concatenate([before, first.scores[:1], starts])
    gains = jnp.concatenate([jnp.zeros((longest, states), seen.dtype), gains])
    return Kept(ends, at_end, starts, gains)


def _sampled(op: DurationsOpLike, chain: Segmented, kept: Kept, uniforms: jax.Array) -> jax.Array:
    """The states of one sample, by uniforms (T, 2)."""
    count, longest = chain.seen.shape[0], chain.durations.shape[1]

    def more(t: jax.Array, state: jax.Array, lasting: jax.Array, uniform: jax.Array) -> jax.Array:
        """How many times a segment has before its last one, t."""
        window = (t, state), (longest, 1)
        starts, gains = (lax.dynamic_slice(x, *window)[::-1, 0] for x in (kept.starts, kept.gains))
        later = jnp.cumsum(jnp.append(jnp.zeros(1, gains.dtype), gains[:-1]))
        return chosen(starts + later + lasting[state], uniform)

    def back(at: State, given: State) -> tuple[State, jax.Array]:
        t, ends, pair = given
        state, left = at
        moves = chain.moves[0 if chain.own_moves is None else t - 1][:, state]
        before = chosen(ends + moves, pair[0])
        begun = before, more(t - 1, before, chain.durations, pair[1])
        moved = jax.tree.map(functools.partial(jnp.where, left == 0), begun, (state, left - 1))
        new = chain.where(t < chain.size, moved, at)
        return new, new[0]

    end = jnp.clip(jnp.asarray(chain.size, jnp.int32) - 1, 0, count - 1)
    state = chosen(kept.last, uniforms[end, 0])
    at = state, more(end, state, tails(op, chain.durations), uniforms[end, 1])
    given = 1 + jnp.arange(count - 1, dtype=jnp.int32), kept.ends, uniforms[:-1]
    _, found = lax.scan(back, at, jax.tree.map(lambda x: jnp.flip(x, 0), given))
    return jnp.append(jnp.flip(found), state)
