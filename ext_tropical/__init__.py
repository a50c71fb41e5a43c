"""Tropical tensors for JAX: einsum in selective semirings with winners, assignments and gradients. Re-exports only."""

from . import composition
from .closure import ClosureResult, closure, matrix_power
from .dot_general import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum
from .einsum import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .einsum_op import Outputs, Ties, TropicalEinsum
from .laws import broken_laws
from .plan import TropicalPlan, plan_tropical_einsum
from .result import Assignment, TropicalResult, TropicalStep
from .rules import TROPICAL_RULES, TropicalEinsumRule
from .scalar import MaxMul, MaxPlus, MinPlus
from .selective import SEMIRINGS, max_mul, max_plus, min_max, min_plus, or_and
from .semiring import SelectiveSemiring, Semiring, SemiringKey, register_semiring
from .smooth import LogSumExp, log_sum_exp
from .viterbi import ViterbiResult, viterbi

__all__ = [
    "SEMIRINGS",
    "TROPICAL_RULES",
    "Assignment",
    "ClosureResult",
    "LogSumExp",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
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
    "ViterbiResult",
    "best_assignment",
    "broken_laws",
    "closure",
    "composition",
    "log_sum_exp",
    "matrix_power",
    "max_mul",
    "max_plus",
    "min_max",
    "min_plus",
    "min_plus_dot_general",
    "or_and",
    "plan_tropical_einsum",
    "register_semiring",
    "tropical_dot_general",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
    "tropical_reduce_sum",
    "viterbi",
]
