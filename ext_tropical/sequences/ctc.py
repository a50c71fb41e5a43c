"""Connectionist temporal classification: a text that was written in some of many frames, as a
chain.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, typed_call
from tenferro_jax.shapes import as_array, as_index, is_traced, shown

from ..arguments import STATIC, narrow, require_numbers
from .chain import Chain, partition
from .chain_inputs import each_state, finite_max
from .chain_op import ChainByEmission
from .leading_axes import mapped


@typed_call
def ctc_chain(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    logit_lengths: ArrayLike | None = None,
    label_lengths: ArrayLike | None = None,
    blank: int = 0,
) -> Chain:
    """All ways to write a text of L labels in T frames (Graves et al., 2006), as a `Chain` of
    2 L + 2 states and T + 1 times: state 2 i + 1 is label i, the even ones are blanks; behind the
    frames is the end, state 2 L + 1.

    Each frame has one state. An alignment begins in state 0 or 1. From a frame to the next one it
    stays, goes to the next state, or goes from a label to the next label if that is another one.
    Behind the last label and the last blank comes the end.

    Args:
      logits: (..., T, V), of each of V symbols in each frame; their softmax is taken. T is at least
        1.
      labels: integers (..., L), the symbols of the text, none of them the blank. L may be 0.
      logit_lengths: integers (...), how many frames count, from 0 to T; None for all. What is
        behind them has no influence.
      label_lengths: integers (...), how many labels count, from 0 to L; None for all.
      blank: the symbol that stands for no label, from 0 to V - 1.

    Returns:
      A Chain with the leading axes of the arguments, broadcast. Its `log_partition` is the log
      probability of the text, -inf if the frames are too few or a length is out of range, NaN if a
      label is the blank or no symbol; `best().states` the best alignment,
      of which the end is 1 more than twice the length of the text; `marginals().states`, of shape
      (..., T + 1, V + 1), the expected share of each symbol in each frame, V for the end.

    Raises:
      ShapeError, DTypeError: the arrays do not fit.
      InvalidConfig: blank is no symbol, or not an integer.
      Unsupported: a symbolic V or L.

    Example:
      >>> import jax.numpy as jnp
      >>> logits = 3.0 * jnp.eye(3)[jnp.array([1, 1, 0, 2])]
      >>> ctc_chain(logits, jnp.array([1, 2])).best().states.tolist()  # label 0 twice, blank, 1
      [1, 1, 2, 3, 5]
    """
    blank, arrays = _checked("ctc_chain", logits, labels, logit_lengths, label_lengths, blank)
    return _chain("ctc_chain", blank, jax.nn.log_softmax(arrays[0]), *arrays[1:])


def _checked(
    where: str,
    logits: ArrayLike,
    labels: ArrayLike,
    logit_lengths: ArrayLike | None,
    label_lengths: ArrayLike | None,
    blank: int,
) -> tuple[int, list[jax.Array]]:
    """The blank as an int, and the arrays."""
    scores = jnp.asarray(as_array(logits, f"{where}, logits"))
    text = jnp.asarray(as_array(labels, f"{where}, labels"))
    frames = _length(f"{where}, logit_lengths", logit_lengths)
    counts = _length(f"{where}, label_lengths", label_lengths)
    integers = [x for x in (text, frames, counts) if x is not None]
    are_integers = all(jnp.issubdtype(x.dtype, jnp.integer) for x in integers)
    if not jnp.issubdtype(scores.dtype, jnp.floating) or not are_integers:
        raise DTypeError(
            where=where,
            given=f"logits of {scores.dtype.name}, labels and lengths of "
            f"{', '.join(x.dtype.name for x in integers)}",
            needed="floating logits, integer labels and lengths",
        )
    if scores.ndim < 2 or not text.ndim or 0 in scores.shape[-2:]:
        raise ShapeError(
            where=where,
            given=f"logits of shape {scores.shape}, labels of shape {text.shape}",
            needed="(..., T, V), T and V at least 1, and (..., L)",
        )
    symbol = as_index(blank)
    if symbol is None or not 0 <= symbol < scores.shape[-1]:
        raise InvalidConfig(
            where=f"{where}, blank",
            given=shown(blank),
            needed=f"an integer from 0 to {scores.shape[-1] - 1}",
            fix=STATIC if is_traced(blank) else "",
        )
    require_numbers(where, (*scores.shape[-1:], *text.shape[-1:]), "V and L that are numbers")
    frames = narrow(scores.shape[-2] if frames is None else frames)
    counts = narrow(text.shape[-1] if counts is None else counts)
    leads = scores.shape[:-2], text.shape[:-1], frames.shape, counts.shape
    names = "logits (..., T, V)", "labels (..., L)", "logit_lengths", "label_lengths"
    try:
        jnp.broadcast_shapes(*leads)
    except ValueError as error:
        named = zip(names, leads, strict=True)
        raise ShapeError(
            where=where,
            given=", ".join(f"{lead} of {name}" for name, lead in named if lead),
            needed="leading axes that broadcast",
        ) from error
    return symbol, [mapped(where, _live, [scores, frames], 2, 0), text, frames, counts]


def _length(where: str, given: ArrayLike | None) -> jax.Array | None:
    return None if given is None else jnp.asarray(as_array(given, where))


def _live(scores: jax.Array, size: jax.Array) -> jax.Array:
    """The logits (T, V) of the frames that count, less the greatest of each, and 0, because NaN has
    no derivative of 0. What they share has no influence, and would cost digits.
    """
    times = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
    return jnp.where(times < size, scores - finite_max(scores, 1), 0)


def _chain(where: str, blank: int, *arrays: jax.Array) -> Chain:
    *parts, columns = mapped(where, functools.partial(_parts, blank), arrays, 2, 1, 0, 0)
    return Chain(*parts, banded=True, columns=columns)


def _parts(
    blank: int, chances: jax.Array, text: jax.Array, size: jax.Array, length: jax.Array
) -> tuple[jax.Array, ...]:
    """The arrays of the chain of one text: initial, transition, emission, length, columns."""
    symbols, count = chances.shape[1], text.shape[0]
    place, end = jnp.arange(2 * count + 2, dtype=jnp.int32), 2 * length + 1
    # What is behind the text has no influence: nothing leads from the end to it.
    text = jnp.where(place[:count] < length, text, blank)
    states = jnp.full(place.shape, blank, text.dtype).at[1:-1:2].set(text)
    is_new = (states != jnp.roll(states, 2)) & (place > 1)
    skips = (place % 2 == 1) & (is_new | (place == end))
    on, none = jnp.ones_like(skips), jnp.asarray(-jnp.inf, chances.dtype)
    may_follow = jnp.stack([on, on, skips][: len(place)])[None]
    initial = jnp.where(place < 2, jnp.zeros_like(none), none)
    transition = jnp.where(may_follow, jnp.zeros_like(none), none)
    chances = jnp.pad(chances, [(0, 1)] * 2)
    time, symbol = (lax.broadcasted_iota(jnp.int32, chances.shape, axis) for axis in (0, 1))
    is_last, is_end = time == size, symbol == symbols
    seen = jnp.where(is_last == is_end, jnp.where(is_last, 0, chances), none)
    is_wrong = (states < 0) | (states >= symbols) | ((states == blank) & (place % 2 == 1))
    is_inside = (place < end) & (place <= 2 * count)
    columns = jnp.where(is_wrong & is_inside, -1, states).astype(jnp.int32)
    columns = jnp.where(place == end, symbols, columns)
    if symbols > 4 * len(place):  # so few of them count that they are taken out first
        seen, columns = each_state(seen, columns), place
    return initial, transition, seen, size + 1, columns


@typed_call
def ctc_loss(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    logit_lengths: ArrayLike | None = None,
    label_lengths: ArrayLike | None = None,
    blank: int = 0,
) -> jax.Array:
    """The negative log probability of a text in frames, at least 0.

    Args:
      logits: as in `ctc_chain`.
      labels: as in `ctc_chain`.
      logit_lengths: as in `ctc_chain`.
      label_lengths: as in `ctc_chain`.
      blank: as in `ctc_chain`.

    Returns:
      (...) in the dtype of the logits; inf if the frames are too few or a length is out of range,
      then with gradient 0; NaN if a label is the blank or no symbol.

    Raises:
      ShapeError, DTypeError, InvalidConfig, Unsupported: as `ctc_chain`.

    Gradient: by logits, the softmax less the expected share of each symbol. Of any order.

    Cost: T (V + L) beside the softmax, natively on CPU in float32 and float64.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ctc_loss(jnp.zeros((2, 3)), jnp.array([1])).round(4))  # 3 of 9 ways: 11, 01, 10
      1.0986
    """
    blank, arrays = _checked("ctc_loss", logits, labels, logit_lengths, label_lengths, blank)
    whole = jax.nn.logsumexp(arrays[0], axis=-1, keepdims=True)
    # The loss of logits that are less by the same number in a frame is less by it: what is taken
    # away here is a constant, and given back with its derivative, which so needs no other sums.
    kept = lax.stop_gradient(whole)
    chain = _chain("ctc_loss", blank, arrays[0] - kept, *arrays[1:])
    score = partition(chain, "ctc_loss", ChainByEmission)
    moved = mapped("ctc_loss", _within, [whole - kept, arrays[2], score], 2, 0, 0)
    # Of a score that rounding made positive the loss is 0, and its derivative that of the score.
    return jnp.where(score > 0, lax.stop_gradient(score), 0) - score + moved


def _within(moved: jax.Array, size: jax.Array, score: jax.Array) -> jax.Array:
    """The sum over the frames (T, 1) that count, if the text is possible."""
    return jnp.sum(
        moved,
        where=(lax.broadcasted_iota(jnp.int32, moved.shape, 0) < size) & (score > -jnp.inf),
    )
