"""The recurrence of chains over times: messages, and sums over all sequences with derivatives."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from ..semirings.shipped import LogSumExp, MaxPlusSemiring, MinPlusSemiring
from ..steps.kernels.selection import UNROLLED_ENTRIES, one_by_one, together
from .alignment_op import diagonals

Values = tuple[jax.Array, ...]
State = Any  # a pytree of arrays
BLOCK = 1024  # times at most, over which best scores are added one to another
# Of so many states two steps at once take XLA CPU 0.5 to 0.9 of the time; of more or fewer, and in
# sums, up to five times as long.
TWO_AT_ONCE = range(8, 17)
BAND = 8  # bands of at most so many states are sums of so many vectors
Op = Any  # a ChainOp, whose module imports this one

# The message at t has for each state the score of what leads to it, its emission included. What
# lies behind the length is replaced before it is used, so that NaN does not get into derivatives.


def each_state(emission: jax.Array, columns: jax.Array) -> jax.Array:
    """(T, S) of an emission (T, C) and columns (S,); NaN where there is no such column."""
    return (
        jnp.asarray(emission)
        .at[:, jnp.where(columns < 0, emission.shape[1], columns)]
        .get(mode="fill", fill_value=jnp.nan)
    )


def each_column(found: jax.Array, columns: jax.Array, emission: jax.Array) -> jax.Array:
    """The sums of the states (T, S) of each column of the emission (T, C)."""
    if not isinstance(emission.shape[1], int) or emission.shape[1] > 128:
        return jax.linear_transpose(lambda x: each_state(x, columns), emission)(found)[0]
    # For XLA CPU a matmul takes a quarter of the time.
    is_of = jax.nn.one_hot(columns, emission.shape[1], dtype=found.dtype)
    return jnp.matmul(found, is_of, precision=lax.Precision.HIGHEST)


def length_of(op: Op, emission: jax.Array, others: Sequence[jax.Array]) -> jax.Array | int:
    """How many times count."""
    return others[0] if op.has_length else emission.shape[0]


def replaced(op: Op, live: jax.Array, x: Any, other: Any) -> Any:
    """What lies behind the length is replaced: arrays, or each of a tuple."""
    return jax.tree.map(functools.partial(jnp.where, live), x, other) if op.has_length else x


def extended(op: Op, message: jax.Array) -> jax.Array:
    """With K - 1 impossible states before the first one."""
    return jnp.concatenate([jnp.full(op.band - 1, op.algebra.zero(message.dtype)), message])


def ordered(op: Op, transition: jax.Array) -> jax.Array:
    """The transition, rows of a band in the order of the states before."""
    return transition[:, ::-1] if op.band else transition


def arriving(op: Op, message: jax.Array, matrix: jax.Array) -> jax.Array:
    """The score of what leads to each state by each state before: an array (rows, S), rows in the
    order of the states before.
    """
    if not op.band:
        return op.algebra.times(jnp.broadcast_to(message[:, None], matrix.shape), matrix)
    whole = extended(op, message)
    known = diagonals(jnp.broadcast_to(whole, (op.band, len(whole))), matrix.shape[1])
    row, column = (lax.broadcasted_iota(jnp.int32, matrix.shape, axis) for axis in (0, 1))
    worst = jnp.asarray(op.algebra.identity(message.dtype))
    return jnp.where(row + column >= op.band - 1, op.algebra.times(known, matrix), worst)


def finite_max(
    x: jax.Array, axis: int | tuple[int, ...] | None = None, still: bool = True
) -> jax.Array:
    """The maximum where that is finite, else 0; a constant for derivatives if it is still."""
    greatest = jnp.max(lax.stop_gradient(x) if still else x, axis, keepdims=True)
    return jnp.where(abs(greatest) < jnp.inf, greatest, 0)


def relative(emission: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The emission less the greatest of each time, and the sum of those: a large number that the
    scores of a time share would cost their digits.
    """
    tops = finite_max(emission, 1)
    return emission - tops, jnp.sum(tops)


