"""What a sum and a product are: semirings, their laws and their scalars.

`semiring`
    The two classes: a selective semiring has winners, another one is a sum.
`registered`
    Which there are, by id and as a key in payloads, and whether they are well formed.
`shipped`
    Those of this package.
`laws`
    `broken_laws`: what a semiring of an author breaks.
`scalar`
    Numbers with the operators of a semiring, for object arrays of NumPy.
"""

from .laws import broken_laws
from .registered import SemiringKey, register_semiring
from .scalar import MaxMul, MaxPlus, MinPlus
from .semiring import SelectiveSemiring, Semiring
from .shipped import (
    LogSumExp,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
    sum_product,
)

__all__ = [
    "LogSumExp",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
    "SelectiveSemiring",
    "Semiring",
    "SemiringKey",
    "broken_laws",
    "log_sum_exp",
    "max_mul",
    "max_plus",
    "min_max",
    "min_plus",
    "or_and",
    "register_semiring",
    "sum_product",
]
