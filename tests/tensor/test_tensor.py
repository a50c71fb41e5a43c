"""Lazy tensors: how they are made and recorded, bound and evaluated."""

import gc
import weakref

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.tensor import TracedTensor, eval_all

from ..graph.test_guards import RULES as TOGETHER_RULES
from ..graph.test_guards import Together
from ..helpers import each_ends_in, ends_in

F32 = np.float32


@pytest.fixture
def engine():
    return Engine()


def test_one_program_serves_all_sizes_and_all_data(engine):
    weights = np.float32([[1, 2], [3, 4], [5, 6]])

    def model(w):
        return (TracedTensor.input("x", F32, ("n", 3)) @ TracedTensor.from_array(w)).tanh()

    for w in (weights, -weights):
        for n in (1, 4):
            x = np.linspace(-1, 1, 3 * n, dtype=F32).reshape(n, 3)
            np.testing.assert_allclose(model(w).eval(engine, {"x": x}), np.tanh(x @ w), rtol=1e-5)
    assert engine.stats() == (2, 2, 128, 2)


def test_inputs_bind_by_name_by_tensor_and_in_pairs(engine):
    x, y = TracedTensor.input("x", F32, (1,)), TracedTensor.input("y", F32, (2,))
    for bindings in (
        {"x": F32([2]), "y": F32([1, 2])},
        {x: [2.0], y: F32([1, 2])},
        [("x", F32([2])), (y, F32([1, 2]))],
    ):
        with jax.enable_x64(False):
            assert (x + y).eval(engine, bindings).tolist() == [3.0, 4.0]
    z, again = TracedTensor.input("z", F32, ()), TracedTensor.input("z", F32, ())
    assert (z + again).eval(bindings={again: 2}) == 4.0
    assert len((z + again).graph().input_metas) == 1


def test_attached_sizes_may_be_declared_symbolic():
    x, y = (TracedTensor.from_array(np.ones(k), shape=("k",)) for k in (2, 2))
    assert str((x + y).graph().input_metas[0]) == "float64[k]"
    assert (x + y).eval().tolist() == [2.0, 2.0]
    ends_in(
        (x + TracedTensor.from_array(np.ones(3), shape=("k",))).eval, ShapeError, "an unnamed array"
    )


X, Y = TracedTensor.input("x", F32, ("n", 2)), TracedTensor.input("y", F32, ("n",))


W = TracedTensor.from_array(np.ones((1, 2), F32), "w")


TOTAL = (X * W).sum(1) + Y


GOOD = {"x": np.ones((3, 2), F32), "y": np.ones(3, F32)}


