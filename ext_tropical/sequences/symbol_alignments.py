"""Alignments of two sequences of symbols, by the scores of pairs of symbols."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, typed_call
from tenferro_jax.extension import apply
from tenferro_jax.extension.transforms import on_automatic_axes
from tenferro_jax.shapes import as_array, is_traced, require_integers, shown

from ..arguments import inside, one_dtype, require_bool, require_numbers
from ..semirings.registered import SemiringKey
from ..semirings.semiring import Semiring
from ..semirings.shipped import max_plus, min_plus
from .alignment_arguments import AlignmentOptions, AlignmentRules, rules_of, semiring_of
from .alignment_inputs import SymbolInputs
from .alignments import AlignResult, by_scores
from .symbol_alignment_op import SymbolAlignment, known_lengths, looked_up

_NUMBERED = "Number the symbols of a text: [*map(letters.index, text)]."


@functools.partial(typed_call, fix="The score of a gap is an argument by name, as gap=-1.")
def align_symbols(
    first: ArrayLike,
    second: ArrayLike,
    substitution: ArrayLike,
    *,
    gap: ArrayLike | None = None,
    gap_open: ArrayLike | None = None,
    mode: str = "global",
    ends: str | Iterable[str] = (),
    band: int | None = None,
    lengths: ArrayLike | Sequence[ArrayLike] | None = None,
    semiring: Semiring | str = max_plus,
    with_path: bool = True,
) -> AlignResult:
    """The best alignment of two sequences of m and n symbols: that of `align` for the scores
    `substitution[first[:, None], second]`, with the same path. The native library makes no array
    of these scores.

    Args:
      first: integers (m,), the symbols of the first sequence, from 0 to k - 1; m is at least 1.
      second: integers (n,), those of the second one, from 0 to l - 1; n is at least 1.
      substitution: (k, l), the score of each pair of symbols, such as BLOSUM62. Costs under
        min_plus.
      gap: as in `align`.
      gap_open: as in `align`.
      mode: as in `align`.
      ends: as in `align`.
      band: as in `align`.
      lengths: as in `align`; symbols after them have no influence, of whatever kind.
      semiring: as in `align`.
      with_path: whether the path is wanted. A score alone takes less time and memory.

    Returns:
      An AlignResult, as `align`; path is None without `with_path`. Where a traced symbol is of no
      kind, there is no alignment.

    Raises:
      ShapeError, DTypeError, InvalidConfig, Unsupported: as `align`; symbols that are no integers,
        or out of range; a substitution that is no matrix.

    Warns:
      UserWarning: as `align`.

    Gradient: by substitution, how often the path has each pair of symbols, and by gap and gap_open
    their number; under log_sum_exp the expected numbers. Of any order, in both modes.

    Cost: m n cells natively on CPU, in float32, float64 and int32 under max_plus and min_plus with
    `gap` and without `band`. Cells begin with 8 bits if local, else with 16, and have more from
    where those would overflow, if all scores are whole numbers, `gap` is no better than none,
    `gap_open` no better than `gap`, the first sequence has at most 256 kinds, and no sum is rounded
    in the dtype. Then memory is for some numbers of each element, and for each of the second
    sequence the scores of all kinds; with a path for about (m + n) sqrt(m) numbers more. Other
    scores take up to twice the time of `align`, and for a path a byte a cell. All other questions
    make the scores of all pairs, (m, n), first; so do exported programs, and machines without the
    native library. An int32 score beyond the range of int32 is the end of that range natively, with
    the path that is best without a range; elsewhere sums wrap. Source: Farrar (2007).

    Example:
      >>> import jax.numpy as jnp
      >>> first, second = ([*map("ACGT".index, word)] for word in ("GATTACA", "GTTA"))
      >>> result = align_symbols(first, second, 2 * jnp.eye(4) - 1, gap=-1)
      >>> print(result.score, *result.path[:7].tolist())
      1.0 [0, 0] [1, -1] [2, 1] [3, 2] [4, -1] [5, -1] [6, 3]
    """
    where = "align_symbols"
    algebra = semiring_of(where, semiring)
    table = _substitution(f"{where}, substitution", substitution, algebra)
    one = _symbols(f"{where}, first", first)
    other = _symbols(f"{where}, second", second)
    shape = len(one), len(other)
    given = AlignmentOptions(
        gap=gap, gap_open=gap_open, mode=mode, ends=ends, band=band, lengths=lengths
    )
    rules = rules_of(where, algebra, table.dtype, shape, given)
    known = np.array(shape, np.int32) if rules.lengths is None else rules.lengths
    one = _numbered(f"{where}, first", one, table.shape[0], known, 0)
    other = _numbered(f"{where}, second", other, table.shape[1], known, 1)
    inputs = SymbolInputs(
        first=one,
        second=other,
        substitution=table,
        gap=rules.gap,
        gap_open=rules.gap_open,
        lengths=known,
    )
    is_wanted = require_bool(f"{where}, with_path", with_path)
    has_kernel = algebra in (max_plus, min_plus) and not rules.warps and rules.band < 0
    way = _by_symbols if has_kernel else _by_all_pairs
    found = way(algebra, rules, inputs, is_wanted)
    return found if is_wanted else AlignResult(found.score, None)


# --- two ways -------------------------------------------------------------------------------------


def _by_symbols(
    algebra: Semiring, rules: AlignmentRules, given: SymbolInputs, with_path: bool
) -> AlignResult:
    """By the op that takes symbols."""
    op = SymbolAlignment(
        semiring=SemiringKey.of(algebra),
        affine=rules.affine,
        local=rules.local,
        ends=rules.free,
        with_path=with_path,
    )
    score, *path = on_automatic_axes(functools.partial(apply, op))(*given)
    return AlignResult(score, path[0] if path else None)


def _by_all_pairs(
    algebra: Semiring, rules: AlignmentRules, given: SymbolInputs, with_path: bool
) -> AlignResult:
    """By the scores of all pairs, which give the path too."""
    scores = looked_up(given, given.first[:, None], given.second)
    if any(map(is_traced, (given.first, given.second, given.lengths))):
        rules = rules._replace(lengths=known_lengths(given))
    return by_scores(algebra, rules, scores)


# --- checks ---------------------------------------------------------------------------------------


def _substitution(where: str, given: ArrayLike, semiring: Semiring) -> jax.Array:
    table = jnp.asarray(as_array(given, where))
    one_dtype(where, semiring, [table.dtype], [given])
    require_numbers(where, table.shape, "numbers, the kinds of symbols")
    if table.ndim != 2 or 0 in table.shape:
        raise ShapeError(
            where=where,
            given=f"shape {table.shape}",
            needed="(k, l), the score of each pair of symbols, k and l at least 1",
        )
    return table


def _symbols(where: str, given: ArrayLike) -> jax.Array | np.ndarray:
    if isinstance(given, str | bytes):
        raise DTypeError(where=where, given=shown(given), needed="integers (n,)", fix=_NUMBERED)
    symbols = as_array(given, where)
    require_integers(where, symbols)
    require_numbers(where, symbols.shape, "numbers, which say how many steps there are")
    if symbols.ndim != 1 or not len(symbols):
        raise ShapeError(
            where=where,
            given=f"shape {symbols.shape}",
            needed="(n,), n at least 1",
            fix="For many sequences use jax.vmap.",
        )
    return symbols


def _numbered(
    where: str,
    symbols: jax.Array | np.ndarray,
    kinds: int,
    lengths: jax.Array | np.ndarray,
    axis: int,
) -> jax.Array | np.ndarray:
    """Symbols as int32; -1 in place of those of no kind, which none that is known to count may be.
    An array of NumPy unless they are traced: to make it one of JAX would compile.
    """
    if isinstance(symbols, jax.core.Tracer):
        return inside(symbols, kinds, -1)
    known = np.asarray(symbols)
    is_wrong = (known < 0) | (known >= kinds)
    count = 0 if is_traced(lengths) else int(np.asarray(lengths)[axis])
    wrong = np.flatnonzero(is_wrong[:count])
    if len(wrong):
        raise InvalidConfig(
            where=where,
            given=f"{known[wrong[0]]} at place {wrong[0]}",
            needed=f"symbols from 0 to {kinds - 1}",
        )
    found = known.astype(np.int32)
    found[is_wrong] = -1
    return found
