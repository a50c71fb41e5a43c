"""The recurrence of alignments in standard ops, over anti-diagonals: all nodes (i, j) of one i + j
are one step of a loop.

Lanes of a step are numbered by the nodes' places in the shorter sequence, by i if both are as long.
Three things differ between alignments, and each has a table of ways: what a column counts (`COUNTS`
has the ways by `Gaps`), where an alignment ends (`ENDINGS` and `ENDS` have those by `Ends`), and
whether the best one is wanted or the sum of all (`plus`). `_begun` has where one begins.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.shipped import LogSumExp
from ..steps.kernels.selection import one_by_one
from .alignment_inputs import AlignmentInputs, AlignmentOpLike, FreeEnd, Gaps, Move
from .vectors import diagonals, folded


class Aligned(NamedTuple):
    """What the recurrence finds.

    Attributes:
      score: of the best alignment; under log_sum_exp of all.
      columns: of a best alignment, int32 (m + n, 2); None under log_sum_exp.
    """

    score: jax.Array
    columns: jax.Array | None = None


class ByMove(NamedTuple):
    """The values of alignments at the nodes of a step, by their last column.

    Attributes:
      pair, first, second: (lanes,), for each `Move`.
    """

    pair: jax.Array
    first: jax.Array
    second: jax.Array


class Choice(NamedTuple):
    """The semiring's sum of some alignments.

    Attributes:
      value: the sum; NaN if one is NaN.
      number: uint8, of the first one that has this value; 0 under log_sum_exp.
    """

    value: jax.Array
    number: jax.Array


class Nodes(NamedTuple):
    """The alignments that end in the nodes of a step.

    Attributes:
      value: (lanes,), by any column.
      into_first, into_second: those that go on by `Move.FIRST` and `Move.SECOND`, the score of this
        column included, which depends on the column before; None unless gaps are affine.
    """

    value: jax.Array
    into_first: jax.Array | None = None
    into_second: jax.Array | None = None


class Goal(NamedTuple):
    """The best ends so far, one in each lane.

    Attributes:
      value: (lanes,).
      step: int32 (lanes,), i + j of the node.
    """

    value: jax.Array
    step: jax.Array


class End(NamedTuple):
    """The end of a best alignment.

    Attributes:
      score: of the best alignment, or of all.
      step: i + j of the node where it ends.
      lane: of this node.
    """

    score: jax.Array
    step: jax.Array
    lane: jax.Array


class Loop(NamedTuple):
    """What a loop hands from step to step.

    Attributes:
      nodes: of the step before.
      older: (lanes,), the values of the step before that.
      goal: the best ends so far.
    """

    nodes: Nodes
    older: jax.Array
    goal: Goal


class Grid(NamedTuple):
    """What all steps of a loop share.

    Attributes:
      semiring: of the op.
      zero, one: of the semiring.
      gap, gap_open: scalars.
      pairs: (m + n, lanes), the score of the pair that leads to each node, from step 1 on.
      place: int32 (lanes,), the number of each lane.
      is_by_second: whether lanes are numbered by j, because the second sequence is shorter.
      step: i + j of the node in which both sequences end.
      lane: of this node.
      lengths: int32 (2,), i and j of this node.
    """

    semiring: Any
    zero: jax.Array
    one: jax.Array
    gap: jax.Array
    gap_open: jax.Array
    pairs: jax.Array
    place: jax.Array
    is_by_second: bool
    step: jax.Array
    lane: jax.Array
    lengths: jax.Array

    @property
    def nothing(self) -> jax.Array:
        """No alignment in any lane."""
        return jnp.full(self.place.shape, self.zero)

    @property
    def origin(self) -> jax.Array:
        """The empty alignment, at the first node."""
        return jnp.where(self.place == 0, self.one, self.zero)

    def plus(self, *candidates: jax.Array) -> Choice:
        """The semiring's sum of these."""
        return plus(self.semiring, *candidates)

    def with_empty(self, x: jax.Array) -> Choice:
        """The semiring's sum of the empty alignment, whose number is 0, and x, which has 1."""
        return self.plus(jnp.full_like(x, self.one), x)

    def nodes(self, t: jax.Array | int) -> tuple[jax.Array, jax.Array]:
        """i and j of the nodes of step t."""
        other = t - self.place
        return (other, self.place) if self.is_by_second else (self.place, other)

    def one_lane_less(self, x: jax.Array) -> jax.Array:
        """The values that x has at the lanes less one."""
        return jnp.concatenate([jnp.full(1, self.zero), x[:-1]])


