"""What a network of tables is compared with: a loop in NumPy along opt_einsum's path, and
toulbar2; and chains of matrices, which are compared with their steps one after another.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import math
import signal
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum

from ext_tropical import log_sum_exp, tropical_einsum

from .measure import alternating

Tables = Sequence[np.ndarray]


class Step:
    """One contraction of two terms: their views, and the axes of the result before the contracted
    ones.
    """

    def __init__(self, left: str, right: str, uses: Counter[str]):
        uses.subtract(left)
        uses.subtract(right)
        labels = dict.fromkeys(left + right)
        self.result = "".join(label for label in labels if uses[label])
        self.gone = "".join(label for label in labels if not uses[label])
        uses.update(self.result)
        self.order = self.result + self.gone
        self.views = [_view(term, self.order) for term in (left, right)]

    def candidates(self, *pair: np.ndarray) -> np.ndarray:
        """The sums of all pairs, with one axis for all contracted labels."""
        spread = (
            x.transpose(axes)[index] for x, (axes, index) in zip(pair, self.views, strict=True)
        )
        total = np.add(*spread)
        kept = total.shape[: len(self.result)]
        return total.reshape(*kept, -1)

    def back(self, pair: Tables, flow: np.ndarray) -> list[np.ndarray]:
        """The sums over the axes that each operand of the pair lacks."""
        sizes: dict[int, int] = {}
        for x, (axes, index) in zip(pair, self.views, strict=True):
            shape = x.transpose(axes)[index].shape
            sizes |= {axis: size for axis, size in enumerate(shape) if size > 1}
        flow = flow.reshape([sizes.get(axis, 1) for axis in range(len(self.order))])
        found = []
        for axes, index in self.views:
            lacking = tuple(axis for axis, cut in enumerate(index) if cut is None)
            found.append(flow.sum(lacking).transpose(np.argsort(axes)))
        return found


def _view(term: str, order: str) -> tuple[list[int], tuple[Any, ...]]:
    axes = [term.index(label) for label in order if label in term]
    return axes, tuple(slice(None) if label in term else None for label in order)


def planned(equation: str, tables: Tables) -> list[tuple[int, int, Step]]:
    """The path of opt_einsum, with the labels of each step: places of two terms, whose result is
    appended.
    """
    inputs, output = equation.split("->")
    live = inputs.split(",")
    sizes = {
        label: size
        for term, x in zip(live, tables, strict=True)
        for label, size in zip(term, x.shape, strict=True)
    }
    path = opt_einsum.paths.auto([frozenset(x) for x in live], frozenset(output), sizes)
    uses = Counter("".join(live) + output)
    steps = []
    for pair in path:
        i, j = sorted(pair)
        step = Step(live[i], live[j], uses)
        del live[j], live[i]
        live.append(step.result)
        steps.append((i, j, step))
    return steps


def widest(equation: str, tables: Tables) -> int:
    """The most candidates of a step, as an exponent of 2."""
    held, most = list(tables), 0
    for i, j, step in planned(equation, tables):
        right, left = held.pop(j), held.pop(i)
        candidates = step.candidates(np.broadcast_to(left, left.shape), right)
        most = max(most, candidates.size)
        held.append(candidates[..., 0])
    return round(math.log2(most))


def value(equation: str, tables: Tables, steps: Any = None) -> np.ndarray:
    """The best total."""
    held = list(tables)
    for i, j, step in planned(equation, tables) if steps is None else steps:
        right, left = held.pop(j), held.pop(i)
        held.append(step.candidates(left, right).max(-1))
    return held[0]


def assignment(equation: str, tables: Tables, steps: Any = None) -> dict[str, int]:
    """The labels of a best total: the winners of all steps, read from the last one back."""
    held, trail = list(tables), []
    for i, j, step in planned(equation, tables) if steps is None else steps:
        right, left = held.pop(j), held.pop(i)
        every = step.candidates(left, right)
        winner = every.argmax(-1)
        held.append(np.take_along_axis(every, winner[..., None], -1)[..., 0])
        trail.append((step, winner, _sizes(step, left, right)))
    found: dict[str, int] = {}
    for step, winner, sizes in reversed(trail):
        rest = int(winner[tuple(found[label] for label in step.result)])
        for label in reversed(step.gone):
            rest, found[label] = divmod(rest, sizes[label])
    return found


def _sizes(step: Step, *pair: np.ndarray) -> dict[str, int]:
    return {
        label: x.shape[axis]
        for x, (axes, index) in zip(pair, step.views, strict=True)
        for label, axis in zip(
            (label for label, cut in zip(step.order, index, strict=True) if cut is not None),
            axes,
            strict=True,
        )
    }


def gradient(equation: str, tables: Tables, steps: Any = None) -> list[np.ndarray]:
    """1 for each entry that the best total uses, else 0."""
    at = assignment(equation, tables, steps)
    found = [np.zeros_like(x) for x in tables]
    for x, term in zip(found, equation.split("->")[0].split(","), strict=True):
        x[tuple(at[label] for label in term)] = 1
    return found


def _soft(every: np.ndarray) -> np.ndarray:
    most = every.max(-1, keepdims=True)
    return (np.log(np.exp(every - most).sum(-1, keepdims=True)) + most)[..., 0]


def soft_value(equation: str, tables: Tables, steps: Any = None) -> np.ndarray:
    """The logarithm of the sum of exp of all totals."""
    held = list(tables)
    for i, j, step in planned(equation, tables) if steps is None else steps:
        right, left = held.pop(j), held.pop(i)
        held.append(_soft(step.candidates(left, right)))
    return held[0]


def soft_gradient(equation: str, tables: Tables, steps: Any = None) -> list[np.ndarray]:
    """The share of every entry: forward, and the shares of each step back."""
    held = [(x, i) for i, x in enumerate(tables)]
    trail, number = [], len(held)
    for i, j, step in planned(equation, tables) if steps is None else steps:
        right, left = held.pop(j), held.pop(i)
        every = step.candidates(left[0], right[0])
        total = _soft(every)
        trail.append((step, left, right, np.exp(every - total[..., None])))
        held.append((total, number))
        number += 1
    flows = {number - 1: np.ones_like(held[0][0])}
    for step, left, right, share in reversed(trail):
        number -= 1
        flow = flows.pop(number)[..., None] * share
        pair = step.back((left[0], right[0]), flow)
        flows |= {of[1]: x for of, x in zip((left, right), pair, strict=True)}
    return [flows[i] for i in range(len(tables))]


LOOP = {
    "value": value,
    "assignment": assignment,
    "gradient": gradient,
    "log_sum_exp": soft_value,
    "its gradient": soft_gradient,
}


@functools.cache
def toulbar2() -> Any:
    """The package pytoulbar2, or None."""
    try:
        return importlib.import_module("pytoulbar2")
    except ImportError:
        return None


class Searched(NamedTuple):
    """The best total, and the seconds of the search, without those of building its problem."""

    total: float
    seconds: float


def timed_search(equation: str, tables: Tables, seconds: int) -> Searched | None:
    """A search by toulbar2; None if it is not there or proved nothing in so many seconds."""
    if toulbar2() is None:
        return None
    problem = _problem(equation, tables, sum(float(np.ptp(x)) for x in tables) + 1)
    start = time.perf_counter()
    answer = problem.Solve(timeLimit=seconds)
    took = time.perf_counter() - start
    _stop_clocks()
    if not answer or answer[1] - problem.GetDDualBound() > 1e-4:
        return None
    return Searched(_most(tables) - answer[1], took)


def solved(equation: str, tables: Tables, seconds: int) -> float | None:
    """The best total by such a search."""
    found = timed_search(equation, tables, seconds)
    return found and found.total


def listed(equation: str, tables: Tables, least: float) -> list[tuple[float, tuple[int, ...]]]:
    """All assignments with a total above `least` by toulbar2, with their totals, best first, labels
    in the order of first appearance.
    """
    problem = _problem(equation, tables, _most(tables) - least)
    problem.Solve(allSolutions=10**7)
    _stop_clocks()
    found = problem.GetSolutions()
    return sorted(((_most(tables) - cost, tuple(x)) for cost, x in found), reverse=True)


def _most(tables: Tables) -> float:
    return sum(float(x.max()) for x in tables)


def _problem(equation: str, tables: Tables, top: float) -> Any:
    """A problem of toulbar2, which looks for costs below `top`: an entry costs what it is less than
    the best of its table.
    """
    terms = equation.split("->")[0].split(",")
    sizes = {
        label: size
        for term, x in zip(terms, tables, strict=True)
        for label, size in zip(term, x.shape, strict=True)
    }
    problem = toulbar2().CFN(top, 6, verbose=-1)
    for label, size in sizes.items():
        problem.AddVariable(label, range(size))
    for term, x in zip(terms, tables, strict=True):
        costs = np.minimum(x.max() - np.asarray(x, np.float64), top).ravel().tolist()
        problem.AddFunction(list(term), costs if term else costs[0])
    return problem


def _stop_clocks() -> None:
    """toulbar2 leaves its clocks running."""
    for clock in (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
        signal.setitimer(clock, 0)


CHAIN = 20
"""Matrices of a chain."""


def chains(sizes: Sequence[int] = (16, 64, 128, 256), repeats: int = 5) -> list[str]:
    """A row for each size and question: milliseconds of a chain under jit as one einsum, and of its
    matrices one after another, as the least of several calls in turn.
    """
    ends = "".join(map(opt_einsum.get_symbol, range(CHAIN + 1)))
    equation = ",".join(map("".join, itertools.pairwise(ends))) + f"->{ends[0]}{ends[-1]}"
    rows = []
    for size, (dtype, soft) in itertools.product(sizes, CHAINS):
        rng = np.random.default_rng(size)
        tables = [jnp.asarray(rng.normal(size=(size, size)), dtype) for _ in range(CHAIN)]
        einsum = functools.partial(tropical_einsum, semiring=log_sum_exp() if soft else "max_plus")
        one: Any = functools.partial(einsum, equation)
        steps = functools.partial(_one_by_one, functools.partial(einsum, "ij,jk->ik"))
        for what in ("value", "gradient") if soft else ("value",):
            asks = [one, steps] if what == "value" else [_slopes(one), _slopes(steps)]
            compiled = [jax.jit(ask).lower(*tables).compile() for ask in asks]
            runs = [functools.partial(run, *tables) for run in compiled]
            (_, ours), (_, theirs) = alternating(runs, repeats)
            name = f"{'log_sum_exp' if soft else 'max_plus'} {what} {dtype}"
            rows.append(
                f"{CHAIN} matrices of {size:3}, {name:28}: {ours * 1e3:8.2f} ms, one by one "
                f"{theirs * 1e3:8.2f} ms: {ours / theirs:.2f} (goal 1.2)"
            )
    return rows


CHAINS = (("float32", False), ("int32", False), ("bfloat16", False), ("float32", True))
"""Dtypes, and whether under log_sum_exp."""


def _one_by_one(product: Any, *tables: jax.Array) -> jax.Array:
    return functools.reduce(product, tables)


def _slopes(ask: Any) -> Any:
    return jax.grad(lambda *xs: ask(*xs).sum(), tuple(range(CHAIN)))
