"""The arguments of a `Chain`, checked, and made to the inputs of its op."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import ShapeError
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, require_integers

from ..arguments import narrow, one_dtype
from ..native.library import is_on_host
from ..semirings.registered import SemiringKey
from ..semirings.semiring import Semiring
from ..semirings.shipped import LogSumExp
from .chain_constants import are_small, without_shared
from .chain_inputs import Inputs, each_state
from .chain_op import ChainScore
from .leading_axes import lead_of, mapped

INTEGERS = "lengths", "columns"


class Checked(NamedTuple):
    """A chain as its op takes it.

    Attributes:
      op: of its score, without details.
      inputs: with leading axes; final scores are part of what is seen.
      shared: under log_sum_exp a number that was taken from all scores, (...); or None.
    """

    op: ChainScore
    inputs: Inputs
    shared: jax.Array | None


def checked(
    where: str,
    semiring: Semiring,
    given: Mapping[str, ArrayLike],
    is_banded: bool,
    takes_shared: bool = True,
) -> Checked:
    """The arguments of a chain.

    Args:
      where: for errors.
      semiring: under which its scores are added.
      given: what `Chain` has under these names: initial, transition, emission, and of final,
        lengths and columns those that it has.
      is_banded: whether the transition is a band's.
      takes_shared: whether a number is taken from all scores.

    Raises:
      ShapeError, DTypeError: the arrays do not fit.
    """
    arrays = {name: as_array(x, f"{where}, {name}") for name, x in given.items()}
    for name in INTEGERS:
        if name in arrays:
            require_integers(f"{where}, {name}", arrays[name])
    scores = [name for name in arrays if name not in INTEGERS]
    one_dtype(where, semiring, [arrays[n].dtype for n in scores], [given[n] for n in scores])
    moves = arrays["transition"]
    if moves.ndim == 2:
        moves = moves.reshape(1, *moves.shape)
    _require_shapes(where, arrays, moves, is_banded)
    steps, rows, into = moves.shape[-3:]
    if steps == 0:  # of one time: the op needs a matrix
        moves = jnp.zeros((*moves.shape[:-3], 1, rows, into), moves.dtype)
    integers = {name: narrow(x) for name, x in arrays.items() if name in INTEGERS}
    inputs = Inputs(
        initial=arrays["initial"],
        moves=moves,
        seen=arrays["emission"],
        length=integers.get("lengths"),
        columns=integers.get("columns"),
    )
    op = ChainScore(
        semiring=SemiringKey.of(semiring),
        band=rows if is_banded else 0,
        has_length="lengths" in arrays,
        has_columns="columns" in arrays,
    )
    final = arrays.get("final")
    if final is None:
        lead_of(where, inputs.given, op.ranks)
    else:
        lead_of(where, [*inputs.given, final], [*op.ranks, 1])
    shared = None
    if takes_shared and semiring == LogSumExp() and not are_small(inputs, final):
        inputs, final, shared = _without_shared(inputs, final, is_banded)
    if final is None:
        return Checked(op, inputs, shared)
    if inputs.columns is not None:
        seen = mapped(where, each_state, [inputs.seen, inputs.columns], 2, 1)
        inputs = inputs._replace(seen=seen, columns=None)
        op = dataclasses.replace(op, has_columns=False)
    seen = on_automatic_axes(_ended)(inputs.seen, final, inputs.length, semiring)
    return Checked(op, inputs._replace(seen=seen), shared)


def _require_shapes(
    where: str, arrays: Mapping[str, jax.Array], moves: jax.Array, is_banded: bool
) -> None:
    """A typed error if the sizes of a chain's arrays do not fit."""
    seen, columns = arrays["emission"], arrays.get("columns")
    count, states = seen.shape[-2:] if seen.ndim > 1 else (0, 0)
    if columns is not None:
        states = states and (*columns.shape, 0)[columns.ndim - 1]
    steps, rows, into = moves.shape[-3:] if moves.ndim > 2 else (0, 0, 0)
    ends = [arrays[name] for name in ("initial", "final") if name in arrays]
    if (
        0 not in (count, states)
        and all(x.shape[-1:] == (states,) for x in ends)
        and into == states
        and (1 <= rows <= states if is_banded else rows == states)
        and steps in (1, count - 1)
    ):
        return
    needed = "(S, S) or (..., R, S, S)"
    if is_banded:
        needed = "(K, S), K from 1 to S, or (..., R, K, S)"
    prefix = "log_" if where == "viterbi" else ""
    shapes = [
        f"{'' if name in INTEGERS else prefix}{name} of shape {np.shape(x)}"
        for name, x in arrays.items()
    ]
    raise ShapeError(
        where=where,
        given=", ".join(shapes),
        needed=f"{prefix}initial (..., S), {prefix}transition {needed}, {prefix}emission "
        f"(..., T, S), final (..., S); S and T at least 1, R 1 or T - 1; with columns "
        f"(..., S) an emission (..., T, C)",
        fix=_advice(arrays, moves, is_banded),
    )


def _without_shared(
    inputs: Inputs, final: jax.Array | None, is_banded: bool
) -> tuple[Inputs, jax.Array | None, jax.Array]:
    """`without_shared`; of arrays on the host in NumPy, where nothing is compiled."""
    run: Any = functools.partial(without_shared, is_banded=is_banded)
    given = inputs, final
    if all(map(is_on_host, jax.tree.leaves(given))):
        given = jax.tree.map(np.asarray, given)
    else:
        run = on_automatic_axes(run)
    with jax.numpy_rank_promotion("allow"):  # leading axes broadcast
        return run(*given)


def _advice(arrays: Mapping[str, jax.Array], moves: jax.Array, is_banded: bool) -> str:
    """What to do where the shapes of initial, transition and emission do not fit."""
    given = arrays["initial"], moves, arrays["emission"]
    initial, transition, emission = ((0, 0, *x.shape) for x in given)
    states, rows = initial[-1], transition[-2]
    if emission[-2] == states == transition[-1] != emission[-1] and "columns" not in arrays:
        return "Transpose the emission: it has a row for each time."
    if not is_banded and rows < states == transition[-1]:
        return "Pass banded=True if the transition has a row for each step of a band."
    return "For a batch of transitions give them the axis of R, of size 1."


def _ended(
    seen: jax.Array, final: jax.Array, length: jax.Array | None, semiring: Semiring
) -> jax.Array:
    """What is seen with the scores of last states."""
    count, last = seen.shape[-2], final[..., None, :]
    end = jnp.int32(count) if length is None else length
    time = jnp.arange(count, dtype=jnp.int32).reshape(*(1,) * end.ndim, count, 1)
    ends = time == end[..., None, None] - 1
    shape = jnp.broadcast_shapes(seen.shape, last.shape, ends.shape)
    ends, seen, last = (jnp.broadcast_to(x, shape) for x in (ends, seen, last))
    return jnp.where(ends, semiring.times(seen, last), seen)