def solved(op: AlignmentOpLike, given: AlignmentInputs) -> Aligned:
    """The score; and where the semiring selects the columns of a best alignment."""
    grid = _grid(op, given)
    ends = _ends(op, given)
    ending = ENDINGS[ends]
    watch, find = ENDS[ends]
    selects = not isinstance(op.algebra, LogSumExp)

    def step(state: Loop, at: tuple[jax.Array, jax.Array]) -> tuple[Loop, jax.Array | None]:
        t, pairs = at
        by_move = _by_move(op, grid, state, t, pairs)
        node = grid.plus(*by_move)
        gaps = _into_gaps(op, grid, by_move)
        ended = ending(op, grid, t, by_move, node)
        goal = watch(grid, state.goal, t, ended.value)
        moves = _packed(op, grid, node, gaps, ended) if selects else None
        return Loop(_nodes(node.value, gaps), state.nodes.value, goal), moves

    steps = jnp.arange(1, grid.pairs.shape[0] + 1, dtype=jnp.int32)
    state, moves = lax.scan(step, _begin(op, grid), (steps, grid.pairs))
    end = find(grid, state)
    end = end._replace(score=jnp.where(_fits(given), end.score, grid.zero))
    columns = None if moves is None else _columns(op, grid, moves, end)
    return Aligned(end.score, columns)


def _fits(given: AlignmentInputs) -> jax.Array | bool:
    """Whether the lengths are not outside of the scores."""
    if given.lengths is None:
        return True
    sizes = jnp.array(given.scores.shape, jnp.int32)
    return jnp.all((given.lengths >= 0) & (given.lengths <= sizes))


def _grid(op: AlignmentOpLike, given: AlignmentInputs) -> Grid:
    scores, dtype = given.scores, given.scores.dtype
    m, n = scores.shape
    zero, one = jnp.asarray(op.algebra.zero(dtype)), jnp.asarray(op.algebra.one(dtype))
    ends = jnp.array(scores.shape, jnp.int32)
    if given.lengths is not None:
        ends = given.lengths
        row = jnp.arange(m, dtype=jnp.int32) < ends[0]
        column = jnp.arange(n, dtype=jnp.int32) < ends[1]
        # Here rather than at the end, so that NaN does not get into derivatives either.
        scores = jnp.where(row[:, None] & column[None], scores, zero)
    is_by_second = m > n
    pairs = _pairs(scores.T if is_by_second else scores, zero)
    place = jnp.arange(min(m, n) + 1, dtype=jnp.int32)
    step = ends[0] + ends[1]
    lane = ends[1] if is_by_second else ends[0]
    return Grid(
        semiring=op.algebra,
        zero=zero,
        one=one,
        gap=given.gap,
        gap_open=given.gap_open,
        pairs=pairs,
        place=place,
        is_by_second=is_by_second,
        step=step,
        lane=lane,
        lengths=ends,
    )


def _pairs(scores: jax.Array, zero: jax.Array) -> jax.Array:
    """The score of the pair that leads to each node, as many rows as columns or fewer: (m + n,
    m + 1), from step 1 on.
    """
    m, n = scores.shape
    padded = lax.pad(scores[::-1], zero, [(0, 0, 0), (m - 1, m - 1, 0)])
    return lax.pad(diagonals(padded, m + n - 1)[::-1].T, zero, [(1, 0, 0)] * 2)


def _begin(op: AlignmentOpLike, grid: Grid) -> Loop:
    """What the first step is handed: the only node of i + j = 0."""
    nothing, origin = grid.nothing, grid.origin
    never = jnp.zeros_like(grid.place)
    if op.local:  # which begins before any pair, and may have no column
        value, goal = nothing, Goal(origin, never)
    else:
        is_end = _is_end(op, grid, 0)
        value, goal = origin, Goal(jnp.where(is_end, origin, grid.zero), never)
    gaps = _into_gaps(op, grid, ByMove(value, nothing, nothing))
    return Loop(_nodes(value, gaps), nothing, goal)


# --- one step -------------------------------------------------------------------------------------


def plus(semiring: Any, *candidates: jax.Array) -> Choice:
    """The semiring's sum of these."""
    if not isinstance(semiring, LogSumExp):
        return Choice(*one_by_one(semiring, candidates, jnp.uint8))
    # Derivatives are zero, not NaN, at candidates that are -inf. Reverse mode takes XLA CPU three
    # times as long if the candidates are one array.
    greatest = lax.stop_gradient(functools.reduce(jnp.maximum, candidates))
    shift = jnp.where(abs(greatest) < jnp.inf, greatest, 0)
    terms = (jnp.exp((x - shift) / semiring.temperature) for x in candidates)
    total = functools.reduce(jnp.add, terms)
    # The sum is 0 or at least 1, to which this adds nothing.
    logarithm = jnp.log(total + float(jnp.finfo(total.dtype).eps) / 4)
    value = greatest + semiring.temperature * logarithm
    return Choice(value, jnp.zeros(total.shape, jnp.uint8))


