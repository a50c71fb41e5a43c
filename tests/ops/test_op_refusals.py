"""What the op page forbids is refused when an op is recorded."""

import jax
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, trace
from tenferro_jax.errors import DTypeError, InvalidConfig, Unsupported
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops import (
    analytic,
    arithmetic,
    contraction,
    control,
    conversion,
    indexing,
    linalg,
    logic,
    random,
    reduction,
    sorting,
    source,
    structural,
    window,
)
from tenferro_jax.ops.logic import Direction

from ..helpers import each_ends_in, ends_in

# --- what the op page forbids is refused when an op is recorded -----------------------------------


F, I32 = np.dtype("float32"), np.dtype("int32")


def meta(*shape, dtype=F):
    return TensorMeta(np.dtype(dtype), shape)


W = ((2,), (1,), ((0, 0),), (1,), (1,))


REFUSED = [
    *((op, meta(3, 4), meta(3, 5)) for op in (arithmetic.Add(), analytic.Pow())),
    (logic.Compare(Direction.Lt), meta(3, 4), meta(3, 5)),
    (structural.BroadcastInDim((5, 4), ()), meta(1, 4)),
    (structural.Reshape((5,)), meta(2, 3)),
    (structural.Reshape((-1,)), meta(6)),
    (structural.BroadcastInDim((3, 2), (1, 0)), meta(2, 3)),
    (structural.Transpose((True, False)), meta(2, 3)),
    (structural.Slice((0,), (1,), (0,)), meta(3)),
    (structural.Concatenate(-1), meta(3)),
    (reduction.ReduceAnd((-1,)), meta(3, dtype=bool)),
    (reduction.ReduceSum((0, 0)), meta(3, 3)),
    (reduction.ArgMax(0, np.dtype("int8")), meta(300)),
    (reduction.ArgMax(0, F), meta(3)),
    (reduction.ArgMin(0, I32), meta(3, dtype="complex64")),
    (
        contraction.Convolution((0,), ((0, 0),), (1,), (1,), *3 * [(0, 1, 2)]),
        meta(1, 1, 5),
        meta(1, 1, 2),
    ),
    (
        contraction.Convolution((1,), ((0, 0),), (1,), (1,), (0, 1, 2), (0, 1, 2), (1, 1, 2)),
        meta(1, 1, 5),
        meta(1, 1, 2),
    ),
    (
        contraction.Convolution((1,), "SAME", (1,), (1,), *3 * [(0, 1, 2)]),
        meta(1, 1, 5),
        meta(1, 1, 2),
    ),
    (contraction.Fft("FFT", (2, 2, 2, 2)), meta(2, 2, 2, 2, dtype="complex64")),
    (contraction.Fft("FFT", (3,)), meta(3)),
    (contraction.Fft("RFFT", (3,)), meta(3, dtype=I32)),
    (contraction.Fft("IRFFT", (9,)), meta(2, dtype="complex64")),
    (contraction.Fft("FFT", ()), meta(3, dtype="complex64")),
    (contraction.DotGeneral((1,), (0,), precision="junk"), meta(2, 3), meta(3, 2)),
    (contraction.DotGeneral((1,), (0,), precision=3), meta(2, 3), meta(3, 2)),
    (window.SelectAndScatterAdd(True, *W[:3]), meta(5), meta(3)),
    (window.SelectAndGatherAdd(*W, True), meta(3), meta(3, dtype=I32)),
    (window.ReduceWindowMax((2,), (0,), ((0, 0),), (1,), (1,)), meta(3)),
    (linalg.TriangularSolve(), meta(4, 2, 2), meta(5, 2, 1)),
    (linalg.TriangularSolve(), meta(2, 2), meta(2)),
    (linalg.Solve(), meta(2, 2, dtype=I32), meta(2, 1, dtype=I32)),
    (linalg.Solve(), meta(2, 2), meta(2, 1, dtype="float16")),
    (linalg.TridiagonalSolve(), *[meta(3, dtype="complex64")] * 3, meta(3, 1, dtype="complex64")),
    (sorting.ApproxTopK(1, 0, 1.5), meta(3)),
    (sorting.TopK(1, -1), meta(3)),
    (sorting.Sort(-1), meta(3)),
    (reduction.CumSum(0, 1), meta(3)),
    (reduction.CumLogSumExp(0), meta(3, dtype=I32)),
    (random.RandomSeed("threefry2x32"), meta()),
    (random.RandomBits(32, (-1,)), TensorMeta(jax.random.key(0).dtype, ())),
    (random.RngBitGenerator((2,), np.dtype("uint32"), "RNG_DEFAULT"), meta(7, dtype="uint32")),
    (logic.Compare("Lt"), meta(3), meta(3)),
    (logic.Select(), meta(2, dtype=I32), meta(2), meta(2)),
    (analytic.IntegerPow(2.5), meta(3)),
    (analytic.IntegerPow(True), meta(3)),
    (analytic.Log2(), meta(3, dtype=I32)),
    (analytic.OneMinusSquare(), meta(3, dtype=bool)),
    (conversion.Conj(), meta(3, dtype=I32)),
    (source.ShapeOf(-1), meta(3)),
    (source.DimensionValue(7.5, I32),),
    (source.DimensionValue(2**40, I32),),
    (structural.PadToMatch(-1), meta(2), meta(3)),
    (indexing.Gather((), (0,), (0,), (1,), out_of_bounds="clip"), meta(2), meta(1, 1, dtype=I32)),
    (
        indexing.Scatter((), (0,), (0,), out_of_bounds="clip"),
        meta(2),
        meta(1, 1, dtype=I32),
        meta(1),
    ),
    (control.LinearSolve(None, None, None, (0, 0)), meta(3)),
]


