"""64-bit types off: float32 values and derivatives, and integers that stay 32 bits wide."""

import jax
import numpy as np

from .matrix import agree, agree_numerically, sweep


def narrowed(arrays):
    """Floating arrays as float32."""
    return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]


@sweep("x64 off")
def test_values_and_vmap(case):
    batch = case.batch(2)
    with jax.enable_x64(False):
        agree(case(*narrowed(case.inputs)), narrowed(case.oracle(*case.inputs)), 1e-5)
        agree(jax.jit(jax.vmap(case))(*narrowed(batch)), narrowed(case.stacked(*batch)), 1e-5)


@sweep("grad with x64 off")
def test_grad(case):
    with jax.enable_x64(False):
        got = jax.jit(jax.grad(case.scalar, case.argnums))(*narrowed(case.inputs))
        agree_numerically(got, narrowed(case.gradients(*case.inputs)), 1e-4)
