"""Section 7 of the contract: inference is the truth, also where sizes are symbols."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import ExtensionOp, apply, require_equal

from ..extension_ops import Bilinear, ScaledSquare
from ..helpers import ends_in, made, throw
from .runners import runners

X = np.arange(6.0).reshape(2, 3)
F64 = np.dtype("float64")
B, C = jax.export.symbolic_shape("b, c")


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, F64)


@pytest.mark.clause("X4.5")
def test_inference_is_derived_from_a_lowering():
    Flat = made(
        "Flat",
        family_id="test-package.flat.v1",
        lower_to_standard_ops=lambda self, x: (x.reshape(-1).astype(jnp.float32),),
    )

    graph = trace(lambda x: apply(Flat(), x)[0], spec(B, 3))
    assert graph.output_metas == (TensorMeta(np.dtype("float32"), (3 * B,)),)
    np.testing.assert_array_equal(graph.to_jax()(X), X.ravel())


@pytest.mark.clause("X7.1")
def test_a_lowering_is_compared_at_symbolic_sizes_too():
    OneMore = made(
        "OneMore",
        family_id="test-package.one_more.v1",
        infer_output_meta=lambda self, inputs: [(inputs[0].dtype, (inputs[0].shape[0] + 1,))],
        lower_to_standard_ops=lambda self, x: (x,),
    )

    ends_in(
        lambda: tj.export(lambda x: apply(OneMore(), x)[0], spec(B)),
        InvalidConfig,
        r"test-package\.one_more\.v1: given outputs float64\[b\]; needed float64\[b \+ 1\]",
    )


@pytest.mark.clause("X7.2")
def test_dimension_arithmetic_goes_through_and_is_bound():
    class Outer(ExtensionOp):
        family_id = "test-package.outer.v1"
        input_count = 2

        def infer_output_meta(self, inputs):
            x, y = inputs
            return [(x.dtype, (x.shape[0] * y.shape[0], x.shape[0] + 1))]

        def eager_execute(self, x, y):
            return (np.outer(np.outer(x, y), np.ones(len(x) + 1)),)

    graph = trace(lambda x, y: apply(Outer(), x, y)[0], spec(B), spec(C))
    assert graph.output_metas == (TensorMeta(F64, (B * C, B + 1)),)
    for b, c in ((1, 1), (2, 3), (4, 2)):
        x, y = np.arange(float(b)), np.arange(float(c)) + 1
        np.testing.assert_array_equal(
            Engine().eval(graph, x, y), np.outer(np.outer(x, y), np.ones(b + 1))
        )


@pytest.mark.clause("X7.2", "X7.6")
def test_a_symbol_taken_for_a_number_is_told_with_the_authors_error():
    Counting = made(
        "Counting",
        family_id="test-package.counting.v1",
        infer_output_meta=lambda self, inputs: [(inputs[0].dtype, (int(inputs[0].shape[0]),))],
        lower_to_standard_ops=lambda self, x: (x,),
    )

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


class Total(ExtensionOp):
    """The sum of all elements of two vectors that must be equally long; runs at any lengths."""

    family_id = "test-package.total.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        require_equal(inputs[0].shape[0], inputs[1].shape[0])
        return [(inputs[0].dtype, ())]

    def lower_to_standard_ops(self, x, y):
        return (x.sum() + y.sum(),)


@pytest.mark.clause("X7.4")
def test_a_guard_is_checked_before_any_step_runs():
    ran = []

    Watched = made(
        "Watched",
        family_id="test-package.watched.v1",
        infer_output_meta=lambda self, inputs: inputs,
        eager_execute=lambda self, x: ran.append(x.shape) or (x,),
    )

    graph = trace(lambda x, y: apply(Total(), apply(Watched(), x)[0], y)[0], spec(B), spec(C))
    engine = Engine()
    assert engine.eval(graph, np.ones(2), np.ones(2)) == 4.0
    assert ran == [(2,)]
    ends_in(
        (
            lambda: run(np.ones(2), np.ones(3))
            for run in (graph.to_jax(), lambda *xs: engine.eval(graph, *xs), graph.bound_to)
        ),
        ShapeError,
        r"test-package\.total\.v1: given 2 for dimension b and 3 for dimension c",
    )
    assert ran == [(2,)]
    assert engine.stats()[:3] == (0, 2, 1)  # the refused call was looked for too


@pytest.mark.clause("X7.5")
def test_a_guard_keys_the_cache_of_an_engine():
    graph = trace(lambda x, y: apply(Total(), x, y)[0] * 0.0 + x.sum() - y.sum(), spec(B), spec(C))
    free = trace(lambda x, y: x.sum() - y.sum(), spec(B), spec(C))
    guarded = free.with_guards(graph.guards)
    assert guarded != free
    engine, x, y = Engine(), np.ones(2), np.ones(3)
    for _ in range(2):  # the second time the engine knows a program for these very arguments
        assert engine.eval(free, x, y) == -1.0
        ends_in(
            lambda: engine.eval(guarded, x, y),
            ShapeError,
            "given 2 for dimension b and 3 for dimension c",
        )
    assert engine.eval(guarded, x, x) == 0.0


@pytest.mark.clause("X7.6")
def test_inference_that_fails_is_wrapped_with_the_family():
    Broken = made(
        "Broken",
        family_id="test-package.broken.v1",
        infer_output_meta=lambda self, inputs: [inputs[7]],
    )

    error = ends_in(
        lambda: apply(Broken(), X),
        InvalidConfig,
        r"infer_output_meta of extension test-package\.broken\.v1.*IndexError",
    )
    assert isinstance(error.value.__cause__, IndexError)

    Neither = made("Neither", family_id="test-package.neither.v1")

    ends_in(lambda: apply(Neither(), X), InvalidConfig, "no infer_output_meta and no lowering")


@pytest.mark.clause("X7.6")
def test_an_exception_in_a_lowering_is_not_blamed_on_inference():
    Raising = made(
        "Raising",
        family_id="test-package.raising.v1",
        lower_to_standard_ops=lambda self, x: throw(KeyError("table")),
    )

    ends_in(
        lambda: apply(Raising(), X),
        InvalidConfig,
        r"lower_to_standard_ops, from which metas are inferred, of extension "
        r"test-package\.raising\.v1.*KeyError",
    )


@pytest.mark.clause("X7.7")
def test_64_bit_arrays_while_x64_is_off():
    with jax.enable_x64(False):
        ends_in(
            (
                lambda: apply(ScaledSquare(), value)
                for value in (X, np.arange(3), np.float64(1), np.ones(2, complex))
            ),
            DTypeError,
            r"test-package\.scaled_square\.v1, input 0.*enable_x64\(True\).*\.astype\(np\.",
        )
        assert apply(ScaledSquare(2.0), [1.0, 2.0])[0].tolist() == [2.0, 8.0]
        assert apply(ScaledSquare(2.0), 3.0)[0] == 18.0
        assert apply(ScaledSquare(2.0), np.float32(3.0))[0].dtype == np.float32


@pytest.mark.clause("X7.7")
def test_64_bit_jax_arrays_made_before_x64_was_switched_off():
    x = jnp.ones(2)
    with (
        jax.enable_x64(False),
        pytest.raises(DTypeError, match=r"test-package\.scaled_square\.v1, input 0"),
    ):
        apply(ScaledSquare(), x)
