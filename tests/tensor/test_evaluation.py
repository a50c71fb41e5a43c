"""Binding and evaluation of lazy tensors, and how they are recorded."""

import gc
import weakref
from dataclasses import dataclass

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import Engine, TracedTensor, eval_all
from tenferro_jax.extension import ExtensionAdRule, ExtensionOp, ExtensionRuleSet
from tenferro_jax.ops.arithmetic import Add

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
    assert engine.stats()[:3] == (2, 2, 2)


def test_inputs_bind_by_name_by_tensor_and_in_pairs(engine):
    x, y = TracedTensor.input("x", F32, ()), TracedTensor.input("y", F32, (2,))
    want = [3.0, 4.0]
    for bindings in ({"x": F32(2), "y": F32([1, 2])}, {x: 2, y: F32([1, 2])}, [("x", F32(2)), (y, F32([1, 2]))]):
        assert (x + y).eval(engine, bindings).tolist() == want
    again = TracedTensor.input("x", F32, ())
    assert (x + again).eval(bindings={again: 2.0}) == 4.0
    assert len((x + again).graph().input_metas) == 1


def test_attached_sizes_may_be_declared_symbolic():
    x, y = (TracedTensor.from_array(np.ones(k), shape=("k",)) for k in (2, 2))
    assert str((x + y).graph().input_metas[0]) == "float64[k]"
    assert (x + y).eval().tolist() == [2.0, 2.0]
    with pytest.raises(tj.PlaceholderShapeMismatch, match="an unnamed array"):
        (x + TracedTensor.from_array(np.ones(3), shape=("k",))).eval()


