"""Verification: for each rule a graph broken by hand is refused by that rule."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import TropicalEinsum, max_plus
from tenferro_jax import Graph, TensorMeta, trace
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension.carrier import Extension
from tenferro_jax.graph import GraphBuilder, Node
from tenferro_jax.graph.verify import RULES as CHECKED
from tenferro_jax.graph.verify import verify
from tenferro_jax.ops.analytic import Cos, Sin, Tanh
from tenferro_jax.ops.arithmetic import Add, Neg
from tenferro_jax.ops.control import Cond, CustomJvp, CustomVjp, LinearSolve, Scan, While
from tenferro_jax.ops.reduction import Reduce

from ..helpers import ends_in
from .test_guards import B, C, Together

F64 = np.dtype("float64")


X = TensorMeta(F64, (3,))


ONE = jax.tree.structure((0,))


def graph(*nodes, metas=(X, X), inputs=1, outputs=(1,), in_tree=ONE, out_tree=ONE):
    return Graph(metas, inputs, nodes, outputs, in_tree, out_tree, tj.extension.rules.NO_RULES)


def body(*metas, fn=lambda *xs: xs):
    return trace(
        lambda *xs: tuple(fn(*xs)), *(jax.ShapeDtypeStruct(m.shape, m.dtype) for m in metas)
    )


# --- verification ---------------------------------------------------------------------------------


F64, I32, BOOL = map(np.dtype, ("float64", "int32", "bool"))


LEAF = jax.tree.structure(0)


SAME = body(X)


WIDER = body(X, fn=lambda x: (jnp.concatenate([x, x]),))


INTEGER = body(X, fn=lambda x: (x.astype(jnp.int32),))


NONE_OUT = body(X, fn=lambda x: ())


TRUE = body(X, fn=lambda x: (x.sum() > 0,))


X2 = (X, X)


BROKEN = {
    "ops": [
        graph(Node("sin", (0,), 1)),
        graph(Node(Scan(3, 2, 0, 1), (0,), 1)),
        graph(Node(Cond(()), (0,), 1)),
    ],
    "inputs first": [graph(inputs=3, outputs=(0,)), graph(inputs=-1)],
    "dense numbering": [
        graph(Node(Sin(), (0,), 2), metas=(X,) * 3, outputs=(2,)),
        graph(Node(Sin(), (0,), 1), metas=(X,) * 3),
        graph(Node(Sin(), (0,), 1), Node(Cos(), (1,), 1), metas=(X,) * 3, outputs=(2,)),
    ],
    "use after definition": [
        graph(Node(Add(), (0, 2), 1), Node(Sin(), (1,), 2), metas=(X,) * 3, outputs=(2,)),
        graph(Node(Sin(), (1,), 1)),
        graph(Node(Sin(), (-1,), 1)),
        graph(Node(Sin(), ("0",), 1)),
    ],
    "outputs in range": [
        graph(Node(Sin(), (0,), 1), outputs=(2,)),
        graph(Node(Sin(), (0,), 1), outputs=(-1,)),
    ],
    "trees": [
        graph(Node(Sin(), (0,), 1), out_tree=jax.tree.structure((0, 0))),
        graph(Node(Sin(), (0,), 1), in_tree=jax.tree.structure((0, 0))),
        graph(Node(Sin(), (0,), 1), in_tree=LEAF),
    ],
    "interned": [
        graph(
            Node(Sin(), (0,), 1),
            Node(Sin(), (0,), 2),
            Node(Add(), (1, 2), 3),
            metas=(X,) * 4,
            outputs=(3,),
        )
    ],
    "canonical order": [
        graph(Node(Sin(), (0,), 1), Node(Cos(), (0,), 2), metas=(X,) * 3),
        graph(
            Node(Cos(), (0,), 1),
            Node(Sin(), (0,), 2),
            Node(Add(), (2, 1), 3),
            metas=(X,) * 4,
            outputs=(3,),
        ),
    ],
    "inference": [
        graph(Node(Add(), (0,), 1)),
        graph(Node(Scan(WIDER, 2, 0, 1), (0,), 1)),
        graph(Node(Scan(SAME, -2, 0, 1), (0,), 1)),
        graph(Node(While(SAME, SAME), (0,), 1)),
        graph(Node(Cond((SAME,)), (0,), 1)),
        graph(Node(Sin(), (0,), 1), metas=(X, TensorMeta(F64, (4,)))),
        graph(Node(Sin(), (0,), 1), metas=(X, TensorMeta(np.dtype("float32"), (3,)))),
        graph(
            Node(Add(), (0, 1), 2),
            metas=(X, TensorMeta(F64, (4,)), X),
            inputs=2,
            outputs=(2,),
            in_tree=jax.tree.structure((0, 0)),
        ),
        graph(Node(Extension.of(TropicalEinsum(max_plus, "i,i->")), (0, 0), 1)),
        graph(
            Node(Extension.of(Together()), (0, 1), 2),
            metas=(TensorMeta(F64, (B,)), TensorMeta(F64, (C,)), TensorMeta(F64, ())),
            inputs=2,
            outputs=(2,),
            in_tree=jax.tree.structure((0, 0)),
        ),
    ],
}


CASES = [(name, broken) for name, several in BROKEN.items() for broken in several]


@pytest.mark.parametrize(
    ("name", "broken"), CASES, ids=[f"{name} {i}" for i, (name, _) in enumerate(CASES)]
)
def test_a_broken_graph_is_refused_by_its_rule(name, broken):
    error = ends_in(lambda: verify(broken), InvalidConfig)
    assert error.value.where == f"graph, rule {name!r}"
    assert error.value.needed == {rule.name: rule.says for rule in CHECKED}[name]
    assert [
        rule.name
        for rule in CHECKED[: [r.name for r in CHECKED].index(name)]
        if list(rule.broken(broken))
    ] == []


def test_every_rule_is_broken_by_some_graph():
    assert set(BROKEN) | {"64-bit types"} == {rule.name for rule in CHECKED}


def test_64_bit_values_need_64_bit_types():
    good = graph(Node(Sin(), (0,), 1))
    assert verify(good) is good
    with (
        jax.enable_x64(False),
        pytest.raises(InvalidConfig, match=r"'64-bit types': given %0 of float64\[3\]"),
    ):
        verify(good)


def test_bodies_are_checked_and_named():
    inner = graph(Node(Sin(), (0,), 1), Node(Cos(), (0,), 2), metas=(X,) * 3)
    outer = graph(Node(Scan(inner, 2, 0, 1), (0,), 1))
    ends_in(
        lambda: verify(outer),
        InvalidConfig,
        r"graph, node 0, body 0, rule 'canonical order': given node 1, Cos",
    )


def test_ten_thousand_nodes_need_no_recursion():
    builder = GraphBuilder()
    value = builder.input(X)
    for i in range(10_000):
        (value,) = builder.add((Sin(), Tanh(), Neg())[i % 3], value)
    graph = verify(builder.build([value]))
    assert (len(graph.nodes), str(graph).count("\n")) == (10_000, 10_002)
    assert hash(graph) == hash(builder.build([value]))


REFUSED = [
    (
        Scan(WIDER, 2, 0, 1),
        (X,),
        ShapeError,
        r"Scan, body, carry 0: given float64\[6\]; needed float64\[3\], as it goes in",
    ),
    (Scan(INTEGER, 2, 0, 1), (X,), DTypeError, r"carry 0: given int32\[3\]; needed float64\[3\]"),
    (
        Scan(SAME, 2, 0, 2),
        X2,
        InvalidConfig,
        r"Scan, body: given 2 of input.*needed 1, as the body declares",
    ),
    (Scan(NONE_OUT, 2, 0, 1), (X,), InvalidConfig, r"Scan, body: given 0 of carry: none; needed 1"),
    (
        Scan(SAME, 2, 3, 0),
        (X,),
        InvalidConfig,
        r"constant_count=3 with 1 input; needed a number from 0 to 1",
    ),
    (Scan(SAME, 2.0, 0, 1), (X,), InvalidConfig, "length=2.0"),
    (Scan(SAME, True, 0, 1), (X,), InvalidConfig, "length=True"),
    (
        Scan(SAME, 2, 0, 0),
        (X,),
        ShapeError,
        r"Scan, scanned input 0: given float64\[3\]; needed a first axis of 2",
    ),
    (
        CustomJvp("f", SAME, SAME),
        (X,),
        InvalidConfig,
        r"CustomJvp, jvp: given 2 of input.*needed 1, as the body declares",
    ),
    (
        CustomVjp("f", SAME, SAME, WIDER),
        (X,),
        ShapeError,
        r"CustomVjp, backward, output 0: .*a cotangent for each floating input",
    ),
    (
        CustomVjp("f", SAME, WIDER, SAME),
        (X,),
        ShapeError,
        r"CustomVjp, forward, output 0: .*as the body gives, then residuals",
    ),
    (
        CustomVjp("f", SAME, NONE_OUT, SAME),
        (X,),
        InvalidConfig,
        r"forward: given 0 of output: none; needed 1, .*: float64\[3\]",
    ),
    (Scan(SAME, 2, 0, 1, "no"), (X,), InvalidConfig, r"Scan: given reverse='no'"),
    (LinearSolve(SAME, WIDER, None, (0, 0, 0)), (X,), ShapeError, r"LinearSolve, solve, carry 0"),
    (Reduce(SAME, (0,)), (X, TensorMeta(F64, ())), InvalidConfig, "Reduce, body: given 2 of input"),
    (
        Reduce(SAME, (0,)),
        (X, X),
        ShapeError,
        r"Reduce, initial value 0: given float64\[3\]; needed float64\[\]",
    ),
    (While(TRUE, WIDER), (X,), ShapeError, r"While, body, carry 0"),
    (
        While(SAME, SAME),
        (X,),
        DTypeError,
        r"While, condition, output 0: given float64\[3\]; needed bool\[\], the predicate",
    ),
    (
        While(body(X, fn=lambda x: (x > 0,)), SAME),
        (X,),
        ShapeError,
        r"given bool\[3\]; needed bool\[\]",
    ),
    (
        While(TRUE, SAME),
        (TensorMeta(F64, (4,)),),
        ShapeError,
        r"While, condition, input 0: given float64\[4\]; needed float64\[3\]",
    ),
    (
        Cond((SAME, WIDER)),
        (TensorMeta(I32, ()), X),
        ShapeError,
        r"Cond, branch 1, output 0: .*as branch 0 gives",
    ),
    (Cond((SAME, NONE_OUT)), (TensorMeta(I32, ()), X), InvalidConfig, "Cond, branch 1"),
    (
        Cond((SAME,)),
        (TensorMeta(BOOL, ()), X),
        DTypeError,
        r"Cond, index 0: given bool\[\]; needed int32\[\]",
    ),
    (Cond((SAME,)), (), InvalidConfig, "Cond: given 0 of index"),
    (Cond(()), (TensorMeta(I32, ()),), InvalidConfig, "one graph or more"),
    (
        Cond((3,)),
        (TensorMeta(I32, ()), X),
        InvalidConfig,
        r"Cond: given branches=\(3,\); needed branches of type tuple\[Body, ...\]",
    ),
]


@pytest.mark.parametrize(("op", "metas", "kind", "text"), REFUSED, ids=range(len(REFUSED)))
def test_a_body_that_does_not_fit_is_refused_when_it_is_added(op, metas, kind, text):
    builder = GraphBuilder()
    ends_in(lambda: builder.add(op, *(builder.input(meta) for meta in metas)), kind, text)


def test_a_symbolic_body_serves_the_sizes_that_it_is_given():
    halve = trace(lambda x: (x / 2,), jax.ShapeDtypeStruct((B,), F64))
    builder = GraphBuilder()
    (out,) = builder.add(Scan(halve, 3, 0, 1), builder.input(X))
    np.testing.assert_array_equal(verify(builder.build([out]))(np.full(3, 8.0))[0], np.ones(3))
