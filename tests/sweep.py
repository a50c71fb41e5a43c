"""How much of a sweep runs: a fixed sample, or all of it and ten times the random cases under
`make test-all`.
"""

import os
import random
from collections.abc import Sequence
from typing import Any, TypeVar

T = TypeVar("T")

ALL = os.environ.get("TENFERRO_SWEEP") == "all"


def times(sample: int) -> int:
    """The number of cases to run where the fixed sample has `sample`."""
    return 10 * sample if ALL else sample


def in_turn(first: Sequence[T], second: Sequence[Any], sample: int) -> list[tuple[T, Any]]:
    """Each of `second` with all of `first`, or with so many of them, in turn."""
    count = len(first) if ALL else sample
    return [
        (first[(i + k) % len(first)], case) for i, case in enumerate(second) for k in range(count)
    ]


def some(cases: Sequence[T], sample: int) -> list[T]:
    """All cases, or a sample of them that is always the same, in their order."""
    kept = (
        range(len(cases))
        if ALL
        else sorted(random.Random(len(cases)).sample(range(len(cases)), sample))
    )
    return [cases[i] for i in kept]


def few(cases: Sequence[Any], count: int) -> list[Any]:
    """So many test items that every value of every parameter is among them as early as can be;
    always the same.
    """
    left, seen, chosen = random.Random(len(cases)).sample(list(cases), len(cases)), set(), []
    while left and len(chosen) < count:
        chosen.append(left.pop(max(range(len(left)), key=lambda i: len(_values(left[i]) - seen))))
        seen |= _values(chosen[-1])
    return chosen


def _values(item: Any) -> set[tuple[str, int]]:
    return set(item.callspec.indices.items()) if hasattr(item, "callspec") else set()
