"""The best assignment of a network by toulbar2, for networks that only search solves.

Bounds come first: their assignment is what toulbar2 has to beat, and values that no better
assignment has are left out. Scores become costs in whole numbers, which toulbar2 minimises.
"""

from __future__ import annotations

import importlib.util
import math
import pathlib
import pickle
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from opt_einsum import get_symbol

from tenferro_jax import TensorMeta
from tenferro_jax.errors import BackendFailure, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import ExtensionOp, apply, extension_op, require_equal
from tenferro_jax.shapes import as_real, is_traced, shown

from ..arguments import one_dtype, widened
from ..native.library import native
from ..networks.walk import NetworkEntries
from ..semirings.shipped import max_plus
from ..steps.evaluate import Assignment
from ..steps.labels import Labels
from . import toulbar2_process
from .bounds import Relaxation, Tables, improved
from .factors import Factors
from .optimum import in_dtype
from .toulbar2_process import Outcome, Problem
from .variables import Variable, as_floats, distinct

SWEEPS = 1000
"""Of the bounds, at most."""

DIGITS = 15
"""Of the sum of all costs, at most: a 500th of what toulbar2 takes, and exact in float64."""

MOST_DECIMALS = 300
"""A power of ten that float64 holds."""

GRACE = 10
"""Seconds after which a search is ended that does not end itself."""

INT32 = np.dtype("int32")


def require_toulbar2(where: str, solver: object, seconds: object, k: object = None) -> None:
    """Refuse what is no question to toulbar2.

    Raises:
      InvalidConfig: another solver, or a time or several assignments, which toulbar2 does not take.
      Unsupported: pytoulbar2 is not installed.
    """
    if solver not in ("auto", "toulbar2"):
        raise InvalidConfig(
            where=f"{where}, solver", given=shown(solver), needed='"auto" or "toulbar2"'
        )
    if solver == "auto":
        raise InvalidConfig(
            where=f"{where}, seconds", given=shown(seconds), needed='solver="toulbar2"'
        )
    number = 0.0 if seconds is None else as_real(seconds)
    if number is None or not 0 <= number < math.inf:
        raise InvalidConfig(
            where=f"{where}, seconds", given=shown(seconds), needed="a number of at least 0"
        )
    if k is not None:
        raise InvalidConfig(
            where=f"{where}, k",
            given=f"{shown(k)} with toulbar2",
            needed="no k: toulbar2 gives one assignment",
            fix='Ask best(k) with solver="auto".',
        )
    if importlib.util.find_spec("pytoulbar2") is None:
        raise Unsupported(
            where=f"{where}, solver",
            given="a process without pytoulbar2",
            needed="the package pytoulbar2, which searches",
            fix="pip install 'tenferro-jax[toulbar2]'",
        )


def best_by_toulbar2(net: Factors, seconds: float | None) -> Assignment:
    """The best assignment of a network. Concrete tables are answered at once, so that errors are
    not those of a host op.
    """
    names = distinct(net.scopes)
    place = {name: i for i, name in enumerate(names)}
    scopes = tuple(tuple(map(place.__getitem__, scope)) for scope in net.scopes)
    op = Toulbar2Best(scopes, None if seconds is None else float(seconds))
    if any(map(is_traced, net.tables)):
        value, labels = apply(op, *net.tables)
    else:
        op.infer_output_meta([TensorMeta(x.dtype, x.shape) for x in net.tables])
        value, labels = map(jnp.asarray, op.eager_execute(*map(np.asarray, net.tables)))
    is_feasible = value != jnp.asarray(max_plus.zero(value.dtype))
    return Assignment(value, Labels(names, labels), is_feasible)