def _by_move(
    op: AlignmentOpLike, grid: Grid, before: Loop, t: jax.Array, pairs: jax.Array
) -> ByMove:
    """The alignments that end in the nodes of step t, by the column that leads there."""
    value, first, second = before.nodes
    pair = grid.one_lane_less(before.older)
    first = value if first is None else first
    second = value if second is None else second
    if op.local:
        pair = grid.with_empty(pair).value
    if grid.is_by_second:
        second = grid.one_lane_less(second)
    else:
        first = grid.one_lane_less(first)
    by_move = COUNTS[op.gaps](grid, ByMove(pair, first, second), pairs)
    if op.free:
        by_move = _begun(op, grid, t, by_move)
    if op.band < 0:
        return by_move

    def in_band(x: jax.Array) -> jax.Array:
        return jnp.where(abs(2 * grid.place - t) <= op.band, x, grid.zero)

    return ByMove(*map(in_band, by_move))


def _count_pairs(grid: Grid, came: ByMove, pairs: jax.Array) -> ByMove:
    """The score of a pair for each column."""
    return ByMove(*(grid.semiring.times(pairs, x) for x in came))


def _count_gaps(grid: Grid, came: ByMove, pairs: jax.Array) -> ByMove:
    """The score of a pair, or that of an element in a gap."""
    times = grid.semiring.times
    return ByMove(
        times(pairs, came.pair), times(grid.gap, came.first), times(grid.gap, came.second)
    )


def _count_pair_alone(grid: Grid, came: ByMove, pairs: jax.Array) -> ByMove:
    """The score of a pair; `_into_gaps` has counted the others."""
    return came._replace(pair=grid.semiring.times(pairs, came.pair))


COUNTS: dict[Gaps, Callable[[Grid, ByMove, jax.Array], ByMove]] = {
    Gaps.WARPED: _count_pairs,
    Gaps.LINEAR: _count_gaps,
    Gaps.AFFINE: _count_pair_alone,
}


def _begun(op: AlignmentOpLike, grid: Grid, t: jax.Array, by_move: ByMove) -> ByMove:
    """With the alignments that begin in the nodes of step t, after elements that are left out. They
    are among those whose last column has the last of these elements, as no other leads there.
    """
    pair, first, second = by_move
    i, j = grid.nodes(t)
    has_first, has_second = FreeEnd.FIRST_BEGIN in op.free, FreeEnd.SECOND_BEGIN in op.free
    if op.gaps is Gaps.WARPED:  # which repeats no element that is left out
        first = jnp.where(has_second & (i == 1), grid.zero, first)
        second = jnp.where(has_first & (j == 1), grid.zero, second)
    first = jnp.where(has_first & (j == 0), grid.one, first)
    second = jnp.where(has_second & (i == 0), grid.one, second)
    return ByMove(pair, first, second)


def _into_gaps(op: AlignmentOpLike, grid: Grid, by_move: ByMove) -> tuple[Choice, ...]:
    """The alignments that go on by FIRST and by SECOND, with the move before, which says whether
    this opens a gap; nothing unless gaps are affine.
    """
    if op.gaps is not Gaps.AFFINE:
        return ()
    times = grid.semiring.times
    opened = ByMove(*(times(x, grid.gap_open) for x in by_move))
    first = grid.plus(opened.pair, times(by_move.first, grid.gap), opened.second)
    second = grid.plus(opened.pair, opened.first, times(by_move.second, grid.gap))
    return first, second


def _nodes(value: jax.Array, gaps: tuple[Choice, ...]) -> Nodes:
    return Nodes(value, *(gap.value for gap in gaps))


# --- where alignments end -------------------------------------------------------------------------


class Ends(enum.Enum):
    """Where alignments end."""

    WHOLE = "in the node of the last step"
    LENGTHS = "in the node of the lengths, which is of any step"
    LOCAL = "after any pair, or without a column"
    FREE = "where what is behind is left out"


def _ends(op: AlignmentOpLike, given: AlignmentInputs) -> Ends:
    if op.local:
        return Ends.LOCAL
    if FreeEnd.FIRST_END in op.free or FreeEnd.SECOND_END in op.free:
        return Ends.FREE
    return Ends.WHOLE if given.lengths is None else Ends.LENGTHS


