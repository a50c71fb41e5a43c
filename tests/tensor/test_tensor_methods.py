"""Operators, methods and derivatives of lazy tensors; what JAX does with arrays is the judge."""

import operator

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.engine import Engine
from tenferro_jax.errors import ADRuleError, DTypeError, DuplicateRule, InvalidConfig, ShapeError
from tenferro_jax.extension import ExtensionRuleSet
from tenferro_jax.tensor import TracedTensor, eval_all

from ..extension_ops import HostTanh, HostTanhRule, ScaledSquare, ScaledSquareRule
from ..helpers import each_ends_in, ends_in

# --- operators and methods: what JAX does with arrays is the judge --------------------------------


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
    "constant",
    "eval",
    "from_array",
    "grad",
    "graph",
    "index",
    "inline",
    "input",
    "jvp",
    "meta",
    "name",
    "size",
    "vjp",
}
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


@pytest.mark.parametrize("left", [V, jnp.asarray(V), np.float64(2.0), 2])
def test_the_left_operand_may_be_an_array(left):
    t = TracedTensor.from_array(V)
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
    "extension": (
        lambda: TracedTensor.apply(jnp.add, leaf("float32")),
        InvalidConfig,
        "ExtensionOp",
    ),
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


# --- derivatives: those of the same functions of arrays by JAX are the judges ---------------------


RNG = np.random.default_rng(0)


XS, WS, BS = RNG.normal(size=(4, 3)), RNG.normal(size=(3, 2)), RNG.normal(size=(1, 2))


def tensors():
    return (
        TracedTensor.from_array(XS, "x"),
        TracedTensor.from_array(WS, "w"),
        TracedTensor.from_array(BS, "b"),
    )


def loss_of(x, w, b, tanh=np.tanh):
    """The same text for lazy tensors, for NumPy and for JAX."""
    h = tanh(x @ w + b)
    return (h * h / (1 + h * h)).sum()


def lazy_loss(x, w, b):
    return loss_of(x, w, b, TracedTensor.tanh)


def test_derivatives_of_both_modes_and_orders_nested_as_wrt():
    x, w, b = tensors()
    v, cotangent = np.cos(WS), np.cos(XS @ WS)
    loss, y = lazy_loss(x, w, b), (x @ w + b).tanh()
    to_w = loss.grad(w)
    lazy = {
        "gradient": loss.grad({"x": x, "rest": [w, b]}),
        "pulled": y.vjp([w, b], TracedTensor.constant(cotangent)),
        "pushed": y.jvp([w, b], [v, np.sin(BS)]),
        "second": [to_w.jvp(w, v), (to_w * v).sum().grad(w)],
    }

    def value(w, b):
        return jnp.tanh(XS @ w + b)

    def slope(w):
        return jax.grad(loss_of, 1)(XS, w, BS, jnp.tanh)

    gradient = jax.grad(loss_of, (0, 1, 2))(XS, WS, BS, jnp.tanh)
    second = jax.jvp(slope, (WS,), (v,))[1]
    want = {
        "gradient": {"x": gradient[0], "rest": [*gradient[1:]]},
        "pulled": [*jax.vjp(value, WS, BS)[1](cotangent)],
        "pushed": jax.jvp(value, (WS, BS), (v, np.sin(BS)))[1],
        "second": [second, second],
    }
    leaves, tree = jax.tree.flatten(lazy)
    found = jax.tree.unflatten(tree, eval_all(leaves, ENGINE))
    chex.assert_trees_all_close(found, want, rtol=1e-9, atol=1e-12)


def test_a_tensor_on_the_way_has_a_gradient_and_does_not_hide_what_is_behind_it():
    x, w, b = tensors()
    h = (x @ w + b).tanh()
    y = (h * h).sum() + h.sum() * w.sum()

    def after(h, w):
        return (h * h).sum() + h.sum() * w.sum()

    def before(w):
        return jnp.tanh(XS @ w + BS)

    want = [jax.grad(after)(before(WS), WS), jax.grad(lambda w: after(before(w), w))(WS)]
    got = eval_all([*y.grad([h, w, h]), y.grad(y)], ENGINE)
    chex.assert_trees_all_close(got, [*want, want[0], np.array(1.0)], rtol=1e-12)
    pushed = h.jvp([h, w], [np.sin(XS @ WS), np.cos(WS)]).eval(ENGINE)
    behind = jax.jvp(before, (WS,), (np.cos(WS),))[1]
    np.testing.assert_allclose(pushed, np.sin(XS @ WS) + behind, rtol=1e-12)
    both = TracedTensor.inline(lambda p, q: (jnp.sin(p), jnp.cos(q)), x[:, :2], x[:, 2:])
    slope = (both[1] * both[1]).sum().grad(both[1]).eval(ENGINE)
    np.testing.assert_allclose(slope, 2 * np.cos(XS[:, 2:]), rtol=1e-12)


