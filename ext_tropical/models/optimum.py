"""The best assignment of networks that are too wide to be eliminated, with a proof.

Bounds tell which values no better assignment has: those whose upper bound is below the score of an
assignment that is known. They are left out. What is left falls into parts without a table in
common. A part of small width is eliminated, another one is bounded again: its own interval is
narrower than that of the whole.
"""

from __future__ import annotations

import functools
import heapq
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, counted, shortened

from ..einsums.call import best_assignment
from ..native.library import is_on_host, native
from ..steps.evaluate import Assignment
from ..steps.labels import Labels
from .bounds import Relaxation, Tables, improved, is_closed
from .factors import Factors
from .variables import Variable, equation, spread

FEW = 1_000_000
"""Candidates of an elimination that is done at once."""

CANDIDATES_OF_AN_ENTRY = 100
"""Of an elimination that takes as long as bounds, for each entry of the tables."""

MOST_CANDIDATES = 300_000_000
"""Candidates of an elimination, some seconds, that is done where bounds leave out nothing more."""

MOST_BY_PLAN = 100_000_000_000
"""Candidates of an elimination by the plan of the whole network, which is tried in the end."""

MOST_AXES = 28
"""Of a table that elimination makes."""

MOST_IN_NUMPY = 100_000
"""Candidates of an elimination in NumPy, which needs no plan."""

HOPELESS = 0.03
"""Of the score, a gap after the first sweeps that an elimination is preferred to."""

SWEEPS = 1000

MORE_MOVES = 50
"""Tried where the bounds leave out nothing: a better assignment leaves out more."""

MOVED_AGAIN = 3
"""How often, while that finds a better assignment."""

Labelled = dict[Variable, int]


class Solution(NamedTuple):
    """An assignment, and what no other one exceeds.

    Attributes:
      labels: the assignment.
      upper: at least the best score; that of the labels, if this is proved to be the best.
      undecided: the variables of which several values may be best.
    """

    labels: Labelled
    upper: float
    undecided: Sequence[Variable] = ()


def best_if_wide(net: Factors) -> Assignment | None:
    """The best assignment of a network that is wide, proved by bounds; None where elimination by
    the plan of the network answers: inside transforms, where options of the plan are given, or
    where it is affordable and bounds prove nothing.

    Raises:
      ShapeError: neither answers.
      InvalidConfig: NaN or inf, and too wide for elimination.
      DTypeError: integers that do not hold the score.
    """
    is_plain = net.memory_limit is None and net.optimize == "auto" and not native().problem
    if not is_plain or not _is_wide(net.scopes, tuple(x.shape for x in net.tables)):
        return None
    if not all(map(is_on_host, net.tables)):
        return None
    arrays = [np.asarray(x) for x in net.tables]
    if not all(dtype.kind in "iuf" for dtype in {x.dtype for x in arrays}):
        return None
    network = Tables(net.scopes, [x.astype(np.float64, copy=False) for x in arrays])
    if not all((x < np.inf).all() for x in arrays):
        if _order_if(network, MOST_BY_PLAN) is not None:
            return None
        raise InvalidConfig(
            where="Network.best",
            given="NaN or inf among the scores of a network too wide for elimination",
            needed="numbers below inf",
        )
    solution = optimum_of(network)
    lower = network.score(solution.labels)
    if is_closed(lower, solution.upper, network.least):
        names = tuple(net.variables)
        labels = np.array([solution.labels[name] for name in names], np.int32)
        value = jnp.asarray(_in_dtype(lower, arrays[0].dtype))
        feasible = jnp.asarray(lower > -math.inf)
        return Assignment(value, Labels(names, jnp.asarray(labels)), feasible)
    if _order_if(network, MOST_BY_PLAN) is not None:
        return None
    raise _unproved(lower, solution)


def _in_dtype(score: float, dtype: np.dtype) -> np.ndarray:
    """The best score in the dtype of the tables; refuses an integer that it does not hold."""
    if dtype.kind in "iu" and not np.iinfo(dtype).min <= score <= np.iinfo(dtype).max:
        raise DTypeError(
            where="Network.best",
            given=f"tables of {dtype} with a best score of {score:.0f}",
            needed="a dtype that holds the score",
            fix="Convert the tables to float64.",
        )
    return np.asarray(score).astype(dtype)


