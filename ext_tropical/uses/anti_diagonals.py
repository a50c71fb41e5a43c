"""The recurrences of alignments over anti-diagonals: all nodes (i, j) of one i + j are one step.

At a node, i elements of the first sequence and j of the second are behind. A column of an alignment
is a move: PAIR from (i - 1, j - 1), FIRST from (i - 1, j), SECOND from (i, j - 1). Lane p of step t
is the node of step t whose place, i or j, is base(t) + p.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
from jax import lax

from ..algebra.semiring import SelectiveSemiring
from ..algebra.shipped import LogSumExp

PAIR, FIRST, SECOND, START = range(4)
Values = tuple[jax.Array, ...]
State = tuple[Values, jax.Array, jax.Array]


@dataclasses.dataclass(frozen=True)
class Rules:
    """What an alignment may be, apart from numbers.

    Attributes:
      semiring: selective, or log_sum_exp.
      warps: whether every column is a pair or repeats one of its elements; else there are gaps.
      affine: whether a gap's first element has a score of its own.
      local: whether stretches of the sequences are aligned.
      band: the greatest |i - j|, or None.
    """

    semiring: SelectiveSemiring | LogSumExp
    warps: bool
    affine: bool
    local: bool
    band: int | None

    def plus(self, *candidates: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The semiring's plus, NaN if one is NaN; and the number of the first candidate with it."""
        value, number = candidates[0], jnp.zeros(candidates[0].shape, jnp.uint8)
        if isinstance(self.semiring, LogSumExp):
            return _log_sum_exp(self.semiring.temperature, candidates), number
        for n, other in enumerate(candidates[1:], 1):
            takes = self.semiring.better(other, value) | ((other != other) & (value == value))
            value, number = jnp.where(takes, other, value), jnp.where(takes, jnp.uint8(n), number)
        return value, number

    def left(self, by_kind: Values, gap: jax.Array, gap_open: jax.Array) -> tuple[Values, Values]:
        """What leaves a node by FIRST and by SECOND, and the kinds of the columns before: nothing
        unless gaps are affine.

        Args:
          by_kind: what arrives by each kind.
          gap: the score of an element in a gap.
          gap_open: of the first.
        """
        if not self.affine:
            return (), ()
        times = self.semiring.times
        opened = [times(x, gap_open) for x in by_kind]
        first, before_first = self.plus(opened[PAIR], times(by_kind[FIRST], gap), opened[SECOND])
        second, before_second = self.plus(*opened[:SECOND], times(by_kind[SECOND], gap))
        return (first, second), (before_first, before_second)


def _log_sum_exp(temperature: float, candidates: Sequence[jax.Array]) -> jax.Array:
    """Its derivatives are zero, not NaN, at candidates that are -inf."""
    greatest = candidates[0]
    for other in candidates[1:]:
        greatest = jnp.maximum(greatest, other)
    greatest = lax.stop_gradient(greatest)
    shift = jnp.where(abs(greatest) < jnp.inf, greatest, 0)
    total = jnp.zeros_like(shift)
    for x in candidates:
        total += jnp.exp((x - shift) / temperature)
    some = total != 0
    return jnp.where(some, shift + temperature * jnp.log(jnp.where(some, total, 1)), -jnp.inf)


