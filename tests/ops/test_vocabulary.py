"""Every op of the vocabulary: value against NumPy, inference against the value, and through a graph and back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax import ArityError, Graph, GraphBuilder, InvalidConfig, TensorMeta, trace
from tenferro_jax.meta import meta_of
from tenferro_jax.ops import analytic, arithmetic, contraction, control, indexing, reduction, structural
from tenferro_jax.ops.arithmetic import Direction
from tenferro_jax.ops.op import call
from tenferro_jax.ops.vocabulary import ELEMENTWISE, VOCABULARY

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(3, 4)), RNG.normal(size=(3, 4))
POSITIVE = np.abs(X) + 0.5
I, J = RNG.integers(-9, 9, (3, 4)), RNG.integers(1, 5, (3, 4))
B, C = X > 0, Y > 0


def graph_of(fn, *metas):
    builder = GraphBuilder()
    inputs = [builder.input(m) for m in metas]
    return builder.build(builder.inline(fn, *inputs))


def scalar_meta(dtype="float64"):
    return TensorMeta(np.dtype(dtype), ())


HALVE = graph_of(lambda k, x: (x * k,), scalar_meta(), scalar_meta())
BELOW = graph_of(lambda x: (x < 100.0,), scalar_meta())
DOUBLE = graph_of(lambda x: (x * 2,), scalar_meta())
NEGATE = graph_of(lambda x: (-x,), scalar_meta())

UNARY = {
    arithmetic.Neg: np.negative,
    arithmetic.Abs: np.abs,
    arithmetic.Sign: np.sign,
    analytic.Exp: np.exp,
    analytic.Expm1: np.expm1,
    analytic.Sin: np.sin,
    analytic.Cos: np.cos,
    analytic.Tanh: np.tanh,
    analytic.Logistic: lambda x: 1 / (1 + np.exp(-x)),
}
BINARY = {
    arithmetic.Add: np.add,
    arithmetic.Sub: np.subtract,
    arithmetic.Mul: np.multiply,
    arithmetic.Div: np.divide,
    arithmetic.Rem: np.fmod,
    arithmetic.Maximum: np.maximum,
    arithmetic.Minimum: np.minimum,
}
COMPARISONS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")
REDUCTIONS = {
    reduction.ReduceSum: np.sum,
    reduction.ReduceProd: np.prod,
    reduction.ReduceMax: np.max,
    reduction.ReduceMin: np.min,
}

CASES = [
    *((op(), (X,), fn) for op, fn in UNARY.items()),
    *((op(), (POSITIVE,), fn) for op, fn in [(analytic.Log, np.log), (analytic.Log1p, np.log1p), (analytic.Sqrt, np.sqrt)]),
    (analytic.Rsqrt(), (POSITIVE,), lambda x: 1 / np.sqrt(x)),
    (analytic.Pow(), (POSITIVE, Y), np.power),
    (analytic.IntegerPow(3), (X,), lambda x: x**3),
    (analytic.IntegerPow(-2), (X,), lambda x: 1 / x**2),
    *((op(), (X, Y), fn) for op, fn in BINARY.items()),
    (arithmetic.Div(), (I, J), lambda x, y: np.trunc(x / y).astype(np.int64)),
    (arithmetic.Rem(), (I, J), np.fmod),
    *((arithmetic.Compare(d), (I, J), getattr(np, name)) for d, name in zip(Direction, COMPARISONS)),
    (arithmetic.And(), (B, C), np.logical_and),
    (arithmetic.Or(), (I, J), np.bitwise_or),
    (arithmetic.Not(), (B,), np.logical_not),
    (arithmetic.Select(), (B, X, Y), np.where),
    (arithmetic.Clamp(), (X, np.float64(-0.5), np.float64(0.5)), np.clip),
    (arithmetic.Convert(np.dtype("int32")), (X,), lambda x: x.astype(np.int32)),
    (arithmetic.IsFinite(), (np.array([1.0, np.inf, np.nan]),), np.isfinite),
    (arithmetic.StopGradient(), (X,), lambda x: x),
    (arithmetic.Constant(X), (), lambda: X),
    (arithmetic.DimensionValue(7, np.dtype("int32")), (), lambda: np.int32(7)),
    (structural.Iota(np.dtype("int32"), (2, 3), 1), (), lambda: np.broadcast_to(np.arange(3, dtype=np.int32), (2, 3))),
    (structural.Transpose((1, 0)), (X,), np.transpose),
    (structural.Reshape((2, 6)), (X,), lambda x: x.reshape(2, 6)),
    (structural.BroadcastInDim((2, 3, 4), (1, 2)), (X,), lambda x: np.broadcast_to(x, (2, 3, 4))),
    (structural.Slice((0, 1), (3, 4), (2, 1)), (X,), lambda x: x[0:3:2, 1:4]),
    (structural.Pad((1, 0), (0, 2), (0, 0)), (X, np.float64(9)), lambda x, f: np.pad(x, ((1, 0), (0, 2)), constant_values=f)),
    (structural.Reverse((1,)), (X,), lambda x: x[:, ::-1]),
    (structural.Concatenate(0), (X, Y), lambda x, y: np.concatenate([x, y])),
    (contraction.DotGeneral((1,), (1,)), (X, Y), lambda x, y: x @ y.T),
    (contraction.DotGeneral((1,), (1,), (0,), (0,)), (X, Y), lambda x, y: np.einsum("ij,ij->i", x, y)),
    *((op((1,)), (X,), lambda x, fn=fn: fn(x, axis=1)) for op, fn in REDUCTIONS.items()),
    (reduction.ReduceAnd((0,)), (B,), lambda x: np.all(x, axis=0)),
    (reduction.ReduceOr((0, 1)), (B,), np.any),
    (reduction.ArgMax(1, np.dtype("int32")), (X,), lambda x: x.argmax(1).astype(np.int32)),
    (reduction.ArgMin(0, np.dtype("int64")), (X,), lambda x: x.argmin(0)),
    (indexing.Gather((1,), (0,), (0,), (1, 4)), (X, np.array([[2], [0], [2]])), lambda x, i: x[i[:, 0]]),
    (
        indexing.Scatter((1,), (0,), (0,)),
        (X, np.array([[2], [0], [2]]), Y),
        lambda x, i, y: np.stack([x[0] + y[1], x[1], x[2] + y[0] + y[2]]),
    ),
    (indexing.DynamicSlice((2, 2)), (X, np.int32(1), np.int32(7)), lambda x, i, j: x[1:3, 2:4]),
    (
        indexing.DynamicUpdateSlice(),
        (X, Y[:1, :2], np.int32(2), np.int32(1)),
        lambda x, u, i, j: np.concatenate([x[:2], np.concatenate([x[2:, :1], u, x[2:, 3:]], 1)]),
    ),
    (control.CountedLoop(HALVE, 5, 1), (np.float64(0.5), np.float64(64.0)), lambda k, x: x * k**5),
    (control.While(BELOW, DOUBLE), (np.float64(3.0),), lambda x: np.float64(192.0)),
    (control.Cond((NEGATE, DOUBLE)), (np.int32(1), np.float64(3.0)), lambda i, x: np.float64(6.0)),
    (control.Cond((NEGATE, DOUBLE)), (np.int32(-4), np.float64(3.0)), lambda i, x: np.float64(-3.0)),
]
sweep = pytest.mark.parametrize(("op", "inputs", "oracle"), CASES, ids=[f"{i} {type(c[0]).__name__}" for i, c in enumerate(CASES)])


def test_every_op_has_a_case():
    assert {type(op) for op, _, _ in CASES} == set(VOCABULARY)
    assert len(VOCABULARY) == len(set(VOCABULARY))


@sweep
def test_value_and_inference(op, inputs, oracle):
    (got,) = call(op, [jnp.asarray(x) for x in inputs])
    want = np.asarray(oracle(*inputs))
    assert op.infer(*(meta_of(x) for x in inputs)) == (meta_of(got),)
    assert (got.shape, got.dtype) == (want.shape, want.dtype)
    np.testing.assert_allclose(got, want, rtol=1e-14, atol=1e-14)


@sweep
def test_round_trip_through_a_graph_is_exact(op, inputs, oracle):
    graph = trace(lambda *xs: op.apply(*xs), *inputs)
    (direct,) = call(op, [jnp.asarray(x) for x in inputs])
    back = graph.to_jax()(*inputs)
    np.testing.assert_array_equal(jax.tree.leaves(back)[0], direct)
    if inputs and type(op) is not control.Cond:  # jax.lax.switch adds the clamping of its index
        assert type(op) in {type(node.op) for node in graph.nodes}


def test_elementwise_ops_do_not_broadcast():
    for op in (arithmetic.Add(), arithmetic.Compare(Direction.Lt), analytic.Pow()):
        with pytest.raises(InvalidConfig, match=type(op).__name__):
            op.infer(TensorMeta(np.dtype("float64"), (3, 4)), TensorMeta(np.dtype("float64"), (3, 5)))
    assert len(ELEMENTWISE) > 20


def test_arity_is_checked():
    with pytest.raises(ArityError, match="given 1 inputs; needed 2 inputs"):
        call(arithmetic.Add(), [jnp.ones(2)])


def test_broadcast_names_every_axis():
    with pytest.raises(InvalidConfig, match="rank 2"):
        structural.BroadcastInDim((5, 4), ()).infer(TensorMeta(np.dtype("float64"), (1, 4)))


def test_ops_with_equal_payload_are_equal_and_types_matter():
    assert structural.Reshape((2, 6)) == structural.Reshape((2, 6))
    assert hash(structural.Reshape((2, 6))) == hash(structural.Reshape((2, 6)))
    assert reduction.ReduceSum((1,)) != reduction.ReduceMax((1,))
    assert arithmetic.Constant(np.float32(1)) != arithmetic.Constant(np.float64(1))
    assert isinstance(HALVE, Graph)
    assert control.CountedLoop(HALVE, 5, 1) != control.CountedLoop(DOUBLE, 5, 1)