X, Y = TracedTensor.input("x", F32, ("n", 2)), TracedTensor.input("y", F32, ("n",))
W = TracedTensor.from_array(np.ones(2, F32), "w")
TOTAL = (X * W).reduce_sum(1) + Y
GOOD = {"x": np.ones((3, 2), F32), "y": np.ones(3, F32)}
BAD = {
    "missing": ({"x": GOOD["x"]}, tj.UnboundPlaceholder, r"no array for 'y': float32\[n\]"),
    "unknown": ({**GOOD, "z": 1.0}, tj.UnexpectedBinding, "'z'.*'x', 'w', 'y'"),
    "no input": ({**GOOD, X + 1: 1.0}, tj.UnexpectedBinding, "TracedTensor"),
    "twice": ([*GOOD.items(), (X, GOOD["x"])], tj.DuplicateBinding, "a second array"),
    "attached": ({**GOOD, "w": np.ones(2, F32)}, tj.DuplicateBinding, "one is attached"),
    "dtype": ({**GOOD, "y": np.ones(3)}, tj.PlaceholderDtypeMismatch, "input 'y'"),
    "number": ({**GOOD, "y": 1j}, tj.PlaceholderDtypeMismatch, "input 'y'"),
    "rank": ({**GOOD, "y": np.ones((3, 1), F32)}, tj.PlaceholderRankMismatch, "input 'y'"),
    "shape": ({**GOOD, "x": np.ones((3, 1), F32)}, tj.PlaceholderShapeMismatch, "input 'x'"),
    "symbol": ({**GOOD, "y": np.ones(4, F32)}, tj.PlaceholderShapeMismatch, "input 'y'.*size 4"),
    "no pairs": ([1, 2], tj.InvalidConfig, "a mapping"),
    "no array": ({**GOOD, "y": "text"}, tj.DTypeError, "input 'y'"),
    "lazy": ({**GOOD, "y": Y}, tj.DTypeError, "input 'y'"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_bindings_are_refused_before_anything_is_compiled(case, engine):
    bindings, kind, text = BAD[case]
    with pytest.raises(kind, match=text):
        TOTAL.eval(engine, bindings)
    assert engine.stats().misses == 0
    assert TOTAL.eval(engine, GOOD).tolist() == [3.0, 3.0, 3.0]


def test_two_inputs_of_one_name_and_two_metas_are_refused():
    with pytest.raises(tj.InvalidConfig, match=r"float32\[n,2\] and float32\[\] of this name"):
        (X + TracedTensor.input("x", F32, ())).graph()
    with pytest.raises(tj.InvalidConfig, match="with an array"):
        (W + TracedTensor.input("w", F32, (2,))).graph()


def test_eval_takes_an_engine_and_eval_all_a_list():
    for call in (lambda: TOTAL.eval({"x": 1}), lambda: eval_all(TOTAL), lambda: eval_all([1.0])):
        with pytest.raises(tj.InvalidConfig):
            call()
    assert eval_all([]) == []


def test_symbols_of_jax_export_are_sizes_too(engine):
    (n,) = jax.export.symbolic_shape("n")
    x = TracedTensor.input("x", F32, (n,))
    assert (x + x[::-1]).eval(engine, {x: F32([1, 2])}).tolist() == [3.0, 3.0]


def test_eval_under_jax_transforms():
    x = TracedTensor.input("x", np.float64, (3,))
    y = (x * TracedTensor.from_array(np.arange(3.0))).exp()
    data = np.array([1.0, -1.0, 0.5])
    for fn in (jax.jit, jax.vmap, lambda f: lambda x: jax.jacfwd(f)(x[0])):
        got = fn(lambda x: y.eval(bindings={"x": x}))(np.stack([data, data]) if fn is not jax.jit else data)
        want = fn(lambda x: jnp.exp(x * jnp.arange(3.0)))(np.stack([data, data]) if fn is not jax.jit else data)
        np.testing.assert_allclose(got, want, rtol=1e-12)


def test_inputs_and_constants_evaluate_to_themselves(engine):
    x, c = TracedTensor.from_array(np.arange(2.0)), TracedTensor.constant(3.0)
    assert [a.tolist() for a in eval_all([x, c, x, x.checkpoint()], engine)] == [[0.0, 1.0], 3.0, [0.0, 1.0], [0.0, 1.0]]


def test_sizes_that_an_extension_assumed_equal_are_checked_also_for_derivatives(engine):
    a, b = TracedTensor.input("a", np.float64, ("p",)), TracedTensor.input("b", np.float64, ("q",))
    (y,) = TracedTensor.apply(Paired(), a, b, rules=ExtensionRuleSet(PairedRule()))
    for result in (y, y.vjp(a, b.reduce_sum() * a), y.jvp(a, b.reduce_sum() * a)):
        assert [str(g) for g in result.graph().guards] == ["p == q"]
        assert result.eval(engine, {a: np.ones(3), b: np.ones(3)}).shape == (3,)
        with pytest.raises(tj.ShapeConstraintViolation):
            result.eval(engine, {a: np.ones(3), b: np.ones(4)})


@dataclass(frozen=True)
class Paired(ExtensionOp):
    """Twice the first input; the second has its size."""

    family_id = "test-package.paired.v1"
    input_count = 2

    def infer_output_meta(self, inputs, context):
        context.require_equal(inputs[0].shape[0], inputs[1].shape[0])
        return [inputs[0]]

    def lower_to_standard_ops(self, builder, x, y):
        return builder.add(Add(), x, x)


@dataclass(frozen=True)
class PairedRule(ExtensionAdRule):
    family_id = Paired.family_id

    def linearize(self, op, builder, primal_in, primal_out, tangent_in, context):
        return builder.add(Add(), tangent_in[0], tangent_in[0])


def test_attached_data_cannot_be_changed_afterwards():
    data = np.ones(2)
    x = TracedTensor.from_array(data)
    data[:] = 7
    assert (x + 0.0).eval().tolist() == [1.0, 1.0]


def test_equal_programs_are_one_whatever_made_them():
    def build():
        x = TracedTensor.input("x", F32, (2,))
        return (x * 2.0).exp() + (x * 2.0).exp()

    assert build().graph() == build().graph()
    assert [type(n.op).__name__ for n in build().graph().nodes] == ["Constant", "BroadcastInDim", "Mul", "Exp", "Add"]


@pytest.mark.slow
def test_long_chains_are_made_shown_run_and_forgotten(engine):
    x = TracedTensor.input("x", np.float64, ())
    one = TracedTensor.constant(1.0)
    y = x
    for _ in range(10_000):
        y = y + one
    assert repr(y) == "TracedTensor(Add: float64[], 10001 nodes on 'x')"
    assert y.eval(engine, {x: 0.0}) == 10_000
    assert [type(n.op).__name__ for n in y.grad(x).graph().nodes] == ["Constant"]


@pytest.mark.slow
def test_a_chain_of_any_length_is_forgotten_without_recursion():
    y = TracedTensor.from_array(np.zeros(2))
    data, one = weakref.ref(y.array), TracedTensor.constant(1.0)
    for _ in range(100_000):
        y = y - one
    assert data() is not None
    del y
    gc.collect()
    assert data() is None


@dataclass(frozen=True)
class Counted(ExtensionOp):
    """x**2 on the host, counting its calls."""

    family_id = "test-package.counted.v1"

    def infer_output_meta(self, inputs, context):
        return [inputs[0]]

    def eager_execute(self, x):
        CALLS.append(x.shape)
        return [x * x]


CALLS: list[tuple[int, ...]] = []


def test_shared_nodes_run_once():
    x = TracedTensor.from_array(np.arange(3.0))
    (square,) = TracedTensor.apply(Counted(), x)
    (same,) = TracedTensor.apply(Counted(), x)
    CALLS.clear()
    total, twice = eval_all([square.reduce_sum(), same * 2.0])
    assert (float(total), twice.tolist(), CALLS) == (5.0, [0.0, 2.0, 8.0], [(3,)])


def test_repr():
    shown = [X, W, TracedTensor.from_array(1.0), TracedTensor.constant(1.0), TOTAL, X.checkpoint(), TracedTensor.apply(Counted(), Y)[0]]
    assert [repr(t)[13:-1] for t in shown] == [
        "input 'x': float32[n,2]",
        "input 'w': float32[2], attached",
        "array: float64[], attached",
        "Constant: float64[], 1 node",
        "Add: float32[n], 4 nodes on 'x', 'w', 'y'",
        "checkpoint: float32[n,2], 0 nodes on 'x'",
        "test-package.counted.v1: float32[n], 1 node on 'y'",
    ]


def test_numbers_lists_and_generators_are_taken_where_arrays_are():
    x = TracedTensor.input("x", np.float32, ("n",))
    with jax.enable_x64(False):
        assert (x * 2).eval(bindings={"x": [1.0, 2.0]}).tolist() == [2.0, 4.0]
    both = eval_all((t for t in [x, x * 2]), bindings={"x": np.float32([1])})
    assert [a.tolist() for a in both] == [[1.0], [2.0]]


@pytest.mark.parametrize("index", [slice(None, None, 0), slice("a", None), slice(1.5, None)])
def test_a_slice_that_is_none(index):
    with pytest.raises(tj.InvalidConfig, match="indexing: given the slice"):
        TracedTensor.from_array(np.zeros((2, 3), np.float32))[index]


def test_integers_by_zero_are_as_in_jax():
    values = np.int32([5, -5, 0, 7])
    got = (TracedTensor.from_array(values) % np.int32([0, 0, 0, -3])).eval()
    np.testing.assert_array_equal(got, jnp.remainder(values, np.int32([0, 0, 0, -3])))
