"""Making lazy tensors, and the table of their operators and methods: what JAX does with arrays is
the judge.
"""

import operator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.tensor import TracedTensor

from ..helpers import each_ends_in, ends_in

ENGINE = Engine(capacity=512)
A = np.array([[1.5, -2.0, 0.25], [-0.5, 3.0, 2.0]])
B = np.array([[2.0, -0.5, 1.0], [1.0, -4.0, 3.0]])
V = np.array([1.0, -1.0, 2.0])
TRIANGLE = [(A,), (A, 1)]
ARGUMENTS = {
    "argsort": [(A, 1)],
    "astype": [(A, np.int8), (A, "float32")],
    "broadcast_to": [(V, (2, 3))],
    "clip": [(A, -1, 1), (A, B - 1, B + 1)],
    "diagonal": [(A,), (A, 1)],
    "log": [(abs(A),)],
    "log1p": [(abs(A),)],
    "reshape": [(A, 3, -1), (A, (6,)), (A, (-1, 1))],
    "round": [(A,), (A * 1.111, 1)],
    "sqrt": [(abs(A),)],
    "squeeze": [(A[:1],)],
    "swapaxes": [(A, 0, 1)],
    "take": [(V, np.array([[2], [0]]))],
    "transpose": [(A,), (A, 1, 0), (A, (0, 1))],
    "tril": TRIANGLE,
    "triu": TRIANGLE,
    "where": [(A > B, A, 0.0), (A > B, 1.0, B)],
    **{name: [(A > 0, 0), (A > 0,)] for name in ("all", "any")},
    **{
        name: [(A, B), (A, V[None]), (A, 1.5)]
        for name in ("equal", "not_equal", "maximum", "minimum")
    },
    **{name: [(A,), (A, 0), (A, (0, -1))] for name in ("max", "mean", "prod", "std", "sum", "var")},
}
OWN = {
    "apply",
    "array",
    "checkpoint",
    "constant",
    "eval",
    "from_array",
    "grad",
    "graph",
    "index",
    "inline",
    "input",
}
OWN |= {"jvp", "meta", "name", "size", "vjp"}
METHODS = sorted(
    name for name in vars(TracedTensor) if not name.startswith("_") and name not in OWN
)
METHODS_OF_ARRAYS = {"reshape", "transpose"}


def agree(got, want):
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got.eval(ENGINE), want, rtol=1e-12)


def leaf(dtype, shape=(), name="x"):
    return TracedTensor.input(name, dtype, shape)


@pytest.mark.few(14)
@pytest.mark.parametrize("name", METHODS)
def test_a_method_is_the_function_of_jax_numpy(name):
    for x, *arguments in ARGUMENTS.get(name, [(A,), (A[0],)]):
        judge = (
            getattr(jnp.asarray(x), name)
            if name in METHODS_OF_ARRAYS
            else lambda *a: getattr(jnp, name)(x, *a)
        )
        judge = (lambda: jnp.asarray(x).T) if name == "T" else judge
        lazy = getattr(TracedTensor.from_array(x), name)
        agree(lazy if isinstance(lazy, TracedTensor) else lazy(*arguments), judge(*arguments))


EXPRESSIONS = {
    "arithmetic": lambda a, b, v: (
        (a + b - 2 * v[None]) / (b * b + 1) ** 2 - (-a) % v[None] + abs(b) ** 0.5 + a // b
    ),
    "reflected": lambda a, b, v: (1 - a) + 2 / b + 2.0 ** v[None] + 7 % b + (+a) + 3 // b + 1.0 * a,
    "comparisons": lambda a, b, v: (
        ((a < b) & (a <= 1)) | ~(a > 1) ^ (b >= v[None]) | (True & (a < 2))
    ),
    "matmul": lambda a, b, v: a @ b.T @ a @ v,
    "integers": lambda a, b, v: a[0, 1:] + b[-1, ::2][::-1] + v[None, ..., -1],
    "slices": lambda a, b, v: a[:, 2:0:-1] * a[::-1, 5:0:-2][0, None] + v[None, -3:2],
    "out of bounds": lambda a, b, v: a[2:, 1:1].sum() + v[7],
    "arrays": lambda a, b, v: a[np.array([1, 0, 1]), 1:] + a.take(np.array([0, 2]), 1).sum(),
    "tensors": lambda a, b, v: v[a.argmax(1)] + a[(b > 2).sum()].sum(),
    "complex": lambda a, b, v: (a.astype(complex) + 1j * b.astype(complex)).conj() / 2j,
}