@pytest.mark.parametrize(
    "case", REFUSED, ids=[f"{i} {type(c[0]).__name__}" for i, c in enumerate(REFUSED)]
)
def test_it_is_refused_when_it_is_recorded(case):
    op, *metas = case
    builder = GraphBuilder()
    error = ends_in(lambda: builder.add(op, *map(builder.input, metas)), InvalidConfig)
    assert all((error.value.where, error.value.given, error.value.needed))


NARROWED = [
    (source.Constant(np.array([2**40])),),
    (source.Iota(np.dtype("float64"), (2,), 0),),
    (conversion.Convert(np.dtype("complex128")), meta(2)),
    (conversion.BitcastConvert(np.dtype("float64")), meta(2, dtype="uint32")),
    (reduction.ArgMax(0, np.dtype("int64")), meta(2)),
    (random.RandomBits(64, (2,)), TensorMeta(jax.random.key(0).dtype, ())),
]


@pytest.mark.parametrize("case", NARROWED, ids=[type(c[0]).__name__ for c in NARROWED])
def test_no_payload_is_narrowed_while_64_bit_types_are_off(case):
    op, *metas = case
    with jax.enable_x64(False):
        builder = GraphBuilder()
        each_ends_in(
            (
                lambda: builder.add(op, *map(builder.input, metas)),
                DTypeError,
                "64-bit types are off",
            ),
            (lambda: builder.input(meta(3, dtype="float64")), DTypeError, "64-bit types are off"),
        )


def test_a_custom_rule_that_jax_itself_cannot_trace_alone_is_noted_not_raised():
    from_jax = jax.custom_vjp(lambda x: x * 2)
    from_jax.defvjp(lambda x: (_ for _ in ()).throw(KeyError("no rule")), lambda r, g: g)
    graph = trace(lambda x: from_jax(x).sum(), np.ones(3))
    assert float(graph.to_jax()(np.ones(3))) == 6.0
    ends_in(lambda: tj.grad(graph), Unsupported, "custom derivatives that tracing inlined")