def log_sum_exp_of(x: jax.Array) -> jax.Array:
    """Over the first axis."""
    greatest = lax.stop_gradient(jnp.max(x, 0))
    total = jnp.sum(jnp.exp(x - finite_max(x, 0)), 0)
    # The sum is 0 or at least 1, to which this adds nothing. Of 0 derivatives are 0, not NaN.
    return greatest + jnp.log(total + float(jnp.finfo(x.dtype).eps) / 4)


def over_times(
    op: Op,
    step: Callable[[jax.Array, State], State],
    first: jax.Array,
    transition: jax.Array,
    emission: jax.Array,
    length: jax.Array | int,
    unroll: int = 1,
) -> tuple[jax.Array, State, jax.Array]:
    """`lax.scan` of a step over the times from 1 on. Where scores are sums, and the times more than
    one block, the best message is taken from all before each block, and the best emission of its
    first time from all in it: in float32 they would lose their digits.

    Args:
      op: whose algebra says what is best.
      step: of a message and (time, its transition or None for the shared one, its emission): the
        next message and what is kept.
      first: the message of time 0.
      transition: of the op.
      emission: of the op.
      length: how many times count.
      unroll: of `lax.scan` in blocks.

    Returns:
      The last message; what is kept, (T - 1, ...); the product of what was taken away.
    """
    count, own = emission.shape[0] - 1, None if transition.shape[0] == 1 else transition
    given = 1 + jnp.arange(count, dtype=jnp.int32), own, emission[1:]
    if (
        type(op.algebra) not in (MaxPlusSemiring, MinPlusSemiring)
        or not jnp.issubdtype(first.dtype, jnp.floating)
        or not isinstance(count, int)  # JAX has no scan of so many blocks, which may be 0
        or count <= BLOCK
    ):
        return *lax.scan(step, first, given), jnp.asarray(op.algebra.one(first.dtype))
    blocks, sign = count // BLOCK + 1, -1 if op.algebra.reduction == "min" else 1
    rest, size = count % blocks, count // blocks

    def block(state: State, start: jax.Array) -> tuple[State, jax.Array]:
        message, kept = state
        times, own, seen = jax.tree.map(lambda x: lax.dynamic_slice_in_dim(x, start, size), given)
        best, offset = (sign * finite_max(sign * x) for x in (message, seen[:1]))
        message, new = lax.scan(step, message - best, (times, own, seen - offset), unroll=unroll)
        # In place, because XLA CPU takes longer to join blocks.
        kept = jax.tree.map(lambda x, y: lax.dynamic_update_slice_in_dim(x, y, start, 0), kept, new)
        live = jnp.clip(length - times[0], 0, size)
        return (message, kept), jnp.sum(best) + offset * live.astype(offset.dtype)

    # Times that fill no block come first, in a loop of their own: to replace what lies behind the
    # last time takes a fifth of XLA CPU's time.
    message, some = lax.scan(step, first, jax.tree.map(lambda x: x[:rest], given))
    kept = jax.tree.map(lambda x: jnp.pad(x, [(0, count - rest)] + [(0, 0)] * (x.ndim - 1)), some)
    (last, kept), taken = lax.scan(
        block, (message, kept), rest + size * jnp.arange(blocks, dtype=jnp.int32)
    )
    return last, kept, jnp.sum(taken)


