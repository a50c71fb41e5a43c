"""Sequences of chains with durations: their scores, and samples."""

from __future__ import annotations

import functools

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
def along(op: DurationsOpLike, chain: Segmented, states: jax.Array) -> tuple[jax.Array, jax.Array]:
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
    found, fits = along(op, chain, jnp.where(live & there, states, -1))
    possible = fits & jnp.all(there) & (chain.size >= 1) & (chain.size <= states.shape[0])
    return jnp.where(possible, found, jnp.asarray(op.algebra.zero(found.dtype)))


def drawn(op: DurationsOpLike, chain: Segmented) -> jax.Array:
    """The states of each sample, as `DurationsSamples` has them."""
    chain = cleaned(op, chain)
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
    is_known = abs(log_sum_exp_of(at_end)) < jnp.inf
    # Of starts: the score at the first time of a segment. Of gains: what each later time adds.
    earlier = jnp.full((longest - 1, states), -jnp.inf, seen.dtype)
    starts = jnp.concatenate([earlier, first.scores[:1], starts])
    gains = jnp.concatenate([jnp.zeros((longest, states), seen.dtype), gains])
    lasting = jnp.stack([chain.durations, tails(op, chain.durations)])

    def duration(t: jax.Array, state: jax.Array, uniform: jax.Array, is_end: jax.Array) -> State:
        """How many times a segment has before its last one, t."""
        shape = longest, 1
        begun, gained = (lax.dynamic_slice(x, (t, state), shape)[::-1, 0] for x in (starts, gains))
        later = jnp.cumsum(jnp.append(jnp.zeros(1, gained.dtype), gained[:-1]))
        return chosen(begun + later + lasting[is_end.astype(jnp.int32), state], uniform)

    def walk(uniforms: jax.Array) -> jax.Array:
        def back(at: State, given: State) -> tuple[State, jax.Array]:
            t, ended, pair = given
            state, left = at
            moves = chain.moves[0 if chain.own_moves is None else t - 1][:, state]
            before = chosen(ended + moves, pair[0])
            begun = before, duration(t - 1, before, pair[1], jnp.bool(False))
            moved = jax.tree.map(functools.partial(jnp.where, left == 0), begun, (state, left - 1))
            new = chain.where(t < chain.size, moved, at)
            return new, new[0]

        end = jnp.clip(jnp.asarray(chain.size, jnp.int32) - 1, 0, count - 1)
        state = chosen(at_end, uniforms[end, 0])
        at = state, duration(end, state, uniforms[end, 1], jnp.bool(True))
        given = 1 + jnp.arange(count - 1, dtype=jnp.int32), ends, uniforms[:-1]
        _, found = lax.scan(back, at, jax.tree.map(lambda x: jnp.flip(x, 0), given))
        found = jnp.append(jnp.flip(found), state)
        time = jnp.arange(count, dtype=jnp.int32)
        return jnp.where(is_known & (time < chain.size), found, -1)

    return jax.vmap(walk)(chain.uniforms)
