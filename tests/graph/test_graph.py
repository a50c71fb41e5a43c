"""Graphs: interning, canonical equality, text, symbolic sizes, control flow, refusals, rewrites."""

import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import tenferro_jax as tj
from ext_tropical import tropical_einsum
from tenferro_jax import TensorMeta, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.graph.passes import sort_dot_dimensions
from tenferro_jax.ops.arithmetic import Add, Mul

from ..extension_ops import RULES, ScaledSquare
from ..helpers import close, each_ends_in, ends_in, equal

F64 = np.dtype("float64")


@pytest.mark.clause("X4.4")
def test_equal_nodes_are_one_and_dead_nodes_go():
    builder = GraphBuilder()
    x, y = builder.input(TensorMeta(F64, (3,))), builder.input(TensorMeta(F64, (3,)))
    (a,), (b,) = builder.add(Add(), x, y), builder.add(Add(), x, y)
    builder.add(Mul(), x, x)
    assert a is b
    assert len(builder.build([a]).nodes) == 1


@pytest.mark.clause("X10.1")
def test_rules_are_no_part_of_equality():
    spec = jax.ShapeDtypeStruct((3, 3), F64)
    with_rules = trace(lambda x: tj.extension.apply(ScaledSquare(), x, rules=RULES)[0], spec)
    without = trace(lambda x: tj.extension.apply(ScaledSquare(), x)[0], spec)
    assert with_rules == without
    assert with_rules.rules == RULES
    assert len(without.rules) == 0
    assert without.with_rules(RULES).rules == RULES


def test_text():
    spec = jax.ShapeDtypeStruct((2, 2), F64)
    assert str(trace(lambda x: {"y": tropical_einsum("ij,jk->ik", x, x) + 1}, spec)) == (
        "graph(%0: float64[2,2]) {\n"
        "  %1 = Extension[tenferro-ext-tropical.einsum.v1]"
        "[semiring=max_plus, equation='ij,jk->ik'](%0, %0) : float64[2,2]\n"
        "  %2 = Constant[value=1.0]() : float64[]\n"
        "  %3 = BroadcastInDim[shape=(2, 2), dims=()](%2) : float64[2,2]\n"
        "  %4 = Add(%1, %3) : float64[2,2]\n"
        "  return %4\n"
        "}"
    )
    assert str(trace(lambda x: (), np.ones(2))) == "graph(%0: float64[2]) {\n  return\n}"


@pytest.mark.parametrize("within", ["scan", "cond", "while"])
def test_rules_are_found_in_bodies(within):
    def body(x):
        return apply(ScaledSquare(), x, rules=RULES)[0]

    bodies = {
        "scan": lambda x: jax.lax.scan(lambda x, _: (body(x), None), x, length=2)[0],
        "cond": lambda x: jax.lax.cond(x[0, 0] > 0, body, lambda x: x, x),
        "while": lambda x: jax.lax.while_loop(lambda x: x[0, 0] < 9, body, x),
    }
    assert (
        trace(bodies[within], np.ones((2, 2))).rules == trace(body, np.ones((2, 2))).rules == RULES
    )


def test_symbolic_sizes_take_those_of_the_arguments():
    b, n = jax.export.symbolic_shape("b, n")
    graph = trace(
        lambda x: (x.sum(1) / x.shape[1]).reshape(-1, 1) * jnp.ones((x.shape[0], 2 * x.shape[1])),
        jax.ShapeDtypeStruct((b, n), F64),
    )
    assert "n" in str(graph)
    for shape in ((1, 1), (2, 5), (7, 3)):
        x = np.random.default_rng(0).normal(size=shape)
        close(
            (graph.to_jax()(x), np.repeat(x.mean(1)[:, None], 2 * shape[1], 1)),
            (jax.jit(graph.to_jax())(x), np.repeat(x.mean(1)[:, None], 2 * shape[1], 1)),
            rtol=1e-12,
        )
    square = trace(lambda x: x + x.T, jax.ShapeDtypeStruct((b, b), F64))
    each_ends_in(
        (lambda: square.to_jax()(np.ones((2, 3))), ShapeError, r"axis 1 \(declared b\)"),
        (lambda: square.to_jax()(np.ones((2, 2), np.float32)), DTypeError, "float32"),
    )


