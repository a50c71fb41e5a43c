"""Tropical tensors for JAX: max-plus, min-plus and max-mul einsum with winners and gradients. Re-exports only."""

from .einsum import TropicalResult, TropicalStep, tropical_einsum, tropical_einsum_with_argmax
from .einsum_op import Outputs, TropicalEinsum
from .rules import TROPICAL_RULES, TropicalEinsumRule
from .scalar import MaxMul, MaxPlus, MinPlus
from .semiring import SEMIRINGS, Semiring, max_mul, max_plus, min_plus

__all__ = [
    "SEMIRINGS",
    "TROPICAL_RULES",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
    "Outputs",
    "Semiring",
    "TropicalEinsum",
    "TropicalEinsumRule",
    "TropicalResult",
    "TropicalStep",
    "max_mul",
    "max_plus",
    "min_plus",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
]
