"""Guards: an equality that inference could not decide stays with the graph and is checked before
anything runs.
"""

from dataclasses import dataclass

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, trace
from tenferro_jax.dimensions import Guard
from tenferro_jax.engine import Engine
from tenferro_jax.errors import ShapeError
from tenferro_jax.extension import (
    ExtensionAdRule,
    ExtensionOp,
    ExtensionRuleSet,
    apply,
    require_equal,
)
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.io.export import unified

from ..extension_ops import Bilinear
from ..helpers import each_ends_in, ends_in, made

F64 = np.dtype("float64")
EXECUTED = []


@dataclass(frozen=True)
class Together(ExtensionOp):
    """The sum of all elements of two vectors, which must be equally long."""

    family_id = "test-package.together.v1"
    input_count = 2

    def infer_output_meta(self, inputs):
        x, y = inputs
        require_equal(y.shape[0], x.shape[0])
        return [(x.dtype, ())]

    def lower_to_standard_ops(self, x, y):
        EXECUTED.append((x.shape, y.shape))
        return (x.sum() + y.sum(),)


TogetherRule = made(
    "TogetherRule",
    ExtensionAdRule,
    family_id=Together.family_id,
    linearize=lambda self, op, primals, outputs, tangents: (
        (lambda *t: sum(x.sum() for x in t))(*(t for t in tangents if t is not None)),
    ),
)


RULES = ExtensionRuleSet(TogetherRule())
B, C = jax.export.symbolic_shape("b, c")


def spec(*shape):
    return jax.ShapeDtypeStruct(shape, F64)


def together(x, y):
    return apply(Together(), x, y, rules=RULES)[0]


def looped(x, y):
    return jax.lax.fori_loop(0, 3, lambda i, total: total + together(x, y), 0.0)


def branched(x, y):
    return jax.lax.cond(x[0] > 0, lambda: together(x, y), lambda: 0.0)


JITTED = jax.jit(together)
FORMS = [  # reverse mode of loops and branches is no graph
    *((fn, form) for fn in (together, JITTED) for form in ("", "grad", "jvp", "vjp")),
    *((fn, form) for fn in (looped, branched) for form in ("", "jvp")),
]


@pytest.mark.few(6)
@pytest.mark.clause("X7.4")
@pytest.mark.parametrize(("fn", "form"), FORMS)
def test_a_guard_survives(fn, form):
    for _ in range(2):  # the second time jit has its jaxpr already
        graph = trace(fn, spec(B), spec(C))
        if form:
            graph = getattr(tj, form)(graph)
        assert [str(g) for g in graph.guards] == ["b == c"]
        assert "extension test-package.together.v1" in graph.guards[0].where
    more = {"": (), "grad": (), "jvp": (np.ones(2), np.ones(2)), "vjp": (np.float64(1),)}[form]
    want = {"": fn, "grad": jax.grad(fn), "jvp": lambda x, y, *t: jax.jvp(fn, (x, y), t)}.get(form)
    x, y = np.arange(2.0) + 1, np.ones(2)
    got = graph.to_jax()(x, y, *more)
    if want is not None:
        chex.assert_trees_all_equal(got, want(x, y, *more))
    EXECUTED.clear()
    longer = {"": (), "grad": (), "jvp": (np.ones(2), np.ones(3)), "vjp": (np.float64(1),)}[form]
    ends_in(
        (
            lambda: run(x, np.ones(3), *longer)
            for run in (graph.to_jax(), graph.bound_to, lambda *xs: Engine().eval(graph, *xs))
        ),
        ShapeError,
        r"together\.v1: given 2 for dimension b and 3 for dimension c; needed b == c",
    )
    assert not EXECUTED
    assert graph.bound_to(x, y, *more).guards == ()
    program = tj.export(graph)
    chex.assert_trees_all_equal(program.call(x, y, *more), got)
    ends_in(
        lambda: program.call(x, np.ones(3), *longer),
        ShapeError,
        r"given size 3 in .*; needed size 2",
    )


