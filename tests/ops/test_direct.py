"""Inference by rule against inference by JAX: where a rule answers, the two are equal; what JAX refuses, it leaves to JAX."""

import collections

import jax
import jax.export
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tenferro_jax import TenferroError, TensorMeta
from tenferro_jax.ops import analytic, arithmetic, contraction, reduction, source, structural
from tenferro_jax.ops.direct import RULES, infer, infer_direct
from tenferro_jax.ops.logic import Direction

COMMON = [np.dtype(name) for name in ("float32", "float32", "float64", "int32", "bool")]
DTYPES = [*COMMON, *map(np.dtype, ("int8", "uint8", "uint32", "int64", "float16", "bfloat16", "complex64", "complex128"))]
B, C = jax.export.symbolic_shape("b, c")

dtypes = st.sampled_from(DTYPES)
sizes = st.integers(0, 3)
shapes = st.lists(sizes, max_size=3).map(tuple)
odd_shapes = st.lists(st.one_of(sizes, st.sampled_from([B, C, 2 * B])), max_size=3).map(tuple)
number = st.integers(-2, 4)


def row(rank, values=number):
    """A tuple with an entry an axis, and now and then one too many."""
    return st.sampled_from([rank, rank, rank, rank, rank + 1]).flatmap(lambda n: st.lists(values, min_size=n, max_size=n)).map(tuple)


def axes(rank):
    """Different axes in any order most of the time, anything else otherwise."""
    good = st.permutations(range(rank)).flatmap(lambda p: st.integers(0, rank).map(lambda n: tuple(p[:n])))
    return st.one_of(good, good, good, st.lists(number, max_size=3).map(tuple))


@st.composite
def dot_general(draw, x, y):
    count = draw(st.integers(0, 2))
    left = draw(st.permutations(range(max(2, len(x.shape)))))
    right = draw(st.permutations(range(max(2, len(y.shape)))))
    batch = draw(st.integers(0, count))
    accumulation = draw(st.sampled_from([None, None, x.dtype, np.dtype("float32")]))
    return contraction.DotGeneral(
        tuple(left[batch:count]), tuple(right[batch:count]), tuple(left[:batch]), tuple(right[:batch]), None, accumulation
    )


@st.composite
def applications(draw, cls):
    """An op of the class with input metas that fit more often than not."""
    shape = draw(st.one_of(shapes, shapes, odd_shapes))
    x = TensorMeta(draw(st.one_of(st.sampled_from(COMMON), dtypes)), shape)
    rank = len(shape)
    plain = tuple(d for d in shape if isinstance(d, int))
    like = st.sampled_from([x, x, x, x, x, TensorMeta(x.dtype, ()), TensorMeta(np.dtype("int32"), shape), TensorMeta(x.dtype, shape[::-1])])
    match cls.__name__:
        case "Constant":
            return cls(np.ones(plain, x.dtype)), ()
        case "Iota":
            return cls(x.dtype, shape, draw(number)), ()
        case "Transpose":
            return cls(draw(st.one_of(st.permutations(range(rank)).map(tuple), axes(rank)))), (x,)
        case "Reverse" | "ReduceSum" | "ReduceProd" | "ReduceMax" | "ReduceMin" | "ReduceAnd" | "ReduceOr":
            return cls(draw(axes(rank))), (x,)
        case "Reshape":
            return cls(draw(st.one_of(st.permutations((*plain, 1)).map(tuple), shapes, st.just((-1,))))), (x,)
        case "BroadcastInDim":
            dims = draw(st.one_of(st.just(tuple(range(1, rank + 1))), axes(rank)))
            first, *rest = draw(st.permutations((2, 1, 3))), *(draw(st.sampled_from([d, d, 2])) if d == 1 else d for d in shape)
            return cls((first[0], *rest), dims), (x,)
        case "Slice":
            bounds = [(draw(st.integers(0, 1)), d) if draw(st.booleans()) else (draw(number), draw(number)) for d in shape]
            return cls(tuple(a for a, _ in bounds), tuple(b for _, b in bounds), draw(row(rank, st.integers(0, 3)))), (x,)
        case "Pad":
            fill = draw(st.sampled_from([TensorMeta(x.dtype, ())] * 4 + [x]))
            return cls(draw(row(rank)), draw(row(rank)), draw(row(rank, st.sampled_from([0, 0, 1, 2, -1])))), (x, fill)
        case "Concatenate":
            return cls(draw(number)), tuple(draw(st.lists(like, max_size=3)))
        case "DotGeneral":
            y = draw(like)
            return draw(dot_general(x, y)), (x, y)
        case "Select":
            predicate = draw(st.sampled_from([TensorMeta(np.dtype(bool), shape)] * 3 + [TensorMeta(np.dtype(bool), ()), x]))
            return cls(), (predicate, x, draw(like))
        case "Clamp":
            low = draw(like)
            return cls(), (x, low, draw(st.sampled_from([low, low, x])))
        case "Compare":
            return cls(draw(st.sampled_from(Direction))), (x, draw(like))
        case "Convert":
            return cls(draw(dtypes)), (x,)
        case "IntegerPow":
            return cls(draw(number)), (x,)
    return cls(), (x,) if cls.input_count == 1 else (x, draw(like))


