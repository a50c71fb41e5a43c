"""Found over sequences by the numbers whose logarithms the scores are, scaled at each time by their
sum.

A number that is too small for the dtype may be all that is left some times later: in a model that
goes from left to right those of the first states fade. So possible moves and states have at least a
floor, which bounds the sum from above, and the sum is taken where the floors have no part in it:
where without them it is the same, or where the sequences that use one have no share.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .chain_inputs import ChainOpLike, Inputs, State, finite_max, relative
from .chain_uses import Found, cleaned


class Numbers(NamedTuple):
    """The numbers of a chain.

    Attributes:
      begin: (S,), of the first time, at most `high`.
      weights: (T - 1, S), of what is seen from the second time on, at most 1.
      moves: (R, S, S), of each step less `tops`, at most 1.
      raised: the same, at least the floor; 0 where a move is impossible.
      tops: (R,), the greatest logarithm of each step's moves.
      start: the greatest logarithm of the first time.
      taken: the sum of what was taken from what is seen at each time.
      floor: the least number of a state that is reached, and of a move that is possible.
      high: the number that the greatest one has at each time.
      least: the least normal number.
    """

    begin: jax.Array
    weights: jax.Array
    moves: jax.Array
    raised: jax.Array
    tops: jax.Array
    start: jax.Array
    taken: jax.Array
    floor: float
    high: float
    least: float


def by_scaled(op: ChainOpLike, chain: Inputs) -> Found:
    """The sums of numbers; known to be right where floors have no part in them."""
    chain = chain.of_states(op.algebra)
    numbers = _numbers(chain)
    return _with_uses(chain, numbers) if op.detailed else _score(chain, numbers)


def _numbers(chain: Inputs) -> Numbers:
    kind = jnp.finfo(chain.seen.dtype)
    # A number and a move at their floors have a product that is normal, so that 0 means that a
    # state is not reached; 2**28 are left for sums, and what lies ahead of a floor is not infinite.
    floor, high, least = 2.0 ** (kind.minexp // 2), 2.0 ** (kind.maxexp - 28), float(kind.tiny)
    seen, taken = relative(chain.seen)
    start = chain.initial + seen[0]
    tops = jnp.max(chain.moves, (1, 2))

    def number(logs: jax.Array) -> jax.Array:
        return jnp.where(logs == -jnp.inf, 0, jnp.maximum(jnp.exp(logs), least))

    moves = jnp.exp(chain.moves - tops[:, None, None])
    return Numbers(
        begin=number(start - finite_max(start)) * high,
        weights=number(seen[1:]),
        moves=moves,
        raised=jnp.where(chain.moves == -jnp.inf, 0, jnp.maximum(moves, floor)),
        tops=tops,
        start=jnp.max(start),
        taken=taken,
        floor=floor,
        high=high,
        least=least,
    )


def _product(rows: jax.Array, matrices: jax.Array) -> jax.Array:
    """Of each row (S,) with its matrix. XLA CPU calls a function for a matmul, which takes longer
    than a small one.
    """
    if isinstance(rows.shape[-1], int) and rows.shape[-1] < 32:
        return jnp.sum(rows[..., None] * matrices, -2)
    return jnp.einsum("bs,bsr->br", rows, matrices, precision=lax.Precision.HIGHEST)


class Forward(NamedTuple):
    """Of one or two bounds, the numbers of all times.

    Attributes:
      score: of the first bound.
      totals: (bounds,), of the last time.
      last: (bounds, S).
      scales: (T - 1,), by which the numbers of each time were multiplied.
      messages: (T - 1, S), of the first bound, from the second time on; or None.
    """

    score: jax.Array
    totals: jax.Array
    last: jax.Array
    scales: jax.Array
    messages: Any


def _forward(
    chain: Inputs,
    x: Numbers,
    first: jax.Array,
    moves: jax.Array,
    limits: jax.Array,
    low: jax.Array,
    keeps_messages: bool,
) -> Forward:
    """One pass over the times.

    Args:
      chain: its arrays.
      x: its numbers.
      first: (bounds, S), of the first time.
      moves: (R, bounds, S, S).
      limits: (bounds, 1): a number of a state up to this one becomes `low`.
      low: (bounds, 1): the number of such a state, if the state is reached.
      keeps_messages: whether `messages` are wanted.
    """
    states = first.shape[1]
    # A column of ones gives the sum of what was before.
    wide = jnp.append(moves, jnp.ones((*moves.shape[:-1], 1), first.dtype), -1)

    def step(before: jax.Array, given: State) -> tuple[jax.Array, State]:
        is_live, weight, own = given
        found = _product(before, wide[0] if own is None else own)
        arrived, total = found[:, :states], found[0, -1]
        scale = x.high / jnp.maximum(total, 1)
        new = arrived * scale * weight[None]
        is_reached = (arrived > 0) & (weight > 0)[None]
        new = jnp.where(new <= limits, jnp.where(is_reached, low, 0), new)
        new = chain.where(is_live, new, before)
        return new, (chain.where(is_live, scale, 1), new[0] if keeps_messages else None)

    live = chain.live(1)
    given = live, x.weights, None if chain.is_shared else wide
    last, (scales, messages) = lax.scan(step, first, given)
    totals = jnp.sum(last, 1)
    moved = jnp.sum(chain.where(live, x.tops, 0) - jnp.log(scales))
    score = jnp.log(totals[0] / x.high) + moved
    score = jnp.where(chain.size < 1, -jnp.inf, score + x.start + x.taken)
    return Forward(score=score, totals=totals, last=last, scales=scales, messages=messages)


def _score(chain: Inputs, x: Numbers) -> Found:
    """The score between two bounds: without floors, and without what was raised to the least
    number; and with floors.
    """
    dtype = x.begin.dtype
    moves = jnp.stack([jnp.where(x.moves > x.floor, x.moves, 0), x.raised], 1)
    limits = jnp.asarray([[2 * x.high * x.least], [x.floor]], dtype)
    low = jnp.asarray([[0], [x.floor]], dtype)
    first = jnp.where(x.begin[None] <= limits, 0, x.begin[None])
    found = _forward(chain, x, first, moves, limits, low, keeps_messages=False)
    below, above = found.totals
    is_same = (below >= 1) & (above <= below * (1 + 16 * float(jnp.finfo(dtype).eps)))
    return Found((chain.size < 1) | (above == 0) | is_same, found.score)


def _with_uses(chain: Inputs, x: Numbers) -> Found:
    """The score with floors, and its derivatives by the way back, which tells the share of the
    sequences that use a floor.
    """
    limit = jnp.full((1, 1), x.floor, x.begin.dtype)
    first = jnp.where(x.begin <= x.floor, 0, x.begin)
    moves = x.raised[:, None]
    found = _forward(chain, x, first[None], moves, limit, limit, keeps_messages=True)
    messages = jnp.append(first[None], found.messages, 0)
    factors = found.scales[:, None] * x.weights

    def back(after: jax.Array, given: State) -> tuple[jax.Array, jax.Array]:
        live, factor, message, own = given
        matrix = x.raised[0] if own is None else own
        ahead = _product((after * factor)[None], matrix.mT[None])[0]
        # What lies ahead of a state that is not reached may be too large for the dtype.
        before = chain.where(live, jnp.where(message > 0, ahead, 0), after)
        return before, before

    live = chain.live(1)
    given = live, factors, messages[:-1], None if chain.is_shared else x.raised
    end = jnp.where(found.last[0] > 0, 1 / (8 * x.floor) / found.totals, 0)
    _, earlier = lax.scan(back, end, given, reverse=True)
    ahead = jnp.append(earlier, end[None], 0)

    shares = messages * ahead
    whole = jnp.sum(shares, 1, keepdims=True)
    shares = shares / whole
    arriving = chain.where(live[:, None], ahead[1:] * factors, 0)
    term = "ts,tr->sr" if chain.is_shared else "ts,tr->tsr"
    pairs = jnp.einsum(term, messages[:-1] / whole[1:], arriving, precision=lax.Precision.HIGHEST)
    pairs = jnp.where(x.raised > 0, x.raised * pairs.reshape(x.raised.shape), 0)

    is_low_first = first <= x.high * x.least
    is_low = (messages[1:] <= x.floor) | (x.weights <= x.least)
    lost_shares = jnp.where(jnp.append(is_low_first[None], is_low, 0), shares, 0)
    lost_pairs = jnp.where(x.raised <= x.floor, pairs, 0)
    lost = jnp.sum(lost_pairs) + jnp.sum(lost_shares)
    is_sound = (lost <= float(jnp.finfo(x.begin.dtype).eps)) & (jnp.max(whole) < jnp.inf)
    total = found.totals[0]
    is_known = (chain.size < 1) | (total == 0) | ((total >= 1) & is_sound)
    uses = cleaned(found.score, chain.size, pairs - lost_pairs, shares - lost_shares)
    return Found(is_known, found.score, uses)