def test_refusals():
    ends_in(
        lambda: trace(
            lambda x: jax.lax.linalg.svd(x, full_matrices=False, subset_by_index=(0, 1)),
            np.ones((4, 4)),
        ),
        Unsupported,
        r"subset_by_index=.*test_graph\.py:\d+; needed subset_by_index=None",
    )
    other, builder = GraphBuilder(), GraphBuilder()
    ends_in(
        lambda: builder.add(Add(), builder.input(np.ones(2)), other.input(np.ones(2))),
        InvalidConfig,
        "another builder",
    )
    graph = trace(lambda x: x + 1, np.ones(2))
    ends_in(lambda: setattr(graph, "nodes", ()), AttributeError, "cannot assign")


def test_64_bit_specs_are_refused_while_x64_is_off():
    with jax.enable_x64(False):
        each_ends_in(
            (
                lambda: trace(lambda x: x, jax.ShapeDtypeStruct((2,), np.float64)),
                DTypeError,
                r"enable_x64\(True\).*astype\(np\.float32\)",
            ),
            (lambda: GraphBuilder().input(np.ones(2)), DTypeError, "while 64-bit types are off"),
            (lambda: tj.export(lambda x: x, np.ones(2)), DTypeError, "while 64-bit types are off"),
        )


def test_custom_derivatives_stay_with_their_functions():
    x = np.array([-1.0, 0.0, 1.0])

    @jax.custom_vjp
    def straight(x):
        return jnp.sign(x)

    straight.defvjp(lambda x: (jnp.sign(x), jnp.exp(x)), lambda r, g: (r * g,))

    @jax.custom_jvp
    def scaled(x, n):
        return x * n.astype(x.dtype), n

    @scaled.defjvp
    def _rule(primals, tangents):
        x, n = primals
        return scaled(x, n), (7 * tangents[0], np.zeros(n.shape, jax.dtypes.float0))

    n = np.arange(3)
    pairs = []
    for fn in (
        jax.nn.relu,
        straight,
        lambda x: jax.lax.fori_loop(0, 2, lambda i, x: jax.nn.relu(x), x),
        lambda x: scaled(x, n)[0],
    ):
        graph = trace(lambda x, fn=fn: (fn(x) ** 3).sum(), x)
        assert not graph.lost_rules
        assert trace(graph.to_jax(), x) == graph
        want = fn
        for _ in range(3):
            cubed = lambda x, want=want: (want(x) ** 3).sum()
            want, derivative = jax.grad(cubed), tj.grad(graph).to_jax()
            pairs += [(graph.to_jax(), cubed), (derivative, want)]
            graph = trace(lambda x, g=derivative: (g(x) ** 3).sum(), x)
    chex.assert_trees_all_equal(
        *jax.jit(lambda x: [[f(x) for f in side] for side in zip(*pairs)])(x)
    )
    values, count = trace(scaled, x, n).to_jax()(x, n)
    equal((values, x * n), (count, n))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "fn",
    [jax.nn.relu, jax.nn.relu6, jax.nn.softplus, jax.nn.silu, jax.nn.logsumexp],
    ids=lambda f: f.__name__,
)
def test_custom_derivatives_stay_where_sizes_are_symbols(fn):
    (b,) = jax.export.symbolic_shape("b")
    graph = trace(lambda x: fn(x).sum(), jax.ShapeDtypeStruct((b, 2), np.float64))
    assert not graph.lost_rules
    x = np.array([[0.0, 1.0], [-2.0, 3.0], [0.5, 0.0]])
    want = jax.grad(lambda x: fn(x).sum())(x)
    for gradient in (
        tj.grad(graph).to_jax(),
        jax.grad(graph.to_jax()),
        jax.grad(tj.export(graph, vjp_order=1).call),
    ):
        np.testing.assert_allclose(gradient(x), want, rtol=1e-12)