BAD = {
    "missing": ({"x": GOOD["x"]}, InvalidConfig, r"no array for 'y': float32\[n\]"),
    "unknown": ({**GOOD, "z": 1.0}, InvalidConfig, "'z'.*'x', 'w', 'y'"),
    "no input": ({**GOOD, X + 1: 1.0}, InvalidConfig, "TracedTensor"),
    "no name": ({**GOOD, 3: 1.0}, InvalidConfig, "an array for 3"),
    "twice": ([*GOOD.items(), (X, GOOD["x"])], InvalidConfig, "a second array"),
    "attached": ({**GOOD, "w": np.ones((1, 2), F32)}, InvalidConfig, "attached data"),
    "dtype": (
        {**GOOD, "y": np.ones(3)},
        DTypeError,
        r"input 'y': given float64\[3\]; needed float32\[n\]",
    ),
    "number": ({**GOOD, "y": 1j}, DTypeError, "input 'y': given the number 1j"),
    "rank": (
        {**GOOD, "y": np.ones((3, 1), F32)},
        ShapeError,
        r"input 'y': given float32\[3,1\]; needed float32\[n\]",
    ),
    "shape": (
        {**GOOD, "x": np.ones((3, 1), F32)},
        ShapeError,
        r"input 'x', axis 1 \(declared 2\): given size 1",
    ),
    "symbol": ({**GOOD, "y": np.ones(4, F32)}, ShapeError, "input 'y'.*size 4"),
    "no pairs": ([1, 2], InvalidConfig, "a mapping"),
    "no array": ({**GOOD, "y": "text"}, DTypeError, "input 'y'"),
    "lazy": ({**GOOD, "y": Y}, DTypeError, "input 'y'"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_bindings_are_refused_before_anything_is_compiled(case, engine):
    bindings, kind, text = BAD[case]
    ends_in(lambda: TOTAL.eval(engine, bindings), kind, text)
    assert engine.stats().misses == 0
    assert TOTAL.eval(engine, GOOD).tolist() == [3.0, 3.0, 3.0]


def test_numbers_that_do_not_fit_and_two_inputs_of_one_name_are_refused():
    each_ends_in(
        (
            lambda: TracedTensor.input("x", np.int8, ()).eval(bindings={"x": 300}),
            DTypeError,
            "the number 300",
        ),
        (
            (X + TracedTensor.input("x", F32, ())).graph,
            InvalidConfig,
            r"'x': float32\[n,2\], and input 'x': float32\[\]",
        ),
        ((W + TracedTensor.input("w", F32, (1, 2))).graph, InvalidConfig, "attached"),
    )


def test_eval_takes_an_engine_and_eval_all_tensors():
    ends_in((lambda: TOTAL.eval({"x": 1}), lambda: eval_all([1.0])), InvalidConfig)
    assert eval_all([]) == []
    assert [a.tolist() for a in eval_all((t for t in [Y, Y * 2]), bindings={"y": F32([1])})] == [
        [1.0],
        [2.0],
    ]


def test_symbols_of_jax_export_are_sizes_too(engine):
    (n,) = jax.export.symbolic_shape("n")
    x = TracedTensor.input("x", F32, (n,))
    assert (x + x[::-1]).eval(engine, {x: F32([1, 2])}).tolist() == [3.0, 3.0]


@pytest.mark.parametrize("transform", [jax.jit, jax.vmap, jax.jacfwd])
def test_eval_under_jax_transforms(transform):
    x = TracedTensor.input("x", np.float64, (3,))
    y = (x * TracedTensor.from_array(np.arange(3.0))).exp()
    data = np.array([[1.0, -1.0, 0.5], [0.0, 2.0, 1.0]])[
        0 if transform is not jax.vmap else slice(None)
    ]
    got, want = (
        transform(lambda x: y.eval(bindings={"x": x})),
        transform(lambda x: jnp.exp(x * jnp.arange(3.0))),
    )
    np.testing.assert_allclose(got(data), want(data), rtol=1e-12)


def test_sizes_that_an_extension_assumed_equal_are_checked_also_for_derivatives(engine):
    a, b = TracedTensor.input("a", np.float64, ("p",)), TracedTensor.input("b", np.float64, ("q",))
    (y,) = TracedTensor.apply(Together(), a, b, rules=TOGETHER_RULES)
    for result in (y, y.grad(a), y.jvp(a, a)):
        assert [str(g) for g in result.graph().guards] == ["p == q"]
        assert result.eval(engine, {a: np.ones(3), b: np.ones(3)}).size in (1, 3)
        ends_in(lambda: result.eval(engine, {a: np.ones(3), b: np.ones(4)}), ShapeError)


def test_attached_data_cannot_be_changed_afterwards():
    data = np.ones(2)
    x = TracedTensor.from_array(data)
    data[:] = 7
    assert (x + 0.0).eval().tolist() == [1.0, 1.0]


@pytest.mark.slow
def test_chains_of_any_length_are_made_shown_run_and_forgotten(engine):
    x = TracedTensor.input("x", np.float64, ())
    y = x
    for _ in range(2_000):
        y = y + 1.0
    assert repr(y) == "TracedTensor(float64[], 4000 nodes on 'x')"
    assert y.eval(engine, {x: 0.0}) == 2_000
    assert [type(n.op).__name__ for n in y.grad(x).graph().nodes] == ["Constant"]
    y = TracedTensor.from_array(np.zeros(2))
    data = weakref.ref(y.array)
    for _ in range(20_000):
        y = y - 1.0
    assert data() is not None
    del y
    gc.collect()
    assert data() is None


def test_repr():
    shown = [
        X,
        W,
        TracedTensor.from_array(1.0),
        TracedTensor.constant(1.0),
        TOTAL,
        Y + W[0, 0],
    ]
    assert [repr(t)[13:-1] for t in shown] == [
        "input 'x': float32[n,2]",
        "input 'w': float32[1,2], attached",
        "an unnamed array: float64[], attached",
        "float64[], 1 node",
        "float32[n], 4 nodes on 'x', 'w', 'y'",
        "float32[n], 4 nodes on 'y', 'w'",
    ]
