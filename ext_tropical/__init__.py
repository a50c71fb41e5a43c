"""Tropical tensors for JAX: einsum in selective semirings with winners, assignments and gradients.
Re-exports only.
"""

from typing import TYPE_CHECKING

from tenferro_jax import __version__ as __version__
from tenferro_jax.errors import answers

from .algebra.scalar import MaxMul, MaxPlus, MinPlus
from .algebra.semiring import SelectiveSemiring, Semiring, register_semiring
from .algebra.shipped import log_sum_exp, max_mul, max_plus, min_max, min_plus, or_and
from .families import register
from .model.network import Network
from .network.tropical_einsum import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .network.tropical_plan import plan_tropical_einsum
from .step.einsum_op import TropicalEinsum
from .uses.align import align
from .uses.chain import Chain, viterbi
from .uses.closure import closure
from .uses.dot_general import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum

__all__ = [
    "Chain",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
    "Network",
    "SelectiveSemiring",
    "Semiring",
    "TropicalEinsum",
    "align",
    "best_assignment",
    "closure",
    "log_sum_exp",
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
            "ext_tropical.tropical_einsum": "composition",
            "ext_tropical.algebra.laws.": "broken_laws",
            "ext_tropical.algebra.semiring.": "SemiringKey",
            "ext_tropical.algebra.shipped.": "LogSumExp SEMIRINGS",
            "ext_tropical.network.steps.": "Assignment TropicalResult TropicalStep",
            "ext_tropical.network.tropical_slices.": "SlicePart TropicalPlan",
            "pickle.loads": "load_plan",
            "ext_tropical.step.einsum_op.": "Outputs Ties",
            "ext_tropical.step.log_einsum.": "LogEinsum",
            "ext_tropical.step.weighted_sum.": "Place WeightedSum",
            "ext_tropical.uses.align.": "AlignResult",
            "ext_tropical.uses.chain.": "ChainMarginals ChainPath",
            "ext_tropical.uses.chain.ChainPath": "ViterbiResult",
            "ext_tropical.uses.closure.": "ClosureResult matrix_power",
        },
    )