@pytest.mark.few(5)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_operators_are_those_of_arrays(name):
    a, b, v = (TracedTensor.from_array(x) for x in (A, B, V))
    agree(EXPRESSIONS[name](a, b, v), EXPRESSIONS[name](*map(jnp.asarray, (A, B, V))))


DTYPES = ["bool", "int8", "uint32", "int64", "bfloat16", "float16", "float32", "complex64"]


def judged(fn, *operands):
    try:
        out = fn(*operands)
    except (TypeError, ValueError, OverflowError) as error:
        return type(error)
    return out.dtype, out.shape


@pytest.mark.few(4)
@pytest.mark.parametrize("promotion", ["standard", "strict"])
@pytest.mark.parametrize(
    "fn", [operator.add, operator.truediv, operator.lt], ids=lambda fn: fn.__name__
)
@pytest.mark.parametrize("left", DTYPES)
def test_promotion_is_jaxs_under_its_settings(left, fn, promotion):
    with jax.numpy_dtype_promotion(promotion):
        for right in DTYPES:
            arrays = jnp.ones((2, 1), left), jnp.ones((1, 3), right)
            lazy = leaf(left, (2, 1)), leaf(right, (1, 3), "y")
            assert judged(fn, *lazy) == judged(fn, *arrays), right
        for number in (True, 2, 2.5, 1j):
            assert judged(fn, lazy[0], number) == judged(fn, arrays[0], number)
            assert judged(fn, number, lazy[0]) == judged(fn, number, arrays[0])
        assert judged(lambda x: x.exp(), lazy[0]) == judged(jnp.exp, arrays[0])


def test_what_is_remembered_is_told_from_what_is_nearly_equal():
    x = TracedTensor.from_array(np.array([1.0, -2.0]))
    assert np.signbit((x * 0.0).eval(ENGINE)).tolist() == [False, True]
    assert np.signbit((x * -0.0).eval(ENGINE)).tolist() == [True, False]
    assert [y.eval(ENGINE).tolist() for y in (x - 3.0, 3.0 - x, x - 3.0)] == [
        [-2.0, -5.0],
        [2.0, 5.0],
        [-2.0, -5.0],
    ]
    y = TracedTensor.from_array(np.array([True, False]))
    with jax.numpy_dtype_promotion("standard"):
        assert [(y * number).dtype.kind for number in (True, 1, 1.0, 1 + 0j)] == [
            "b",
            "i",
            "f",
            "c",
        ]
    assert (y[0].shape, y[False].shape, y[0:1].shape, y[0:2].shape) == ((), (0, 2), (1,), (2,))
    with jax.numpy_rank_promotion("allow"):
        assert (leaf("float32", (2, 3)) + leaf("float32", (3,), "y")).shape == (2, 3)
    ends_in(
        lambda: leaf("float32", (2, 3)) + leaf("float32", (3,), "y"), ValueError, "rank_promotion"
    )
    with jax.default_matmul_precision("highest"):
        highest = _precision_of(lambda a: a @ a)
    assert highest == ("HIGHEST", "HIGHEST") != _precision_of(lambda a: a @ a)


def _precision_of(fn):
    (node,) = fn(leaf("float32", (2, 2))).graph().nodes
    return node.op.precision


def test_symbolic_sizes():
    n, m = leaf("float32", ("n", 3)), leaf("float32", ("m", 3), "y")
    assert str((n + leaf("float32", (1, 3), "z")).shape) == "(n, 3)"
    assert str(n.reshape(-1).shape) == "(3*n,)"
    assert str(n.size) == "3*n"
    ends_in(
        (lambda: n + other for other in (m, leaf("float32", ("n + 1", 3), "z"))),
        TypeError,
        "incompatible shapes",
    )
    x, rows = leaf("float64", ("n", 3)), np.arange(12.0).reshape(4, 3)
    got = (x[0] + x[-1] + x[1:].sum(0) + x[:-1].sum(0) + x[::-1][:, 0].sum() + x[::2].sum(0)).eval(
        ENGINE, {"x": rows}
    )
    np.testing.assert_array_equal(got, 2 * rows.sum(0) + rows[:, 0].sum() + rows[::2].sum(0))


