"""Equation and shapes -> the order of contractions."""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from opt_einsum.paths import get_path_fn, ssa_to_linear

from ..dimensions import SymDim
from ..errors import InvalidConfig, shortened
from ..jax_seam import is_symbolic_dim
from ..shapes import as_bool
from .notation import Equation, parse_equation

MANY = 14
"""Up to this number of terms opt_einsum's "auto" tries many paths, above it one greedy path."""

NOMINAL_SIZE = 64
"""The size that planning assumes for a symbolic dimension."""

Optimize: TypeAlias = str | bool | Sequence[Any]
"""An algorithm of opt_einsum by name, an explicit path of its form, True for "auto", or False for
the order as written.
"""


Positions: TypeAlias = tuple[int, ...]
Path: TypeAlias = list[Positions]
Sizes: TypeAlias = Mapping[str, int]

Term: TypeAlias = tuple[int, str]
"""The number of a value, and its labels."""

WIDE = 32
"""The number of neighbours above which the missing pairs among them are not counted: terms of so
many labels are too large in any order.
"""

LIGHT = 1 << 10
"""Multiplications for each term that take less time than it takes to look for a better path."""


@dataclasses.dataclass(frozen=True)
class Step:
    """One contraction of one or two terms.

    Attributes:
      operands: the numbers of the values that it reads: first the operands of the equation, then
        the results of the steps in order.
      terms: their labels.
      result: the labels of its result, each once.
      cost: scalar multiplications (for one operand additions), with NOMINAL_SIZE for symbols.
      size: entries of its result.
    """

    operands: Positions
    terms: tuple[str, ...]
    result: str
    cost: int
    size: int

    @property
    def equation(self) -> str:
        """The step as an equation of its own."""
        return f"{','.join(self.terms)}->{self.result}"


@dataclasses.dataclass(frozen=True)
class Plan:
    """The steps of an einsum; the last result has the output's labels, possibly in another order.

    Attributes:
      equation: the equation, with labels instead of the ellipsis.
      terms: the labels of each operand, without those of size 1 that are longer in another operand.
      sizes: (label, size) of every label; a size may be symbolic.
      steps: in order; empty if the only operand is the output.

    Example:
      >>> print(plan_einsum("ij,jk,kl->il", [(8, 64), (64, 64), (64, 2)]))
      step  operands  equation   multiplications  entries
         3  1, 2      jk,kl->jl             8192      128
         4  0, 3      ij,jl->il             1024       16
      9216 multiplications, at most 128 entries at once, equation ij,jk,kl->il
    """

    equation: Equation
    terms: tuple[str, ...]
    sizes: tuple[tuple[str, SymDim], ...]
    steps: tuple[Step, ...]

    @property
    def cost(self) -> int:
        """Scalar multiplications of all steps."""
        return sum(step.cost for step in self.steps)

    @property
    def largest_intermediate(self) -> int:
        """Entries of the largest result of a step."""
        return max((step.size for step in self.steps), default=0)

    def __str__(self) -> str:
        rows = [("step", "operands", "equation", "multiplications", "entries")]
        for number, step in enumerate(self.steps, len(self.terms)):
            operands = ", ".join(map(str, step.operands))
            rows.append((str(number), operands, step.equation, str(step.cost), str(step.size)))
        wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
        align = (str.rjust, str.ljust, str.ljust, str.rjust, str.rjust)
        table = []
        for row in rows:
            cells = [put(cell, w) for put, cell, w in zip(align, row, wide, strict=True)]
            table.append("  ".join(cells))
        whole = shortened(self.equation.explicit)
        end = (
            f"{self.cost} multiplications, at most {self.largest_intermediate} entries at once, "
            f"equation {whole}"
        )
        return "\n".join([*table, end])


