"""Rows of labels as outputs of their own: values, transforms, programs, refusals."""

from __future__ import annotations

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import Network
from ext_tropical.network.walk import WORTH_THE_OP, Rows, rows_of
from ext_tropical.step.native.library import ROWS, native
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes

from .judges import check_refusal, refuse

needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)


@pytest.mark.parametrize("count", [1, WORTH_THE_OP - 1, WORTH_THE_OP, 70])
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_rows_are_those_of_numpy_outside_jit_inside_and_in_a_program(count, shape):
    labels = np.random.default_rng(count).integers(-9, 9, (count, *shape), np.int32)
    program = jax.export.export(jax.jit(rows_of))(labels)
    for fn in (rows_of, jax.jit(rows_of), program.call):
        found = fn(jnp.asarray(labels))
        assert len(found) == count
        for ours, row in zip(found, labels, strict=True):
            assert ours.dtype == np.int32
            np.testing.assert_array_equal(ours, row)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_batch_of_labels_has_the_rows_of_each(axis):
    labels = np.random.default_rng(0).integers(-9, 9, (5, 12, 4), np.int32)
    found = jax.jit(jax.vmap(rows_of, axis))(jnp.asarray(np.moveaxis(labels, 0, axis)))
    np.testing.assert_array_equal(np.stack(found, 1), labels)
    nested = jax.vmap(jax.vmap(rows_of, 1))(jnp.asarray(labels))
    np.testing.assert_array_equal(np.stack(nested, 1), labels)


@needs_library
@pytest.mark.cpu
def test_labels_under_jit_are_one_call_of_the_library():
    """XLA compiles no function for each label."""
    net = Network.from_factors({(i, i + 1): np.eye(2) * (i % 3 - 1) for i in range(60)})
    ask = jax.jit(lambda net: net.best().labels)
    kinds = {route.family_id.split(".")[1]: route.kind for route in routes(ask, net)}
    assert kinds == {"network": RouteKind.KERNEL, "rows": RouteKind.KERNEL}
    assert " fusion(" not in ask.lower(net).compile().as_text()
    assert ask(net) == net.best().labels


@needs_library
@pytest.mark.cpu
def test_malformed_calls_are_refused_by_the_handler():
    for shapes in ([(3,), (3,)], [(3,), (4,)], [(2,), (4,)]):
        outs = [jax.ShapeDtypeStruct(shape, jnp.int32) for shape in shapes]
        call = jax.jit(jax.ffi.ffi_call(ROWS, outs))
        labels = jnp.arange(6, dtype=jnp.int32)
        if shapes == [(3,), (3,)]:
            np.testing.assert_array_equal(np.stack(call(labels)), labels.reshape(2, 3))
            continue
        with pytest.raises(jax.errors.JaxRuntimeError, match="rows: malformed operands"):
            jax.block_until_ready(call(labels))


@refuse(
    (InvalidConfig, "count", lambda: Rows(0)),
    (InvalidConfig, "count", lambda: Rows(True)),
    (DTypeError, "int32", lambda: apply(Rows(2), jnp.ones((2, 3)))),
    (ShapeError, "2", lambda: apply(Rows(2), jnp.ones((3, 2), jnp.int32))),
    (ShapeError, "an axis of rows", lambda: apply(Rows(2), jnp.int32(2))),
)
def test_refusals(error, text, call):
    check_refusal(error, text, call)
