"""The score of all sequences and its derivatives, the expected uses: in one of three ways.

`by_logs`, here
    Found of logarithms: right for all scores.
`chain_scaled.by_scaled`
    Numbers, of which those of a time have one scale. For moves between all states.
`chain_exponents.by_exponents`
    Numbers that have an exponent each. For bands of up to `BAND` states in float32.

Where numbers are not known to be right, logarithms are taken.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from .chain_exponents import by_exponents
from .chain_inputs import ChainOpLike, Inputs, State, each_column
from .chain_messages import log_messages
from .chain_scaled import by_scaled
from .chain_uses import Found, Way, cleaned

BAND = 8
"""Bands of at most so many states are sums of so many vectors."""


def sums(op: ChainOpLike, chain: Inputs) -> tuple[jax.Array, ...]:
    """The score of all sequences, and if the op is detailed its derivatives.

    Args:
      op: what is asked.
      chain: its arrays, with columns if it has them.
    """
    bits = jnp.finfo(chain.seen.dtype).bits
    if bits < 32:  # in which counts of uses would stop growing
        initial, moves, seen = (x.astype(jnp.float32) for x in chain[:3])
        found = sums(op, chain._replace(initial=initial, moves=moves, seen=seen))
        return tuple(x.astype(chain.seen.dtype) for x in found)
    if not chain.is_shared:
        live = chain.live(1)[:, None, None]
        chain = chain._replace(moves=chain.where(live, chain.moves, 0))
    if op.curved or op.band > BAND or (op.band and bits > 32):
        return _outputs_by(op, chain, by_logs)[1]

    def careful(state: State) -> State:
        # They depend on the state, or XLA would compute what it can of them before the loop.
        initial, seen = (jnp.where(state[0], 0, x) for x in (chain.initial, chain.seen))
        return _outputs_by(op, chain._replace(initial=initial, seen=seen), by_logs)

    # A loop around the numbers would keep XLA CPU from computing all times at once: 2 to 3 times as
    # long for 8 states. Logarithms are in a loop and not in a cond, which under vmap would compute
    # them for all chains.
    state = _outputs_by(op, chain, by_exponents if op.band else by_scaled)
    return lax.while_loop(lambda state: ~state[0], careful, state)[1]


def _outputs_by(
    op: ChainOpLike, chain: Inputs, way: Way
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Whether what a way finds is known to be right, and the outputs of the op."""
    found = way(op, chain)
    if found.uses is None:
        return found.is_known, (found.score,)
    uses = found.uses
    if chain.columns is not None:  # of the states that share a column
        uses = uses._replace(states=each_column(uses.states, chain.columns, chain.seen))
    return found.is_known, (found.score, *(uses[i] for i in op.moving))


def by_logs(op: ChainOpLike, chain: Inputs) -> Found:
    """By sums of logarithms, which JAX differentiates."""
    chain = chain.of_states(op.algebra)
    if not op.detailed:
        return Found(jnp.bool(True), log_messages(op, chain).score)

    def score_of(initial: jax.Array, moves: jax.Array, seen: jax.Array) -> jax.Array:
        own = chain._replace(initial=initial, moves=moves, seen=seen)
        return log_messages(op, own).score

    score, back = jax.vjp(score_of, chain.initial, chain.moves, chain.seen)
    _, moves, states = back(jnp.ones_like(score))
    return Found(jnp.bool(True), score, cleaned(score, chain.size, moves, states))