def plan_einsum(text: str, shapes: Sequence[Sequence[SymDim]], optimize: Optimize = "auto") -> Plan:
    """Order the contractions of an einsum.

    First each operand is reduced: repeated labels become diagonals, and labels that only it has are
    summed. Among more than four terms, each whose labels are all in another one is then contracted
    with the smallest such term: that costs as many multiplications as this term has entries, and
    what follows is no larger. Then two terms at a time are contracted along the path.

    Args:
      text: the equation.
      shapes: the shape of each operand; symbolic dimensions count as NOMINAL_SIZE.
      optimize: an algorithm of opt_einsum ("auto", "optimal", "greedy", "dp", ...), or an explicit
        path such as [(1, 2), (0, 1)]: positions to contract, whose result is appended.
        "auto" above 14 operands tries two orders that sum one label after another and opt_einsum's
        greedy path, until one takes less time than the next search. True means "auto"; False
        contracts from left to right. A path, "optimal", "dp" and False decide about every
        contraction themselves.

    Raises:
      InvalidConfig, ShapeError: the equation cannot be read, or does not fit the shapes.
      InvalidConfig: an unknown algorithm, or a path that does not fit.

    Example:
      >>> [step.equation for step in plan_einsum("ii,ij,jk->k", [(3, 3), (3, 4), (4, 5)]).steps]
      ['ii->i', 'i,ij->j', 'j,jk->k']
    """
    optimize = hashable(optimize)
    equation = parse_equation(text, tuple(map(len, shapes)))
    terms, shapes = _without_repeated(equation, shapes)
    sizes = dict(Equation(text, terms, equation.output).sizes(shapes, "einsum"))
    nominal = {
        label: NOMINAL_SIZE if is_symbolic_dim(size) else int(size) for label, size in sizes.items()
    }
    uses = collections.Counter(equation.output)
    for term in terms:
        uses.update(set(term))
    steps = _Steps(equation.output, nominal, len(terms), uses)
    live: list[Term] = []
    for number, term in enumerate(terms):
        is_alone = any(uses[label] == 1 for label in term)
        is_reduced = not is_alone and len(set(term)) == len(term)
        live.append((number, term) if is_reduced else steps.contract([(number, term)]))
    # An algorithm that may miss the best order is helped.
    if len(live) > 4 and isinstance(optimize, str) and optimize not in ("optimal", "dp"):
        live = absorbed(live, nominal, steps.contract)
    for positions in _path([labels for _, labels in live], equation.output, nominal, optimize):
        chosen = [live[i] for i in positions]
        for i in sorted(positions, reverse=True):
            del live[i]
        while len(chosen) > 1:
            chosen = [steps.contract(chosen[:2]), *chosen[2:]]
        live += chosen
    return Plan(equation, terms, tuple(sizes.items()), tuple(steps.done))


@dataclasses.dataclass
class _Steps:
    """The steps of a plan while it is made.

    Attributes:
      output: the labels of the output.
      sizes: of each label, a number.
      count: of the operands.
      uses: how many of the terms that are not yet contracted, and the output, have a label.
      done: the steps.
    """

    output: str
    sizes: Sizes
    count: int
    uses: collections.Counter[str]
    done: list[Step] = dataclasses.field(default_factory=list)

    def contract(self, chosen: Sequence[Term]) -> Term:
        """Contract one term, or two; the term that results."""
        for _, term in chosen:
            self.uses.subtract(set(term))
        everything = set().union(*(term for _, term in chosen))
        wanted = {label for label in everything if self.uses[label]}
        labels = _result([term for _, term in chosen], wanted, self.output)
        if len(labels) == len(self.output):  # no transpose at the end
            back = _result([term for _, term in chosen[::-1]], wanted, self.output)
            if back == self.output:
                chosen, labels = chosen[::-1], back
        self.uses.update(labels)
        numbers, terms = zip(*chosen, strict=True)
        cost = math.prod([self.sizes[label] for label in everything])
        size = math.prod([self.sizes[label] for label in labels])
        self.done.append(Step(numbers, terms, result=labels, cost=cost, size=size))
        return self.count + len(self.done) - 1, labels


def _without_repeated(
    equation: Equation,
    shapes: Sequence[Sequence[SymDim]],
) -> tuple[tuple[str, ...], list[tuple[SymDim, ...]]]:
    """Terms and shapes without labels of size 1 that are longer in another operand, along which
    NumPy repeats the entries.
    """
    terms = equation.inputs
    if not any(1 in shape for shape in shapes) or list(map(len, terms)) != list(map(len, shapes)):
        return terms, [tuple(shape) for shape in shapes]
    pairs = [list(zip(term, shape, strict=True)) for term, shape in zip(terms, shapes, strict=True)]
    long = {label for label, size in itertools.chain(*pairs) if size != 1}
    kept_terms, kept_shapes = [], []
    for axes in pairs:
        own = {label for label, size in axes if size != 1}
        kept = [(label, size) for label, size in axes if label in own or label not in long]
        kept_terms.append("".join(label for label, _ in kept))
        kept_shapes.append(tuple(size for _, size in kept))
    return tuple(kept_terms), kept_shapes


def _result(terms: Sequence[str], wanted: set[str], output: str) -> str:
    """Labels of a step's result in the order that a dot product gives: shared, then the first
    term's, then the second's.
    """
    shared = [label for label in terms[0] if label in terms[-1]]
    labels = "".join([x for x in dict.fromkeys((*shared, *"".join(terms))) if x in wanted])
    free = len(terms) == 1 or all(
        label in wanted for label in shared
    )  # no dot product, so any order will do
    return output if free and len(output) == len(labels) and set(output) == set(labels) else labels


