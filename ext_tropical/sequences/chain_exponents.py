"""Found over sequences by numbers that have an exponent each, for bands in float32.

Of a text in frames the states that matter in the end may have e**-1000 of the sum before: so the
number of each state has an exponent of its own. Float32 alone: TPUs have no access to the bits of
float64.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from .chain_inputs import ChainOpLike, Inputs, State, each_state, finite_max, relative
from .chain_uses import Found, Uses, cleaned

NONE = -(2**29)
"""The exponent of 0; a number with a lesser exponent becomes 0."""

LEAST = -(2**26)
"""A score that is greater is that of a number which no product of a chain makes 0."""


class Number(NamedTuple):
    """digits times 2 to the exponents.

    Attributes:
      digits: float32, from 1 to 4, or 0.
      exponents: int32.
    """

    digits: jax.Array
    exponents: jax.Array

    def times(self, other: Number) -> Number:
        """The product."""
        return Number(self.digits * other.digits, self.exponents + other.exponents)

    def moved(self, by: int) -> Number:
        """The entries so many places on, with 0 behind them."""
        width = [(by, -by, 0)]
        digits = lax.pad(self.digits, jnp.float32(0), width)
        return Number(digits, lax.pad(self.exponents, jnp.int32(NONE), width))


def number_of(logs: jax.Array) -> Number:
    """The number of each logarithm, which is at most about 0; below -9e7 the number is 0."""
    exponents = jnp.floor(logs / math.log(2))
    is_none = exponents < -(2**27)
    high = 355 / 512  # of log 2, whose product with an exponent is exact
    digits = jnp.exp(logs - exponents * high - exponents * (math.log(2) - high))
    exponents = jnp.where(is_none, NONE, exponents).astype(jnp.int32)
    return Number(jnp.where(is_none, 0, digits), exponents)


def _power(exponents: jax.Array) -> jax.Array:
    """2 to the exponents, at most 1."""
    return lax.bitcast_convert_type((jnp.clip(exponents, -127, 0) + 127) << 23, jnp.float32)


def sum_of(numbers: Sequence[Number]) -> Number:
    """The sum."""
    most = functools.reduce(jnp.maximum, (x.exponents for x in numbers))
    terms = (x.digits * _power(x.exponents - most) for x in numbers)
    total = functools.reduce(jnp.add, terms)
    bits = lax.bitcast_convert_type(total, jnp.int32)
    digits = lax.bitcast_convert_type((bits & 0x7FFFFF) | 0x3F800000, jnp.float32)
    is_none = (most < NONE) | (total == 0)
    digits = jnp.where(total >= 0, jnp.where(is_none, 0, digits), total)  # or NaN
    return Number(digits, jnp.where(is_none, NONE, most + (bits >> 23) - 127))


def by_exponents(op: ChainOpLike, chain: Inputs) -> Found:
    """The sums of numbers. Known to be right where no number that counts has become 0: none is so
    small, or none of those counts beside the sum.
    """
    chain, taken = _without_tops(chain)
    last, messages = _forward(chain)
    most = jnp.max(last.exponents)
    total = jnp.sum(last.digits * _power(last.exponents - most))
    score = jnp.log(total) + most.astype(total.dtype) * math.log(2)
    outside = (chain.size < 1) | (chain.size > chain.seen.shape[0])
    is_known = (_size(chain) < -LEAST) | (score > LEAST) | outside
    score = jnp.where(outside, -jnp.inf, score + taken)
    if not op.detailed:
        return Found(is_known, score)
    return Found(is_known, score, _uses(chain, score, last, messages, most, total))


def _without_tops(chain: Inputs) -> tuple[Inputs, jax.Array]:
    """A chain whose logarithms are at most 0: from those of initial, of the moves of a step and of
    what is seen at a time the greatest is taken away; and the sum of these.
    """
    live = chain.live()
    row = lax.broadcasted_iota(jnp.int32, chain.moves.shape, 1)
    column = lax.broadcasted_iota(jnp.int32, chain.moves.shape, 2)
    moves = jnp.where(row <= column, chain.moves, -jnp.inf)
    start, top = finite_max(chain.initial), finite_max(moves, (1, 2))
    seen, taken = relative(chain.where(live[:, None], chain.seen, 0))
    tops = jnp.broadcast_to(top[:, 0, 0], seen.shape[0] - 1)
    taken += start[0] + jnp.sum(chain.where(live[1:], tops, 0))
    return chain._replace(initial=chain.initial - start, moves=moves - top, seen=seen), taken


def _size(chain: Inputs) -> jax.Array:
    """How far from 0 the logarithm of a product of numbers may be."""
    initial, moves, seen = (jnp.max(jnp.where(x == -jnp.inf, 0, abs(x))) for x in chain[:3])
    times = jnp.sum(chain.live().astype(chain.seen.dtype))
    return initial + (moves + seen + 4) * times


def _diagonals(moves: jax.Array) -> list[Number]:
    """The numbers of each diagonal of a band (K, S)."""
    return [Number(*each) for each in zip(*number_of(moves), strict=True)]


def _states(chain: Inputs, seen: jax.Array) -> Number:
    """The number of each state, of what is seen at one time."""
    found = number_of(seen)
    if chain.columns is None:
        return found
    digits = each_state(found.digits[None], chain.columns)[0]
    return Number(digits, jnp.take(found.exponents, chain.columns, mode="clip"))


def _each_time(chain: Inputs) -> State:
    """Of each time but the first: whether it counts, what is seen, and moves of its own or None."""
    return chain.live()[1:], chain.seen[1:], chain.own_moves


def _forward(chain: Inputs) -> tuple[Number, Number]:
    """The message of the last time, and those of the times before it."""
    shared = _diagonals(chain.moves[0])

    def step(before: Number, given: State) -> tuple[Number, Number]:
        is_live, seen, own = given
        diagonals = shared if own is None else _diagonals(own)
        ways = [before.moved(k).times(move) for k, move in enumerate(diagonals)]
        new = sum_of(ways).times(_states(chain, seen))
        return chain.where(is_live, new, before), before

    first = number_of(chain.initial).times(_states(chain, chain.seen[0]))
    return lax.scan(step, first, _each_time(chain))


def _uses(
    chain: Inputs,
    score: jax.Array,
    last: Number,
    messages: Number,
    most: jax.Array,
    total: jax.Array,
) -> Uses:
    """The expected uses, by the way back.

    Args:
      chain: as `_without_tops` gives it.
      score: of all sequences.
      last: the message of the last time.
      messages: those of the times before it.
      most: the greatest exponent of the last message.
      total: the sum of its numbers, in units of 2 to `most`.
    """
    shared = _diagonals(chain.moves[0])

    def share(x: Number, y: Number) -> jax.Array:
        return x.digits * y.digits * _power(x.exponents + y.exponents - most)

    def back(state: State, given: State) -> tuple[State, State]:
        after, uses = state
        (is_live, seen, own), message = given
        came = after.times(_states(chain, seen))
        diagonals = shared if own is None else _diagonals(own)
        ways = [came.times(move) for move in diagonals]
        new = chain.where(is_live, sum_of([way.moved(-k) for k, way in enumerate(ways)]), after)
        used = jnp.stack([share(way, message.moved(k)) for k, way in enumerate(ways)])
        used = chain.where(is_live, used, 0)
        if chain.is_shared:
            return (new, uses + used), (share(new, message), uses[:0])
        return (new, uses), (share(new, message), used)

    end = Number(jnp.full_like(last.digits, 1 / total), jnp.zeros_like(last.exponents))
    state = end, jnp.zeros_like(chain.moves[0])
    given = _each_time(chain), messages
    (_, uses), (shares, used) = lax.scan(back, state, given, reverse=True)
    shares = jnp.append(shares, share(end, last)[None], 0)
    shares = shares / jnp.sum(shares, 1, keepdims=True)
    return cleaned(score, chain.size, uses[None] if chain.is_shared else used, shares)
