"""Orders of contraction: small terms first join larger ones, then labels are summed one by one."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from opt_einsum.paths import ssa_to_linear

Term: TypeAlias = tuple[int, str]
"""The number of a value, and its labels."""

WIDE = 32
"""The number of neighbours above which the missing pairs among them are not counted: terms of so
many labels are too large in any order.
"""

LIGHT = 1 << 10
"""Multiplications for each term that take less time than it takes to look for a better path."""


def absorbed(
    live: Sequence[Term],
    sizes: Mapping[str, int],
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
        places[frozenset(left[into][1])] = into
        for label in term:
            holders[label].discard(place)
        for label in set(before) - set(left[into][1]):
            holders[label].discard(into)
        heapq.heappush(first, (len(left[into][1]), -into))
    return list(left.values())


def path_cost(
    path: Sequence[Sequence[int]], terms: Sequence[str], output: str, sizes: Mapping[str, int]
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


def eliminated(
    terms: Sequence[str], output: str, sizes: Mapping[str, int], by_fill: bool
) -> list[tuple[int, ...]]:
    """A path that sums one label after another, each by joining all terms that have it: next the
    label whose joined term is smallest, or the one that makes the fewest labels neighbours that
    were none before.

    Source: D. Koller and N. Friedman, Probabilistic Graphical Models (2009), section 9.4.3.2.
    """
    live = dict(enumerate(map(frozenset, terms)))
    holders: dict[str, set[int]] = collections.defaultdict(set)
    near: dict[str, set[str]] = collections.defaultdict(set)
    for i, term in live.items():
        for label in term:
            holders[label].add(i)
            near[label] |= term - {label}
    bits = {label: math.log2(size) if size else 0.0 for label, size in sizes.items()}
    path: list[tuple[int, ...]] = []

    def width(labels: Iterable[str]) -> float:
        return math.fsum([bits[label] for label in labels])  # in whatever order a set has

    def score(label: str) -> tuple[float, float, str]:
        around = near[label]
        size = bits[label] + width(around)
        if not by_fill:
            return size, 0.0, label
        if len(around) > WIDE:
            return float(len(around) ** 2), size, label
        missing = sum([len(around) - 1 - len(around & near[other]) for other in around])
        return float(missing), size, label

    def join(group: Sequence[int]) -> None:
        """Two at a time, the smallest first."""
        waiting = [(width(live[i]), i) for i in group]
        heapq.heapify(waiting)
        while len(waiting) > 1:
            (_, i), (_, j) = heapq.heappop(waiting), heapq.heappop(waiting)
            everything = live.pop(i) | live.pop(j)
            new = len(terms) + len(path)
            path.append((i, j))
            for label in everything:
                holders[label] -= {i, j}
            live[new] = frozenset(c for c in everything if holders[c] or c in output)
            for label in live[new]:
                holders[label].add(new)
            for label in everything - live[new]:
                for other in near.pop(label):
                    near[other].discard(label)
            heapq.heappush(waiting, (width(live[new]), new))

    first = [score(label) for label in near if label not in output]
    heapq.heapify(first)
    while first:
        found = heapq.heappop(first)
        label = found[-1]
        if label not in near:
            continue
        if found != (now := score(label)):
            heapq.heappush(first, now)
            continue
        around = set(near[label])
        join(sorted(holders[label]))
        around &= near.keys()
        for other in around:
            near[other] |= around - {other}
        for other in around - set(output):
            heapq.heappush(first, score(other))
    join(sorted(live))
    return [tuple(positions) for positions in ssa_to_linear(path)]


def cheapest(
    terms: Sequence[str],
    output: str,
    sizes: Mapping[str, int],
    greedy: Callable[[], Sequence[tuple[int, ...]]],
) -> Sequence[tuple[int, ...]]:
    """Of two orders of elimination, and of `greedy`, the path with the fewest multiplications; the
    first that takes less time than the search for another.
    """
    best: Sequence[tuple[int, ...]] = ()
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
