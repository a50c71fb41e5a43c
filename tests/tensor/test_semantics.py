"""Promotion, broadcasting, operators, methods and indexing of lazy tensors: plain jax.numpy and NumPy are the judges."""

import itertools
import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
from hypothesis import given, settings
from hypothesis import strategies as st

import tenferro_jax as tj
from tenferro_jax import TracedTensor
from tenferro_jax.ops.indexing import OutOfBounds

from ..sweep import times

NAMES = [
    "bool",
    "int8",
    "int16",
    "int32",
    "int64",
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "bfloat16",
    "float16",
    "float32",
    "float64",
    "complex64",
    "complex128",
]
DTYPES = [jnp.dtype(name) for name in NAMES]
BINARY = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "mod": operator.mod,
    "lt": operator.lt,
    "maximum": lambda x, y: x.maximum(y) if isinstance(x, TracedTensor) else jnp.maximum(x, y),
}
ENGINE = tj.Engine(capacity=512)


def leaf(dtype, shape=(), name="x"):
    return TracedTensor.input(name, dtype, shape)


def judged(fn, *operands):
    """dtype and shape by jax.numpy's standard promotion, or None where it refuses."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        try:
            out = jax.eval_shape(fn, *operands)
        except (TypeError, ValueError, OverflowError):
            return None
    return out.dtype, out.shape


def ours(fn, *operands):
    try:
        out = fn(*operands)
    except tj.TenferroError:
        return None
    return out.dtype, out.shape


@pytest.mark.few(30)
@pytest.mark.parametrize("name", BINARY)
@pytest.mark.parametrize("left", DTYPES, ids=NAMES)
def test_every_pair_of_dtypes_promotes_as_in_jax_numpy(name, left):
    for right in DTYPES:
        want = judged(BINARY[name], jax.ShapeDtypeStruct((2,), left), jax.ShapeDtypeStruct((2,), right))
        if (name == "lt" and "c" in left.kind + right.kind) or (name == "mod" and left.kind + right.kind == "bb"):
            want = None  # complex numbers have no order, booleans no remainder
        assert ours(BINARY[name], leaf(left, (2,)), leaf(right, (2,), "y")) == want, right


@pytest.mark.few(20)
@pytest.mark.parametrize("number", [True, 2, 2.5, 1j], ids=lambda n: type(n).__name__)
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_python_numbers_are_weak(dtype, number):
    spec = jax.ShapeDtypeStruct((), dtype)
    for fn in (operator.add, operator.mul, operator.truediv):
        want = judged(lambda x: fn(x, number), spec)
        assert ours(fn, leaf(dtype), number) == want
        assert ours(fn, number, leaf(dtype)) == want


UNARY = {"exp": jnp.exp, "log1p": jnp.log1p, "sqrt": jnp.sqrt, "tanh": jnp.tanh, "floor": jnp.floor, "abs": jnp.abs, "conj": jnp.conj}


@pytest.mark.few(30)
@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES)
def test_functions_take_a_dtype_as_in_jax_numpy(name, dtype):
    want = judged(UNARY[name], jax.ShapeDtypeStruct((2,), dtype))
    if want is not None:
        assert ours(getattr(TracedTensor, name), leaf(dtype, (2,))) == want


@given(st.lists(st.sampled_from([1, 2, 3]), max_size=3), st.lists(st.sampled_from([1, 2, 3]), max_size=3))
def test_shapes_broadcast_as_in_numpy(left, right):
    try:
        want = np.broadcast_shapes(tuple(left), tuple(right))
    except ValueError:
        with pytest.raises(tj.ShapeError, match="equal or 1"):
            leaf("float32", left) + leaf("float32", right, "y")
        return
    assert (leaf("float32", left) + leaf("float32", right, "y")).shape == want
    a, b = np.arange(1.0, 1 + np.prod(left)).reshape(left), np.arange(2.0, 2 + np.prod(right)).reshape(right)
    got = (TracedTensor.from_array(a) * TracedTensor.from_array(b)).eval(ENGINE)
    np.testing.assert_array_equal(got, a * b)


def test_symbolic_sizes_broadcast_where_it_can_be_decided():
    n, m = leaf("float32", ("n", 3)), leaf("float32", ("m", 3), "y")
    assert str((n + leaf("float32", (1, 3), "z")).shape) == "(n, 3)"
    assert str((n + leaf("float32", ("n", 1), "z")).shape) == "(n, 3)"
    with pytest.raises(tj.UndecidedDimensionError, match="n and m"):
        n + m
    with pytest.raises(tj.ShapeError, match="equal or 1"):
        n + leaf("float32", ("n + 1", 3), "z")


A = np.array([[1.5, -2.0, 0.25], [-0.5, 3.0, 2.0]])
B = np.array([[2.0, -0.5, 1.0], [1.0, -4.0, 3.0]])
V = np.array([1.0, -1.0, 2.0])
VALUES = {
    "operators": (lambda a, b, v: (a + b - 2 * v) / (b * b + 1) ** 2 - (-a) % v + abs(b) ** 0.5, None),
    "reflected": (lambda a, b, v: (1 - a) + 2 / b + 2.0**v + 7 % b + (+a), None),
    "comparisons": (lambda a, b, v: ((a < b) & (a <= v)) | ~(a > 1) ^ (b >= v), None),
    "matmul": (lambda a, b, v: a @ b.T @ a @ v, None),
    "index": (lambda a, b, v: a[0, 1:] + b[-1, ::2][::-1] + v[None, ..., -1], None),
    "index steps": (lambda a, b, v: a[:, 2:0:-1] * a[::-1, 5:0:-2][0] + v[-2:2], None),
    "empty": (lambda a, b, v: a[2:, 1:1], None),
    "shape": (lambda a, b, v: (a.reshape(3, -1).T + v[:1]).reshape((-1,)), None),
    "select": (lambda a, b, v: (a > b).select(a, 0.0), lambda a, b, v: np.where(a > b, a, 0.0)),
    "clamp": (lambda a, b, v: a.clamp(-1, v), lambda a, b, v: np.minimum(np.maximum(a, -1), v)),
    "maximum": (lambda a, b, v: a.maximum(b).minimum(v), lambda a, b, v: np.minimum(np.maximum(a, b), v)),
    "analytic": (
        lambda a, b, v: a.exp() + a.sin() * b.cos() + b.tanh() + a.abs().log() + a.abs().log1p() + a.expm1() + a.abs().sqrt(),
        lambda a, b, v: np.exp(a) + np.sin(a) * np.cos(b) + np.tanh(b) + np.log(abs(a)) + np.log1p(abs(a)) + np.expm1(a) + abs(a) ** 0.5,
    ),
    "special": (
        lambda a, b, v: a.erf() + b.logistic() + a.abs().rsqrt(),
        lambda a, b, v: scipy.special.erf(a) + scipy.special.expit(b) + abs(a) ** -0.5,
    ),
    "rounding": (
        lambda a, b, v: a.floor() + 10 * a.ceil() + 100 * a.round() + a.sign(),
        lambda a, b, v: np.floor(a) + 10 * np.ceil(a) + 100 * np.round(a) + np.sign(a),
    ),
    "rem": (lambda a, b, v: a.rem(v), lambda a, b, v: np.fmod(a, v)),
    "reduce": (
        lambda a, b, v: a.reduce_sum(0) + b.reduce_max([0]) * b.reduce_min(-2) + a.reduce_prod(0) + a.reduce_sum_squares(0),
        lambda a, b, v: a.sum(0) + b.max(0) * b.min(0) + a.prod(0) + (a**2).sum(0),
    ),
    "reduce all": (lambda a, b, v: a.reduce_sum(), lambda a, b, v: a.sum()),
    "logic": (
        lambda a, b, v: (a > 0).reduce_and(0) | (b > 2).reduce_or(0),
        lambda a, b, v: (a > 0).all(0) | (b > 2).any(0),
    ),
    "argmax": (lambda a, b, v: a.argmax(1) - b.argmin(-1), lambda a, b, v: (a.argmax(1) - b.argmin(-1)).astype(np.int32)),
    "compare": (lambda a, b, v: a.compare(b, "ne"), lambda a, b, v: a != b),
    "pad": (
        lambda a, b, v: a.pad((1, 0), (0, 2), value=7),
        lambda a, b, v: np.pad(a, ((1, 0), (0, 2)), constant_values=7),
    ),
    "slice": (lambda a, b, v: a.slice((0, 0), (2, 3), (1, 2)), lambda a, b, v: a[:, ::2]),
    "reverse": (lambda a, b, v: a.reverse(1), lambda a, b, v: a[:, ::-1]),
    "triangles": (lambda a, b, v: a.tril(1) - b.triu(), lambda a, b, v: np.tril(a, 1) - np.triu(b)),
    "diagonals": (
        lambda a, b, v: (a.T @ b).extract_diag() + v.embed_diag().reduce_sum(0),
        lambda a, b, v: np.diagonal(a.T @ b) + v,
    ),
    "concatenate": (lambda a, b, v: TracedTensor.concatenate([a, b], -1), lambda a, b, v: np.concatenate([a, b], -1)),
    "broadcast": (
        lambda a, b, v: v.broadcast_to((2, 3)) + v.broadcast_in_dim((3, 2), (0,)).transpose(1, 0),
        lambda a, b, v: np.stack([v + v, v + v]),
    ),
    "dynamic slice": (
        lambda a, b, v: a.dynamic_update_slice(a.dynamic_slice((0, 1), (1, 2)), [1, np.int32(0)]),
        lambda a, b, v: np.stack([a[0], [*a[0, 1:], a[1, 2]]]),
    ),
    "gather": (
        lambda a, b, v: v.gather(
            np.int32([[2], [0]]),
            offset_dims=(),
            collapsed_slice_dims=(0,),
            start_index_map=(0,),
            slice_sizes=(1,),
            out_of_bounds=OutOfBounds.Clip,
        ),
        lambda a, b, v: v[[2, 0]],
    ),
    "scatter": (
        lambda a, b, v: v.scatter(
            np.int32([[2]]), np.array([5.0]), update_window_dims=(), inserted_window_dims=(0,), scatter_dims_to_operand_dims=(0,)
        ),
        lambda a, b, v: v + np.array([0, 0, 5]),
    ),
    "dot_general": (lambda a, b, v: a.dot_general(b, (0,), (-2,)), lambda a, b, v: a.T @ b),
    "cast": (lambda a, b, v: a.cast(np.int32) / 2, lambda a, b, v: np.trunc(a) / 2),
    "complex": (
        lambda a, b, v: (a + 1j * b).conj().imag() + (a * 1j).abs() + a.imag() + (a * 2j).real() + a.conj().real(),
        lambda a, b, v: -b + abs(a) + a,
    ),
    "pad_to_match": (lambda a, b, v: v.pad_to_match(np.zeros(5), 0), lambda a, b, v: np.pad(v, (0, 2))),
    "shape_of": (lambda a, b, v: a.shape_of(-1) * v, lambda a, b, v: 3 * v),
    "finite": (lambda a, b, v: (a / 0.0).is_finite() | a.stop_gradient().is_finite(), lambda a, b, v: np.isfinite(a)),
}


@pytest.mark.parametrize("name", VALUES)
def test_values(name):
    fn, judge = VALUES[name]
    got = fn(*(TracedTensor.from_array(x) for x in (A, B, V)))
    want = (judge or fn)(A, B, V)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.eval(ENGINE), want, rtol=1e-12)


@pytest.mark.parametrize(("x", "y"), [*itertools.product([(3,), (2, 3), (2, 1, 2, 3)], [(3,), (3, 4), (4, 3, 2), (5, 1, 1, 3, 2)])])
def test_matmul_batches_as_numpy(x, y):
    a, b = np.random.default_rng(0).normal(size=x), np.random.default_rng(1).normal(size=y)
    try:
        want = a @ b
    except ValueError:
        with pytest.raises(tj.ShapeError):
            TracedTensor.from_array(a) @ b
        return
    np.testing.assert_allclose((TracedTensor.from_array(a) @ b).eval(ENGINE), want, rtol=1e-12)
    np.testing.assert_allclose((a @ TracedTensor.from_array(b)).eval(ENGINE), want, rtol=1e-12)


@given(st.data())
@settings(max_examples=times(60))
def test_basic_indexing_is_numpys(data):
    x = np.arange(24).reshape(2, 3, 4)
    bounds = st.none() | st.integers(-5, 5)
    item = st.integers(-2, 1) | st.builds(slice, bounds, bounds, st.sampled_from([None, 1, 2, -1, -2])) | st.none()
    index = tuple(data.draw(st.lists(item, max_size=4)))
    if data.draw(st.booleans()):
        index = (*index[:1], ..., *index[1:])
    try:
        want = x[index]
    except IndexError:
        with pytest.raises(tj.ShapeError):
            TracedTensor.from_array(x)[index]
        return
    got = TracedTensor.from_array(x)[index]
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.graph()(x)[0], want)


def test_indexing_a_symbolic_axis():
    x = leaf("float64", ("n", 3))
    assert str(x[1:].shape) == "(n - 1, 3)"
    got = eval_with_rows(x[0] + x[-1] + x[1:].reduce_sum(0) + x[:-1].reduce_sum(0) + x[::-1][:, 0].reduce_sum())
    np.testing.assert_array_equal(got, 2 * ROWS.sum(0) + ROWS[:, 0].sum())
    with pytest.raises(tj.UndecidedDimensionError):
        x[3:5]
    with pytest.raises(tj.InvalidConfig, match=r"\[::-1\]"):
        x[::2]


ROWS = np.arange(12.0).reshape(4, 3)


def eval_with_rows(tensor):
    return tensor.eval(ENGINE, {"x": ROWS})


def test_the_left_operand_may_be_an_array():
    t = TracedTensor.from_array(V)
    for left in (V, jnp.asarray(V), np.float64(2.0), 2):
        np.testing.assert_array_equal((left * t).eval(ENGINE), np.asarray(left) * V)
        np.testing.assert_array_equal((left < t).eval(ENGINE), np.asarray(left) < V)
        np.testing.assert_allclose((left**t).eval(ENGINE), np.asarray(left, float) ** V)


@pytest.mark.parametrize(
    "fn", [lambda t: t + "a", lambda t: "a" * t, lambda t: t // 2, lambda t: t @ [1], lambda t: t < None], ids=range(5)
)
def test_what_is_no_operand_is_pythons_type_error(fn):
    with pytest.raises(TypeError, match=r"unsupported operand|not supported|non-int"):
        fn(TracedTensor.from_array(V))


@pytest.mark.parametrize("fn", [bool, int, float, complex, iter, np.asarray, lambda t: 1 in t])
def test_an_unknown_value_says_to_call_eval(fn):
    with pytest.raises(tj.InvalidConfig, match=r"Call eval\(\) first"):
        fn(TracedTensor.from_array(1.0) + 1)


def test_equality_is_identity_so_that_tensors_are_keys():
    x, y = leaf("float32"), leaf("float32")
    assert {x: 1}[x] == 1
    assert x != y
    assert len(leaf("float32", (3, "n"))) == 3
    with pytest.raises(tj.InvalidConfig, match="symbolic size n"):
        len(leaf("float32", ("n",)))


def test_convert_keeps_and_cast_may_lose():
    x = TracedTensor.from_array(np.float32([1.5, -2.5]))
    assert x.convert(np.float64).dtype == np.float64
    assert x.convert(np.float32) is x
    assert x.cast(np.int8).eval().tolist() == [1, -2]
    with pytest.raises(tj.DTypeError, match="Use cast"):
        x.convert(np.int8)


WRONG = {
    "size": (lambda: leaf("float32", (-1,)), tj.ShapeError, "an integer from 0"),
    "symbol": (lambda: leaf("float32", ("a b",)), tj.ShapeError, "the size 'a b'"),
    "dtype": (lambda: leaf("float31"), tj.DTypeError, "float31"),
    "name": (lambda: TracedTensor.input("", np.float32, ()), tj.InvalidConfig, "a name"),
    "declared": (lambda: TracedTensor.from_array(V, shape=("n", "n")), tj.PlaceholderRankMismatch, r"float64\[3\]"),
    "declared twice": (lambda: TracedTensor.from_array(A, shape=("n", "n")), tj.PlaceholderShapeMismatch, "size 3"),
    "axis": (lambda: leaf("float32", (2,)).reduce_sum(1), tj.ShapeError, "axis 1"),
    "axes": (lambda: leaf("float32", (2, 2)).reduce_sum((0, -2)), tj.ShapeError, "each axis once"),
    "reshape": (lambda: leaf("float32", (3,)).reshape(2, -1), tj.ShapeError, "reshape"),
    "reshape to other": (lambda: leaf("float32", (3,)).reshape(2), tj.ShapeError, "3 elements"),
    "scalar matmul": (lambda: leaf("float32") @ leaf("float32"), tj.ShapeError, "rank 1 or more"),
    "sizes of matmul": (lambda: leaf("float32", (2, 3)) @ np.ones((2, 3), np.float32), tj.ShapeError, "label 'j' of size 2"),
    "number": (lambda: leaf("int8") + 300, tj.DTypeError, "the number 300"),
    "negative power": (lambda: leaf("int32") ** -1, tj.InvalidConfig, "IntegerPow"),
    "integer power": (lambda: leaf("int32") ** leaf("int32", (), "y"), tj.DTypeError, "exponent of dtype int32"),
    "index": (lambda: leaf("float32", (2,))[leaf("int32", (), "i")], tj.InvalidConfig, "gather, dynamic_slice"),
    "bounds": (lambda: leaf("float32", (2,))[2], tj.ShapeError, "the index 2"),
    "indices": (lambda: leaf("float32", (2,))[0, 0], tj.ShapeError, "2 indices"),
    "predicate": (lambda: leaf("float32").select(1.0, 2.0), tj.InvalidConfig, "Select"),
    "direction": (lambda: leaf("float32").compare(1, "less"), tj.InvalidConfig, "one of eq, ne"),
    "class": (lambda: TracedTensor.apply(jnp.add, leaf("float32")), tj.InvalidConfig, "as an instance"),
    "text": (lambda: TracedTensor.from_array("a"), tj.DTypeError, "an array"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_when_the_tensor_is_made(name):
    make, kind, text = WRONG[name]
    with pytest.raises(kind, match=text):
        make()


def test_traced_arrays_are_refused():
    with pytest.raises(tj.DTypeError, match="that JAX is tracing"):
        jax.jit(lambda x: TracedTensor.from_array(x).eval())(V)
    with pytest.raises(tj.DTypeError, match="that JAX is tracing"):
        jax.jit(lambda x: (leaf("float64", (3,)) + x).shape)(V)


def test_64_bit_data_needs_64_bit_types():
    with jax.enable_x64(False):
        with pytest.raises(tj.X64Error):
            TracedTensor.from_array(V)
        with pytest.raises(tj.X64Error):
            TracedTensor.input("x", np.float64, ())
        assert (TracedTensor.input("x", np.float32, ()) + 1.5).dtype == np.float32
        assert TracedTensor.input("x", float, ()).dtype == np.float32