@pytest.mark.clause("X7.4")
def test_guards_that_an_export_cannot_make_true_are_refused():
    def pair(x, y, z, w):
        return (
            apply(Together(), jnp.concatenate([x, x]), y)[0]
            + apply(Together(), z.reshape(-1), w.reshape(-1))[0]
        )

    i, j, k, m, n = jax.export.symbolic_shape("i, j, k, m, n")
    graph = trace(lambda x, y: apply(Together(), jnp.concatenate([x, x]), y)[0], spec(i), spec(j))
    program = tj.export(graph)
    assert program.call(np.ones(2), np.ones(4)) == 8.0
    ends_in(lambda: program.call(np.ones(2), np.ones(5)), ShapeError, r"size 5.*needed size 4")
    graph = trace(pair, spec(i), spec(2 * i), spec(j, k), spec(m, n))
    assert [str(g) for g in unified(graph).guards] == ["j*k == m*n"]
    ends_in(lambda: tj.export(graph), ShapeError, r"j\*k == m\*n|m\*n == j\*k")


def test_guards_of_symbols_with_constraints_are_refused_by_an_export():
    m, n = jax.export.symbolic_shape("m, n", constraints=("m >= 4",))
    graph = trace(together, spec(m), spec(n))
    assert graph.guards
    ends_in(lambda: tj.export(graph), ShapeError, r"export, of symbols with guards")


def test_a_guard_is_found_where_the_graph_is_traced_again():
    graph = trace(together, spec(B), spec(C))
    again = trace(lambda x, y: graph.to_jax()(x, y) * 2, spec(B), spec(C))
    assert again.guards == graph.guards
    gradient = tj.grad(graph, (0, 1))  # the op itself is gone from it
    assert not gradient.extensions
    assert trace(gradient.to_jax(), spec(B), spec(C)).guards == graph.guards
    assert tj.jvp(gradient).guards == gradient.guards


@pytest.mark.clause("X7.4")
def test_outside_of_graphs_and_where_it_can_be_decided_nothing_changes():
    fn = jax.jit(together)
    trace(
        fn, spec(B), spec(C)
    )  # leaves a jaxpr in jit's cache, which the export below must not use
    each_ends_in(
        (lambda: jax.export.export(fn)(spec(B), spec(C)), ShapeError, "may or may not be equal"),
        (
            lambda: trace(together, spec(B), spec(B + 1)),
            ShapeError,
            r"dimensions b and b \+ 1|dimensions b \+ 1 and b",
        ),
    )
    b, c = jax.export.symbolic_shape("b, c", constraints=("b == c",))
    assert trace(together, spec(b), spec(c)).guards == ()
    assert trace(together, spec(3), spec(3)).guards == ()


@pytest.mark.clause("X7.5")
def test_guards_are_identity_their_source_is_not():
    def recorded(*pairs):
        builder = GraphBuilder()
        values = {d: builder.input(TensorMeta(F64, (d,))) for d in (B, C, 2 * B)}
        return builder.build([builder.add(Together(), values[x], values[y])[0] for x, y in pairs])

    plain = recorded((B, B))
    graph, flipped = recorded((B, C)), recorded((C, B))
    assert [str(g) for g in graph.guards] == [str(g) for g in flipped.guards] == ["b == c"]
    both = recorded((B, C), (2 * B, C), (C, B))
    assert [str(g) for g in both.guards] == ["2*b == c", "b == c"]
    assert plain.guards == ()
    assert graph.with_guards(()) != graph
    assert graph.with_guards([Guard(C, B, "elsewhere")]) == graph
    assert hash(graph.with_guards([Guard(C, B, "elsewhere")])) == hash(graph)
    assert recorded((B, B)).with_guards([Guard(B, B, "")]) == plain
    assert "\n  guard b == c\n" in str(graph)


def test_dead_nodes_take_their_guards_along():
    builder = GraphBuilder()
    x, y = builder.input(spec(B)), builder.input(spec(C))
    builder.add(Together(), x, y)
    assert builder.build([x]).guards == ()


def test_batch_levels_and_matrices():
    k, m = jax.export.symbolic_shape("k, m")
    graph = trace(
        jax.vmap(lambda x, w: apply(Bilinear(), x, w)[0], (0, None)), spec(4, B, k), spec(m, 2)
    )
    assert [str(g) for g in graph.guards] == ["k == m"]
    x, w = (
        np.random.default_rng(0).normal(size=(4, 3, 5)),
        np.random.default_rng(1).normal(size=(5, 2)),
    )
    np.testing.assert_allclose(graph.to_jax()(x, w), x @ w, rtol=1e-13)
    ends_in(
        lambda: graph.to_jax()(x, jnp.ones((4, 2))),
        ShapeError,
        "5 for dimension k and 4 for dimension m",
    )
