"""Alignments of two sequences: with gaps, or by dynamic time warping."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, ShapeError, typed_call
from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, shown

from ..arguments import one_dtype, require_numbers
from ..semirings.registered import SemiringKey
from ..semirings.semiring import SelectiveSemiring, Semiring
from ..semirings.shipped import max_plus
from .alignment_arguments import AlignmentOptions, AlignmentRules, rules_of, semiring_of
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
    "second begin" makes H[0, j] = 0, after which a gap opens, or a warping begins with the pair of
    1 and j + 1; with "second end" an alignment ends at any [m, j], there not with an element of
    the second sequence in a gap. "first begin" and "first end" do the same with H[i, 0] and [i, n].

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
    algebra = semiring_of("align", semiring)
    table = _table(scores, algebra)
    given = AlignmentOptions(
        gap=gap, gap_open=gap_open, mode=mode, ends=ends, band=band, lengths=lengths
    )
    rules = rules_of("align", algebra, table.dtype, table.shape, given)
    return by_scores(algebra, rules, table)


def by_scores(algebra: Semiring, rules: AlignmentRules, scores: jax.Array) -> AlignResult:
    """The best alignment by the scores of all pairs (m, n)."""
    inputs = [scores, rules.gap, rules.gap_open]
    if rules.lengths is not None:
        inputs.append(rules.lengths)
    has_ends = bool(rules.free)
    family = functools.partial(SemiglobalAlignment, ends=rules.free) if has_ends else Alignment
    op = family(
        semiring=SemiringKey.of(algebra),
        warps=rules.warps,
        affine=rules.affine,
        local=rules.local,
        band=rules.band,
        with_path=isinstance(algebra, SelectiveSemiring),
        has_lengths=rules.lengths is not None,
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
