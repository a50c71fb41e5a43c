"""CTC against every way to write a text in frames."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical.sequences.ctc import ctc_chain, ctc_loss
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError


def written(frames, blank):
    """What is read in frames: repeated symbols are one, blanks are none."""
    return [s for s, _ in itertools.groupby(frames) if s != blank]


def every_way(logits, text, blank):
    """The log probability of a text, and the expected number of each symbol in each frame."""
    logs = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    count, symbols = logs.shape
    total, uses = 0.0, np.zeros(logs.shape)
    for frames in itertools.product(range(symbols), repeat=count):
        if written(frames, blank) == list(text):
            share = np.exp(logs[np.arange(count), frames].sum())
            total += share
            uses[np.arange(count), frames] += share
    return total, uses


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("blank", [0, 2])
def test_every_way(blank):
    """Lengths of both kinds; texts that repeat a symbol, are empty, or are too long."""
    rng = np.random.default_rng(blank)
    symbols = [s for s in range(3) if s != blank]
    logits = rng.normal(size=(12, 5, 3))
    labels = rng.choice(symbols, (12, 3))
    frames, counts = rng.integers(1, 6, 12), rng.integers(0, 4, 12)
    frames[0], counts[0] = 1, 3  # too few
    frames[1], counts[1], labels[1] = 4, 2, symbols[0]  # a blank must part the two

    def loss(logits):
        return ctc_loss(logits, labels, logit_lengths=frames, label_lengths=counts, blank=blank)

    logits[np.arange(5) >= frames[:, None]] = np.nan
    found = loss(logits)
    for wrong in (blank, -1, 3):
        assert np.isnan(ctc_loss(np.zeros((5, 3)), [symbols[0], wrong], blank=blank))
    slopes = jax.jit(jax.grad(lambda x: loss(x)[1:].sum()))(logits)
    chain = ctc_chain(logits, labels, logit_lengths=frames, label_lengths=counts, blank=blank)
    best = np.asarray(chain.best().states)
    assert np.isinf(found[0])
    assert (best[0] == -1).all()
    assert np.isfinite(found[1:]).any()
    for i in range(1, 12):
        text = labels[i, : counts[i]]
        total, uses = every_way(logits[i, : frames[i]], text, blank)
        if total == 0:
            assert np.isinf(found[i])
            assert not slopes[i].any()
            continue
        np.testing.assert_allclose(found[i], -np.log(total), rtol=1e-12)
        soft = np.asarray(jax.nn.softmax(logits[i, : frames[i]]))
        np.testing.assert_allclose(slopes[i, : frames[i]], soft - uses / total, atol=1e-12)
        assert not slopes[i, frames[i] :].any()
        states = best[i, : frames[i]]
        symbols_there = np.where(states % 2, labels[i][np.minimum(states // 2, 2)], blank)
        assert written(symbols_there, blank) == list(text)


def test_the_loss_of_a_certain_text_is_not_negative():
    """Rounding could make its probability more than 1."""
    text = np.random.default_rng(0).integers(1, 9, (20, 30))
    frames = np.zeros((20, 61), int)
    frames[:, 1::2] = text
    loss, slope = jax.jit(jax.vmap(jax.value_and_grad(ctc_loss)))(
        (40 * np.eye(9)[frames]).astype(np.float32), text
    )
    assert 0 <= loss.min() <= loss.max() < 1e-4 > abs(slope).max()


@pytest.mark.slow
def test_other_forms():
    """An empty text, one text for many logits, a symbol that is impossible, second derivatives."""
    logits = np.random.default_rng(0).normal(size=(4, 6, 3))
    empty = ctc_loss(logits, np.zeros((4, 0), int))
    np.testing.assert_allclose(empty, -jax.nn.log_softmax(logits)[..., 0].sum(-1))
    np.testing.assert_allclose(
        ctc_loss(logits, np.array([1, 2])),
        [ctc_loss(x, np.array([1, 2])) for x in logits],
        rtol=1e-12,
    )
    np.testing.assert_allclose(  # of many symbols
        ctc_loss(np.pad(logits, [(0, 0)] * 2 + [(0, 60)], constant_values=-np.inf), [1, 2]),
        ctc_loss(logits, [1, 2]),
    )
    logits[..., 2] = -np.inf
    total, _ = every_way(logits[0], [1, 1], 0)
    np.testing.assert_allclose(ctc_loss(logits[0], jnp.array([1, 1])), -np.log(total), rtol=1e-12)
    slope, way = jax.grad(lambda x: ctc_loss(x[:, :2], jnp.array([1]))), np.eye(3)
    bend = jax.jit(lambda x: jax.jvp(slope, (x,), (way,))[1])(logits[0, :3])
    assert 0 < np.abs(bend).max() < np.inf
    assert np.abs(bend.sum(1)).max() < 1e-12


@pytest.mark.parametrize(
    ("kind", "logits", "labels", "blank", "lengths"),
    [
        (DTypeError, np.zeros((3, 2), int), np.zeros(1, int), 0, None),
        (DTypeError, np.zeros((3, 2)), np.zeros(1), 0, None),
        (ShapeError, np.zeros(3), np.zeros(1, int), 0, None),
        (ShapeError, np.zeros((3, 2)), np.int32(1), 0, None),
        (InvalidConfig, np.zeros((3, 2)), np.zeros(1, int), 2, None),
        (InvalidConfig, np.zeros((3, 2)), np.zeros(1, int), True, None),
        (DTypeError, np.zeros((3, 2)), np.zeros(1, int), 0, 2.5),
        (DTypeError, np.zeros((3, 2)), np.zeros(1, int), 0, 2**64),
    ],
)
def test_refusals(kind, logits, labels, blank, lengths):
    with pytest.raises(kind, match="ctc_loss"):
        ctc_loss(logits, labels, blank=blank, logit_lengths=lengths)