def _unproved(lower: float, solution: Solution) -> ShapeError:
    """The error that says what is known."""
    undecided = solution.undecided
    names = shortened(", ".join(map(repr, undecided)))
    share = 100 * (solution.upper - lower) / max(abs(lower), abs(solution.upper))
    gap = f"a gap of {share:.2g} %" if lower > -math.inf else "no possible assignment found"
    return ShapeError(
        where="Network.best",
        given=f"a best score between {lower:.9g} and {solution.upper:.9g}, {gap}, "
        f"with {counted(len(undecided), 'variable')} left to decide: {names}",
        needed="a network in which these are fewer, or connected less, so that elimination decides",
        fix="Ask for bounds(), which has both ends and an assignment; or fix some of them with "
        "given, one value after another.",
    )


def optimum_of(network: Tables) -> Solution:
    """The best assignment, or the best one that was found with an upper bound of all."""
    order = _order_if(network)
    if order is not None:
        return _eliminated(network, order)
    problem = Relaxation.of(network)
    for _ in improved(problem, SWEEPS):
        is_hopeless = problem.upper - problem.lower > HOPELESS * abs(problem.lower)
        if is_hopeless or problem.lower == -math.inf:
            order = _order_if(network, MOST_CANDIDATES)
            if order is not None:
                return _eliminated(network, order)
    solution = _by_bounds(network, problem)
    for seed in range(MOVED_AGAIN):
        if solution is not None:
            return solution
        before = problem.lower
        problem.improve(1, MORE_MOVES, SWEEPS + seed)
        if problem.lower == before:
            break
        solution = _by_bounds(network, problem)
    if solution is not None:
        return solution
    order = _order_if(network, MOST_CANDIDATES)
    if order is not None:
        return _eliminated(network, order)
    kept = _kept(problem, network.sizes)
    undecided = [name for name, values in kept.items() if len(values) > 1]
    return Solution(_assignment_of(network, problem), problem.upper, undecided)


def _by_bounds(network: Tables, problem: Relaxation) -> Solution | None:
    """What follows from the bounds; None if they neither decide nor leave out a value."""
    kept = _kept(problem, network.sizes)
    left = [len(values) for values in kept.values()]
    if problem.is_proved or 0 in left:  # no assignment is better
        known = _assignment_of(network, problem)
        return Solution(known, network.score(known))
    return _part_by_part(network, problem, kept) if sum(left) < problem.uppers.size else None


def _assignment_of(network: Tables, problem: Relaxation) -> Labelled:
    """The best assignment that was found."""
    return dict(zip(network.sizes, problem.labels.tolist(), strict=True))


def _kept(problem: Relaxation, sizes: Mapping[Variable, int]) -> dict[Variable, np.ndarray]:
    """The values that a better assignment may have."""
    may_be = problem.uppers > problem.lower
    kept, start = {}, 0
    for name, size in sizes.items():
        kept[name] = np.flatnonzero(may_be[start : start + size])
        start += size
    return kept


def _part_by_part(
    network: Tables, problem: Relaxation, kept: Mapping[Variable, np.ndarray]
) -> Solution:
    """Of the values that are left, part by part; the known assignment where that is no better."""
    labels = {name: int(values[0]) for name, values in kept.items()}
    constant, tables = _left(network, kept)
    uppers, undecided = [constant], list[Variable]()
    for part in _connected(tables):
        solution = optimum_of(part)
        uppers.append(solution.upper)
        undecided += solution.undecided
        labels.update({name: int(kept[name][i]) for name, i in solution.labels.items()})
    upper = max(problem.lower, min(problem.upper, math.fsum(uppers)))
    score = network.score(labels)
    if score <= problem.lower:
        labels = _assignment_of(network, problem)
    return Solution(labels, max(upper, score), undecided)


def _left(
    network: Tables, kept: Mapping[Variable, np.ndarray]
) -> tuple[float, dict[tuple[Variable, ...], np.ndarray]]:
    """The sum of the tables whose variables have one value left; and the tables of the values that
    are left, one for each scope.
    """
    constants = []
    tables: dict[tuple[Variable, ...], np.ndarray] = {}
    for scope, table in zip(network.scopes, network.tables, strict=True):
        cut = table
        for axis in reversed(range(len(scope))):
            values = kept[scope[axis]]
            if len(values) == 1:
                cut = cut.take(values[0], axis)
            elif len(values) < table.shape[axis]:
                cut = cut.take(values, axis)
        rest = tuple(name for name in scope if len(kept[name]) > 1)
        if rest:
            tables[rest] = tables[rest] + cut if rest in tables else cut
        else:
            constants.append(float(cut))
    return math.fsum(constants), tables


