"""Chains with durations, and every sequence of states, which judges them."""

import itertools
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

STATES, TIMES, LONGEST = 3, 5, 3


class Segment(NamedTuple):
    state: int
    first: int
    times: int


def segments(states):
    """The runs of equal states."""
    found, first = [], 0
    for _, run in itertools.groupby(states):
        count = len([*run])
        found.append(Segment(int(states[first]), first, count))
        first += count
    return found


def segmented(seed, count, steps, dtype="float64", kind="forbidden", sizes=None):
    """A batch: initial, transition, durations, emission, lengths."""
    states, times, longest = sizes or (STATES, TIMES, LONGEST)
    rng = np.random.default_rng([seed, steps])
    shapes = (states,), (steps, states, states), (states, longest), (times, states)
    arrays = [rng.normal(size=(count, *shape)).astype(dtype) for shape in shapes]
    for x in arrays:
        if kind != "numbers":
            x[rng.random(x.shape) < 0.15] = -np.inf
        if kind == "ties":
            x[np.isfinite(x)] = rng.integers(-2, 3, np.isfinite(x).sum())
        if kind == "large":
            x[np.isfinite(x)] *= rng.choice([1.0, 100.0, 5000.0], np.isfinite(x).sum())
    return *arrays, rng.integers(1, times + 1, count).astype(np.int32)


def log_sum(x, axis, xp=np):
    most = xp.max(x, axis=axis, keepdims=True)
    most = xp.where(xp.isfinite(most), most, 0)
    total = xp.sum(xp.exp(x - most), axis=axis)
    found = xp.log(xp.where(total > 0, total, 1)) + xp.squeeze(most, axis)
    return xp.where(total > 0, found, -xp.inf)


def tails(durations, is_log, xp=np):
    """The scores of durations of at least each one."""
    parts = [durations[..., d:] for d in range(durations.shape[-1])]
    join = (lambda x: log_sum(x, -1, xp)) if is_log else (lambda x: xp.max(x, axis=-1))
    return xp.stack([join(x) for x in parts], axis=-1)


class Entries(NamedTuple):
    """Of each sequence what it uses of each array, as numbers of entries; of the ends those that
    are censored.
    """

    initial: list[int]
    moves: list[int]
    durations: list[int]
    ends: list[int]
    seen: list[int]


def entries_of(sequence, shapes):
    """What a sequence of states uses."""
    _, (steps, states, _), (_, longest), _ = shapes
    found = Entries([sequence[0]], [], [], [], [])
    runs = segments(sequence)
    for run in runs:
        if run.first:
            step = 0 if steps == 1 else run.first - 1
            found.moves.append((step * states + sequence[run.first - 1]) * states + run.state)
        of = found.ends if run is runs[-1] else found.durations
        of.append(run.state * longest + run.times - 1)
    found.seen.extend(t * states + s for t, s in enumerate(sequence))
    return found


def scores_of(arrays, length, censored, is_log, xp=np):
    """The sequences of so many states that are segments of at most D times, and their scores: for
    the last axes of arrays of a batch, (..., N).
    """
    initial, moves, durations, seen = arrays
    states, longest = durations.shape[-2:]
    every = itertools.product(range(states), repeat=length)
    kept = [x for x in every if max(run.times for run in segments(x)) <= longest]
    lead = seen.shape[:-2]
    if not kept:
        return np.zeros((0, length), int), xp.full((*lead, 0), -xp.inf)
    shapes = [x.shape[len(lead) :] for x in arrays]
    used = [entries_of(x, shapes) for x in kept]
    ends = tails(durations, is_log, xp) if censored else durations
    score = 0
    for x, name in zip((initial, moves, durations, ends, seen), Entries._fields, strict=True):
        rows = [getattr(of, name) for of in used]
        flat = x.reshape(*lead, -1)
        flat = xp.concatenate([flat, xp.zeros((*lead, 1))], axis=-1)  # for those that use fewer
        most = max(map(len, rows))
        places = np.array([[*row, *[-1] * (most - len(row))] for row in rows], int)
        score = score + flat[..., places].sum(-1)
    return np.array(kept), score


def partition_of(arrays, length, censored):
    """The score of all sequences, for JAX to differentiate."""
    arrays = [jnp.asarray(x) for x in arrays]
    return log_sum(scores_of(arrays, length, censored, True, jnp)[1], -1, jnp)


def expanded(initial, moves, durations, seen, censored=False):
    """The same as a chain of states (s, how often after this time), without durations: the fields
    of a `Chain`.
    """
    states, longest = durations.shape
    transition = np.full((states, longest, states, longest), -np.inf)
    for s in range(states):
        for left in range(1, longest):
            transition[s, left, s, left - 1] = 0
        for other in set(range(states)) - {s}:
            transition[s, 0, other] = moves[s, other] + durations[other]
    size = states * longest
    final = np.where(np.arange(size) % longest == 0, 0, -np.inf)
    return {
        "initial": (initial[:, None] + durations).reshape(size),
        "transition": transition.reshape(size, size).astype(seen.dtype),
        "emission": seen,
        "final": None if censored else final.astype(seen.dtype),
        "columns": np.repeat(np.arange(states, dtype=np.int32), longest),
    }