@pytest.mark.few(6)
@pytest.mark.parametrize("cls", RULES, ids=lambda cls: cls.__name__)
@pytest.mark.parametrize("x64", [True, False], ids=["64-bit", "32-bit"])
def test_a_rule_says_what_jax_says_or_nothing(cls, x64):
    answers = collections.Counter()

    @settings(max_examples=100)
    @given(applications(cls))
    def check(application):
        op, metas = application
        answer = infer_direct(op, metas)
        answers[answer is not None] += 1
        if answer is not None:
            assert answer == op.infer(*metas)
            assert [type(d) for d in answer[0].shape] == [type(d) for d in op.infer(*metas)[0].shape]

    with jax.enable_x64(x64):
        check()
    assert answers[True] > 10, "a rule that hardly ever answers tests nothing"


def test_what_a_rule_is_not_sure_of_is_left_to_jax():
    f32 = np.dtype("float32")
    key = jax.random.key(0).dtype
    for op, *metas in [
        (arithmetic.Add(), TensorMeta(f32, (B,)), TensorMeta(f32, (C,))),
        (arithmetic.Add(), TensorMeta(f32, (2,)), TensorMeta(f32, (2, 1))),
        (arithmetic.Add(), TensorMeta(f32, (2,))),
        (source.StopGradient(), TensorMeta(key, (2,))),
        (source.StopGradient(), TensorMeta(f32, (-2,))),
        (source.StopGradient(), TensorMeta(f32, (True,))),
        (arithmetic.Neg(), TensorMeta(np.dtype("uint8"), ())),
        (structural.Transpose((-1, 0)), TensorMeta(f32, (2, 3))),
        (structural.Transpose((True, 0)), TensorMeta(f32, (2, 3))),
        (structural.Reshape((-1,)), TensorMeta(f32, (2, 3))),
        (structural.Reshape((6 * B,)), TensorMeta(f32, (2 * B, 3))),
        (structural.Slice(0, 1, 1), TensorMeta(f32, (2,))),
        (structural.Concatenate(0),),
        (reduction.ReduceSum((-1,)), TensorMeta(f32, (2,))),
        (source.DimensionValue(3, np.dtype("int32")),),
        (analytic.Exp(), TensorMeta(np.dtype("int32"), ())),
    ]:
        assert infer_direct(op, tuple(metas)) is None, op
    with pytest.raises(TenferroError):
        infer(structural.Slice(0, 1, 1), (TensorMeta(f32, (2,)),))


def test_symbolic_sizes_that_are_only_carried_along_are_answered():
    x = TensorMeta(np.dtype("float32"), (B, 3, 2 * B))
    assert infer_direct(arithmetic.Add(), (x, x)) == (x,)
    assert infer_direct(structural.Transpose((2, 0, 1)), (x,)) == (TensorMeta(x.dtype, (2 * B, B, 3)),)
    assert infer_direct(reduction.ReduceSum((0,)), (x,)) == (TensorMeta(x.dtype, (3, 2 * B)),)
