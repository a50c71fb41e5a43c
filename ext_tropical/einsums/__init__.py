"""Einsums of any number of operands: a call is checked, planned, and runs in one of four ways.

`call`
    The functions.
`ways`
    A call whose arguments are checked, and the ways in which it runs: one step
    (`steps.einsum_op`), one op for the whole plan (`networks`), the steps one after another
    (`steps.evaluate`), or slices.
`planning`
    Equation and sizes to the order of contractions, its memory and its slices, without arrays.
`slice_lengths`
    Which labels are cut, so that a plan stays within a limit of memory.
`slices`
    A plan cut along labels: one slice after another in one program, or over devices.
`devices`
    The devices of some axes of a mesh, which share the slices.
`dot_general`
    Einsums with the arguments of `jax.lax`.
"""

from ..steps.evaluate import Assignment, TropicalResult, TropicalStep
from ..steps.labels import Labels
from .call import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .dot_general import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum
from .planning import plan_tropical_einsum
from .slices import TropicalPlan

__all__ = [
    "Assignment",
    "Labels",
    "TropicalPlan",
    "TropicalResult",
    "TropicalStep",
    "best_assignment",
    "min_plus_dot_general",
    "plan_tropical_einsum",
    "tropical_dot_general",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
    "tropical_reduce_sum",
]
