"""Tropical tensors for JAX: einsum in selective semirings with winners, assignments and gradients.
Re-exports only.
"""

from typing import TYPE_CHECKING

from tenferro_jax import __version__ as __version__
from tenferro_jax.errors import answers

from .algebra.laws import broken_laws
from .algebra.scalar import MaxMul, MaxPlus, MinPlus
from .algebra.semiring import SelectiveSemiring, Semiring, SemiringKey, register_semiring
from .algebra.shipped import (
    SEMIRINGS,
    LogSumExp,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
)
from .model.network import Network
from .network.kept_parts import SlicePart
from .network.pieces import TropicalPlan, load_plan, plan_tropical_einsum
from .network.steps import Assignment, TropicalResult, TropicalStep
from .network.tropical_einsum import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .step.einsum_op import Outputs, Ties, TropicalEinsum
from .step.log_einsum import LogEinsum
from .step.weighted_sum import Place, WeightedSum
from .uses import composition
from .uses.align import AlignResult, align
from .uses.closure import ClosureResult, closure, matrix_power
from .uses.dot_general import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum
from .uses.families import register
from .uses.viterbi import ViterbiResult, viterbi

__all__ = [
    "SEMIRINGS",
    "AlignResult",
    "Assignment",
    "ClosureResult",
    "LogEinsum",
    "LogSumExp",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
    "Network",
    "Outputs",
    "Place",
    "SelectiveSemiring",
    "Semiring",
    "SemiringKey",
    "SlicePart",
    "Ties",
    "TropicalEinsum",
    "TropicalPlan",
    "TropicalResult",
    "TropicalStep",
    "ViterbiResult",
    "WeightedSum",
    "align",
    "best_assignment",
    "broken_laws",
    "closure",
    "composition",
    "load_plan",
    "log_sum_exp",
    "matrix_power",
    "max_mul",
    "max_plus",
    "min_max",
    "min_plus",
    "min_plus_dot_general",
    "or_and",
    "plan_tropical_einsum",
    "register",
    "register_semiring",
    "tropical_dot_general",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
    "tropical_reduce_sum",
    "viterbi",
]

if not TYPE_CHECKING:  # a checker of types would take every name
    __getattr__ = answers(
        __name__,
        {
            "ext_tropical.TropicalEinsum": "TROPICAL_RULES TropicalEinsumRule",
            "ext_tropical.TropicalEinsum.runtimes": "TROPICAL_RUNTIMES",
            "ext_tropical.register": "LogEinsumFactory TropicalEinsumFactory WeightedSumFactory",
        },
    )