@dataclasses.dataclass(frozen=True)
class Lanes:
    """Where the nodes of a step are.

    Attributes:
      width: how many lanes.
      swapped: whether a place is j rather than i.
      band: the greatest |i - j| if the lanes move along with the band; None if place p is lane p.
    """

    width: int
    swapped: bool
    band: int | None

    @classmethod
    def of(cls, shape: tuple[int, ...], band: int | None) -> Lanes:
        """As few as a table of scores and a band allow."""
        shorter = min(shape)
        if band is not None and band < shorter:
            return cls(band + 1, False, band)
        return cls(shorter + 1, shape[0] > shape[1], None)

    def base(self, t: jax.Array | int) -> jax.Array:
        """The place of the first lane of a step."""
        return jnp.asarray(0 if self.band is None else (t - self.band + 1) // 2)

    def table(self, scores: jax.Array, zero: jax.Array) -> jax.Array:
        """The score of the pair that leads to each node: (m + n, width), from step 1 on."""
        if self.swapped:
            scores = scores.T
        m, n = scores.shape
        if self.band is None:
            padded = _padded(scores[::-1], (0, 0), (m - 1, m - 1), zero)
            return _padded(_diagonals(padded, m + n - 1)[::-1].T, (1, 0), (1, 0), zero)
        band, first = self.band, (2 - self.band) // 2
        count = (m + n + 1 - band) // 2 + 1 - first
        near = _diagonals(_padded(scores, (0, 0), (band, max(0, m - n) + band), zero), 2 * band + 1)

        def every_second(lanes: jax.Array) -> jax.Array:
            """Of the steps 2 q + band or 2 q + band - 1, for q = first, first + 1, ..."""
            spare = self.width - lanes.shape[1]
            before = 1 - first
            after = max(0, count - 1 + self.width - before - m)
            lanes = _padded(lanes, (before, after), (0, spare), zero)
            return _diagonals(lanes.T, count).T

        odd, even = every_second(near[:, 1::2][:, ::-1]), every_second(near[:, ::2][:, ::-1])
        start = 2 - band - 2 * first
        both = jnp.stack([odd, even], 1).reshape(-1, self.width)
        return lax.slice_in_dim(both, start, start + m + n)


def _padded(
    x: jax.Array, rows: tuple[int, int], columns: tuple[int, int], z: jax.Array
) -> jax.Array:
    return lax.pad(x, z, ((*rows, 0), (*columns, 0)))


def _diagonals(x: jax.Array, width: int) -> jax.Array:
    """x[r, r + k] at [r, k], for k below the width: without a gather, whose transpose is slow."""
    rows, columns = x.shape
    flat = jnp.pad(x.reshape(-1), (0, rows))
    return flat.reshape(rows, columns + 1)[:, :width]


def folded(
    op: Callable[[jax.Array, jax.Array], jax.Array], x: jax.Array, neutral: jax.Array
) -> jax.Array:
    """One value of the entries of a vector, by halves."""
    while x.shape[0] > 1:
        if x.shape[0] % 2:
            x = jnp.append(x, neutral)
        x = op(x[::2], x[1::2])
    return x[0]


def solved(
    rules: Rules,
    scores: jax.Array,
    gap: jax.Array,
    gap_open: jax.Array,
    lengths: jax.Array | None = None,
) -> Values:
    """The score; and if the semiring is selective the columns of a best alignment, int32
    (m + n, 2).
    """
    semiring, lanes = rules.semiring, Lanes.of(scores.shape, rules.band)
    zero, one = (jnp.asarray(f(scores.dtype)) for f in (semiring.zero, semiring.one))
    number, edge = jnp.arange(lanes.width, dtype=jnp.int32), jnp.full(1, zero)
    sizes = jnp.array(scores.shape, jnp.int32)
    fits = lengths is None or jnp.all((lengths >= 0) & (lengths <= sizes))
    if lengths is not None:
        row, column = (
            jnp.arange(n, dtype=jnp.int32) < k for n, k in zip(scores.shape, lengths, strict=True)
        )
        # Here rather than at the end, so that NaN does not get into derivatives either.
        scores = jnp.where(row[:, None] & column[None], scores, zero)
    ends = sizes if lengths is None else lengths
    end, last = ends[0] + ends[1], ends[int(lanes.swapped)]

    def step(state: State, given: tuple[jax.Array, jax.Array]) -> tuple[State, jax.Array]:
        (value, older, *gaps), best, when = state
        t, pairs = given
        place = lanes.base(t) + number
        moves = lanes.base(t) > lanes.base(t - 1)

        def same(x: jax.Array) -> jax.Array:
            """Values of the step before at the places of this step."""
            return x if lanes.band is None else jnp.where(moves, jnp.concatenate([x[1:], edge]), x)

        def lower(x: jax.Array) -> jax.Array:
            """At the places less one."""
            moved = jnp.concatenate([edge, x[:-1]])
            return moved if lanes.band is None else jnp.where(moves, x, moved)

        ahead, beside = (same, lower) if lanes.swapped else (lower, same)
        # In two steps the lanes of a band move on by one.
        by_pair = lower(older) if lanes.band is None else older
        if rules.local:
            by_pair, _ = rules.plus(jnp.full_like(value, one), by_pair)
        by_kind: Values = (
            by_pair,
            ahead(gaps[0] if gaps else value),
            beside(gaps[1] if gaps else value),
        )
        added = (pairs,) * 3 if rules.warps else (pairs,) if gaps else (pairs, gap, gap)
        by_kind = *map(semiring.times, added, by_kind), *by_kind[len(added) :]
        if rules.band is not None:
            by_kind = tuple(jnp.where(abs(2 * place - t) <= rules.band, x, zero) for x in by_kind)
        new, kind = rules.plus(*by_kind)
        into_gaps, kinds = rules.left(by_kind, gap, gap_open)
        if rules.local:
            best, takes = rules.plus(best, by_kind[PAIR])
            when = jnp.where(takes == 1, t, when)
            _, begun = rules.plus(jnp.full_like(value, one), new)
            kinds = (jnp.where(begun == 1, kind, START), *(kinds or (kind,)))
        else:
            kinds = kind, *kinds
            if lengths is not None:
                best = jnp.where((t == end) & (place == last), new, best)
        winners = sum(4**n * k for n, k in enumerate(kinds))
        return ((new, value, *into_gaps), best, when), winners

    nothing = jnp.full(lanes.width, zero)
    origin = jnp.where(number == -lanes.base(0), one, zero)
    value = nothing if rules.local else origin
    gaps, _ = rules.left((value, nothing, nothing), gap, gap_open)
    best = jnp.where(number == 0, one, zero) if rules.local else jnp.where(end == 0, origin, zero)
    steps = jnp.arange(1, sum(scores.shape) + 1, dtype=jnp.int32)
    state = (value, nothing, *gaps), best, jnp.zeros_like(number)
    ((value, *_), best, when), winners = lax.scan(step, state, (steps, lanes.table(scores, zero)))
    if rules.local:
        score = folded(lambda x, y: rules.plus(x, y)[0], best, zero)
        winning = (best == score) | (best != best)
        end = jnp.min(jnp.where(winning, when, steps[-1]))
        winning &= when == end
        lane = (
            jnp.max(jnp.where(winning, number, 0))
            if lanes.swapped
            else lax.argmax(winning, 0, jnp.int32)
        )
        score = jnp.where(fits, score, zero)
    else:
        lane = jnp.clip(last - lanes.base(end), 0, lanes.width - 1)
        found = fits & (lanes.base(end) + lane == last)
        score = jnp.where(found, (value if lengths is None else best)[lane], zero)
    if isinstance(semiring, LogSumExp):
        return (score,)
    place = lanes.base(end) + lane
    node = jnp.where((score == zero) | (end == 0), 0, jnp.stack([place, end - place]))
    kind = jnp.uint8(PAIR) if rules.local else winners[end - 1, lane] % 4
    return score, _columns(rules, lanes, winners, node[::-1] if lanes.swapped else node, kind)


def _columns(
    rules: Rules, lanes: Lanes, winners: jax.Array, node: jax.Array, kind: jax.Array
) -> jax.Array:
    """The columns of the alignment whose last one leads to a node; (0, 0) for none."""
    fields = 3 if rules.affine else 2 if rules.local else 1

    def back(
        state: tuple[jax.Array, jax.Array, jax.Array], _: None
    ) -> tuple[tuple[jax.Array, jax.Array, jax.Array], jax.Array]:
        (i, j), kind, more = state
        column = jnp.stack([i - 1, j - 1])
        if not rules.warps:
            column = jnp.where(jnp.stack([kind == SECOND, kind == FIRST]), -1, column)
        i, j = i - jnp.int32(kind != SECOND), j - jnp.int32(kind != FIRST)
        t = i + j
        code = winners[jnp.maximum(t - 1, 0), (j if lanes.swapped else i) - lanes.base(t)]
        before = code // 4 ** jnp.minimum(kind, fields - 1) % 4
        column = jnp.where(more, column, -1)
        return (jnp.stack([i, j]), before, more & (t > 0) & (before != START)), column

    state = node.astype(jnp.int32), kind, jnp.any(node > 0)
    _, columns = lax.scan(back, state, length=winners.shape[0])
    count = jnp.sum(jnp.any(columns >= 0, 1), dtype=jnp.int32)
    place = count - 1 - jnp.arange(len(columns), dtype=jnp.int32)
    return jnp.where(place[:, None] >= 0, columns[jnp.maximum(place, 0)], -1)


def along(
    rules: Rules, columns: jax.Array, scores: jax.Array, gap: jax.Array, gap_open: jax.Array
) -> jax.Array:
    """The product of the entries that an alignment uses."""
    one = jnp.asarray(rules.semiring.one(scores.dtype))
    used = jnp.any(columns >= 0, 1)
    kind = jnp.where(columns[:, 0] < 0, SECOND, jnp.where(columns[:, 1] < 0, FIRST, PAIR))
    begins = kind != jnp.append(PAIR, kind[:-1])
    entries = jnp.where(begins, gap_open, gap) if rules.affine else gap
    entries = jnp.where(kind == PAIR, scores[columns[:, 0], columns[:, 1]], entries)
    return folded(rules.semiring.times, jnp.where(used, entries, one), one)
