"""The engine: one compilation for equal graphs, bounded cache, routes."""

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum
from tenferro_jax import ArityError, DTypeError, Engine, InvalidConfig, RouteKind, ShapeError, X64Error, trace

from ..oracles import brute_force

F64 = np.dtype("float64")


def test_equal_graphs_hit_and_the_cache_is_bounded():
    engine = Engine(capacity=2)
    x = np.arange(3.0)
    graphs = [trace(lambda x, k=k: x * k, x) for k in (1.0, 2.0, 3.0)]
    for graph, k in zip(graphs, (1.0, 2.0, 3.0)):
        np.testing.assert_array_equal(engine.eval(graph, x), x * k)
    assert engine.stats() == (0, 3, 2)
    engine.eval(trace(lambda y: y * 3.0, x), x)
    assert engine.stats() == (1, 3, 2)
    engine.clear()
    assert engine.stats().size == 0


def test_programs_tell_their_routes():
    x = np.random.default_rng(0).normal(size=(3, 3))
    program = Engine().compile(trace(lambda x: tropical_einsum("ij,jk->ik", x, x), x))
    assert [r.kind for r in program.routes] == [RouteKind.LOWERING]
    assert "tenferro-ext-tropical.einsum.v1 on cpu: lowering" in program.explain()
    np.testing.assert_array_equal(program(x), brute_force("max_plus", "ij,jk->ik", x, x)[0])


def test_symbolic_graphs_bind_at_eval():
    (b,) = jax.export.symbolic_shape("b")
    engine = Engine()
    graph = trace(lambda x: jnp.flip(x) * x.shape[0], jax.ShapeDtypeStruct((b,), F64))
    for size in (2, 3, 2):
        np.testing.assert_array_equal(engine.eval(graph, np.arange(size) * 1.0), np.arange(size)[::-1] * size * 1.0)
    assert engine.stats() == (1, 2, 2)
    with pytest.raises(InvalidConfig, match=r"symbolic inputs float64\[b\]"):
        engine.compile(graph)


def test_arguments_that_do_not_fit_are_typed_errors():
    engine, graph = Engine(), trace(lambda x: x + 1, np.ones(2))
    program = engine.compile(graph)
    for call in (lambda *xs: engine.eval(graph, *xs), program):
        with pytest.raises(ShapeError):
            call(np.ones(3))
        with pytest.raises(DTypeError, match="float32"):
            call(np.ones(2, np.float32))
        with pytest.raises(ArityError):
            call(np.ones(2), np.ones(2))
    for size in (0, -1, "a"):
        with pytest.raises(InvalidConfig, match="capacity"):
            Engine(capacity=size)
    narrow = trace(lambda i: i * 2, jax.ShapeDtypeStruct((), np.int32))
    with jax.enable_x64(False), pytest.raises(X64Error):
        engine.eval(narrow, np.int64(2**40))
