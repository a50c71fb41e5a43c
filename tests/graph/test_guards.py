"""Guards: an equality that inference could not decide stays with the graph and is checked before
anything runs. What is handed to a graph: every misfit is a typed error that names the input.
"""

import types
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
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
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
from ..helpers import each_ends_in, ends_in

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


class TogetherRule(ExtensionAdRule):
    family_id = Together.family_id

    def linearize(self, op, primals, outputs, tangents):
        return ((lambda *t: sum(x.sum() for x in t))(*(t for t in tangents if t is not None)),)


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
    assert trace(lambda x, y: graph.to_jax()(x, y) * 2, spec(B), spec(C)).guards == graph.guards
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
    assert [*map(str, recorded((B, C), (2 * B, C), (C, B)).guards)] == ["2*b == c", "b == c"]
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


# --- what is handed to a graph --------------------------------------------------------------------


F32 = np.dtype("float32")


def narrow(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


GRAPH = trace(
    lambda p, xs: (p["w"].sum() + xs[0].sum(), xs[1]),
    {"w": narrow(3, B), "v": narrow(2)},
    [narrow(B), narrow(2 * B)],
)
GOOD = {"w": ones(3, 4), "v": ones(2)}, [ones(4), ones(8)]


def test_inputs_are_named_by_their_path():
    assert GRAPH.input_names == ("args[0]['v']", "args[0]['w']", "args[1][0]", "args[1][1]")
    builder = GraphBuilder()
    assert builder.build([builder.input(narrow(2))]).input_names == ("args[0]",)


@pytest.mark.parametrize(
    ("args", "kind", "text"),
    [
        (
            ({"w": ones(3, 4)}, [ones(4), ones(8)]),
            InvalidConfig,
            r"nothing for args\[0\]\['v'\]: PyTreeDef",
        ),
        (
            ({"w": ones(3, 4), "v": ones(2), "u": ones(1)}, GOOD[1]),
            InvalidConfig,
            r"an array too many, args\[0\]\['u'\]",
        ),
        ((*GOOD, ones(1)), InvalidConfig, r"args\[2\]"),
        ((GOOD[0],), InvalidConfig, r"nothing for args\[1\]\[0\], args\[1\]\[1\]"),
        ((GOOD[0], tuple(GOOD[1])), InvalidConfig, "another nesting: PyTreeDef"),
        (
            ({"w": ones(3, 4), "v": ones(2, dtype=np.int32)}, GOOD[1]),
            DTypeError,
            r"args\[0\]\['v'\]: given int32\[2\]",
        ),
        (
            ({"w": ones(3, 4), "v": ones(2, 1)}, GOOD[1]),
            ShapeError,
            r"args\[0\]\['v'\]: given float32\[2,1\]",
        ),
        (
            ({"w": ones(3, 4), "v": ones(3)}, GOOD[1]),
            ShapeError,
            r"args\[0\]\['v'\], axis 0 \(declared 2\): given size 3",
        ),
        (
            ({"w": ones(3, 4), "v": ones(2)}, [ones(5), ones(8)]),
            ShapeError,
            r"args\[1\]\[0\], axis 0 \(declared b\)",
        ),
        (
            (GOOD[0], [ones(4), ones(9)]),
            ShapeError,
            r"args\[1\]\[1\], axis 0 \(declared 2\*b\): given size 9 in .*size 8",
        ),
    ],
    ids=range(10),
)
@pytest.mark.parametrize(
    "run",
    [
        GRAPH.to_jax(),
        GRAPH.bound_to,
        lambda *xs: Engine().eval(GRAPH, *xs),
        jax.jit(GRAPH.to_jax()),
    ],
)
def test_what_does_not_fit_is_named(args, kind, text, run):
    error = ends_in(lambda: run(*args), kind, text)
    assert type(error.value) is kind
    assert isinstance(error.value, InvalidConfig)


def test_flat_calls_name_all_inputs():
    each_ends_in(
        (lambda: GRAPH(ones(2)), InvalidConfig, r"given 1 input; needed 4: args\[0\]\['v'\], "),
        (lambda: GRAPH(*[ones(2)] * 5), InvalidConfig, "given 5 inputs"),
    )


def test_sizes_that_cannot_be_decided_are_refused():
    ends_in(
        lambda: GRAPH.bound_to({"w": narrow(3, B), "v": narrow(2)}, [narrow(C), narrow(2 * B)]),
        ShapeError,
        r"args\[1\]\[0\], axis 0 \(declared b\).*constraints=",
    )


@pytest.mark.parametrize("shape", [(-1,), (2.0,), ("b",), (True,), (False,), (None,)], ids=str)
def test_an_input_has_sizes(shape):
    builder = GraphBuilder()
    builder.input(TensorMeta(F32, (np.int64(3), B, 0)))
    ends_in(lambda: builder.input(TensorMeta(F32, shape)), ShapeError, "graph input 1")


@pytest.mark.parametrize(
    "spec",
    [types.SimpleNamespace(dtype=F32), types.SimpleNamespace(shape=(2,)), np.array(["a"], object)],
    ids=str,
)
def test_an_input_has_a_dtype_of_numbers_and_a_shape(spec):
    ends_in(
        lambda: GraphBuilder().input(spec),
        InvalidConfig,
        r"GraphBuilder\.input: given .*; needed a TensorMeta, or an object with a dtype and a "
        r"shape",
    )


def ways(graph, *args):
    """Every way to give a graph its sizes."""
    exported = tj.load_exported(tj.export(graph).to_bytes())
    return [
        lambda: graph.to_jax()(*args),
        lambda: graph.bound_to(*args),
        lambda: Engine().eval(graph, *args),
        lambda: jax.jit(graph.to_jax())(*args),
        lambda: exported.call(*args),
        lambda: jax.jit(exported.call)(*args),
    ]


@pytest.mark.parametrize("way", range(6))
def test_no_symbol_is_zero(way):
    """Tracing folded max(b, 1) into b: at size 0 a graph would compute another function."""
    (b,) = jax.export.symbolic_shape("b")
    graph = tj.trace(
        lambda x: x.sum() / jax.core.max_dim(x.shape[0], 1), jax.ShapeDtypeStruct((b,), np.float64)
    )
    assert float(ways(graph, np.ones(3))[0]()) == 1
    ends_in(ways(graph, np.ones(0))[way], ShapeError, r"symbol b: given size 0; needed 1 or more")


CONSTRAINTS = [
    ("c <= d", (6, 2)),
    ("c >= 4", (3, 9)),
    ("mod(d, 2) == 0", (1, 3)),
    ("2*c + 1 <= d^2", (5, 3)),
    ("max(c, 5) == d", (2, 6)),
]


@pytest.mark.few(15)
@pytest.mark.parametrize("way", range(6))
@pytest.mark.parametrize(
    ("constraint", "sizes"), CONSTRAINTS, ids=[text for text, _ in CONSTRAINTS]
)
def test_constraints_hold_where_sizes_are_given(constraint, sizes, way):
    c, d = jax.export.symbolic_shape("c, d", constraints=[constraint])
    specs = [jax.ShapeDtypeStruct((size,), np.float64) for size in (c, d)]
    graph = tj.trace(lambda x, y: x.sum() + y.sum(), *specs)
    error = ends_in(ways(graph, *map(np.ones, sizes))[way], ShapeError)
    assert error.value.where == "symbols of the input shapes"
    assert all(
        f"{name} = {size}" in error.value.given or name not in constraint
        for name, size in zip("cd", sizes)
    )
    assert "a constraint of the symbols" in error.value.needed


@pytest.mark.parametrize("size", [0, 3, 7])
def test_an_exported_program_whose_symbols_jax_solves_for(size):
    """No input has the symbol by itself: 2*b == 4 gives b."""
    (b,) = jax.export.symbolic_shape("b", constraints=["b <= 2"])
    made = tj.export(lambda x: x.sum() * x.shape[0], jax.ShapeDtypeStruct((2 * b,), np.float64))
    for program in (made, tj.load_exported(made.to_bytes())):
        assert float(program.call(np.ones(4))) == 16
        each_ends_in(
            (
                lambda: program.call(np.ones(size)),
                ShapeError,
                rf"given float64\[{size}\]; needed float64\[2\*b\], each symbol 1 or more, b <= 2",
            ),
            (lambda: program.call(np.ones(6)), ShapeError, "each symbol 1 or more, b <= 2"),
        )
