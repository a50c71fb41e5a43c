"""What is handed to a graph: every misfit is a typed error that names the input by its path."""

import types

import jax
import jax.export
import numpy as np
import pytest

import tenferro_jax as tj
from tenferro_jax import TensorMeta, trace
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.graph import GraphBuilder

from ..helpers import each_ends_in, ends_in

F32 = np.dtype("float32")
B, C = jax.export.symbolic_shape("b, c")


def spec(*shape, dtype=F32):
    return jax.ShapeDtypeStruct(shape, dtype)


def ones(*shape, dtype=F32):
    return np.ones(shape, dtype)


GRAPH = trace(
    lambda p, xs: (p["w"].sum() + xs[0].sum(), xs[1]),
    {"w": spec(3, B), "v": spec(2)},
    [spec(B), spec(2 * B)],
)
GOOD = {"w": ones(3, 4), "v": ones(2)}, [ones(4), ones(8)]


def test_inputs_are_named_by_their_path():
    assert GRAPH.input_names == ("args[0]['v']", "args[0]['w']", "args[1][0]", "args[1][1]")
    builder = GraphBuilder()
    assert builder.build([builder.input(spec(2))]).input_names == ("args[0]",)


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
def test_what_does_not_fit_is_named(args, kind, text):
    for run in (
        GRAPH.to_jax(),
        GRAPH.bound_to,
        lambda *xs: Engine().eval(GRAPH, *xs),
        jax.jit(GRAPH.to_jax()),
    ):
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
        lambda: GRAPH.bound_to({"w": spec(3, B), "v": spec(2)}, [spec(C), spec(2 * B)]),
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
