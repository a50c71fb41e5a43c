"""Chains with durations from the first time to the last, in standard ops.

The state of the loop has for each age and state the score of all that leads to a segment which has
lasted so long, without that of its duration: (D, S). At the next time each is one older, and new
segments begin. D S numbers are read at each time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..steps.kernels.selection import together
from .chain_entropy import weighted
from .chain_inputs import State, finite_max, relative
from .chain_k_best import heads_of
from .chain_messages import log_sum_exp_of, over_times
from .duration_inputs import DurationsOpLike, Segmented, cleaned, tails

# --- the best sequences ---------------------------------------------------------------------------


class Winners(NamedTuple):
    """Of the segments of each state that end at a time: how long the best one lasts, (S,), int32;
    with k, of each of its k best (S, k).

    Attributes:
      last: the number of the duration, from 0.
      rank: with k, which of the starts then; else zeros.
      before: of the segments that begin at the next time the state before.
      rank_before: with k, which of the ends of that state.
    """

    last: jax.Array
    rank: jax.Array
    before: jax.Array
    rank_before: jax.Array


def best(op: DurationsOpLike, chain: Segmented) -> tuple[jax.Array, jax.Array]:
    """The score and the states of the best sequence, or with k of the k best ones."""
    chain = cleaned(op, chain)
    algebra, dtype = op.algebra, chain.seen.dtype
    zero, one = jnp.asarray(algebra.zero(dtype)), jnp.asarray(algebra.one(dtype))
    states, longest = chain.durations.shape
    first = algebra.times(chain.initial, chain.seen[0])[None, :, None]
    ages = jnp.full((longest, states, max(op.k, 1)), zero).at[:1, :, :1].set(first)
    step = functools.partial(_best_step, op, chain)
    ages, kept, taken = over_times(algebra, chain, step, ages)
    ends, last, rank = _ended(op, ages, tails(op, chain.durations).T, chain.size)
    score, *end = (x[0] for x in _started(op, ends, jnp.full((states, 1), one)))
    score = jnp.where(chain.size >= 1, algebra.times(score, taken), zero)
    found = jax.vmap(functools.partial(_gone_back, chain, kept, last, rank))(*end)
    time = jnp.arange(found.shape[1], dtype=jnp.int32)
    is_there = (score != zero)[:, None] & (time < chain.size)[None]
    found = jnp.where(is_there, found, -1)
    return (score, found) if op.k else (score[0], found[0])


def _best_step(
    op: DurationsOpLike, chain: Segmented, ages: jax.Array, given: State
) -> tuple[jax.Array, Winners]:
    """The next ages (D, S, k), by (time, its moves or None for the shared ones, what is seen)."""
    t, own, seen = given
    ends, last, rank = _ended(op, ages, chain.durations.T, t)
    one = jnp.asarray(op.algebra.one(ages.dtype))
    live = t < chain.size
    moves = chain.where(live, chain.moves[0] if own is None else own, one)
    starts, before, rank_before = _started(op, ends, moves)
    new = jnp.concatenate([starts[None], ages[:-1]])
    new = op.algebra.times(new, jnp.broadcast_to(seen[None, :, None], new.shape))
    return chain.where(live, new, ages), Winners(last, rank, before, rank_before)


def _ended(
    op: DurationsOpLike, ages: jax.Array, lasting: jax.Array, t: jax.Array | int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best ends (S, k) of ages (D, S, k) that began before t, with the numbers of their
    durations and their ranks among the starts.
    """
    zero = jnp.asarray(op.algebra.zero(ages.dtype))
    number = lax.broadcasted_iota(jnp.int32, lasting.shape, 0)
    lasting = jnp.where(number < t, lasting, zero)
    if not op.k:
        candidates = op.algebra.times(ages[..., 0], lasting)
        candidates = jnp.where(number < t, candidates, zero)
        value, winner = together(op.algebra, candidates, 0)
        return value[:, None], winner[:, None], jnp.zeros_like(winner)[:, None]

    def of_state(lists: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        found = heads_of(op.k, op.algebra, lists, weights[:, None])
        return found.values[:, 0], found.rows[:, 0], found.ranks[:, 0]

    return jax.vmap(of_state, in_axes=(1, 1))(ages, lasting)


def _started(
    op: DurationsOpLike, ends: jax.Array, moves: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The best starts (N, k) by moves (S, N) from ends (S, k), with the states before and ranks."""
    if op.k:
        found = heads_of(op.k, op.algebra, ends, moves)
        return found.values.T, found.rows.T, found.ranks.T
    candidates = op.algebra.times(jnp.broadcast_to(ends, moves.shape), moves)
    value, winner = together(op.algebra, candidates, 0)
    return value[:, None], winner[:, None], jnp.zeros_like(winner)[:, None]


def _gone_back(
    chain: Segmented,
    kept: Winners,
    last: jax.Array,
    rank: jax.Array,
    state: jax.Array,
    rank_of_state: jax.Array,
) -> jax.Array:
    """The states from first to last, int32 (T,), found from the last to the first.

    Args:
      chain: its arrays.
      kept: of the ends at each time but the last.
      last, rank: as `Winners` has them, of the last time.
      state, rank_of_state: where the sequence ends.
    """

    def back(at: State, given: State) -> tuple[State, jax.Array]:
        t, winners = given
        state, rank, left = at
        previous = winners.before[state, rank]
        rank_before = winners.rank_before[state, rank]
        begun = previous, winners.rank[previous, rank_before], winners.last[previous, rank_before]
        stays = state, rank, left - 1
        moved = jax.tree.map(lambda new, old: jnp.where(left == 0, new, old), begun, stays)
        new = chain.where(t < chain.size, moved, at)
        return new, new[0]

    # Over descending times instead of reverse=True, because converters of jaxprs support only
    # forward scans.
    count = kept.last.shape[0]
    given = 1 + jnp.arange(count, dtype=jnp.int32), kept
    given = jax.tree.map(lambda x: jnp.flip(x, 0), given)
    first = state, rank[state, rank_of_state], last[state, rank_of_state]
    _, states = lax.scan(back, first, given)
    return jnp.append(jnp.flip(states), state)


# --- sums -----------------------------------------------------------------------------------------


class Ages(NamedTuple):
    """The state of a loop of sums.

    Attributes:
      scores: (D, S), of each age and state, less `taken`.
      unknown: (D, S), the entropy of what leads to each; None where it is not asked for.
      taken: a number that was taken from all.
    """

    scores: jax.Array
    unknown: jax.Array | None
    taken: jax.Array


def sums(op: DurationsOpLike, chain: Segmented) -> tuple[jax.Array, ...]:
    """The score of all sequences, and if the op is detailed its derivatives by initial, moves,
    durations and what is seen.
    """
    dtype = chain.seen.dtype
    if jnp.finfo(dtype).bits < 32:  # in which counts of uses would stop growing
        found = sums(op, chain._replace(**_wide(chain)))
        return tuple(x.astype(dtype) for x in found)
    if not op.detailed:
        return (_score(op, chain),)

    def score_of(*scores: jax.Array) -> jax.Array:
        given = dict(zip(Segmented._fields, scores, strict=False))
        return _score(op, chain._replace(**given))

    score, back = jax.vjp(score_of, *chain[:4])
    uses = back(jnp.ones_like(score))
    wrong = jnp.where(score == -jnp.inf, 0, jnp.nan).astype(score.dtype)

    def clean(x: jax.Array, first: int | None) -> jax.Array:
        x = jnp.where(abs(score) < jnp.inf, x, wrong)
        if first is None:
            return x
        time = first + lax.broadcasted_iota(jnp.int32, x.shape, 0)
        return jnp.where(time < chain.size, x, 0)

    firsts = None, 1, None, 0
    return score, *(clean(x, first) for x, first in zip(uses, firsts, strict=True))


def _wide(chain: Segmented) -> dict[str, jax.Array]:
    """The scores in float32."""
    return {name: getattr(chain, name).astype(jnp.float32) for name in Segmented._fields[:4]}


def _score(op: DurationsOpLike, chain: Segmented) -> jax.Array:
    """The score of all sequences."""
    return summed(op, chain, has_entropy=False)[0]


def entropy(op: DurationsOpLike, chain: Segmented) -> jax.Array:
    """The entropy of the distribution of sequences: from time to time what is not known of a
    segment's end if the next state is, and of what leads to that. -inf if no sequence is possible.
    """
    dtype = chain.seen.dtype
    if jnp.finfo(dtype).bits < 32:
        return entropy(op, chain._replace(**_wide(chain))).astype(dtype)
    score, found = summed(op, chain, has_entropy=True)
    found = jnp.where(abs(score) < jnp.inf, jnp.maximum(found, 0), jnp.nan)
    return jnp.where(score == -jnp.inf, score, found)


def summed(op: DurationsOpLike, chain: Segmented, has_entropy: bool) -> tuple[jax.Array, jax.Array]:
    """The score of all sequences, and their entropy, or 0."""
    chain = cleaned(op, chain)
    seen, tops = relative(chain.seen)
    step = functools.partial(log_step, op, chain)
    last = _over_blocks(chain._replace(seen=seen), step, first_ages(chain, seen, has_entropy))
    ends = log_ended(last, tails(op, chain.durations).T, chain.size)
    score = log_sum_exp_of(ends[0])
    unknown = jnp.zeros_like(score)
    if has_entropy:
        unknown = jnp.sum(weighted(ends[0], score, ends[1]))
    score = jnp.where(chain.size >= 1, score + last.taken + tops, -jnp.inf)
    return score, unknown


def first_ages(chain: Segmented, seen: jax.Array, has_entropy: bool) -> Ages:
    """The ages at the first time."""
    scores = jnp.full(chain.durations.T.shape, -jnp.inf, seen.dtype)
    scores = scores.at[0].set(chain.initial + seen[0])
    unknown = jnp.zeros_like(scores) if has_entropy else None
    return Ages(scores, unknown, jnp.zeros((), seen.dtype))


def log_ended(ages: Ages, lasting: jax.Array, t: jax.Array | int) -> tuple[jax.Array, Any]:
    """The scores of what ends (S,), of segments that began before t, and its entropy or None."""
    number = lax.broadcasted_iota(jnp.int32, lasting.shape, 0)
    candidates = jnp.where(number < t, ages.scores + lasting, -jnp.inf)
    ends = log_sum_exp_of(candidates)
    if ages.unknown is None:
        return ends, None
    return ends, jnp.sum(weighted(candidates, ends[None], ages.unknown), 0)


def log_step(op: DurationsOpLike, chain: Segmented, ages: Ages, given: State) -> Ages:
    """The next ages, by (time, its moves or None for the shared ones, what is seen)."""
    t, own, seen = given
    ends, unknown = log_ended(ages, chain.durations.T, t)
    candidates = ends[:, None] + (chain.moves[0] if own is None else own)
    starts = log_sum_exp_of(candidates)
    # Of derivatives that are differentiated the tangents too would add up from time to time.
    shift = finite_max(ends, still=not op.curved)[0]
    scores = jnp.concatenate([starts[None], ages.scores[:-1]]) + (seen - shift)[None]
    if ages.unknown is not None:
        begun = jnp.sum(weighted(candidates, starts[None], unknown[:, None]), 0)
        unknown = jnp.concatenate([begun[None], ages.unknown[:-1]])
    return chain.where(t < chain.size, Ages(scores, unknown, ages.taken + shift), ages)


def _over_blocks(chain: Segmented, step: Callable[[Ages, State], Ages], first: Ages) -> Ages:
    """The state after all times: in blocks, of which derivatives keep the first state alone, and
    compute the others again.
    """
    count = chain.seen.shape[0] - 1
    given = 1 + jnp.arange(count, dtype=jnp.int32), chain.own_moves, chain.seen[1:]
    size = max(1, math.isqrt(count))

    def one(ages: Ages, given: State) -> tuple[Ages, None]:
        return step(ages, given), None

    one = jax.checkpoint(one, prevent_cse=False)

    def block(ages: Ages, given: State) -> tuple[Ages, None]:
        return lax.scan(one, ages, given)[0], None

    whole = count // size * size
    blocks = jax.tree.map(lambda x: x[:whole].reshape(-1, size, *x.shape[1:]), given)
    ages, _ = lax.scan(jax.checkpoint(block, prevent_cse=False), first, blocks)
    rest = jax.tree.map(lambda x: x[whole:], given)
    return block(ages, rest)[0]