def _connected(tables: Mapping[tuple[Variable, ...], np.ndarray]) -> Iterator[Tables]:
    """The tables of each set of variables that tables connect."""
    of: dict[Variable, list[tuple[Variable, ...]]] = {}
    for scope in tables:
        for name in scope:
            of.setdefault(name, []).append(scope)
    while of:
        part: dict[tuple[Variable, ...], np.ndarray] = {}
        names = [next(iter(of))]
        for name in names:  # which grows
            for scope in of.pop(name, ()):
                part[scope] = tables[scope]
                names += scope
        yield Tables([*part], [*part.values()])


# --- elimination ----------------------------------------------------------------------------------


class Order(NamedTuple):
    """An order of elimination.

    Attributes:
      variables: in the order in which they are eliminated.
      candidates: how many entries are compared.
    """

    variables: Sequence[Variable]
    candidates: int


@functools.lru_cache(maxsize=256)
def _is_wide(scopes: tuple[tuple[Variable, ...], ...], shapes: tuple[tuple[Any, ...], ...]) -> bool:
    """Whether bounds are tried before an elimination of tables of these shapes."""
    sizes: dict[Variable, Any] = {}
    for scope, shape in zip(scopes, shapes, strict=True):
        if len(scope) != len(shape) or not all(isinstance(size, int) for size in shape):
            return False  # a batch, or a symbolic size
        sizes.update(zip(scope, shape, strict=True))
    entries = sum(map(math.prod, shapes))
    return _order_of(scopes, sizes, max(FEW, CANDIDATES_OF_AN_ENTRY * entries)) is None


def _order_if(network: Tables, most: int = 0) -> Order | None:
    """An order of elimination, if it has at most so many candidates, or is not worth bounds."""
    entries = sum(table.size for table in network.tables)
    most = most or max(FEW, CANDIDATES_OF_AN_ENTRY * entries)
    return _order_of(network.scopes, network.sizes, most)


def _order_of(
    scopes: Sequence[Sequence[Variable]], sizes: Mapping[Variable, int], most: int
) -> Order | None:
    """An order of elimination by least degree, if it has at most so many candidates."""
    near: dict[Variable, set[Variable]] = {name: set() for name in sizes}
    for scope in scopes:
        for name in scope:
            near[name].update(scope)
    for name, others in near.items():
        others.discard(name)
    number = {name: i for i, name in enumerate(sizes)}
    queue = [(len(others), number[name], name) for name, others in near.items()]
    heapq.heapify(queue)
    order: list[Variable] = []
    candidates = 0
    while queue:
        degree, _, name = heapq.heappop(queue)
        if name not in near or degree != len(near[name]):
            continue
        others = near.pop(name)
        candidates += sizes[name] * math.prod(sizes[other] for other in others)
        if candidates > most or degree > MOST_AXES:
            return None
        order.append(name)
        for other in others:
            near[other] |= others
            near[other] -= {name, other}
            heapq.heappush(queue, (len(near[other]), number[other], other))
    return Order(order, candidates)


def _eliminated(network: Tables, order: Order) -> Solution:
    """The best assignment, by elimination."""
    small = order.candidates <= MOST_IN_NUMPY
    labels = _eliminated_in_numpy(network, order.variables) if small else _by_plan(network)
    return Solution(labels, network.score(labels))


def _by_plan(network: Tables) -> Labelled:
    """By the native library. The first call of a network plans its contractions."""
    letters = {get_symbol(i): name for i, name in enumerate(network.sizes)}
    with jax.enable_x64(True):
        found = best_assignment(equation(network.scopes, ()), *network.tables)
    return {letters[letter]: value for letter, value in found.labels.tolist().items()}


def _eliminated_in_numpy(network: Tables, order: Sequence[Variable]) -> Labelled:
    """By elimination of the variables in an order."""
    place = {name: i for i, name in enumerate(order)}
    buckets: dict[Variable, list[tuple[Sequence[Variable], np.ndarray]]] = {x: [] for x in order}
    for scope, table in zip(network.scopes, network.tables, strict=True):
        if scope:
            buckets[min(scope, key=place.__getitem__)].append((scope, table))
    steps: list[tuple[Variable, list[Variable], np.ndarray]] = []
    for name in order:
        held = buckets.pop(name)
        others = sorted({x for scope, _ in held for x in scope} - {name}, key=place.__getitem__)
        total = sum(spread(table, scope, [*others, name]) for scope, table in held)
        best = np.asarray(total).argmax(-1)
        steps.append((name, others, best))
        if others:
            largest = np.take_along_axis(total, best[..., None], -1)[..., 0]
            buckets[others[0]].append((others, largest))
    labels: Labelled = {}
    for name, others, best in reversed(steps):
        labels[name] = int(best[tuple(labels[other] for other in others)])
    return labels