@extension_op(package="tenferro-ext-tropical", name="toulbar2_best", version=1)
class Toulbar2Best(ExtensionOp):
    """The best score of a network and the labels of an assignment that has it, by toulbar2 on the
    host.

    Inputs are the tables, of one dtype of max_plus. Outputs are the score, a scalar of that dtype,
    and int32 (variables,). If no assignment is possible, the score is the zero of max_plus, and
    labels mean nothing. Labels have no derivative.

    Attributes:
      scopes: for each table the numbers of its variables, which count from 0 in the order of first
        appearance.
      seconds: the time after which the search ends; None for no end.
    """

    scopes: tuple[tuple[int, ...], ...]
    seconds: float | None = None

    output_count = 2

    def __post_init__(self) -> None:
        numbers = distinct(self.scopes)
        if numbers != [*range(len(numbers))]:
            raise InvalidConfig(
                where=f"{self.family_id}, field scopes",
                given=repr(self.scopes),
                needed="variables that count from 0 in the order of first appearance",
            )

    @property
    def input_count(self) -> int:
        return len(self.scopes)

    @property
    def variable_count(self) -> int:
        """The number of variables."""
        return len(distinct(self.scopes))

    def infer_output_meta(self, inputs: Sequence[TensorMeta]) -> Sequence[TensorMeta]:
        where = f"extension {self.family_id}"
        dtype = one_dtype(where, max_plus, [m.dtype for m in inputs])
        sizes: dict[int, Any] = {}
        for scope, m in zip(self.scopes, inputs, strict=True):
            if len(scope) != len(m.shape):
                raise ShapeError(
                    where=where,
                    given=f"a table {m} of {len(scope)} variables",
                    needed="an axis for each variable",
                    fix="Ask one network of a batch after another, or under jax.vmap.",
                )
            for i, size in zip(scope, m.shape, strict=True):
                require_equal(sizes.setdefault(i, size), size)
        return [TensorMeta(dtype, ()), TensorMeta(INT32, (self.variable_count,))]

    def eager_execute(self, *tables: np.ndarray) -> Sequence[np.ndarray]:
        floats = [as_floats(table).astype(np.float64, copy=False) for table in tables]
        network = Tables(self.scopes, floats)
        labels = _best_labels(network, self.seconds)
        score = _score_of(network, labels)
        return in_dtype("toulbar2", score, tables[0].dtype), labels.astype(INT32)

    def linearize(
        self,
        primals: Sequence[jax.Array],
        outputs: Sequence[jax.Array],
        tangents: Sequence[jax.Array | None],
    ) -> Sequence[jax.Array | None]:
        """The sum of the tangents of the entries that the labels select, by one op for all."""
        value, labels = outputs
        letters = [get_symbol(i) for i in range(self.variable_count)]
        sizes: dict[str, int] = {}
        for scope, table in zip(self.scopes, primals, strict=True):
            sizes.update(zip([letters[i] for i in scope], table.shape, strict=True))
        active = [i for i, t in enumerate(tangents) if t is not None]
        terms = ["".join(map(letters.__getitem__, self.scopes[i])) for i in active]
        entries = NetworkEntries(",".join(terms), "", tuple(sizes.items()), is_sum=True)
        by_letter = sorted(range(len(letters)), key=letters.__getitem__)
        moved = [widened(t) for t in tangents if t is not None]
        (out,) = apply(entries, labels[np.array(by_letter, int)], *moved)
        return out.astype(value.dtype), None

    def example_inputs(self) -> Sequence[Sequence[jax.typing.ArrayLike]]:
        """Variables of two values."""
        rng = np.random.default_rng(0)
        return [[rng.normal(size=(2,) * len(scope)) for scope in self.scopes]]


# --- bounds, and then toulbar2 --------------------------------------------------------------------


def _best_labels(network: Tables, seconds: float | None) -> np.ndarray:
    """The labels of the best assignment.

    Raises:
      InvalidConfig: NaN or inf among the scores, or sums beyond float64.
      ShapeError: not proved in time.
      Unsupported: no native library.
    """
    if native().problem:
        raise Unsupported(where="toulbar2", given=str(native()), needed="the native library")
    if not all((table < np.inf).all() for table in network.tables):
        raise InvalidConfig(
            where="toulbar2", given="NaN or inf among the scores", needed="numbers below inf"
        )
    end = time.monotonic() + (math.inf if seconds is None else seconds)
    relaxation = Relaxation.of(network)
    for _ in improved(relaxation, SWEEPS):
        if time.monotonic() >= end:
            break
    if not relaxation.upper < math.inf:
        raise InvalidConfig(
            where="toulbar2", given="scores whose sums are beyond float64", needed="smaller scores"
        )
    known = np.maximum(relaxation.labels, 0)  # those of no assignment are -1
    if relaxation.is_proved or relaxation.upper == -math.inf:
        return known
    search = Search.of(network, relaxation)
    if search is None:
        return known
    left = None if seconds is None else max(0.0, end - time.monotonic())
    found = _answer_of(search.problem._replace(seconds=left))
    best, score = known, _score_of(network, known)
    if found.labels is not None:
        theirs = search.labels_of(found.labels)
        their_score = _score_of(network, theirs)
        if their_score > score:  # not where all that is better is the rounding of costs
            best, score = theirs, their_score
    if found.is_limited:
        upper = max(score, min(relaxation.upper, search.score_of(found.least)))
        raise _unproved(score, upper, seconds)
    return best


def _score_of(network: Tables, labels: np.ndarray) -> float:
    """The score of labels in the order of the variables."""
    return network.score(dict(zip(network.sizes, labels.tolist(), strict=True)))


def _unproved(lower: float, upper: float, seconds: float | None) -> ShapeError:
    """The error that says what is known."""
    found = f"{lower:.9g} is the best that was found" if lower > -math.inf else "none was found"
    return ShapeError(
        where="toulbar2",
        given=f"a best score between {lower:.9g} and {upper:.9g}: {found} in {seconds} seconds",
        needed="a network that toulbar2 solves in this time",
        fix="Give it more seconds, or ask for bounds(), which has both ends and an assignment.",
    )


