"""The entropy of the distribution of a chain's sequences, in two ways.

It is the score of all sequences less its expectation. Both may be so large that their difference
has no digits. The other way goes from time to time: it adds what is not known of a state if the
next one is. Each of these parts is at most log S.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import lax

from tenferro_jax.extension import apply

from .chain_inputs import Inputs, State, finite_max, relative
from .chain_messages import arriving, log_sum_exp_of, ordered
from .chain_op import ChainScore, SequenceScore
from .duration_inputs import Segmented
from .vectors import diagonals

TOLERANCE = 1e-3  # what rounding may cost, of 1 + entropy


def from_expectation(op: SequenceScore, chain: Inputs | Segmented) -> tuple[jax.Array, jax.Array]:
    """The score less its expectation, both without what all states of a time share; and whether
    rounding may cost more than TOLERANCE.

    Args:
      op: of the score under log_sum_exp, with its details; with durations, if not censored: the
        score of a segment that is cut off is no sum of entries.
      chain: its inputs.
    """
    chain = chain._replace(seen=relative(chain.seen)[0])
    score, *uses = apply(op, *chain.given)
    scores = chain.given[: len(uses)]
    # What is impossible has a use of rounding.
    used = [use * jnp.where(jnp.isfinite(x), x, 0) for use, x in zip(uses, scores, strict=True)]
    entropy = jnp.maximum(score - sum(map(jnp.sum, used)), 0)
    size = abs(score) + sum(jnp.sum(abs(x)) for x in used)
    rounding = float(jnp.finfo(score.dtype).eps) * size
    if isinstance(chain, Segmented):  # whose uses are exponentials of whole scores, in double
        rounding = rounding + float(jnp.finfo(jnp.float64).eps) * size**2
    is_exact = rounding <= TOLERANCE * (1 + entropy)  # not where the uses have no digits: NaN
    is_rounded = ~is_exact & (abs(score) < jnp.inf)
    return jnp.where(score == -jnp.inf, score, entropy), is_rounded


def by_times(op: ChainScore, chain: Inputs) -> jax.Array:
    """From time to time: the entropy of what leads to a state is that of the state before, and of
    what leads to that.

    Args:
      op: as `from_expectation` takes it.
      chain: its inputs, of a score that is finite.
    """
    chain = chain.of_states(op.algebra)
    moves = ordered(op, chain.moves)
    # A row for time 0, which nothing leads to: JAX has no scan of T - 1 steps for a symbolic T.
    each = None if chain.is_shared else jnp.pad(moves, [(1, 0), (0, 0), (0, 0)])

    def step(state: tuple[jax.Array, jax.Array], given: State) -> tuple[State, None]:
        message, unknown = state
        t, own, seen = given
        candidates = arriving(op, message, moves[0] if own is None else own)
        arrived = log_sum_exp_of(candidates)
        parts = weighted(candidates, arrived[None], _of_rows(op, unknown, candidates))
        added = jnp.sum(parts, 0)
        message = jnp.where(t == 0, chain.initial, arrived) + seen
        message = message - finite_max(message)
        new = message, jnp.where(t == 0, 0, added)
        return chain.where(t < chain.size, new, state), None

    times = jnp.arange(chain.seen.shape[0], dtype=jnp.int32)
    body = jax.checkpoint(step, prevent_cse=False)
    first = jnp.zeros_like(chain.initial), jnp.zeros_like(chain.initial)
    (last, unknown), _ = lax.scan(body, first, (times, each, relative(chain.seen)[0]))
    return jnp.sum(weighted(last, log_sum_exp_of(last), unknown))


def _of_rows(op: ChainScore, states: jax.Array, candidates: jax.Array) -> jax.Array:
    """A number of each state, for the candidates that come from it."""
    if not op.band:
        return states[:, None]
    whole = jnp.concatenate([jnp.zeros(op.band - 1, states.dtype), states])
    return diagonals(jnp.broadcast_to(whole, (op.band, len(whole))), candidates.shape[1])


def weighted(scores: jax.Array, total: jax.Array, unknown: jax.Array) -> jax.Array:
    """p (unknown - log p) of each, where log p is the score less the total."""
    parts = scores - jnp.where(abs(total) < jnp.inf, total, 0)
    chance = jnp.exp(parts)
    return chance * (unknown - jnp.where(chance > 0, parts, 0))