Ending = Callable[[AlignmentOpLike, Grid, jax.Array, ByMove, Choice], Choice]
"""The alignments that may end in the nodes of step t, and their last `Move`: of those that lead
there by each, and by any. Nodes where none may end have the semiring's zero, if all are looked at.
"""

Watch = Callable[[Grid, Goal, jax.Array, jax.Array], Goal]
"""The best ends after step t, of those before, t, and what `Ending` gives."""

Find = Callable[[Grid, Loop], End]
"""The end of a best alignment, after the last step."""

EndWay = tuple[Watch, Find]


def _end_by_any(
    op: AlignmentOpLike, grid: Grid, t: jax.Array, by_move: ByMove, node: Choice
) -> Choice:
    return node


def _end_by_pair(
    op: AlignmentOpLike, grid: Grid, t: jax.Array, by_move: ByMove, node: Choice
) -> Choice:
    return Choice(by_move.pair, jnp.full(node.number.shape, Move.PAIR, jnp.uint8))


def _end_free(
    op: AlignmentOpLike, grid: Grid, t: jax.Array, by_move: ByMove, node: Choice
) -> Choice:
    """A gap at a free end is left out, so no alignment ends with one. Where all of a sequence is
    left out at its end, it is not left out at its begin too, in warping either.
    """
    i, j = grid.nodes(t)
    m, n = grid.lengths
    is_warped = op.gaps is Gaps.WARPED
    pair, first, second = (jnp.where(_is_end(op, grid, t), x, grid.zero) for x in by_move)
    if FreeEnd.FIRST_END in op.free:
        is_left = (j == n) & ((j == 0) | (not is_warped))
        first = jnp.where(is_left, grid.zero, first)
    if FreeEnd.SECOND_END in op.free:
        is_left = (i == m) & ((i == 0) | (not is_warped))
        second = jnp.where(is_left, grid.zero, second)
    return grid.plus(pair, first, second)


def _is_end(op: AlignmentOpLike, grid: Grid, t: jax.Array | int) -> jax.Array:
    """Whether an alignment may end in the nodes of step t."""
    i, j = grid.nodes(t)
    m, n = grid.lengths
    is_end = (i == m) & (j == n)
    if FreeEnd.FIRST_END in op.free:
        is_end |= (j == n) & (i >= 0) & (i <= m)
    if FreeEnd.SECOND_END in op.free:
        is_end |= (i == m) & (j >= 0) & (j <= n)
    return is_end


def _watch_nothing(grid: Grid, goal: Goal, t: jax.Array, value: jax.Array) -> Goal:
    return goal


def _watch_one(grid: Grid, goal: Goal, t: jax.Array, value: jax.Array) -> Goal:
    is_end = (t == grid.step) & (grid.place == grid.lane)
    return goal._replace(value=jnp.where(is_end, value, goal.value))


def _watch_all(grid: Grid, goal: Goal, t: jax.Array, value: jax.Array) -> Goal:
    best, takes = grid.plus(goal.value, value)
    return Goal(best, jnp.where(takes == 1, t, goal.step))


def _find_last(grid: Grid, state: Loop) -> End:
    return _at_end(grid, state.nodes.value)


def _find_one(grid: Grid, state: Loop) -> End:
    return _at_end(grid, state.goal.value)


def _at_end(grid: Grid, value: jax.Array) -> End:
    lane = jnp.clip(grid.lane, 0, len(grid.place) - 1)
    return End(value[lane], grid.step, lane)


def _find_best(grid: Grid, state: Loop) -> End:
    """Of equally good ends that of the least i + j, then of the least i."""
    best, when = state.goal
    score = folded(lambda x, y: grid.plus(x, y).value, best, grid.zero)
    is_best = (best == score) | (best != best)
    step = jnp.min(jnp.where(is_best, when, grid.pairs.shape[0]))
    is_best &= when == step
    if grid.is_by_second:  # the least i is the greatest j
        lane = jnp.max(jnp.where(is_best, grid.place, 0))
    else:
        lane = lax.argmax(is_best, 0, jnp.int32)
    return End(score, step, lane)


ENDINGS: dict[Ends, Ending] = {
    Ends.WHOLE: _end_by_any,
    Ends.LENGTHS: _end_by_any,
    Ends.LOCAL: _end_by_pair,
    Ends.FREE: _end_free,
}

_SEVERAL = _watch_all, _find_best

