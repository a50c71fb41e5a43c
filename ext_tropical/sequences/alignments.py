"""Alignments of two sequences: with gaps, or by dynamic time warping."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, typed_call
from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, as_index, as_real, shown

from ..arguments import one_dtype, require_numbers, require_size
from ..semirings.registered import SemiringKey, as_semiring
from ..semirings.semiring import SelectiveSemiring, Semiring, highest, lowest
from ..semirings.shipped import LogSumExp, max_plus, min_plus
from .alignment_inputs import FreeEnd
from .alignment_op import Alignment, SemiglobalAlignment


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class AlignResult:
    """The best alignment, as a pytree.

    Attributes:
      score: its score, a scalar in the dtype of the scores; under log_sum_exp of all alignments.
        The semiring's zero if there is no alignment.
      path: int32 (m + n, 2): the columns in order. A column is (i, j) for a pair, (i, -1) for an
        element of the first sequence in a gap, (-1, j) for one of the second. Rows after the last
        column are (-1, -1). None under log_sum_exp.
    """

    score: jax.Array
    path: jax.Array | None


_SCORES = (
    "Compare the elements of both sequences first, "
    "as jnp.where(first[:, None] == second, 1.0, -1.0)."
)


@functools.partial(typed_call, fix=_SCORES)
def align(
    scores: ArrayLike,
    *,
    gap: ArrayLike | None = None,
    gap_open: ArrayLike | None = None,
    mode: str = "global",
    ends: str | Iterable[str] = (),
    band: int | None = None,
    lengths: ArrayLike | Sequence[ArrayLike] | None = None,
    semiring: Semiring | str = max_plus,
) -> AlignResult:
    """The best alignment of two sequences of m and n elements.

    An alignment is a list of columns, in which the elements of both sequences keep their order. A
    column is a pair (i, j), or one element in a gap. Its score is the semiring's product of its
    columns' scores. The recurrence for the best alignment of the first i and the first j elements,
    here under max_plus, is that of Needleman and Wunsch (1970)::

        H[0, 0] = 0
        H[i, j] = max(H[i-1, j-1] + scores[i-1, j-1], H[i-1, j] + gap, H[i, j-1] + gap)

    With `gap_open` the first element of a gap has another score (Gotoh, 1982). P, A and B end with
    a pair, with an element of the first sequence and with one of the second::

        H = max(P, A, B)
        P[i, j] = H[i-1, j-1] + scores[i-1, j-1]
        A[i, j] = max(P[i-1, j] + gap_open, A[i-1, j] + gap, B[i-1, j] + gap_open)
        B[i, j] = max(P[i, j-1] + gap_open, A[i, j-1] + gap_open, B[i, j-1] + gap)

    Without `gap` there are no gaps: each column is a pair, and from one column to the next one or
    both indices go on by one. This is dynamic time warping (Sakoe and Chiba, 1978)::

        H[i, j] = max(H[i-1, j-1], H[i-1, j], H[i, j-1]) + scores[i-1, j-1]

    `mode="local"` aligns a stretch of the first sequence with one of the second (Smith and
    Waterman, 1981). Its alignments begin and end with a pair, or have no columns and the score
    one, which is 0 under max_plus.

    `ends` names the free ends: those where elements of a sequence may be left out, for no score and
    in no column. This is semi-global alignment: ("second begin", "second end") finds all of the
    first sequence in a stretch of the second. Without `gap` it is subsequence time warping. A gap
    at a free end is always left out, so the columns neither begin nor end with it, and each
    alignment counts once. At one end elements of one sequence alone are left out, which may be all.
    "second begin" makes H[0, j] = 0, after which a gap opens; with "second end" an alignment ends
    at any [m, j], there not with an element of the second sequence in a gap. "first begin" and
    "first end" do the same with H[i, 0] and [i, n].

    Under log_sum_exp(T) the score is that of all alignments together. The negative of the score of
    negative costs is the soft-DTW of Cuturi and Blondel (2017) with gamma = T.

    Args:
      scores: (m, n), of the pairs; m and n are at least 1. Costs under min_plus. The semiring's
        zero forbids a pair. Columns are added in this dtype: convert 16-bit floats.
      gap: a scalar, the score of an element in a gap: negative under max_plus, positive under
        min_plus. None for warping.
      gap_open: a scalar, the score of the first element of a gap; `gap` by default. A gap of k
        elements has gap_open + (k - 1) gap.
      mode: "global" or "local".
      ends: some of "first begin", "first end", "second begin" and "second end", in mode "global".
      band: only nodes (i, j) of the recurrence with |i - j| <= band are used (Sakoe and Chiba's
        radius), also to begin and to end. A global alignment needs at least |m - n|, unless the
        end of the longer sequence is free.
      lengths: two integers, how many elements of each sequence are there; may be traced. What is in
        `scores` after them has no influence, also NaN, and ends are those of the lengths. With
        jax.vmap for batches of padded sequences.
      semiring: a selective semiring, log_sum_exp, or a name.

    Returns:
      An AlignResult: score and path. Of equally good paths that one is taken whose last column goes
        on in both sequences; else in the first alone, as (i, -1) does; else in the second alone.
        The same holds for each column before it, until the first place where a path may begin. Of
        several ends the path has that of the least i + j, then of the least i. Where the score is
        NaN the path says nothing.

    Raises:
      ShapeError: scores are no matrix or empty; gap, gap_open or lengths have another shape.
      DTypeError: the semiring does not take the dtype, or gap or gap_open has another one. Numbers
        of Python and NumPy take that of the scores, where it holds them.
      InvalidConfig: another mode; other ends, or ends in mode "local"; gap_open or local without
        gap; a band that is negative or below
        |m - n| of a global alignment; lengths outside the scores (if traced, there is no
        alignment); a semiring that is neither selective nor log_sum_exp.
      Unsupported: a symbolic size.

    Warns:
      UserWarning: a number of Python or NumPy as gap or gap_open that makes gaps better than none,
        as 8 for -8.

    Gradient: of the score, by scores: one at each pair of the path under max_plus and min_plus; the
    probability of each pair under log_sum_exp. By gap and gap_open: their number. Of any order, in
    both modes. NaN in a score that can be reached gives NaN. Under max_mul a best score of 0 has no
    path and the gradient 0. In jax.shard_map a second derivative under log_sum_exp needs
    `check_vma=False`.

    Cost: m n cells, or m times the band's width, natively on CPU for max_plus, min_plus and
    log_sum_exp in float32 and float64; else m + n steps over min(m, n) cells. Memory for a byte a
    cell beside the scores; the gradient under log_sum_exp keeps the values of all nodes.

    Example:
      >>> import jax.numpy as jnp
      >>> first, second = (jnp.array([*map(ord, word)]) for word in ("GATTACA", "GTTA"))
      >>> scores = jnp.where(first[:, None] == second, 1.0, -1.0)
      >>> result = align(scores, gap=-1)
      >>> print(result.score, *result.path[:7].tolist())
      1.0 [0, 0] [1, -1] [2, 1] [3, 2] [4, -1] [5, -1] [6, 3]
      >>> align(scores, gap=-1, mode="local").path[:4].tolist()
      [[2, 1], [3, 2], [4, 3], [-1, -1]]
      >>> align(scores, gap=-1, ends=["first begin", "first end"]).path[:5].tolist()
      [[0, 0], [1, -1], [2, 1], [3, 2], [4, 3]]
      >>> x, y = jnp.array([0.0, 1.0, 2.0]), jnp.array([0.0, 2.0])
      >>> costs = (x[:, None] - y) ** 2
      >>> print(align(costs, semiring="min_plus").score)
      1.0
    """
    algebra = as_semiring(semiring, "align, semiring")
    if not isinstance(algebra, SelectiveSemiring | LogSumExp):
        raise InvalidConfig(
            where="align",
            given=repr(algebra),
            needed="a selective semiring or log_sum_exp, whose derivatives are known",
        )
    table = _table(scores, algebra)
    _require_rules(mode, gap, gap_open)
    is_local = mode == "local"
    free = _free_ends(ends, mode)
    radius = -1
    if band is not None:
        is_known = lengths is None and not is_local
        radius = _radius(band, table.shape, free, is_known)
    if gap is None:
        each = jnp.asarray(algebra.one(table.dtype))
    else:
        each = _scalar(gap, "gap", algebra, table.dtype)
    first = each
    if gap_open is not None:
        first = _scalar(gap_open, "gap_open", algebra, table.dtype)
    inputs = [table, each, first]
    if lengths is not None:
        inputs.append(_lengths(lengths, table.shape))
    family = functools.partial(SemiglobalAlignment, ends=free) if free else Alignment
    op = family(
        semiring=SemiringKey.of(algebra),
        warps=gap is None,
        affine=gap_open is not None,
        local=is_local,
        band=radius,
        with_path=isinstance(algebra, SelectiveSemiring),
        has_lengths=lengths is not None,
    )
    score, *path = on_automatic_axes(functools.partial(apply, op))(*inputs)
    return AlignResult(score, path[0] if path else None)


def _table(scores: ArrayLike, semiring: Semiring) -> jax.Array:
    """The scores of all pairs, checked."""
    if isinstance(scores, str | bytes):
        raise DTypeError(
            where="align, scores",
            given=shown(scores),
            needed="the scores of all pairs of elements, (m, n)",
            fix=_SCORES,
        )
    table = jnp.asarray(as_array(scores, "align, scores"))
    one_dtype("align, scores", semiring, [table.dtype], [scores])
    require_numbers("align", table.shape, "numbers, which say how many steps there are")
    if table.ndim != 2 or 0 in table.shape:
        raise ShapeError(
            where="align, scores",
            given=f"shape {table.shape}",
            needed="(m, n), m and n at least 1",
            fix="One row for each element of the first sequence; for many use jax.vmap.",
        )
    return table


def _require_rules(mode: str, gap: ArrayLike | None, gap_open: ArrayLike | None) -> None:
    """Refuse another mode, and warping with what only gaps have."""
    if mode not in ("global", "local"):
        raise InvalidConfig(where="align, mode", given=repr(mode), needed="'global' or 'local'")
    if gap is None and (gap_open is not None or mode == "local"):
        raise InvalidConfig(
            where="align",
            given=("mode='local'" if gap_open is None else "gap_open") + " without gap",
            needed="gap, the score of an element in a gap",
            fix="Without gaps there is only global warping.",
        )


def _free_ends(given: str | Iterable[str], mode: str) -> tuple[str, ...]:
    """The free ends in the order of `FreeEnd`."""
    names = [given] if isinstance(given, str) else [*given]
    free = tuple(end.value for end in FreeEnd if end in names)
    if not set(names) <= set(free) or (free and mode == "local"):
        raise InvalidConfig(
            where="align, ends",
            given=f"{given!r} in mode {mode!r}",
            needed=f"some of {', '.join(map(repr, map(str, FreeEnd)))}, in mode 'global'",
        )
    return free


def _radius(band: int, shape: tuple[int, ...], free: Sequence[str], is_known: bool) -> int:
    """The band, at most the longer sequence, which is no band; checked if it is known where the
    alignment may end.
    """
    radius = require_size("align, band", band)
    longer = FreeEnd.FIRST_END if shape[0] > shape[1] else FreeEnd.SECOND_END
    apart = 0 if longer in free else abs(shape[0] - shape[1])
    if is_known and radius < apart:
        raise InvalidConfig(
            where="align, band",
            given=f"{radius} for {shape[0]} and {shape[1]} elements",
            needed=f"at least {apart}, their difference: the band has no global alignment",
        )
    return min(radius, max(shape))


def _scalar(given: ArrayLike, name: str, semiring: Semiring, dtype: np.dtype) -> jax.Array:
    where = f"align, {name}"
    number = None if isinstance(given, jax.Array) else as_real(given)
    if number is not None:
        return _constant(where, given, number, semiring, dtype)
    value = jnp.asarray(as_array(given, where))
    if value.ndim:
        raise ShapeError(where=where, given=f"shape {value.shape}", needed="a scalar")
    if value.weak_type and jnp.result_type(value, dtype) == dtype:
        value = value.astype(dtype)
    one_dtype(where, semiring, [dtype, value.dtype])
    return value


def _constant(
    where: str, given: ArrayLike, number: float, semiring: Semiring, dtype: np.dtype
) -> jax.Array:
    """A number in the dtype of the scores, which holds it."""
    low, high = (f(dtype).item() for f in (lowest, highest))
    exact = as_index(given)
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):
            value = np.asarray(number, dtype)
        holds = bool(np.isinf(value) <= np.isinf(number))
    else:
        holds = exact is not None and low <= exact <= high
        value = np.asarray(exact if holds else 0, dtype)
    if not holds:
        raise DTypeError(where=where, given=shown(given), needed=f"a number of {dtype.name}")
    is_cost = semiring == min_plus
    if (semiring in (max_plus, min_plus) or isinstance(semiring, LogSumExp)) and (
        number < 0 if is_cost else number > 0
    ):
        warnings.warn(
            f"{where}: {number:g} makes a gap better than none under {semiring!r}; the score of a "
            f"gap is added: {-number:g} makes it worse.",
            stacklevel=5,
        )
    return jnp.asarray(value)


def _lengths(given: ArrayLike | Sequence[ArrayLike], shape: tuple[int, ...]) -> jax.Array:
    lengths = jnp.asarray(as_array(given, "align, lengths"))
    if lengths.shape != (2,):
        raise ShapeError(
            where="align, lengths",
            given=f"shape {lengths.shape}",
            needed="(2,): the number of elements of the first and of the second sequence",
            fix="For a batch use jax.vmap.",
        )
    known = not isinstance(lengths, jax.core.Tracer)
    if not jnp.issubdtype(lengths.dtype, jnp.integer) or (
        known and any(not 0 <= length <= n for length, n in zip(lengths.tolist(), shape))
    ):
        raise InvalidConfig(
            where="align, lengths",
            given=str(lengths.tolist()) if known else lengths.dtype.name,
            needed=f"integers from 0 to {shape[0]} and from 0 to {shape[1]}",
        )
    return lengths if lengths.dtype == jnp.int32 else lengths.astype(jnp.int32)
