"""The best assignment of networks that are too wide to be eliminated, with a proof.

The native library searches for it, by bounds: native/optimum.h says how.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import (
    DTypeError,
    InvalidConfig,
    ShapeError,
    TenferroError,
    counted,
    shortened,
)

from ..native.library import is_on_host, native, now
from ..semirings.shipped import max_plus
from ..steps.evaluate import Assignment
from ..steps.labels import Labels
from .bounds import Graph, Scores, Shapes, Tables, graph_of, is_closed, is_scored
from .factors import Factors
from .variables import Variable, as_floats

FEW = 1_000_000
"""Candidates of an elimination that is done without a search."""

CANDIDATES_OF_AN_ENTRY = 100
"""Of an elimination that takes as long as a search, for each entry of the tables."""

MOST_BY_PLAN = 100_000_000_000
"""Candidates of an elimination by the plan of the whole network, which is tried in the end."""

EXACT = 2.0**53
"""Integers below this are exact in float64."""

MOST_AT_ONCE = 500_000_000
"""Of one variable of it: these and a table of half as many numbers are in memory."""


TOO_WIDE = (
    f"too wide, since elimination would compare more than {MOST_BY_PLAN:.0e} candidates, or "
    f"{MOST_AT_ONCE:.0e} at once"
)


class Limits(NamedTuple):
    """Of a search, in the order of native/optimum.h, which says what they are."""

    first: float = 16
    last: float = 4096
    cheap: float = 100
    fair: float = 100
    candidates: float = 300_000_000
    work: float = 600_000_000
    of_whole: float = MOST_BY_PLAN
    at_once: float = MOST_AT_ONCE


LIMITS = Limits()


class Solution(NamedTuple):
    """An assignment, and what no other one exceeds.

    Attributes:
      labels: int32, of the variables in the order of `graph_of`.
      lower: the score of the labels; -inf if none is possible, or none was found.
      upper: at least the best score.
      undecided: the variables of which several values may be best.
    """

    labels: np.ndarray
    lower: float
    upper: float
    undecided: Sequence[Variable]


def optimum_of(scores: Scores, limits: Limits = LIMITS) -> Solution:
    """The best assignment, or the best one that was found with an upper bound of all."""
    graph = scores.graph
    labels = np.zeros(len(graph.names), np.int32)
    undecided = np.zeros(len(graph.names), np.uint8)
    found = np.zeros(3)
    numbers, results = graph.numbers, [labels, undecided, found]
    asked = np.array(limits, np.float64)
    is_integral = int(scores.is_integral)
    now(
        "optimum",
        *(numbers, numbers.size, scores.addresses, is_integral, scores.least, asked, results),
    )
    upper, lower, _ = found.tolist()
    names = [graph.names[i] for i in np.flatnonzero(undecided)]
    return Solution(labels, lower, upper, names)


def told_of_search(net: Factors) -> str:
    """What is said of a network for which there is a search; "" of others."""
    if not _is_searched(net):
        return ""
    ways = f"by a search with bounds first, of at most {LIMITS.work:.0g} entries"
    return f"value, best of concrete tables: {ways}"


def is_eliminable(net: Factors) -> bool:
    """Whether an elimination by the plan of a network ends in time, and in memory. There is no plan
    where the native library sees that none does.
    """
    graph = graph_of(net.scopes, tuple(x.shape for x in net.tables))
    if _cost(graph, MOST_BY_PLAN, MOST_AT_ONCE) == math.inf:
        return False
    try:
        plan = net.plan()
    except ShapeError:
        return False
    largest = max((step.size for step in plan.plan.steps), default=1)
    return plan.cost <= MOST_BY_PLAN and largest <= MOST_AT_ONCE


def _is_searched(net: Factors) -> bool:
    """Whether there is a search, if the tables are concrete."""
    is_plain = net.memory_limit is None and net.optimize == "auto" and not native().problem
    return (
        is_plain
        and _is_wide(net.scopes, tuple(x.shape for x in net.tables))
        and all(map(is_scored, {x.dtype for x in net.tables}))
    )


def best_if_wide(net: Factors) -> Assignment | None:
    """The best assignment of a network that is wide, proved by bounds; None where elimination by
    the plan of the network answers: inside transforms, where options of the plan are given, or
    where it is affordable and bounds prove nothing.

    Raises:
      ShapeError: neither answers.
      InvalidConfig: NaN or inf, and too wide for elimination.
      DTypeError: integers that do not hold the score, or whose sums are not exact.
    """
    if not _is_searched(net) or not is_on_host(*net.tables):
        return None
    arrays = list(map(np.asarray, net.tables))
    has_integers = any(x.dtype.kind == "i" for x in arrays)
    if has_integers:
        arrays = list(map(as_floats, arrays))
    scores = Scores.of(Tables(net.scopes, arrays))
    if refusal := _refusal(scores, has_integers):
        if is_eliminable(net):
            return None
        raise refusal
    found = optimum_of(scores)
    if is_closed(found.lower, found.upper, scores.least):
        value = jnp.asarray(in_dtype("Network.best", found.lower, np.dtype(net.tables[0].dtype)))
        labels = Labels(scores.graph.names, jnp.asarray(found.labels))
        return Assignment(value, labels, jnp.asarray(found.lower > -math.inf))
    if is_eliminable(net):
        return None
    raise _unproved(found)


def _refusal(scores: Scores, has_integers: bool) -> TenferroError | None:
    """Why there is no search for these scores."""
    if not (scores.entries < np.inf).all():
        return InvalidConfig(
            where="Network.best",
            given="NaN or inf among the scores of a network too wide for elimination",
            needed="numbers below inf",
        )
    largest = np.abs(
        scores.entries, where=scores.entries > -np.inf, out=np.zeros_like(scores.entries)
    )
    most = float(np.maximum.reduceat(largest, scores.graph.starts).sum())
    if has_integers and most >= EXACT:
        return DTypeError(
            where="Network.best",
            given=f"integers whose sums may be {most:.3g}, in a network too wide for elimination",
            needed="sums below 2**53, which are exact",
            fix="Convert the tables to float64.",
        )
    return None


def in_dtype(where: str, score: float, dtype: np.dtype) -> np.ndarray:
    """The best score in the dtype of the tables; refuses an integer that it does not hold."""
    if score == -math.inf:
        return np.asarray(max_plus.zero(dtype), dtype)
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= score <= np.iinfo(dtype).max:
        raise DTypeError(
            where=where,
            given=f"tables of {dtype} with a best score of {score:.0f}",
            needed="a dtype that holds the score",
            fix="Convert the tables to float64.",
        )
    return np.asarray(score).astype(dtype)


def _unproved(found: Solution) -> ShapeError:
    """The error that says what is known."""
    lower, upper, undecided = found.lower, found.upper, found.undecided
    names = shortened(", ".join(map(repr, undecided)))
    share = 100 * (upper - lower) / max(abs(lower), abs(upper))
    gap = f"a gap of {share:.2g} %" if lower > -math.inf else "no possible assignment found"
    return ShapeError(
        where="Network.best",
        given=f"a best score between {lower:.9g} and {upper:.9g}, {gap}, "
        f"with {counted(len(undecided), 'variable')} left to decide: {names}",
        needed="a network in which these are fewer, or connected less, so that elimination decides",
        fix="Ask for bounds(), which has both ends and an assignment; or fix some of them with "
        "given, one value after another.",
    )


@functools.lru_cache(maxsize=256)
def _is_wide(scopes: tuple[tuple[Variable, ...], ...], shapes: Shapes) -> bool:
    """Whether bounds are tried before an elimination of tables of these shapes."""
    for scope, shape in zip(scopes, shapes, strict=True):
        if len(scope) != len(shape) or not all(isinstance(size, int) for size in shape):
            return False  # a batch, or a symbolic size
    entries = sum(map(math.prod, shapes))
    most = max(FEW, CANDIDATES_OF_AN_ENTRY * entries)
    return _cost(graph_of(scopes, shapes), most, most) == math.inf


def _cost(graph: Graph, most: float, most_at_once: float) -> float:
    """Candidates of an elimination; inf if they are more."""
    found = np.zeros(1)
    now("cost", graph.numbers, graph.numbers.size, float(most), float(most_at_once), found)
    return float(found[0])
