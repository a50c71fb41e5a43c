"""jax.export: static and symbolic sizes, one and several platforms, exported derivatives; judged
after deserialisation.
"""

import jax
import jax.export
import jax.numpy as jnp
import pytest

from tenferro_jax.errors import ADRuleError
from tenferro_jax.extension import ExtensionRuleSet, apply
from tenferro_jax.jax_seam import read_module

from ..extension_ops import ScaledSquare
from ..helpers import ends_in
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
