"""Messages: for each time and state the score of all that leads there, of the best way or of all
ways together. The message at t includes what is seen at t.

What lies behind the length is replaced before it is used: NaN does not get into derivatives.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.shipped import MaxPlusSemiring, MinPlusSemiring
from ..steps.kernels.selection import UNROLLED_ENTRIES, one_by_one, together
from .chain_inputs import ChainOpLike, Inputs, State, Timed, finite_max, relative
from .vectors import diagonals

BLOCK = 1024
"""Times at most, over which best scores are added one to another."""

TWO_AT_ONCE = range(8, 17)
"""Of so many states two steps at once take XLA CPU 0.5 to 0.9 of the time; of more or fewer, and in
sums, up to five times as long.
"""


class Messages(NamedTuple):
    """What one pass over the times gives.

    Attributes:
      score: of the best sequence, or of all.
      kept: the messages of all times, (T, S); or winners, int32 (T - 1, S).
      last: the message at the length.
    """

    score: jax.Array
    kept: jax.Array
    last: jax.Array


def best_messages(op: ChainOpLike, chain: Inputs, with_winners: bool) -> Messages:
    """Messages of best ways. With winners, `kept` has the number of the first best candidate of
    each state in place of the messages.
    """
    algebra = op.algebra
    zero = jnp.asarray(algebra.zero(chain.seen.dtype))
    one = jnp.asarray(algebra.one(chain.seen.dtype))
    chain = chain._replace(moves=ordered(op, chain.moves))

    def step(message: jax.Array, given: State) -> tuple[jax.Array, jax.Array]:
        t, own, seen = given
        live = t < chain.size
        matrix = chain.where(live, chain.moves[0] if own is None else own, one)
        candidates = arriving(op, message, matrix)
        if not with_winners:
            arrived = algebra.best(candidates, 0)
            new = chain.where(live, algebra.times(arrived, seen), message)
            return new, new
        if op.band or candidates.shape[0] > UNROLLED_ENTRIES:
            arrived, winners = together(algebra, candidates, 0)
        else:
            arrived, winners = one_by_one(algebra, [*candidates])
        return chain.where(live, algebra.times(arrived, seen), message), winners

    first = algebra.times(chain.initial, chain.seen[0])
    takes_two = with_winners and not op.band and chain.moves.shape[1] in TWO_AT_ONCE
    last, kept, taken = over_times(algebra, chain, step, first, unroll=2 if takes_two else 1)
    score = algebra.times(algebra.best(last, 0), taken)
    if not with_winners:
        kept = jnp.append(first[None], kept, 0)
    return Messages(jnp.where(chain.size >= 1, score, zero), kept, last)


def log_messages(op: ChainOpLike, chain: Inputs) -> Messages:
    """Messages of all ways together, from each of which a number is taken at each time."""
    algebra = op.algebra
    zero = jnp.asarray(algebra.zero(chain.seen.dtype))
    one = jnp.asarray(algebra.one(chain.seen.dtype))
    seen, tops = relative(chain.seen)
    chain = chain._replace(seen=seen, moves=ordered(op, chain.moves))

    def step(message: jax.Array, given: State) -> tuple[jax.Array, State]:
        t, own, seen = given
        live = t < chain.size
        matrix = chain.where(live, chain.moves[0] if own is None else own, one)
        # Of derivatives that are differentiated the tangents too would add up from time to time.
        # The number is one of the message before: XLA CPU need not wait for it.
        shift = finite_max(message, still=not op.curved)[0]
        arrived = log_sum_exp_of(arriving(op, message, matrix)) - shift
        new = chain.where(live, algebra.times(arrived, seen), message - shift)
        return new, (new, shift)

    first = algebra.times(chain.initial, chain.seen[0])
    states = chain.initial.shape[0]
    if not isinstance(states, int) or states > 5:
        # Derivatives do not keep the candidates where they are many.
        step = jax.checkpoint(step, prevent_cse=False)
    last, (kept, shifts), _ = over_times(algebra, chain, step, first)
    score = log_sum_exp_of(last) + jnp.sum(shifts) + tops
    kept = jnp.append(first[None], kept, 0)
    return Messages(jnp.where(chain.size >= 1, score, zero), kept, last)


def over_times(
    algebra: Any,
    chain: Timed,
    step: Callable[[jax.Array, State], State],
    first: jax.Array,
    unroll: int = 1,
) -> tuple[jax.Array, State, jax.Array]:
    """`lax.scan` of a step over the times from 1 on. Where scores are sums, and the times more than
    one block, the best message is taken from all before each block, and the best of what is seen at
    its first time from all in it: in float32 they would lose their digits.

    Args:
      algebra: a semiring that selects, or log_sum_exp.
      chain: its arrays.
      step: of a message and (time, its moves or None for the shared ones, what is seen): the next
        message and what is kept.
      first: the message of time 0.
      unroll: of `lax.scan` in blocks.

    Returns:
      The last message; what is kept, (T - 1, ...); the product of what was taken away.
    """
    count = chain.seen.shape[0] - 1
    given = 1 + jnp.arange(count, dtype=jnp.int32), chain.own_moves, chain.seen[1:]
    if (
        type(algebra) not in (MaxPlusSemiring, MinPlusSemiring)
        or not jnp.issubdtype(first.dtype, jnp.floating)
        or not isinstance(count, int)  # JAX has no scan of so many blocks, which may be 0
        or count <= BLOCK
    ):
        last, kept = lax.scan(step, first, given)
        return last, kept, jnp.asarray(algebra.one(first.dtype))
    blocks = count // BLOCK + 1
    size, rest = count // blocks, count % blocks
    sign = -1 if algebra.reduction == "min" else 1

    def block(state: State, start: jax.Array) -> tuple[State, jax.Array]:
        message, kept = state
        times, own, seen = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), given)
        best = sign * finite_max(sign * message)
        offset = sign * finite_max(sign * seen[:1])
        message, new = lax.scan(step, message - best, (times, own, seen - offset), unroll=unroll)
        # In place, because XLA CPU takes longer to join blocks.
        kept = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, start, 0), kept, new)
        live = jnp.clip(chain.size - times[0], 0, size)
        return (message, kept), jnp.sum(best) + offset * live.astype(offset.dtype)

    def longer(x: jax.Array) -> jax.Array:
        return jnp.pad(x, [(0, count - rest)] + [(0, 0)] * (x.ndim - 1))

    # Times that fill no block come first, in a loop of their own: to replace what lies behind the
    # last time takes a fifth of XLA CPU's time.
    message, some = lax.scan(step, first, jax.tree.map(lambda x: x[:rest], given))
    kept = jax.tree.map(longer, some)
    starts = rest + size * jnp.arange(blocks, dtype=jnp.int32)
    (last, kept), taken = lax.scan(block, (message, kept), starts)
    return last, kept, jnp.sum(taken)


# --- one step -------------------------------------------------------------------------------------


def arriving(op: ChainOpLike, message: jax.Array, matrix: jax.Array) -> jax.Array:
    """The score of what leads to each state by each state before: an array (rows, S), rows in the
    order of the states before.
    """
    if not op.band:
        return op.algebra.times(jnp.broadcast_to(message[:, None], matrix.shape), matrix)
    whole = extended(op, message)
    known = diagonals(jnp.broadcast_to(whole, (op.band, len(whole))), matrix.shape[1])
    row = lax.broadcasted_iota(jnp.int32, matrix.shape, 0)
    column = lax.broadcasted_iota(jnp.int32, matrix.shape, 1)
    worst = jnp.asarray(op.algebra.identity(message.dtype))
    return jnp.where(row + column >= op.band - 1, op.algebra.times(known, matrix), worst)


def extended(op: ChainOpLike, message: jax.Array) -> jax.Array:
    """With K - 1 impossible states before the first one."""
    return jnp.concatenate([jnp.full(op.band - 1, op.algebra.zero(message.dtype)), message])


def ordered(op: ChainOpLike, moves: jax.Array) -> jax.Array:
    """The moves, rows of a band in the order of the states before."""
    return moves[:, ::-1] if op.band else moves


def log_sum_exp_of(x: jax.Array) -> jax.Array:
    """Over the first axis."""
    greatest = lax.stop_gradient(jnp.max(x, 0))
    total = jnp.sum(jnp.exp(x - finite_max(x, 0)), 0)
    # The sum is 0 or at least 1, to which this adds nothing. Of 0 derivatives are 0, not NaN.
    return greatest + jnp.log(total + float(jnp.finfo(x.dtype).eps) / 4)