def test_value_and_gradients_run_a_host_op_once(monkeypatch):
    calls, run = [], HostTanh.eager_execute
    monkeypatch.setattr(
        HostTanh, "eager_execute", lambda self, x: calls.append(x.shape) or run(self, x)
    )
    x = TracedTensor.from_array(np.array([1.0, 2.0]))
    (y,) = TracedTensor.apply(HostTanh(), x * 3.0, rules=ExtensionRuleSet(HostTanhRule()))
    loss = (y * y).sum()
    value, gradient = eval_all([loss, loss.grad(x)], ENGINE)
    t = np.tanh([3.0, 6.0])
    np.testing.assert_allclose([value, *gradient], [(t * t).sum(), *6 * t * (1 - t * t)], rtol=1e-9)
    assert calls == [(2,)]


def test_rules_travel_with_the_call_and_two_for_one_family_are_refused():
    x = TracedTensor.from_array(np.array([1.0, 2.0]))
    marked = [
        TracedTensor.apply(ScaledSquare(1.0), x, rules=ExtensionRuleSet(ScaledSquareRule(mark)))[0]
        for mark in (10.0, 3.0)
    ]
    assert [y.sum().grad(x).eval(ENGINE).tolist() for y in marked] == [[20.0, 40.0], [6.0, 12.0]]
    ends_in((marked[0] + marked[1]).graph, DuplicateRule)
    (without,) = TracedTensor.apply(ScaledSquare(), x)
    ends_in(lambda: without.sum().grad(x), ADRuleError, r"test-package\.scaled_square\.v1")


def test_nothing_that_depends_gives_zeros_as_in_jax():
    x, w, b = tensors()
    other = TracedTensor.from_array(1.0, "other")
    y = (x @ w).sum()
    assert y.grad([w, b])[1].eval(ENGINE).tolist() == [[0.0, 0.0]]
    assert y.grad(other).eval(ENGINE) == 0.0
    assert y.jvp(b, BS).eval(ENGINE) == 0.0
    z = (
        w.floor().astype(np.int32).sum().astype(np.float64)
        + TracedTensor.inline(jax.lax.stop_gradient, b).sum()
    )
    assert [np.any(g) for g in eval_all(z.grad([w, b]), ENGINE)] == [False, False]


def test_what_has_no_derivative_is_refused():
    x, w, _ = tensors()
    y = (x @ w).sum()
    each_ends_in(
        (lambda: (x @ w).grad(x), InvalidConfig, r"float64\[4,2\]"),
        (lambda: y.astype(np.int64).grad(x), InvalidConfig, "int64"),
        (lambda: y.grad(w.astype(np.int32)), DTypeError, "int32"),
        (lambda: y.grad("w"), InvalidConfig, "list or dict of them"),
        (
            (lambda: y.jvp([w], wrong) for wrong in ([np.ones(2)], [np.float32(WS)], [WS, WS], WS)),
            (TypeError, ValueError),
            r"tangent|List arity|Expected list",
        ),
    )
    (ruleless,) = TracedTensor.apply(HostTanh(), x)
    z = (ruleless @ w).sum()
    np.testing.assert_allclose(
        z.grad(w).eval(ENGINE), np.tile(np.tanh(XS).sum(0)[:, None], 2), rtol=1e-12
    )
    ends_in(lambda: z.grad(x), ADRuleError, r"host_tanh")


def test_a_gradient_looks_no_further_back_than_what_it_is_taken_for():
    y = TracedTensor.from_array(np.float64([1, 2, 3]), "b")
    want = np.float64([1, 2, 3])
    for _ in range(30):
        y = y + (y * y).sum().grad(y) * 0.01
        want = want + 2 * want * 0.01
    np.testing.assert_allclose(y.eval(ENGINE), want, rtol=1e-12)
    assert len((y * y).sum().grad(y).graph().nodes) <= len(y.graph().nodes) + 6
