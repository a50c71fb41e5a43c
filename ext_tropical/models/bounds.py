"""Bounds of the best score of a network, by its linear relaxation: `Network.bounds`.

Each table gives numbers to its variables, its messages: what a table lacks, its variables have. So
every assignment keeps its score, and the sum of the largest entries is an upper bound, whatever the
messages are. Sweeps over the variables in the native library choose messages that lower it, and
assignments whose scores are lower bounds.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.shapes import as_real, shown

from ..arguments import require_concrete, require_size
from ..native.library import native, now
from ..steps.labels import Labels
from .factors import Factors
from .variables import Variable, as_floats

TOLERANCE = 1e-9
"""Of the largest difference within a table: a gap that counts as none."""

ROUNDING = 1e-14
"""Of a score: what its sums may have lost."""

FIRST_SWEEPS = 16
"""Of a call of the library; each further call has twice as many, so that few calls do many."""

MOST_SWEEPS = 256
"""Of a call. Python looks at the clock, and at an interrupt, between two of them."""

ENTRIES_OF_A_CALL = 5_000_000
"""That its sweeps pass at most, if these are more than those of the first call: some tenths of a
second. A limit by the clock would let results depend on it.
"""

MOVES = 10
"""Of the best assignment over random forests, after the sweeps of a call: each costs a sweep."""

Messages = tuple[tuple[np.ndarray, ...], ...]
"""For each table of two variables and more, one array for each of its variables; for others ()."""


def is_closed(lower: float, upper: float, least: float) -> bool:
    """Whether no score is better than `lower` by more than `least`, up to rounding."""
    if lower == -math.inf:
        return upper == -math.inf
    return upper - lower <= least + ROUNDING * abs(lower)


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Bounds:
    """An interval that has the best score of a network, and what proves it.

    Attributes:
      network: the network.
      lower: the score of `labels`; -inf if no assignment that is possible was found.
      upper: no assignment has a higher score; -inf if none is possible.
      labels: `Labels`, int32 for each variable.
      uppers: for each variable float64 (values,): no assignment with this value has a higher score.
      messages: the certificate: for each table of two variables and more, and each of them, float64
        (values,); () for other tables. `certificate_problem` judges it.
      sweeps: how many were taken.

    Example:
      >>> from ext_tropical import Network
      >>> bounds = Network("ab,bc,ca->", *3 * [[[0.0, 1.0], [1.0, 0.0]]]).bounds()
      >>> bounds
      Bounds(2 to 3, not proved: a gap of 1, 33.33 %)
    """

    network: Any
    lower: float
    upper: float
    labels: Labels
    uppers: dict[Variable, np.ndarray]
    messages: Messages
    sweeps: int

    @property
    def gap(self) -> float:
        """upper - lower; 0 if no assignment is possible."""
        return 0.0 if self.upper == self.lower else self.upper - self.lower

    @property
    def proved(self) -> bool:
        """Whether no assignment has a better score than `labels`: none is better by more than 1e-9
        of the largest difference within a table; of integers by 1.
        """
        tables = [as_floats(np.asarray(x)) for x in self.network.tables]
        least = Scores.of(Tables(self.network.scopes, tables)).least
        return is_closed(self.lower, self.upper, least)

    @property
    def reparametrized(self) -> Any:
        """The network in which each table lacks its messages, and each variable has the sum of
        those to it and of its own tables: NumPy arrays, float64. Every assignment has the same
        score in it, up to rounding. The largest entries of its tables, at values that are possible,
        add up to `upper`.
        """
        own = {name: np.where(x > -np.inf, 0.0, -np.inf) for name, x in self.uppers.items()}
        made: list[tuple[tuple[Variable, ...], np.ndarray]] = []
        for scope, table, messages in zip(
            self.network.scopes, self.network.tables, self.messages, strict=True
        ):
            rest = np.array(as_floats(np.asarray(table)), np.float64)
            if len(scope) == 1:
                own[scope[0]] += rest
                continue
            for axis, (name, message) in enumerate(zip(scope, messages, strict=True)):
                own[name] += message
                rest -= message.reshape([-1] + [1] * (len(scope) - 1 - axis))
            made.append((scope, rest))
        made += [((name,), table) for name, table in own.items()]
        return self.network.like([scope for scope, _ in made], [table for _, table in made])

    def __repr__(self) -> str:
        if self.upper == -math.inf:
            return "Bounds(no assignment is possible)"
        if self.proved:
            return f"Bounds({self.lower:.9g}, proved)"
        size = max(abs(self.lower), abs(self.upper))
        share = f", {100 * self.gap / size:.4g} %" if math.isfinite(self.gap) and size else ""
        ends = f"{self.lower:.9g} to {self.upper:.9g}"
        return f"Bounds({ends}, not proved: a gap of {self.gap:.6g}{share})"


class Tables(NamedTuple):
    """A network in NumPy.

    Attributes:
      scopes: the variables of each table.
      tables: float64.
    """

    scopes: Sequence[Sequence[Variable]]
    tables: Sequence[np.ndarray]

    @property
    def sizes(self) -> dict[Variable, int]:
        """The number of values of each variable."""
        found: dict[Variable, int] = {}
        for scope, table in zip(self.scopes, self.tables, strict=True):
            found.update(zip(scope, table.shape, strict=True))
        return found

    def score(self, labels: Mapping[Variable, int]) -> float:
        """The score of an assignment, rounded once."""
        entries = []
        for scope, table in zip(self.scopes, self.tables, strict=True):
            cell = tuple(map(labels.__getitem__, scope))
            entries.append(float(table[cell]))
        return -math.inf if -math.inf in entries else math.fsum(entries)


class Graph(NamedTuple):
    """The variables of a network as the native library takes them.

    Attributes:
      names: of the variables.
      numbers: int64: the numbers of variables and of tables, the size of each variable, and for
        each table its rank and its variables.
      values: of all variables together.
      messages: of all tables of two variables and more.
      starts: int64, where each table begins among all entries.
    """

    names: tuple[Variable, ...]
    numbers: np.ndarray
    values: int
    messages: int
    starts: np.ndarray


Shapes = tuple[tuple[int, ...], ...]


@functools.lru_cache(maxsize=64)
def graph_of(scopes: tuple[tuple[Variable, ...], ...], shapes: Shapes) -> Graph:
    """Of tables of these variables and shapes."""
    sizes: dict[Variable, int] = {}
    for scope, shape in zip(scopes, shapes, strict=True):
        sizes.update(zip(scope, shape, strict=True))
    number = {name: i for i, name in enumerate(sizes)}
    numbers = [len(sizes), len(scopes), *sizes.values()]
    for scope in scopes:
        numbers.append(len(scope))
        numbers += map(number.__getitem__, scope)
    entries = np.array([math.prod(shape) for shape in shapes], np.int64)
    return Graph(
        names=tuple(sizes),
        numbers=np.array(numbers, np.int64),
        values=sum(sizes.values()),
        messages=sum(sum(shape) for shape in shapes if len(shape) > 1),
        starts=np.cumsum(entries) - entries,
    )


class Scores(NamedTuple):
    """The tables of a network as the native library takes them.

    Attributes:
      graph: their variables.
      entries: float64, those of all tables.
      addresses: int64, of each table in memory.
      least: a difference of scores that counts as none.
      is_integral: whether all entries are integers or -inf.
    """

    graph: Graph
    entries: np.ndarray
    addresses: np.ndarray
    least: float
    is_integral: bool

    @classmethod
    def of(cls, network: Tables) -> Scores:
        """Of a network in NumPy."""
        graph = graph_of(tuple(map(tuple, network.scopes)), tuple(x.shape for x in network.tables))
        entries = np.concatenate([x.ravel() for x in network.tables]).astype(np.float64)
        addresses = entries.ctypes.data + entries.itemsize * graph.starts
        least, is_integral = _least_difference(entries, graph.starts)
        return cls(
            graph=graph,
            entries=entries,
            addresses=addresses,
            least=least,
            is_integral=is_integral,
        )


def _least_difference(entries: np.ndarray, starts: np.ndarray) -> tuple[float, bool]:
    """A difference of scores that counts as none; whether all entries are integers or -inf."""
    possible = entries > -np.inf
    if (entries[possible] == np.rint(entries[possible])).all():
        return 0.5, True  # another score differs by 1
    most = np.maximum.reduceat(entries, starts)
    least = np.minimum.reduceat(np.where(possible, entries, np.inf), starts)
    return TOLERANCE * float((most - least).max(initial=0)), False


class Relaxation(NamedTuple):
    """What the native library found so far.

    Attributes:
      scores: of the network.
      messages: float64, of all tables of two variables and more.
      labels: int32 (variables,); -1 in the first place.
      uppers: float64, for all values of all variables.
      numbers: float64: the upper bound, the score of the labels, the sweeps of the last call.
    """

    scores: Scores
    messages: np.ndarray
    labels: np.ndarray
    uppers: np.ndarray
    numbers: np.ndarray

    @classmethod
    def of(cls, network: Tables) -> Relaxation:
        """Of a network, without messages."""
        scores = Scores.of(network)
        graph = scores.graph
        return cls(
            scores=scores,
            messages=np.zeros(graph.messages),
            labels=np.full(len(graph.names), -1, np.int32),
            uppers=np.full(graph.values, np.inf),
            numbers=np.array([np.inf, -np.inf, 0.0]),
        )

    @property
    def upper(self) -> float:
        """The upper bound."""
        return float(self.numbers[0])

    @property
    def lower(self) -> float:
        """The score of the labels."""
        return float(self.numbers[1])

    @property
    def is_proved(self) -> bool:
        """Whether the two are one."""
        return is_closed(self.lower, self.upper, self.scores.least)

    def improve(self, sweeps: int, moves: int, seed: int) -> int:
        """Take sweeps and moves, which change the arrays; how many sweeps there were, fewer if they
        gained nothing.
        """
        results = [self.messages, self.labels, self.uppers, self.numbers]
        numbers, addresses = self.scores.graph.numbers, self.scores.addresses
        least = self.scores.least
        now("bounds", numbers, numbers.size, addresses, sweeps, moves, seed, least, results)
        return int(self.numbers[2])


def improved(problem: Relaxation, sweeps: int) -> Iterator[int]:
    """Improves the bounds until they are proved, or sweeps gain nothing; yields the number of
    sweeps after each call.
    """
    taken, count = 0, FIRST_SWEEPS
    most = min(MOST_SWEEPS, max(FIRST_SWEEPS, ENTRIES_OF_A_CALL // problem.scores.entries.size))
    while taken < sweeps:
        asked = min(count, sweeps - taken)
        done = problem.improve(asked, MOVES, taken)
        taken += done
        yield taken
        if problem.is_proved or done < asked:
            return
        count = min(2 * count, most)


def is_scored(dtype: np.dtype) -> bool:
    """Whether bounds take tables of a dtype, as elimination does."""
    return dtype in (np.int32, np.int64) or jnp.issubdtype(dtype, jnp.floating)


def checked_tables(where: str, net: Factors) -> Tables:
    """The tables of a network, as the bounds take them.

    Raises:
      Unsupported: traced tables, or no native library.
      InvalidConfig: NaN or inf among the scores.
      DTypeError, ShapeError: other numbers than floats and integers; tables of a batch.
    """
    require_concrete(where, net.tables, "Ask outside of it.")
    if native().problem:
        raise Unsupported(where=where, given=str(native()), needed="the native library")
    arrays = [np.asarray(x) for x in net.tables]
    refused = sorted({x.dtype.name for x in arrays if not is_scored(x.dtype)})
    if refused:
        raise DTypeError(
            where=where,
            given=f"tables of {', '.join(refused)}",
            needed="floats, or integers of 32 or 64 bits",
        )
    if any(x.ndim != len(scope) for x, scope in zip(arrays, net.scopes, strict=True)):
        raise ShapeError(
            where=where,
            given="tables with more axes than variables, as those of a batch",
            needed="an axis for each variable",
            fix="Ask one network of the batch after another.",
        )
    tables = list(map(as_floats, arrays))
    if any(not (x < np.inf).all() for x in tables):
        raise InvalidConfig(
            where=where, given="NaN or inf among the scores", needed="numbers below inf"
        )
    return Tables(net.scopes, tables)


def bounds_of(
    net: Factors,
    sweeps: int,
    seconds: float | None,
    progress: Callable[[float, float, int], object] | None,
) -> Bounds:
    """See `Network.bounds`."""
    where = "Network.bounds"
    sweeps = require_size(f"{where}, sweeps", sweeps, 1)
    if progress is not None and not callable(progress):
        raise InvalidConfig(
            where=f"{where}, progress", given=shown(progress), needed="a function, or None"
        )
    end = time.monotonic() + _required_seconds(f"{where}, seconds", seconds)
    network = checked_tables(where, net)
    problem = Relaxation.of(network)
    taken = 0
    for taken in improved(problem, sweeps):  # the last one counts
        if progress is not None:
            progress(problem.lower, problem.upper, taken)
        if time.monotonic() >= end:
            break
    if not problem.upper < math.inf:
        raise InvalidConfig(
            where=where, given="scores whose sums are beyond float64", needed="smaller scores"
        )
    return _by_names(net, network, problem, taken)


def _required_seconds(where: str, seconds: float | None) -> float:
    """A time; for ever if it is None."""
    if seconds is None:
        return math.inf
    found = as_real(seconds)
    if found is None or not found >= 0:
        raise InvalidConfig(where=where, given=shown(seconds), needed="a number of at least 0")
    return found


def _by_names(net: Factors, network: Tables, problem: Relaxation, sweeps: int) -> Bounds:
    """What the library found, by names."""
    variables = net.variables
    labels = dict(zip(variables, problem.labels.tolist(), strict=True))
    ends = itertools.accumulate(variables.values(), initial=0)
    uppers = [problem.uppers[a:b] for a, b in itertools.pairwise(ends)]
    return Bounds(
        network=net,
        lower=network.score(labels) if problem.upper > -math.inf else -math.inf,
        upper=problem.upper,
        labels=Labels(tuple(variables), jnp.asarray(problem.labels)),
        uppers=dict(zip(variables, uppers, strict=True)),
        messages=tuple(_messages(problem.messages, network.tables)),
        sweeps=sweeps,
    )


def _messages(flat: np.ndarray, tables: Sequence[np.ndarray]) -> Iterator[tuple[np.ndarray, ...]]:
    """The messages of each table."""
    start = 0
    for table in tables:
        sizes = table.shape if table.ndim > 1 else ()
        ends = list(itertools.accumulate(sizes, initial=start))
        yield tuple(flat[a:b] for a, b in itertools.pairwise(ends))
        start = ends[-1]