def _path(
    terms: Sequence[str],
    output: str,
    sizes: Sizes,
    optimize: str | bool | tuple[Positions, ...],
) -> Path:
    if isinstance(optimize, tuple):
        return _checked(optimize, len(terms))
    if isinstance(optimize, bool):  # as written
        order: Path = [(0, last) for last in range(len(terms) - 2, 0, -1)]
        return [(0, 1), *order][: len(terms) - 1]
    find = _algorithm(optimize)
    if len(terms) <= 2:
        return [(0, 1)] if len(terms) == 2 else []

    def search() -> Path:
        # Among orders that cost 0 the algorithm "dp" finds none.
        known = {label: size or 1 for label, size in sizes.items()}
        found = find([frozenset(term) for term in terms], frozenset(output), known, None)
        return [tuple(positions) for positions in found]

    if optimize == "auto" and len(terms) > MANY:
        return [*cheapest(terms, output, sizes, search)]
    return search()


def _algorithm(name: str) -> Any:
    try:
        return get_path_fn(name)
    except KeyError as error:
        raise InvalidConfig(
            where="einsum, optimize",
            given=repr(name),
            needed="an algorithm of opt_einsum ('auto', 'optimal', 'dp', 'greedy', ...), an "
            "explicit path, True or False",
            fix=f"opt_einsum says: {error.args[0]}",
        ) from error


def hashable(optimize: Optimize) -> str | bool | tuple[Positions, ...]:
    """An explicit path as tuples, so that plans can be cached; all else as it is.

    Raises:
      InvalidConfig: neither text, nor a bool, nor a path.
    """
    if isinstance(optimize, str):
        return optimize
    wanted = as_bool(optimize)
    if wanted is not None:
        return "auto" if wanted else False
    path: Any = optimize
    try:  # NumPy's paths begin with the word einsum_path
        steps = [positions for positions in path if not isinstance(positions, str)]
        return tuple(tuple(map(operator.index, positions)) for positions in steps)
    except TypeError as error:
        raise _no_path(optimize, error) from error


def _no_path(path: object, problem: object) -> InvalidConfig:
    return InvalidConfig(
        where="einsum, optimize",
        given=f"{path!r}: {problem}",
        needed="tuples of positions that contract all terms to one, the name of an algorithm, True "
        "or False",
        fix="Each result is appended to the terms; see opt_einsum's paths.",
    )


def _checked(path: Sequence[Positions], count: int) -> Path:
    left = count
    for positions in path:
        if len({i for i in positions if 0 <= i < left}) < max(len(positions), 1):
            raise _no_path(path, f"{positions} of {left} terms")
        left -= len(positions) - 1
    if left != 1:
        raise _no_path(path, f"{left} terms are left")
    return [*path]


# --- orders: small terms first join larger ones, then labels are summed one by one ----------------


def absorbed(
    live: Sequence[Term],
    sizes: Sizes,
    emit: Callable[[Sequence[Term]], Term],
) -> list[Term]:
    """The terms that are left when each whose labels are all in another one is contracted with the
    smallest such term, which keeps its place.

    First come contractions that sum a label or join equal labels, and what they make possible: so a
    tree is contracted from its leaves, and a vector meets another vector, not a matrix. Terms
    without labels wait for the end, where they cost one multiplication each.
    """
    left = dict(enumerate(live))
    holders = collections.defaultdict(set)  # of a label: the places of the terms that have it
    for place, (_, term) in left.items():
        for label in term:
            holders[label].add(place)
    first = [(len(term), -place) for place, (_, term) in left.items()]
    heapq.heapify(first)
    later: collections.deque[int] = collections.deque()
    places: dict[frozenset[str], int] = {}  # of a set of labels: where a term with these stands
    while first or later:
        is_last = not first
        place = later.popleft() if is_last else -heapq.heappop(first)[1]
        _, term = left.get(place, (0, ""))
        if not term:  # none, or gone
            continue
        labels, rarest = frozenset(term), min((holders[label] for label in term), key=len)
        into = places.setdefault(labels, place)
        if into not in left or frozenset(left[into][1]) != labels:
            into = places[labels] = place
        if into == place:
            others = [i for i in rarest if i != place and labels.issubset(left[i][1])]
            if not others:
                continue
            into = min(others, key=lambda i: (math.prod([sizes[c] for c in left[i][1]]), i))
            if not is_last and len(left[into][1]) > len(term) and len(rarest) > 2:
                later.append(place)
                continue
        elif place < into:
            place, into = into, place
        before = left[into][1]
        left[into] = emit(sorted([left.pop(place), left[into]]))
        after = left[into][1]
        places[frozenset(after)] = into
        for label in term:
            holders[label].discard(place)
        for label in set(before) - set(after):
            holders[label].discard(into)
        heapq.heappush(first, (len(after), -into))
    return list(left.values())


