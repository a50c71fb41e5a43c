"""Connectionist temporal classification: a text that was written in some of many frames, as a
chain.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.shapes import as_array

from .chain import Chain


def ctc_chain(
    logits: ArrayLike,
    labels: ArrayLike,
    *,
    logit_lengths: ArrayLike | None = None,
    label_lengths: ArrayLike | None = None,
    blank: int = 0,
) -> Chain:
    """All ways to write a text of L labels in T frames (Graves et al., 2006), as a `Chain` of
    2 L + 1 states: state 2 i + 1 is label i, the even ones are blanks.

    Each frame has one state. A way begins in state 0 or 1, ends in one of the last two, and goes on
    by 0 or 1 state, or from a label to another one by 2.

    Args:
      logits: (..., T, V), of each of V symbols in each frame; their softmax is taken. T is at least
        1.
      labels: integers (..., L), the symbols of the text. L may be 0.
      logit_lengths: integers (...), how many frames count; None for all.
      label_lengths: integers (...), how many labels count; None for all.
      blank: the symbol that stands for no label, from 0 to V - 1.

    Returns:
      A Chain with the leading axes of the arguments, broadcast. Its `log_partition` is the log
      probability of the text, -inf if the frames are too few; `best().states` the best alignment;
      `marginals().states` the probability of each state in each frame.

    Raises:
      ShapeError, DTypeError: the arrays do not fit.
      InvalidConfig: blank is no symbol.

    Example:
      >>> import jax.numpy as jnp
      >>> logits = 3.0 * jnp.eye(3)[jnp.array([1, 1, 0, 2])]
      >>> ctc_chain(logits, jnp.array([1, 2])).best().states.tolist()  # label 0 twice, blank, 1
      [1, 1, 2, 3]
    """
    scores = jnp.asarray(as_array(logits, "ctc_chain, logits"))
    text = jnp.asarray(as_array(labels, "ctc_chain, labels"))
    if not jnp.issubdtype(scores.dtype, jnp.floating) or not jnp.issubdtype(
        text.dtype, jnp.integer
    ):
        raise DTypeError(
            where="ctc_chain",
            given=f"logits of {scores.dtype.name}, labels of {text.dtype.name}",
            needed="floating logits and integer labels",
        )
    if scores.ndim < 2 or not text.ndim or 0 in scores.shape[-2:]:
        raise ShapeError(
            where="ctc_chain",
            given=f"logits of shape {scores.shape}, labels of shape {text.shape}",
            needed="(..., T, V), T and V at least 1, and (..., L)",
        )
    if not 0 <= blank < scores.shape[-1]:
        raise InvalidConfig(
            where="ctc_chain, blank", given=repr(blank), needed=f"0 to {scores.shape[-1] - 1}"
        )
    count = text.shape[-1]
    lead = jnp.broadcast_shapes(scores.shape[:-2], text.shape[:-1])
    text = jnp.broadcast_to(text, (*lead, count))
    scores = jnp.broadcast_to(scores, (*lead, *scores.shape[-2:]))
    states = jnp.full((*lead, 2 * count + 1), blank, text.dtype).at[..., 1::2].set(text)
    place = jnp.arange(2 * count + 1, dtype=jnp.int32)
    ends = jnp.asarray(count if label_lengths is None else label_lengths, jnp.int32)[..., None]
    is_other = jnp.pad(text[..., 1:] != text[..., :-1], [(0, 0)] * len(lead) + [(1, 0)])[
        ..., :count
    ]
    skips = jnp.zeros(states.shape, bool).at[..., 1::2].set(is_other)
    skips = skips.at[..., :2].set(False)

    def allowed(where: jax.Array) -> jax.Array:
        return jnp.where(where, 0, -jnp.inf).astype(scores.dtype)

    on = jnp.ones_like(skips)
    transition = allowed(jnp.stack([on, on, skips][: 2 * count + 1], axis=-2))[..., None, :, :]
    seen = jnp.take_along_axis(jax.nn.log_softmax(scores), states[..., None, :], axis=-1)
    each = place.reshape((1,) * (ends.ndim - 1) + place.shape)
    return Chain(
        allowed(place < 2),
        transition,
        seen,
        logit_lengths,
        final=allowed((each == 2 * ends) | (each == 2 * ends - 1)),
        banded=True,
    )


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
      logits, labels, logit_lengths, label_lengths, blank: as in `ctc_chain`.

    Returns:
      (...) in the dtype of the logits; inf if the frames are too few, then with gradient 0.

    Raises:
      ShapeError, DTypeError, InvalidConfig: as `ctc_chain`.

    Gradient: by logits, the softmax less the expected share of each symbol. Of any order.

    Cost: T (V + L) beside the softmax, natively on CPU in float32 and float64.

    Example:
      >>> import jax.numpy as jnp
      >>> print(ctc_loss(jnp.zeros((2, 3)), jnp.array([1])).round(4))  # 3 of 9 ways: 11, 01, 10
      1.0986
    """
    chain = ctc_chain(
        logits, labels, logit_lengths=logit_lengths, label_lengths=label_lengths, blank=blank
    )
    return jnp.maximum(-chain.log_partition(), 0)