def test_a_custom_derivative_that_cannot_be_kept_is_refused_not_replaced():
    x = np.array([-1.0, 0.0, 1.0])

    @jax.custom_jvp
    def schur_at_heart(x):
        return 2 * x

    schur_at_heart.defjvp(lambda p, t: (2 * p[0], jax.lax.linalg.schur(jnp.diag(t[0]))[0][0]))
    graph = trace(lambda x: schur_at_heart(x).sum(), x)
    np.testing.assert_array_equal(graph.to_jax()(x), 2 * x.sum())
    ends_in(
        (
            lambda: tj.grad(graph),
            lambda: jax.grad(graph.to_jax())(x),
            lambda: jax.jvp(trace(graph.to_jax(), x).to_jax(), (x,), (x,)),
        ),
        Unsupported,
        r"that tracing inlined: schur_at_heart at .*test_graph\.py:\d+ "
        r"\(.*'schur'.*trace\(jax\.grad",
    )
    graph = trace(lambda x: (jax.nn.relu(x) ** 4).sum(), x)
    for _ in range(3):
        derivative = tj.grad(graph).to_jax()
        graph = trace(lambda x, g=derivative: g(x).sum(), x)
    ends_in(lambda: tj.grad(graph), Unsupported, "custom derivatives")


def test_a_graph_made_with_64_bit_types_is_refused_without_them():
    graph = trace(
        lambda x: (x.astype(np.int64) + 2**40).astype(np.float32),
        jax.ShapeDtypeStruct((3,), np.float32),
    )
    ones = np.ones(3, np.float32)
    with jax.enable_x64(False):
        ends_in(
            (
                lambda: graph.to_jax()(ones),
                lambda: Engine().eval(graph, ones),
                lambda: tj.export(graph),
            ),
            DTypeError,
            "graph that was made with 64-bit types",
        )
    np.testing.assert_array_equal(graph.to_jax()(ones), np.full(3, 2**40 + 1, np.float32))


def test_wrong_kinds_of_things():
    builder, other = GraphBuilder(), GraphBuilder()
    value = other.input(np.ones(2))
    builder.input(np.ones(2))
    each_ends_in(
        (
            (lambda: builder.build(outputs) for outputs in ([value], [3])),
            InvalidConfig,
            r"GraphBuilder\.build",
        ),
        (
            (
                lambda tree=tree: other.build([value], out_tree=tree)
                for tree in (jax.tree.structure((0, 0)), 3)
            ),
            InvalidConfig,
            r"GraphBuilder\.build",
        ),
        (
            (lambda: builder.add(op, np.ones(2), np.ones(2)) for op in (3, Add)),
            InvalidConfig,
            "an instance of",
        ),
        (
            (
                lambda: run(jnp.sin)
                for run in (tj.grad, tj.jvp, tj.vjp, Engine().compile, Engine().eval)
            ),
            InvalidConfig,
            r"needed a Graph.*trace\(fn",
        ),
    )
    vector = trace(lambda x: x * 2, np.ones(2))
    ends_in(
        lambda: tj.grad(vector), InvalidConfig, r"outputs float64\[2\]; needed one floating output"
    )
    scalar = trace(lambda x, n: (x * n.astype(x.dtype)).sum(), np.ones(2), np.ones(2, np.int32))
    each_ends_in(
        (
            (lambda: tj.grad(scalar, argnums) for argnums in (2, -3, (), (0, 0), "a", None)),
            InvalidConfig,
            r"argnums=.*needed one or more of \[0, 1\]",
        ),
        (lambda: tj.grad(scalar, -1), InvalidConfig, "an argument of dtype int32"),
    )
    assert tj.grad(scalar, -2) == tj.grad(scalar, 0)
    ends_in(lambda: trace(3), InvalidConfig, "needed a function")


