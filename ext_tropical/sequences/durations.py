"""The arguments of a `Chain` with durations, checked, and made to the inputs of its op."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import ShapeError
from tenferro_jax.shapes import as_array

from ..arguments import one_dtype, require_numbers
from ..semirings.registered import SemiringKey
from ..semirings.semiring import Semiring
from .chain_arguments import checked
from .chain_inputs import each_state
from .chain_k_best import dense
from .duration_inputs import Segmented
from .duration_op import DurationsScore
from .leading_axes import lead_of, mapped


class CheckedDurations(NamedTuple):
    """A chain with durations as its op takes it.

    Attributes:
      op: of its score, without details.
      inputs: with leading axes; final scores are part of what is seen, columns of the emission have
        become states, and a band all pairs of states.
      shared: None.
    """

    op: DurationsScore
    inputs: Segmented
    shared: None = None


def checked_durations(
    where: str, semiring: Semiring, given: Mapping[str, ArrayLike], is_banded: bool, censored: bool
) -> CheckedDurations:
    """The arguments of a chain with durations.

    Args:
      where: for errors.
      semiring: under which its scores are added.
      given: what `Chain` has under these names, with `durations`.
      is_banded: whether the transition is a band's.
      censored: whether the last segment may go on after the last time.

    Raises:
      ShapeError, DTypeError: the arrays do not fit.
      Unsupported: a symbolic size.
    """
    others = {name: x for name, x in given.items() if name != "durations"}
    plain, chain, _ = checked(where, semiring, others, is_banded, takes_shared=False)
    durations = jnp.asarray(as_array(given["durations"], f"{where}, durations"))
    dtypes = [chain.seen.dtype, durations.dtype]
    one_dtype(f"{where}, durations", semiring, dtypes, [given["emission"], given["durations"]])
    states = chain.initial.shape[-1]
    if durations.ndim < 2 or durations.shape[-2] != states or durations.shape[-1] == 0:
        raise ShapeError(
            where=f"{where}, durations",
            given=f"shape {durations.shape} for {states} states",
            needed="(S, D) or (..., S, D), D at least 1: [s, d - 1] of staying d times",
        )
    sizes = *chain.seen.shape[-2:], states, durations.shape[-1]
    require_numbers(f"{where}, durations", sizes, "numbers of times, states and durations")
    if chain.columns is not None:
        seen = mapped(where, each_state, [chain.seen, chain.columns], 2, 1)
        chain = chain._replace(seen=seen, columns=None)
    moves = chain.moves
    if is_banded:
        moves = mapped(where, functools.partial(_opened, semiring), [moves], 3)
    op = DurationsScore(SemiringKey.of(semiring), censored, plain.has_length)
    inputs = Segmented(
        initial=chain.initial,
        moves=moves,
        durations=durations,
        seen=chain.seen,
        length=chain.length,
    )
    lead_of(where, inputs.given, op.ranks)
    return CheckedDurations(op, inputs)


def _opened(semiring: Semiring, moves: jax.Array) -> jax.Array:
    """The moves (R, S, S) of a band (R, K, S)."""
    band, states = moves.shape[-2:]
    number = np.arange(states)
    apart = number - number[:, None]
    inside = np.broadcast_to((apart >= 0) & (apart < band), (len(moves), states, states))
    zero = jnp.asarray(semiring.zero(moves.dtype))
    return jnp.where(inside, dense(band, moves), zero)


def banded(moves: jax.Array, band: int) -> jax.Array:
    """The band (..., R, K, S) of moves (..., R, S, S); 0 where a state has none before it."""
    number = np.arange(moves.shape[-1])
    before = number - np.arange(band)[:, None]
    return jnp.where(before >= 0, moves[..., np.maximum(before, 0), number], 0)