def path_cost(
    path: Sequence[Sequence[int]], terms: Sequence[str], output: str, sizes: Sizes
) -> int:
    """The multiplications of a path of pairs."""
    live = [frozenset(term) for term in terms]
    uses = collections.Counter(itertools.chain(output, *live))
    total = 0
    for positions in path:
        chosen = [live[i] for i in positions]
        for i in sorted(positions, reverse=True):
            del live[i]
        for term in chosen:
            uses.subtract(term)
        everything = frozenset().union(*chosen)
        total += math.prod([sizes[label] for label in everything])
        live.append(frozenset(label for label in everything if uses[label]))
        uses.update(live[-1])
    return total


class _Elimination:
    """Terms that are joined while one label after another is summed.

    Attributes:
      output: the labels that are not summed.
      live: the labels of each term that is left, by its number.
      holders: the numbers of the terms that have a label.
      near: the neighbours of a label that is left: those that some term has beside it.
      bits: the logarithm of the size of a label.
      path: the numbers of the terms that were joined, which make one more term each.
    """

    def __init__(self, terms: Sequence[str], output: str, sizes: Sizes):
        self.output, self.count = output, len(terms)
        self.live = dict(enumerate(map(frozenset, terms)))
        self.holders: dict[str, set[int]] = collections.defaultdict(set)
        self.near: dict[str, set[str]] = collections.defaultdict(set)
        for i, term in self.live.items():
            for label in term:
                self.holders[label].add(i)
                self.near[label] |= term - {label}
        self.bits = {label: math.log2(size) if size else 0.0 for label, size in sizes.items()}
        self.path: Path = []

    def width(self, labels: Iterable[str]) -> float:
        """The logarithm of the entries of an array with these labels."""
        return math.fsum([self.bits[label] for label in labels])  # in whatever order a set has

    def score(self, label: str, by_fill: bool) -> tuple[float, float, str]:
        """The label with the least one is summed first."""
        near = self.near
        around = near[label]
        size = self.bits[label] + self.width(around)
        if not by_fill:
            return size, 0.0, label
        if len(around) > WIDE:
            return float(len(around) ** 2), size, label
        missing = sum([len(around) - 1 - len(around & near[other]) for other in around])
        return float(missing), size, label

    def join(self, group: Iterable[int]) -> None:
        """Join terms, two at a time, the smallest first."""
        live, holders = self.live, self.holders
        waiting = [(self.width(live[i]), i) for i in group]
        heapq.heapify(waiting)
        while len(waiting) > 1:
            (_, i), (_, j) = heapq.heappop(waiting), heapq.heappop(waiting)
            everything = live.pop(i) | live.pop(j)
            new = self.count + len(self.path)
            self.path.append((i, j))
            for label in everything:
                holders[label] -= {i, j}
            live[new] = frozenset(c for c in everything if holders[c] or c in self.output)
            for label in live[new]:
                holders[label].add(new)
            for label in everything - live[new]:
                for other in self.near.pop(label):
                    self.near[other].discard(label)
            heapq.heappush(waiting, (self.width(live[new]), new))


def eliminated(terms: Sequence[str], output: str, sizes: Sizes, by_fill: bool) -> Path:
    """A path that sums one label after another, each by joining all terms that have it: next the
    label whose joined term is smallest, or the one that makes the fewest labels neighbours that
    were none before.

    Source: D. Koller and N. Friedman, Probabilistic Graphical Models (2009), section 9.4.3.2.
    """
    state = _Elimination(terms, output, sizes)
    first = [state.score(label, by_fill) for label in state.near if label not in output]
    heapq.heapify(first)
    while first:
        found = heapq.heappop(first)
        label = found[-1]
        if label not in state.near:
            continue
        if found != (now := state.score(label, by_fill)):
            heapq.heappush(first, now)
            continue
        around = set(state.near[label])
        state.join(sorted(state.holders[label]))
        around &= state.near.keys()
        for other in around:
            state.near[other] |= around - {other}
        for other in around - set(output):
            heapq.heappush(first, state.score(other, by_fill))
    state.join(sorted(state.live))
    return [tuple(positions) for positions in ssa_to_linear(state.path)]


def cheapest(
    terms: Sequence[str],
    output: str,
    sizes: Sizes,
    greedy: Callable[[], Sequence[Positions]],
) -> Sequence[Positions]:
    """Of two orders of elimination, and of `greedy`, the path with the fewest multiplications; the
    first that takes less time than the search for another.
    """
    best: Sequence[Positions] = ()
    least = math.inf
    for search in (
        functools.partial(eliminated, terms, output, sizes, True),
        functools.partial(eliminated, terms, output, sizes, False),
        greedy,
    ):
        path = search()
        cost = path_cost(path, terms, output, sizes)
        if cost < least:
            best, least = path, cost
        if least <= LIGHT * len(terms):
            break
    return best