def test_control_flow_under_vmap():
    x = np.random.default_rng(0).normal(size=(5, 4))

    def branching(x):
        return jax.vmap(lambda r: jax.lax.cond(r[0] > 0, jnp.sin, lambda a: a * 2, r))(x)

    np.testing.assert_array_equal(
        trace(branching, x).to_jax()(x), np.where(x[:, :1] > 0, jnp.sin(x), 2 * x)
    )

    both = jax.vmap(
        lambda n, v: jax.lax.while_loop(
            lambda c: c[0] < n, lambda c: (c[0] + 1, c[1] * v[0]), (0, v)
        ),
        in_axes=(0, None),
    )
    twice = jax.vmap(both, in_axes=(None, 0))
    n = np.array([3, 0, 5])
    np.testing.assert_allclose(
        trace(twice, n, x).to_jax()(n, x)[1], [[r * r[0] ** k for k in n] for r in x], rtol=1e-14
    )

    def switching(i, x):
        return jax.vmap(
            lambda i, r: jax.lax.switch(i, [jnp.sin, lambda a: a * 2, lambda a: -a], r)
        )(i, x)

    index = np.array([0, 1, 2, 7, -3])
    want = [[np.sin(r), 2 * r, -r][min(max(i, 0), 2)] for i, r in zip(index, x)]
    np.testing.assert_allclose(trace(switching, index, x).to_jax()(index, x), want, rtol=1e-15)


# --- rewrites: they compute what the graph computes -----------------------------------------------


RNG = np.random.default_rng(5)


LHS, RHS = (
    RNG.integers(-9, 9, (2, 3, 4, 5)).astype(float),
    RNG.integers(-9, 9, (5, 4, 3, 2)).astype(float),
)


@pytest.mark.few(3)
@pytest.mark.parametrize("order", [*itertools.permutations(((1, 2), (2, 1), (3, 0)))], ids=str)
def test_contracted_axes_ascend_where_one_order_suits_both(order):
    for pairs in (order, order[:2], order[:1], ()):
        lhs, rhs = zip(*pairs) if pairs else ((), ())
        mirrored = tuple(
            3 - axis for axis in rhs
        )  # for RHS reversed: the same pairs, ascending together
        for b, axes in ((RHS, rhs), (RHS.transpose(), mirrored)):
            graph = trace(
                lambda a, b, axes=axes: lax.dot_general(a, b, ((lhs, axes), ((), ()))), LHS, b
            )
            done = sort_dot_dimensions(graph)
            # integers: no sum is rounded in any order
            np.testing.assert_array_equal(done.to_jax()(LHS, b), np.tensordot(LHS, b, (lhs, axes)))
            op = done.nodes[-1].op
            assert sorted(zip(op.lhs_contracting, op.rhs_contracting)) == sorted(zip(lhs, axes))
            ascending = b is not RHS or len(pairs) < 2
            assert (
                list(op.rhs_contracting) == sorted(axes) and list(op.lhs_contracting) == sorted(lhs)
            ) == ascending
            if not ascending:
                assert done == graph


def test_bodies_are_rewritten_and_the_rest_stays():
    x = RNG.integers(-2, 2, (3, 3)).astype(float)

    def fn(x):
        return lax.fori_loop(
            0, 2, lambda i, c: c * 0.5 + lax.dot_general(c, x, (((1, 0), (1, 0)), ((), ()))), x
        )

    graph = trace(fn, x)
    done = sort_dot_dimensions(graph)
    assert done != graph
    np.testing.assert_array_equal(done.to_jax()(x), fn(x))
    both = trace(
        lambda a, b: [lax.dot_general(a, b, ((p, p), ((), ()))) for p in ((1, 2), (2, 1))],
        LHS,
        RHS.transpose(),
    )
    assert (len(both.nodes), len(sort_dot_dimensions(both).nodes)) == (2, 1)
    plain = trace(lambda x: jax.numpy.sin(x) @ x, x)
    assert sort_dot_dimensions(plain) == plain
    ends_in(lambda: sort_dot_dimensions(fn), InvalidConfig, "a Graph")
