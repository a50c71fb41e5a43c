"""jax.export: static and symbolic sizes, one and several platforms, exported derivatives; judged
after deserialisation.
"""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical
from ext_tropical import tropical_einsum
from tenferro_jax.errors import ADRuleError, ShapeError
from tenferro_jax.extension import ExtensionRuleSet, apply
from tenferro_jax.jax_seam import read_module

from ..extension_ops import ScaledSquare
from ..helpers import ends_in
from ..oracles import brute_force, central_difference
from .matrix import agree, agree_numerically, sweep


def reread(exported, **how):
    """The exported program as another process would get it."""
    return jax.export.deserialize(bytearray(exported.serialize(**how)))


@pytest.mark.clause("X13.7")
@sweep("export")
def test_static_sizes(case):
    back = reread(jax.export.export(jax.jit(case))(*case.inputs))
    agree(back.call(*case.inputs), case.oracle(*case.inputs))
    (tag,) = read_module(back.mlir_module_serialized).extensions
    assert tag["family_id"] == case.op.family_id


def check_symbolic_batch(case, platforms):
    (b,) = jax.export.symbolic_shape("b")
    specs = [jax.ShapeDtypeStruct((b, *x.shape), x.dtype) for x in case.inputs]
    back = reread(jax.export.export(jax.jit(jax.vmap(case)), platforms=platforms)(*specs))
    for size in (1, 3):
        batch = case.batch(size)
        agree(back.call(*batch), case.stacked(*batch))
    (tag,) = read_module(back.mlir_module_serialized).extensions
    assert tag["family_id"] == case.op.family_id


@pytest.mark.cpu
@pytest.mark.clause("X13.7")
@sweep("export with symbolic sizes")
def test_symbolic_batch(case):
    check_symbolic_batch(case, ("cpu",))


@pytest.mark.clause("X13.7")
@sweep("export for several platforms")
def test_symbolic_batch_for_several_platforms(case):
    check_symbolic_batch(case, ("cpu", "cuda", "tpu"))


@pytest.mark.clause("X13.7")
@sweep("export with vjp_order=1")
def test_exported_derivative(case):
    back = reread(jax.export.export(jax.jit(case.scalar))(*case.inputs), vjp_order=1)
    agree_numerically(jax.grad(back.call, case.argnums)(*case.inputs), case.gradients(*case.inputs))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_mul"])
def test_all_sizes_of_an_einsum_symbolic(name):
    i, j, k = jax.export.symbolic_shape("i, j, k")
    specs = jax.ShapeDtypeStruct((i, j), jnp.float64), jax.ShapeDtypeStruct((j, k), jnp.float64)

    def f(a, b):
        return tropical_einsum("ij,jk->ki", a, b, semiring=getattr(ext_tropical, name))

    value = jax.export.export(jax.jit(f), platforms=("cpu", "cuda", "tpu"))(*specs)
    gradient = jax.export.export(jax.jit(jax.grad(lambda a, b: (f(a, b) ** 2).sum())))(*specs)
    rng = np.random.default_rng(0)
    for m, n, p in ((1, 1, 1), (3, 16, 2), (2, 17, 2)):
        a, b = rng.normal(size=(m, n)), rng.normal(size=(n, p))
        np.testing.assert_array_equal(value.call(a, b), brute_force(name, "ij,jk->ki", a, b)[0])
        want = central_difference(
            lambda a, b: (brute_force(name, "ij,jk->ki", a, b)[0] ** 2).sum(), [a, b], 0
        )
        np.testing.assert_allclose(gradient.call(a, b), want, rtol=1e-5, atol=1e-5)


def test_two_symbols_that_may_differ_are_refused_with_the_constraint_to_add():
    j, k = jax.export.symbolic_shape("j, k")
    specs = jax.ShapeDtypeStruct((2, j), jnp.float64), jax.ShapeDtypeStruct((k, 3), jnp.float64)
    ends_in(
        lambda: jax.export.export(jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b)))(*specs),
        ShapeError,
        r"constraints=\('j == k',\)",
    )
    j, k = jax.export.symbolic_shape("j, k", constraints=("j == k",))
    specs = jax.ShapeDtypeStruct((2, j), jnp.float64), jax.ShapeDtypeStruct((k, 3), jnp.float64)
    exported = jax.export.export(jax.jit(lambda a, b: tropical_einsum("ij,jk->ik", a, b)))(*specs)
    a, b = np.ones((2, 5)), np.arange(15.0).reshape(5, 3)
    np.testing.assert_array_equal(
        exported.call(a, b), brute_force("max_plus", "ij,jk->ik", a, b)[0]
    )


@pytest.mark.clause("X10.2")
def test_exporting_a_derivative_without_a_rule_names_the_family():
    exported = jax.export.export(
        jax.jit(lambda x: apply(ScaledSquare(), x, rules=ExtensionRuleSet())[0])
    )(jnp.ones(3))
    ends_in(
        lambda: exported.serialize(vjp_order=1),
        ADRuleError,
        r"jvp.*test-package\.scaled_square\.v1",
    )