class Search(NamedTuple):
    """What toulbar2 is asked, and what its answer means.

    Attributes:
      problem: the costs of the values that are left.
      kept: of each variable the values that are left.
      highest: no score of an assignment without cost is above it.
      unit: what a cost of 1 is as a score.
    """

    problem: Problem
    kept: Mapping[Variable, np.ndarray]
    highest: float
    unit: float

    @classmethod
    def of(cls, network: Tables, relaxation: Relaxation) -> Search | None:
        """The search for an assignment that is better than that of the bounds; None if there is
        none.
        """
        kept = _kept(relaxation, network.sizes)
        most = [float(table.max()) for table in network.tables]
        if -math.inf in most:
            return None
        decimals = _decimals(network, most)
        costs, step = _costs(network, most, decimals)
        left = [
            cost[np.ix_(*map(kept.__getitem__, scope))]
            for scope, cost in zip(network.scopes, costs, strict=True)
        ]
        below = _cost_of_known(network, relaxation, costs)
        if below <= 0 or any((cost == np.inf).all() for cost in left):
            return None
        number = {name: i for i, name in enumerate(kept)}
        problem = Problem(
            sizes=list(map(len, kept.values())),
            scopes=[tuple(map(number.__getitem__, scope)) for scope in network.scopes if scope],
            costs=[cost.ravel().tolist() for cost in left if cost.ndim],
            below=below,
            seconds=None,
        )
        rounding = 0.5 * len(costs)
        return cls(
            problem, kept, math.fsum(most) + rounding / 10.0**decimals, step / 10.0**decimals
        )

    def labels_of(self, places: Sequence[int]) -> np.ndarray:
        """The labels of what toulbar2 found among the values that are left."""
        labels = [values[i] for values, i in zip(self.kept.values(), places, strict=True)]
        return np.array(labels, INT32)

    def score_of(self, cost: float) -> float:
        """No assignment of this cost has a higher score."""
        return self.highest - cost * self.unit


def _kept(relaxation: Relaxation, sizes: Mapping[Variable, int]) -> dict[Variable, np.ndarray]:
    """The values that a better assignment may have."""
    may_be = relaxation.uppers > relaxation.lower
    parts = np.split(may_be, np.cumsum(list(sizes.values()))[:-1])
    return dict(zip(sizes, map(np.flatnonzero, parts), strict=True))


def _decimals(network: Tables, most: Sequence[float]) -> int:
    """How many decimals of scores costs have, so that all together have so many digits; below 0 for
    large scores.
    """
    total = 0.0
    with np.errstate(over="ignore"):
        for table, largest in zip(network.tables, most, strict=True):
            total += float(largest - table.min(initial=largest, where=table > -np.inf))
    if total == math.inf:
        raise InvalidConfig(
            where="toulbar2",
            given="scores whose differences are beyond float64",
            needed="smaller scores",
        )
    return min(MOST_DECIMALS, math.floor(DIGITS - math.log10(total))) if total else 0


def _costs(network: Tables, most: Sequence[float], decimals: int) -> tuple[list[np.ndarray], int]:
    """For each table what its entries lack of its largest one, in whole numbers without a common
    divisor; and that divisor. So whole scores have small costs, whatever the decimals.
    """
    factor = 10.0**decimals
    costs = [
        np.rint((largest - table) * factor)
        for table, largest in zip(network.tables, most, strict=True)
    ]
    whole = [np.where(cost < np.inf, cost, 0).astype(np.int64) for cost in costs]
    step = max(1, math.gcd(*(int(np.gcd.reduce(x, axis=None)) for x in whole)))
    return [cost / step for cost in costs], step


def _cost_of_known(network: Tables, relaxation: Relaxation, costs: Sequence[np.ndarray]) -> int:
    """What the assignment of the bounds costs; if there is none, more than any that is possible."""
    if relaxation.lower == -math.inf:
        return 1 + sum(int(cost.max(initial=0, where=cost < np.inf)) for cost in costs)
    return round(_score_of(Tables(network.scopes, costs), relaxation.labels))


def _answer_of(problem: Problem) -> Outcome:
    """What toulbar2 says.

    Raises:
      BackendFailure: its process failed.
    """
    command = [sys.executable, "-P", str(pathlib.Path(toulbar2_process.__file__))]
    seconds = problem.seconds
    try:
        done = subprocess.run(
            command,
            input=pickle.dumps(tuple(problem)),
            capture_output=True,
            timeout=None if seconds is None else seconds + GRACE,
        )
    except subprocess.TimeoutExpired:
        return Outcome(labels=None, least=0.0, is_limited=True)
    if done.returncode:
        raise BackendFailure(
            where="toulbar2",
            given=f"toulbar2 ended with {done.returncode}: {done.stderr.decode()[-300:].strip()}",
            needed="an answer",
        )
    return Outcome(*pickle.loads(done.stdout))
