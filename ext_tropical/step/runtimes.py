"""Who may compute the einsum beside XLA: the kernels of all platforms."""

from __future__ import annotations

from tenferro_jax.extension import ExtensionRuntimeSet, Kernel

from .einsum_op import TropicalEinsum
from .native import kernel as native
from .pallas import kernel as pallas

TROPICAL_RUNTIMES = ExtensionRuntimeSet(
    Kernel(TropicalEinsum.family_id, "cpu", native.run, native.declines),
    Kernel(TropicalEinsum.family_id, "cuda", pallas.run, pallas.declines),
)
"""The kernels of the einsum, which the functions here pass along. `Engine(runtimes=TROPICAL_RUNTIMES.only(...))` selects routes."""
