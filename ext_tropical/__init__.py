"""Tropical tensors for JAX: einsum in selective semirings with winners, assignments and gradients.
Re-exports only; what is not here is public in the module that `ROOMS` names.
"""

from typing import TYPE_CHECKING

from tenferro_jax import __version__ as __version__
from tenferro_jax.errors import no_attribute

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

ROOMS = ("algebra.laws", "uses.ctc", "uses.paths", "uses.segments")
"""The modules of this package whose public names are not here."""

if not TYPE_CHECKING:  # a checker of types would take every name

    def __getattr__(name: str) -> object:
        """Says where a name is that has a module of its own."""
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])