ENDS: dict[Ends, EndWay] = {
    Ends.WHOLE: (_watch_nothing, _find_last),
    Ends.LENGTHS: (_watch_one, _find_one),
    Ends.LOCAL: _SEVERAL,
    Ends.FREE: _SEVERAL,
}


# --- the way back ---------------------------------------------------------------------------------


def _packed(
    op: AlignmentOpLike, grid: Grid, node: Choice, gaps: tuple[Choice, ...], ended: Choice
) -> jax.Array:
    """The `Move` that leads to each node, for each one that goes on from there, and if the path
    ends: two bits each, of one byte, since the loop keeps them for all nodes. `_move_before` reads.
    """
    before_pair = node.number
    if op.local:  # a pair may begin anew, also where that is as good
        is_new = grid.with_empty(node.value).number == 0
        before_pair = jnp.where(is_new, Move.START, before_pair)
    before_first, before_second = (choice.number for choice in gaps or (node, node))
    return before_pair | before_first << 2 | before_second << 4 | ended.number << 6


ENDS_HERE = 3  # in place of the `Move` that goes on


def _move_before(packed: jax.Array, move: jax.Array | int) -> jax.Array:
    """The `Move` that leads to a node from which another one goes on, or ENDS_HERE."""
    return packed >> 2 * move & 3


class Walk(NamedTuple):
    """Where the way back is.

    Attributes:
      node: int32 (2,), i and j.
      move: uint8, the `Move` that leads to the node.
      goes_on: whether there is such a move.
    """

    node: jax.Array
    move: jax.Array
    goes_on: jax.Array


def _columns(op: AlignmentOpLike, grid: Grid, moves: jax.Array, end: End) -> jax.Array:
    """The columns of the alignment that has this end: int32 (m + n, 2), rows of -1 behind."""

    def moves_at(node: jax.Array) -> jax.Array:
        lane = node[1] if grid.is_by_second else node[0]
        return moves[jnp.maximum(node[0] + node[1] - 1, 0), lane]

    def back(at: Walk, _: None) -> tuple[Walk, jax.Array]:
        column = at.node - 1
        has_first, has_second = at.move != Move.SECOND, at.move != Move.FIRST
        has = jnp.stack([has_first, has_second])
        if op.gaps is not Gaps.WARPED:
            column = jnp.where(has, column, -1)
        node = at.node - has.astype(jnp.int32)
        move = _move_before(moves_at(node), at.move)
        goes_on = at.goes_on & ~_is_begin(op, node) & (move != Move.START)
        return Walk(node, move, goes_on), jnp.where(at.goes_on, column, -1)

    is_empty = (end.score == grid.zero) | (end.step == 0)
    node = jnp.stack([end.lane, end.step - end.lane])
    node = jnp.where(is_empty, 0, node[::-1] if grid.is_by_second else node).astype(jnp.int32)
    move = _move_before(moves[end.step - 1, end.lane], ENDS_HERE)
    _, columns = lax.scan(back, Walk(node, move, ~_is_begin(op, node)), length=moves.shape[0])
    count = jnp.sum(jnp.any(columns >= 0, 1), dtype=jnp.int32)
    place = count - 1 - jnp.arange(len(columns), dtype=jnp.int32)
    return jnp.where(place[:, None] >= 0, columns[jnp.maximum(place, 0)], -1)


def _is_begin(op: AlignmentOpLike, node: jax.Array) -> jax.Array:
    """Whether an alignment begins in a node."""
    i, j = node
    is_begin = (i == 0) & (j == 0)
    if FreeEnd.FIRST_BEGIN in op.free:
        is_begin |= j == 0
    if FreeEnd.SECOND_BEGIN in op.free:
        is_begin |= i == 0
    return is_begin


def along(
    op: AlignmentOpLike, columns: jax.Array, pairs: jax.Array, gap: jax.Array, gap_open: jax.Array
) -> jax.Array:
    """The product of the entries that an alignment uses; `pairs` has a score for each column, which
    counts where the column is a pair.
    """
    one = jnp.asarray(op.algebra.one(pairs.dtype))
    is_used = jnp.any(columns >= 0, 1)
    i, j = columns[:, 0], columns[:, 1]
    move = jnp.where(i < 0, Move.SECOND, jnp.where(j < 0, Move.FIRST, Move.PAIR))
    entries = gap
    if op.gaps is Gaps.AFFINE:
        begins = move != jnp.append(Move.PAIR, move[:-1])
        entries = jnp.where(begins, gap_open, gap)
    entries = jnp.where(move == Move.PAIR, pairs, entries)
    return folded(op.algebra.times, jnp.where(is_used, entries, one), one)
