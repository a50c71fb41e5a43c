"""Section 7 of the contract: inference is the truth, also where sizes are symbols."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import (
    InvalidConfig,
    ShapeError,
)
from tenferro_jax.extension import (
    ExtensionOp,
    apply,
)

from ..extension_ops import (
    Bilinear,
)
from ..helpers import each_ends_in, ends_in
from .runners import runners

X = np.arange(6.0).reshape(2, 3)

F64 = np.dtype("float64")


B, C = jax.export.symbolic_shape("b, c")


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, F64)


@pytest.mark.clause("X4.5")
def test_inference_is_derived_from_a_lowering():
    class Flat(ExtensionOp):
        family_id = "test-package.flat.v1"

        def lower_to_standard_ops(self, x):
            return (x.reshape(-1).astype(jnp.float32),)

    graph = trace(lambda x: apply(Flat(), x)[0], spec(B, 3))
    assert graph.output_metas == (TensorMeta(np.dtype("float32"), (3 * B,)),)
    np.testing.assert_array_equal(graph.to_jax()(X), X.ravel())


@pytest.mark.clause("X7.1")
def test_a_lowering_is_compared_at_symbolic_sizes_too():
    class OneMore(ExtensionOp):
        family_id = "test-package.one_more.v1"

        def infer_output_meta(self, inputs):
            return [(inputs[0].dtype, (inputs[0].shape[0] + 1,))]

        def lower_to_standard_ops(self, x):
            return (x,)

    ends_in(
        lambda: tj.export(lambda x: apply(OneMore(), x)[0], spec(B)),
        InvalidConfig,
        r"test-package\.one_more\.v1: given outputs float64\[b\]; needed float64\[b \+ 1\]",
    )


@pytest.mark.clause("X7.2")
@pytest.mark.parametrize(("b", "c"), [(1, 1), (2, 3), (4, 2)])
def test_dimension_arithmetic_goes_through_and_is_bound(b, c):
    class Outer(ExtensionOp):
        family_id = "test-package.outer.v1"
        input_count = 2

        def infer_output_meta(self, inputs):
            return [(F64, (inputs[0].shape[0] * inputs[1].shape[0], inputs[0].shape[0] + 1))]

        def eager_execute(self, x, y):
            return (np.outer(np.outer(x, y), np.ones(len(x) + 1)),)

    graph = trace(lambda x, y: apply(Outer(), x, y)[0], spec(B), spec(C))
    assert graph.output_metas == (TensorMeta(F64, (B * C, B + 1)),)
    x, y = np.arange(float(b)), np.arange(float(c)) + 1
    np.testing.assert_array_equal(
        Engine().eval(graph, x, y), np.outer(np.outer(x, y), np.ones(b + 1))
    )


@pytest.mark.clause("X7.2", "X7.6")
def test_a_symbol_taken_for_a_number_is_told_with_the_authors_error():
    class Counting(ExtensionOp):
        family_id = "test-package.counting.v1"

        def infer_output_meta(self, inputs):
            return [(inputs[0].dtype, (int(inputs[0].shape[0]),))]

        def lower_to_standard_ops(self, x):
            return (x,)

    assert apply(Counting(), np.ones(2))[0].shape == (2,)
    error = ends_in(
        lambda: trace(lambda x: apply(Counting(), x)[0], spec(B)),
        InvalidConfig,
        r"(?s)infer_output_meta of extension test-package\.counting\.v1.*works for symbolic shapes",
    )
    assert error.value.__cause__ is not None


@pytest.mark.clause("X7.3")
def test_sizes_that_do_not_fit():
    ends_in(
        (run for _, run in runners(Bilinear(), X, X)),
        ShapeError,
        r"test-package\.bilinear\.v1.*dimensions 3 and 2",
    )


@pytest.mark.clause("X7.3")
def test_require_equal_tells_apart_what_equality_cannot():
    assert (B == C) is False
    call = lambda x, w: apply(Bilinear(), x, w)[0]
    assert trace(call, spec(2, B), spec(B, 2)).guards == ()
    assert [str(g) for g in trace(call, spec(2, B), spec(C, 2)).guards] == ["b == c"]
    ends_in(lambda: trace(call, spec(2, B), spec(B + 1, 2)), ShapeError, r"dimensions b and b \+ 1")


@pytest.mark.clause("X7.6")
def test_inference_that_fails_is_wrapped_with_the_family():
    class Broken(ExtensionOp):
        family_id = "test-package.broken.v1"

        def infer_output_meta(self, inputs):
            return [inputs[7]]

    class Neither(ExtensionOp):
        family_id = "test-package.neither.v1"

    class Raising(ExtensionOp):
        family_id = "test-package.raising.v1"

        def lower_to_standard_ops(self, x):
            raise KeyError("table")

    each_ends_in(
        (lambda: apply(Neither(), X), InvalidConfig, "no infer_output_meta and no lowering"),
        (
            lambda: apply(Raising(), X),  # not blamed on inference
            InvalidConfig,
            r"lower_to_standard_ops, from which metas are inferred, of extension "
            r"test-package\.raising\.v1.*KeyError",
        ),
    )
    error = ends_in(
        lambda: apply(Broken(), X),
        InvalidConfig,
        r"infer_output_meta of extension test-package\.broken\.v1.*IndexError",
    )
    assert isinstance(error.value.__cause__, IndexError)
