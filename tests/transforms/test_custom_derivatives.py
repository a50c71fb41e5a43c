"""custom_jvp and custom_vjp around an extension: their rule is used, and may use the extension's own."""

import jax
import pytest

from .matrix import agree_numerically, sweep


@pytest.mark.clause("X13.3")
@sweep("inside custom_jvp")
def test_custom_jvp(case):
    """The rule says twice what the extension's own rule says."""

    @jax.custom_jvp
    def doubled(*xs):
        return case.scalar(*xs)

    @doubled.defjvp
    def rule(primals, tangents):
        value, tangent = jax.jvp(case.scalar, primals, tangents)
        return value, 2 * tangent

    got = jax.jit(jax.grad(doubled, case.argnums))(*case.inputs)
    agree_numerically(got, [2 * g for g in case.gradients(*case.inputs)])


@pytest.mark.clause("X13.3")
@sweep("inside custom_vjp")
def test_custom_vjp(case):
    @jax.custom_vjp
    def doubled(*xs):
        return case.scalar(*xs)

    def backward(xs, ct):
        return tuple(2 * ct * g for g in jax.grad(case.scalar, case.argnums)(*xs))

    doubled.defvjp(lambda *xs: (case.scalar(*xs), xs), backward)
    got = jax.jit(jax.grad(doubled, case.argnums))(*case.inputs)
    agree_numerically(got, [2 * g for g in case.gradients(*case.inputs)])
