"""How the elements of two sequences are to be aligned, as functions are given it, checked."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.shapes import as_array, as_index, as_real, shown

from ..arguments import one_dtype, require_size
from ..semirings.registered import as_semiring
from ..semirings.semiring import SelectiveSemiring, Semiring, highest, lowest
from ..semirings.shipped import LogSumExp, max_plus, min_plus
from .alignment_inputs import FreeEnd


class AlignmentOptions(NamedTuple):
    """What a function is given beside the elements: arguments of `align`, which describes them."""

    gap: ArrayLike | None
    gap_open: ArrayLike | None
    mode: str
    ends: str | Iterable[str]
    band: int | None
    lengths: ArrayLike | Sequence[ArrayLike] | None


class AlignmentRules(NamedTuple):
    """The same, checked.

    Attributes:
      gap, gap_open: scalars in the dtype of the scores; in warping the semiring's one.
      warps, affine, local: as `Alignment` has them.
      free: the free ends, in the order of `FreeEnd`.
      band: the greatest |i - j|, at most the longer sequence; -1 for none.
      lengths: int32 (2,), or None.
    """

    gap: jax.Array
    gap_open: jax.Array
    warps: bool
    affine: bool
    local: bool
    free: tuple[str, ...]
    band: int
    lengths: jax.Array | None


def semiring_of(where: str, given: Semiring | str) -> Semiring:
    """The semiring of an alignment.

    Raises:
      InvalidConfig: it is neither selective nor log_sum_exp.
    """
    semiring = as_semiring(given, f"{where}, semiring")
    if isinstance(semiring, SelectiveSemiring | LogSumExp):
        return semiring
    raise InvalidConfig(
        where=where,
        given=repr(semiring),
        needed="a selective semiring or log_sum_exp, whose derivatives are known",
    )


def rules_of(
    where: str,
    semiring: Semiring,
    dtype: np.dtype,
    shape: tuple[int, ...],
    given: AlignmentOptions,
) -> AlignmentRules:
    """What is given, checked for scores of a dtype and sequences of two numbers of elements.

    Raises:
      ShapeError, DTypeError, InvalidConfig: as `align`.
    """
    _require_rules(where, given)
    is_local = given.mode == "local"
    free = _free_ends(f"{where}, ends", given.ends, given.mode)
    band = -1
    if given.band is not None:
        is_known = given.lengths is None and not is_local
        band = _radius(f"{where}, band", given.band, shape, free, is_known)
    if given.gap is None:
        gap = jnp.asarray(semiring.one(dtype))
    else:
        gap = _scalar(f"{where}, gap", given.gap, semiring, dtype)
    gap_open = gap
    if given.gap_open is not None:
        gap_open = _scalar(f"{where}, gap_open", given.gap_open, semiring, dtype)
    lengths = None
    if given.lengths is not None:
        lengths = _lengths(f"{where}, lengths", given.lengths, shape)
    return AlignmentRules(
        gap=gap,
        gap_open=gap_open,
        warps=given.gap is None,
        affine=given.gap_open is not None,
        local=is_local,
        free=free,
        band=band,
        lengths=lengths,
    )


def _require_rules(where: str, given: AlignmentOptions) -> None:
    """Refuse another mode, and warping with what only gaps have."""
    mode = given.mode
    if mode not in ("global", "local"):
        raise InvalidConfig(where=f"{where}, mode", given=repr(mode), needed="'global' or 'local'")
    if given.gap is None and (given.gap_open is not None or mode == "local"):
        raise InvalidConfig(
            where=where,
            given=("mode='local'" if given.gap_open is None else "gap_open") + " without gap",
            needed="gap, the score of an element in a gap",
            fix="Without gaps there is only global warping.",
        )


def _free_ends(where: str, given: str | Iterable[str], mode: str) -> tuple[str, ...]:
    """The free ends in the order of `FreeEnd`."""
    names = [given] if isinstance(given, str) else [*given]
    free = tuple(end.value for end in FreeEnd if end in names)
    if not set(names) <= set(free) or (free and mode == "local"):
        raise InvalidConfig(
            where=where,
            given=f"{given!r} in mode {mode!r}",
            needed=f"some of {', '.join(map(repr, map(str, FreeEnd)))}, in mode 'global'",
        )
    return free


def _radius(
    where: str, band: int, shape: tuple[int, ...], free: Sequence[str], is_known: bool
) -> int:
    """The band, at most the longer sequence, which is no band; checked if it is known where the
    alignment may end.
    """
    radius = require_size(where, band)
    longer = FreeEnd.FIRST_END if shape[0] > shape[1] else FreeEnd.SECOND_END
    apart = 0 if longer in free else abs(shape[0] - shape[1])
    if is_known and radius < apart:
        raise InvalidConfig(
            where=where,
            given=f"{radius} for {shape[0]} and {shape[1]} elements",
            needed=f"at least {apart}, their difference: the band has no global alignment",
        )
    return min(radius, max(shape))


def _scalar(where: str, given: ArrayLike, semiring: Semiring, dtype: np.dtype) -> jax.Array:
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
    fix = ""
    if jnp.issubdtype(dtype, jnp.floating):
        with np.errstate(over="ignore"):
            value = np.asarray(number, dtype)
        holds = bool(np.isinf(value) <= np.isinf(number))
    else:
        holds = exact is not None and low <= exact <= high
        value = np.asarray(exact if holds else 0, dtype)
        if exact is None:
            fix = "Write an integer, or convert the scores to floats."
    if not holds:
        raise DTypeError(
            where=where,
            given=shown(given),
            needed=f"a number of {dtype.name}, the dtype of the scores",
            fix=fix,
        )
    is_cost = semiring == min_plus
    if (semiring in (max_plus, min_plus) or isinstance(semiring, LogSumExp)) and (
        number < 0 if is_cost else number > 0
    ):
        warnings.warn(
            f"{where}: {number:g} makes a gap better than none under {semiring!r}; the score of a "
            f"gap is added: {-number:g} makes it worse.",
            stacklevel=6,
        )
    return jnp.asarray(value)


def _lengths(
    where: str, given: ArrayLike | Sequence[ArrayLike], shape: tuple[int, ...]
) -> jax.Array:
    lengths = jnp.asarray(as_array(given, where))
    if lengths.shape != (2,):
        raise ShapeError(
            where=where,
            given=f"shape {lengths.shape}",
            needed="(2,): the number of elements of the first and of the second sequence",
            fix="For a batch use jax.vmap.",
        )
    known = not isinstance(lengths, jax.core.Tracer)
    if not jnp.issubdtype(lengths.dtype, jnp.integer) or (
        known and any(not 0 <= length <= n for length, n in zip(lengths.tolist(), shape))
    ):
        raise InvalidConfig(
            where=where,
            given=str(lengths.tolist()) if known else lengths.dtype.name,
            needed=f"integers from 0 to {shape[0]} and from 0 to {shape[1]}",
        )
    return lengths if lengths.dtype == jnp.int32 else lengths.astype(jnp.int32)