def test_the_left_operand_may_be_an_array():
    t = TracedTensor.from_array(V)
    for left in (V, jnp.asarray(V), np.float64(2.0), 2):
        for fn in (operator.mul, operator.lt, operator.sub, operator.truediv):
            np.testing.assert_array_equal(fn(left, t).eval(ENGINE), fn(np.asarray(left, float), V))


@pytest.mark.parametrize(
    "fn",
    [lambda t: t + "a", lambda t: "a" * t, lambda t: t @ [1], lambda t: t < None],
    ids=range(4),
)
def test_what_is_no_operand_is_pythons_type_error(fn):
    ends_in(
        lambda: fn(TracedTensor.from_array(V)),
        TypeError,
        r"unsupported operand|not supported|non-int",
    )


@pytest.mark.parametrize(
    "fn", [bool, int, float, complex, iter, np.asarray, jnp.asarray, lambda t: 1 in t]
)
def test_an_unknown_value_says_to_call_eval(fn):
    ends_in(lambda: fn(TracedTensor.from_array(1.0) + 1), InvalidConfig, r"Call eval\(\) first")


def test_equality_is_identity_so_that_tensors_are_keys():
    x, y = leaf("float32"), leaf("float32")
    assert {x: 1}[x] == 1
    assert x != y


def test_inline_takes_pytrees_and_leaves_that_are_no_arrays():
    x, y = TracedTensor.from_array(A), TracedTensor.from_array(B)
    agree(TracedTensor.inline(jnp.concatenate, [x, B], axis=1), jnp.concatenate([A, B], axis=1))
    agree(TracedTensor.inline(jax.lax.dynamic_slice, x, [1, 0], (1, 2)), jnp.asarray(A[1:, :2]))
    both = TracedTensor.inline(lambda p: {"sum": p["a"] + p["b"], "same": p["a"]}, {"a": x, "b": y})
    assert both["same"] is x
    agree(both["sum"], jnp.asarray(A + B))


WRONG = {
    "size": (lambda: leaf("float32", (-1,)), ShapeError, "non-negative integer"),
    "symbol": (lambda: leaf("float32", ("a b",)), ShapeError, "the size 'a b'"),
    "two symbols": (lambda: leaf("float32", ("a, b",)), ShapeError, "the size 'a, b'"),
    "dtype": (lambda: leaf("float31"), TypeError, "float31"),
    "name": (lambda: TracedTensor.input("", np.float32, ()), InvalidConfig, "a name"),
    "declared": (
        lambda: TracedTensor.from_array(V, shape=("n", "n")),
        ShapeError,
        r"given float64\[3\]; needed float64\[n,n\]",
    ),
    "declared twice": (lambda: TracedTensor.from_array(A, shape=("n", "n")), ShapeError, "size 3"),
    "axis": (lambda: leaf("float32", (2,)).sum(1), ValueError, "axis 1"),
    "reshape": (lambda: leaf("float32", (3,)).reshape(2, -1), TypeError, "reshape"),
    "sizes": (
        lambda: leaf("float32", (2, 3)) @ np.ones((2, 3), np.float32),
        TypeError,
        "contracting",
    ),
    "indices": (lambda: leaf("float32", (2,))[0, 0], IndexError, "Too many indices"),
    "slice": (lambda: leaf("float32", (2,))["a":], TypeError, "str"),
    "extension": (lambda: TracedTensor.apply(jnp.add, leaf("float32")), InvalidConfig, "extension"),
    "text": (lambda: TracedTensor.from_array("a"), DTypeError, "an array"),
    "traced": (
        lambda: jax.jit(lambda x: TracedTensor.from_array(x).meta)(V),
        DTypeError,
        "that JAX is tracing",
    ),
    "traced operand": (
        lambda: jax.jit(lambda x: (leaf("float64", (3,)) + x).meta)(V),
        DTypeError,
        "is tracing",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_input_is_refused_when_the_tensor_is_made(name):
    make, kind, text = WRONG[name]
    ends_in(make, kind, text)


def test_64_bit_data_needs_64_bit_types():
    x = leaf("float32")
    assert (x + 1.5).dtype == np.float32
    with jax.enable_x64(False):
        each_ends_in(
            (lambda: TracedTensor.from_array(V), DTypeError, "while 64-bit types are off"),
            (lambda: leaf(np.float64), DTypeError, "while 64-bit types are off"),
        )
        assert (x.astype(int).dtype, leaf(float).dtype) == (np.int32, np.float32)
    assert x.astype(int).dtype == np.int64
