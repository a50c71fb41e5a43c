"""Tropical tensors for JAX: max-plus, min-plus and max-mul einsum with winners and gradients. Re-exports only."""

from .einsum import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .einsum_op import Outputs, Ties, TropicalEinsum
from .plan import TropicalPlan, plan_tropical_einsum
from .result import Assignment, TropicalResult, TropicalStep
from .rules import TROPICAL_RULES, TropicalEinsumRule
from .selective import SEMIRINGS, max_mul, max_plus, min_max, min_plus, or_and
from .semiring import SelectiveSemiring, Semiring, SemiringKey, register_semiring
from .smooth import LogSumExp, log_sum_exp

__all__ = [
    "SEMIRINGS",
    "TROPICAL_RULES",
    "Assignment",
    "LogSumExp",
    "Outputs",
    "SelectiveSemiring",
    "Semiring",
    "SemiringKey",
    "Ties",
    "TropicalEinsum",
    "TropicalEinsumRule",
    "TropicalPlan",
    "TropicalResult",
    "TropicalStep",
    "best_assignment",
    "log_sum_exp",
    "max_mul",
    "max_plus",
    "min_max",
    "min_plus",
    "or_and",
    "plan_tropical_einsum",
    "register_semiring",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
]