def messages_of(
    op: Op,
    initial: jax.Array,
    transition: jax.Array,
    emission: jax.Array,
    *others: jax.Array,
    winners: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The score; the messages of all times, (T, S); and the last message.

    Under log_sum_exp a number is taken from the message of each time. Behind the length a message
    is the one at the length. With winners the second result has the number of the first best
    candidate of each state, int32 (T - 1, S), in place of the messages.
    """
    algebra, length = op.algebra, length_of(op, emission, others)
    is_log = isinstance(algebra, LogSumExp)
    zero, one = (jnp.asarray(f(emission.dtype)) for f in (algebra.zero, algebra.one))
    emission, tops = relative(emission) if is_log else (emission, 0)

    def step(message: jax.Array, given: State) -> tuple[jax.Array, Values]:
        t, own, seen = given
        matrix = replaced(op, t < length, transition[0] if own is None else own, one)
        # Of derivatives that are differentiated the tangents too would add up from time to time.
        shift = [finite_max(message, still=not op.curved)[0]] if is_log else []
        candidates = arriving(op, message, matrix)
        if winners:
            arrived, found = (
                together(algebra, candidates, 0)
                if op.band or candidates.shape[0] > UNROLLED_ENTRIES
                else one_by_one(algebra, [*candidates])
            )
        else:
            arrived = log_sum_exp_of(candidates) if is_log else algebra.best(candidates, 0)
        # Of the message before: XLA CPU need not wait for it.
        arrived, message = (x - shift[0] if is_log else x for x in (arrived, message))
        new = replaced(op, t < length, algebra.times(arrived, seen), message)
        return new, (found if winners else new, *shift)

    transition = ordered(op, transition)
    first = algebra.times(initial, emission[0])
    # Derivatives do not keep the candidates where they are many.
    many = not isinstance(initial.shape[0], int) or initial.shape[0] > 5
    body = jax.checkpoint(step, prevent_cse=False) if is_log and many else step
    unroll = 2 if winners and not op.band and transition.shape[1] in TWO_AT_ONCE else 1
    last, (kept, *shifts), taken = over_times(op, body, first, transition, emission, length, unroll)
    kept = kept if winners else jnp.append(first[None], kept, 0)
    score = (
        log_sum_exp_of(last) + jnp.sum(shifts[0]) + tops
        if is_log
        else algebra.times(algebra.best(last, 0), taken)
    )
    return jnp.where(length >= 1, score, zero), kept, last


def details(
    op: Op, initial: jax.Array, transition: jax.Array, emission: jax.Array, *others: jax.Array
) -> Values:
    """The score of all sequences, and its derivatives."""

    score, back = jax.vjp(
        lambda *inputs: messages_of(op, *inputs, *others)[0], initial, transition, emission
    )
    _, moves, states = back(jnp.ones_like(score))
    return score, *_known(score, length_of(op, emission, others), moves, states)


def _known(
    score: jax.Array, length: jax.Array | int, moves: jax.Array, states: jax.Array
) -> Values:
    """Derivatives of the score: 0 if no sequence is possible and behind the length, else NaN if the
    score is NaN or inf.
    """
    wrong = jnp.where(score == -jnp.inf, 0, jnp.nan).astype(score.dtype)

    def known(x: jax.Array, first: int) -> jax.Array:
        times = lax.expand_dims(first + jnp.arange(x.shape[0], dtype=jnp.int32), range(1, x.ndim))
        return jnp.where(times < length, jnp.where(abs(score) < jnp.inf, x, wrong), 0)

    return (states := known(states, 0))[0], known(moves, 1), states


def _wanted(op: Op, found: Values) -> Values:
    """Of the score and what else was found the outputs of the op."""
    return found[0], *(found[1 + i] for i in op.moving if op.detailed)


# --- sums of numbers instead of logarithms --------------------------------------------------------
#
# The numbers whose logarithms the scores are, scaled at each time by their sum. A number that is
# too small for the dtype may be all that is left some times later: in a left-to-right model those
# of the first states fade. So possible moves and states have at least a floor, which bounds the
# sum from above, and the sum is taken where the floors have no part in it: where without them it is
# the same, or where the sequences that use one have no share. Else sums of logarithms are taken.


def _product(rows: jax.Array, matrices: jax.Array) -> jax.Array:
    """Of each row (S,) with its matrix. XLA CPU calls a function for a matmul, which takes longer
    than a small one.
    """
    return (
        jnp.sum(rows[..., None] * matrices, -2)
        if isinstance(rows.shape[-1], int) and rows.shape[-1] < 32
        else jnp.einsum("bs,bsr->br", rows, matrices, precision=lax.Precision.HIGHEST)
    )


def sums(
    op: Op, initial: jax.Array, moves: jax.Array, seen: jax.Array, *others: jax.Array
) -> Values:
    """The score of all sequences, and if the op is detailed its derivatives."""
    bits = jnp.finfo(seen.dtype).bits
    if bits < 32:  # in which counts of uses would stop growing
        found = sums(op, *(x.astype(jnp.float32) for x in (initial, moves, seen)), *others)
        return tuple(x.astype(seen.dtype) for x in found)

    if moves.shape[0] != 1:
        live = 1 + jnp.arange(moves.shape[0], dtype=jnp.int32) < length_of(op, seen, others)
        moves = replaced(op, live[:, None, None], moves, 0)

    def by(way: Callable[..., State], start: jax.Array, emission: jax.Array) -> State:
        is_known, found = way(op, start, moves, emission, *others)
        if op.has_columns and op.detailed:  # of the states that share a column
            found = *found[:-1], each_column(found[-1], others[op.has_length], emission)
        return is_known, found

    if op.curved or op.band > BAND or (op.band and bits > 32):
        return by(_exact, initial, seen)[1]

    def careful(state: State) -> State:
        # They depend on the state, or XLA would compute what it can of them before the loop.
        return by(_exact, *(jnp.where(state[0], 0, x) for x in (initial, seen)))

    # A loop around the numbers would keep XLA CPU from computing all times at once: 2 to 3 times as
    # long for 8 states. The exact sums are in a loop and not in a cond, which under vmap would
    # compute them for all chains.
    state = by(_in_band if op.band else _scaled, initial, seen)
    return lax.while_loop(lambda state: ~state[0], careful, state)[1]


def _exact(op: Op, *inputs: jax.Array) -> State:
    """True and the sums of logarithms."""
    form = details if op.detailed else messages_of
    return jnp.bool(True), _wanted(op, form(op, *op.of_states(inputs)))


def _scaled(
    op: Op, initial: jax.Array, moves: jax.Array, seen: jax.Array, *others: jax.Array
) -> tuple[jax.Array, Values]:
    """Whether floors have no part in the sums; and the sums, which are numbers."""
    initial, moves, seen, *others = op.of_states((initial, moves, seen, *others))
    kind, length, (count, states) = jnp.finfo(seen.dtype), length_of(op, seen, others), seen.shape
    # A number and a move at their floors have a product that is normal, so that 0 means that a
    # state is not reached; 2**28 are left for sums, and what lies ahead of a floor is not infinite.
    floor, high = 2.0 ** (kind.minexp // 2), 2.0 ** (kind.maxexp - 28)
    seen, tops = relative(seen)
    start, outside = initial + seen[0], length < 1
    live = 1 + jnp.arange(count - 1, dtype=jnp.int32) < length
    seen, least = seen[1:], float(kind.tiny)
    begin, weights = (
        jnp.where(x == -jnp.inf, 0, jnp.maximum(jnp.exp(x), least))
        for x in (start - finite_max(start), seen)
    )
    most, is_shared = jnp.max(moves, (1, 2)), moves.shape[0] == 1
    matrices = jnp.exp(moves - most[:, None, None])
    possible = jnp.where(moves == -jnp.inf, 0, jnp.maximum(matrices, floor))
    # Without floors and with them; for derivatives these alone. The bound from below takes none of
    # what was raised to `least`.
    pair = jnp.stack([jnp.where(matrices > floor, matrices, 0), possible], -3)[:, op.detailed :]
    limits = jnp.asarray([2 * high * least, floor], seen.dtype)[op.detailed :, None]
    floors = jnp.asarray([0, floor], seen.dtype)[op.detailed :, None]
    begin = begin[None] * high
    first = jnp.where(begin <= limits, 0, begin)
    # A column of ones gives the sum of what was before.
    wide = jnp.append(pair, jnp.ones((*pair.shape[:-1], 1), seen.dtype), -1)

    def step(before: jax.Array, given: State) -> tuple[jax.Array, Values]:
        is_live, weight, own = given
        found = _product(before, wide[0] if own is None else own)
        arrived, total = found[:, :states], found[0, -1]
        scale = high / jnp.maximum(total, 1)
        new = arrived * scale * weight[None]
        low = jnp.where((arrived > 0) & (weight > 0)[None], floors, 0)
        new = jnp.where(new <= limits, low, new)
        new = replaced(op, is_live, new, before)
        return new, (replaced(op, is_live, scale, 1), *new[: op.detailed])

    given = live, weights, None if is_shared else wide
    last, (scales, *kept) = lax.scan(step, first, given)
    total = jnp.sum(last, 1)
    score = jnp.log(total[0] / high) + jnp.sum(replaced(op, live, most, 0) - jnp.log(scales))
    score = jnp.where(outside, -jnp.inf, score + jnp.max(start) + tops)

    def is_known(certain: jax.Array) -> jax.Array:
        return outside | (total[-1] == 0) | ((total[0] >= 1) & certain)

    if not op.detailed:
        return is_known(total[1] <= total[0] * (1 + 16 * float(kind.eps))), (score,)
    messages, factors = jnp.append(first, kept[0], 0), scales[:, None] * weights

    def back(after: jax.Array, given: State) -> tuple[jax.Array, jax.Array]:
        is_live, factor, message, own = given
        found = _product((after * factor)[None], (pair[0] if own is None else own).mT)[0]
        # What lies ahead of a state that is not reached may be too large for the dtype.
        before = replaced(op, is_live, jnp.where(message > 0, found, 0), after)
        return before, before

    back_from = live, factors, messages[:-1], None if is_shared else pair
    end = jnp.where(last[0] > 0, 1 / (8 * floor) / total, 0)
    ahead = jnp.append(lax.scan(back, end, back_from, reverse=True)[1], end[None], 0)
    shares = messages * ahead
    whole = jnp.sum(shares, 1, keepdims=True)
    uses = replaced(op, live[:, None], ahead[1:] * factors, 0)
    pairs = jnp.einsum(
        "ts,tr->sr" if is_shared else "ts,tr->tsr",
        messages[:-1] / whole[1:],
        uses,
        precision=lax.Precision.HIGHEST,
    ).reshape(moves.shape)
    pairs = jnp.where(possible > 0, possible * pairs, 0)
    shares = shares / whole
    low = jnp.append(first <= high * least, (kept[0] <= floor) | (weights <= least), 0)
    lost = [jnp.where(x, y, 0) for x, y in ((possible <= floor, pairs), (low, shares))]
    certain = (jnp.sum(lost[0]) + jnp.sum(lost[1]) <= float(kind.eps)) & (jnp.max(whole) < jnp.inf)
    return is_known(certain), _wanted(
        op, (score, *_known(score, length, pairs - lost[0], shares - lost[1]))
    )


# --- the same of bands ----------------------------------------------------------------------------
#
# Of a text in frames the states that matter in the end may have e**-1000 of the sum before: so the
# number of each state has an exponent of its own. It is an array of digits, from 1 to 4 or 0, and
# one of exponents of 2. Float32 alone: TPUs have no access to the bits of float64.

Number = tuple[jax.Array, jax.Array]
NONE = -(2**29)  # the exponent of 0; a number with a lesser exponent becomes 0


def _number(logs: jax.Array) -> Number:
    """The number of each logarithm, which is at most about 0; below -9e7 the number is 0."""
    exponents = jnp.floor(logs / math.log(2))
    none, high = exponents < -(2**27), 355 / 512  # whose product with an exponent is exact
    digits = jnp.exp(logs - exponents * high - exponents * (math.log(2) - high))
    return jnp.where(none, 0, digits), jnp.where(none, NONE, exponents).astype(jnp.int32)


def _times(x: Number, y: Number) -> Number:
    return x[0] * y[0], x[1] + y[1]


def _power(exponents: jax.Array) -> jax.Array:
    """2 to the exponents, at most 1."""
    return lax.bitcast_convert_type((jnp.clip(exponents, -127, 0) + 127) << 23, jnp.float32)


def _sum(numbers: Sequence[Number]) -> Number:
    most = functools.reduce(jnp.maximum, (exponents for _, exponents in numbers))
    total = functools.reduce(jnp.add, (x * _power(e - most) for x, e in numbers))
    bits = lax.bitcast_convert_type(total, jnp.int32)
    digits = lax.bitcast_convert_type((bits & 0x7FFFFF) | 0x3F800000, jnp.float32)
    none = (most < NONE) | (total == 0)
    digits = jnp.where(total >= 0, jnp.where(none, 0, digits), total)  # or NaN
    return digits, jnp.where(none, NONE, most + (bits >> 23) - 127)


def _moved(number: Number, by: int) -> Number:
    """The entries so many places on, with 0 behind them."""
    digits, exponents = (
        lax.pad(x, jnp.asarray(none, x.dtype), [(by, -by, 0)])
        for x, none in zip(number, (0, NONE), strict=True)
    )
    return digits, exponents


def _in_band(
    op: Op, initial: jax.Array, moves: jax.Array, emission: jax.Array, *others: jax.Array
) -> tuple[jax.Array, Values]:
    """The sums; before them whether no number has become 0 that counts, or is none."""
    length, count = length_of(op, emission, others), emission.shape[0]
    times, is_shared = jnp.arange(count, dtype=jnp.int32), moves.shape[0] == 1
    row, column = (lax.broadcasted_iota(jnp.int32, moves.shape, axis) for axis in (1, 2))
    moves = jnp.where(row <= column, moves, -jnp.inf)
    live, (start, top) = times < length, (finite_max(initial), finite_max(moves, (1, 2)))
    seen, added = relative(replaced(op, live[:, None], emission, 0))
    initial, moves = initial - start, moves - top
    added += start[0] + jnp.sum(
        replaced(op, live[1:], jnp.broadcast_to(top[:, 0, 0], count - 1), 0)
    )

    shared = [*zip(*_number(moves[0]), strict=True)]

    def seen_of(logs: jax.Array) -> Number:
        digits, exponents = _number(logs)
        if not op.has_columns:
            return digits, exponents
        columns = others[op.has_length]
        return each_state(digits[None], columns)[0], jnp.take(exponents, columns, mode="clip")

    def step(before: Number, given: State) -> tuple[Number, Number]:
        live, logs, own = given
        each = shared if own is None else zip(*_number(own), strict=True)
        ways = [_times(_moved(before, k), move) for k, move in enumerate(each)]
        return replaced(op, live, _times(_sum(ways), seen_of(logs)), before), before

    given = live[1:], seen[1:], None if is_shared else moves
    last, before = lax.scan(step, _times(_number(initial), seen_of(seen[0])), given)
    most = jnp.max(last[1])
    total = jnp.sum(last[0] * _power(last[1] - most))
    score = jnp.log(total) + most.astype(total.dtype) * math.log(2)
    # Either no number was so small that it became 0, or none that did counts beside the sum.
    sizes = [jnp.max(jnp.where(x == -jnp.inf, 0, abs(x))) for x in (initial, moves, seen)]
    size = sizes[0] + (sizes[1] + sizes[2] + 4) * jnp.sum(live.astype(seen.dtype))
    outside = (length < 1) | (length > count)
    is_known = (size < 2**26) | (score > -(2**26)) | outside
    score = jnp.where(outside, -jnp.inf, score + added)
    if not op.detailed:
        return is_known, (score,)

    def share(x: Number, y: Number) -> jax.Array:
        return x[0] * y[0] * _power(x[1] + y[1] - most)

    def back(state: State, given: State) -> tuple[State, Values]:
        (after, uses), ((live, logs, own), before) = state, given
        came = _times(after, seen_of(logs))
        each = shared if own is None else zip(*_number(own), strict=True)
        ways = [_times(came, move) for move in each]
        new = replaced(op, live, _sum([_moved(way, -k) for k, way in enumerate(ways)]), after)
        used = jnp.stack([share(way, _moved(before, k)) for k, way in enumerate(ways)])
        used = replaced(op, live, used, 0)
        uses, used = (uses + used, uses[:0]) if is_shared else (uses, used)
        return (new, uses), (share(new, before), used)

    end = jnp.full_like(last[0], 1 / total), jnp.zeros_like(last[1])
    state = end, jnp.zeros_like(moves[0])
    (_, uses), (shares, used) = lax.scan(back, state, (given, before), reverse=True)
    shares = jnp.append(shares, share(end, last)[None], 0)
    shares = shares / jnp.sum(shares, 1, keepdims=True)
    derived = _known(score, length, uses[None] if is_shared else used, shares)
    return is_known, _wanted(op, (score, *derived))
