"""Two operands under max_mul of which one is reduced first: with a negative partner the least entry makes the greatest product.

The greatest of x[a] * y over a is max(x) * y where y is positive and min(x) * y where it is negative: the greater of both, for
every y. So the plan runs once with the greatest and once with the least entry of each operand that it reduces first.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from typing import Any

from tenferro_jax import Plan

from ..algebra.selective import max_mul
from ..algebra.semiring import Semiring


def by_least(plan: Plan, sizes: Mapping[str, Any], semiring: Semiring) -> list[tuple[int, ...]]:
    """The runs beside the one with the greatest entries: for each the operands that it reduces to their least entries.

    None under another semiring, whose laws hold for all entries, and none of three operands and more.

    Example:
      >>> from tenferro_jax import plan_einsum
      >>> by_least(plan_einsum("ij,jk->", [(2, 3), (3, 4)]), {"i": 2, "j": 3, "k": 4}, max_mul)
      [(0,), (1,), (0, 1)]
    """
    if semiring != max_mul or len(plan.terms) != 2 or 0 in sizes.values():
        return []
    reductions = [step for step in plan.steps if len(step.operands) == 1]
    gone = {step.operands[0]: math.prod(sizes[label] for label in set(step.terms[0]) - set(step.result)) for step in reductions}
    reduced = [operand for operand, entries in gone.items() if not (isinstance(entries, int) and entries == 1)]
    return [least for count in range(1, 1 + len(reduced)) for least in itertools.combinations(reduced, count)]
