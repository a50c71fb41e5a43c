"""The engine: one compilation for equal graphs, a bounded cache that threads share, checked calls;
what a program tells.
"""

import jax
import jax.export
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum
from tenferro_jax import grad, trace
from tenferro_jax.engine import Engine, compile_std_to_exec
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import ExtensionRuleSet, apply
from tenferro_jax.extension.routes import RouteKind
from tenferro_jax.extension.rules import NO_RULES

from ..extension_ops import RULES, HostCumulate, ScaledSquare, ScaledSquareRule
from ..helpers import each_ends_in, ends_in
from ..oracles import brute_force

F64 = np.dtype("float64")


@pytest.fixture
def compilations():
    """An item for each executable that XLA has made since the test began."""
    count = []

    def listen(event, _, **__):
        count.extend([event] * (event == "/jax/core/compile/backend_compile_duration"))

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield count
    jax.monitoring.unregister_event_duration_listener(listen)


def scaled(k, x):
    return trace(lambda x: x * k, x)


def test_equal_graphs_hit_and_the_least_recently_used_goes_first():
    engine, x = Engine(capacity=2), np.arange(3.0)
    # (factor, hits and misses afterwards); 2 is the one to go when 3 comes
    for k, stats in ((1, (0, 1)), (2, (0, 2)), (1, (1, 2)), (3, (1, 3)), (1, (2, 3)), (2, (2, 4))):
        np.testing.assert_array_equal(engine.eval(scaled(float(k), x), x), x * k)
        assert engine.stats()[:2] == stats
    assert repr(engine) == "Engine(2 of 2 programs, 2 hits, 4 misses)"
    engine.clear()
    assert engine.stats() == (0, 0, 0, 2)
    each_ends_in(
        ((lambda: Engine(capacity=x) for x in (0, -1, "a", True, 1.5)), InvalidConfig, "capacity"),
        (lambda: Engine(rules=[ScaledSquareRule()]), InvalidConfig, "ExtensionRuleSet"),
    )


def test_a_symbolic_graph_is_bound_once_for_each_size():
    (b,) = jax.export.symbolic_shape("b")
    engine = Engine()
    graph = trace(lambda x: jnp.flip(x) * x.shape[0], jax.ShapeDtypeStruct((b,), F64))
    for size in (2, 3, 2, 3, 2):
        x = np.arange(size) * 1.0
        np.testing.assert_array_equal(engine.eval(graph, x), x[::-1] * size)
    assert engine.stats()[:3] == (3, 2, 2)
    ends_in(lambda: engine.compile(graph), InvalidConfig, r"symbolic inputs float64\[b\]")
    program = engine.compile(graph.bound_to(np.ones(2)))
    np.testing.assert_array_equal(program(np.arange(2.0)), [2.0, 0.0])


def test_an_executable_is_made_once(compilations):
    x = jnp.arange(3.0)
    graph = trace(lambda x: jnp.sin(x) * 2, x)
    engine = Engine()
    compilations.clear()
    for given in (
        x,
        np.arange(3.0),
        jax.device_put(x, jax.devices()[0]),
        x.at[0].get() * jnp.ones(3),
        jnp.full(3, 2.0),
    ):
        before = len(compilations)
        engine.eval(graph, given)
        assert len(compilations) - before == (given is x)


@pytest.mark.cpu
def test_arrays_on_other_devices_and_meshes_run_where_they_are():
    x = jnp.arange(8.0)
    graph = trace(lambda x: jnp.sin(x) * 2, x)
    program = Engine().compile(graph)
    mesh = jax.make_mesh(
        (4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    for place in (jax.devices()[2], jax.NamedSharding(mesh, jax.P("d"))):
        out = program(jax.device_put(x, place))
        np.testing.assert_allclose(out, np.sin(np.arange(8.0)) * 2, rtol=1e-14)
        assert len(out.sharding.device_set) == (4 if isinstance(place, jax.NamedSharding) else 1)
        assert jax.devices()[2] in out.sharding.device_set
    np.testing.assert_allclose(program(x), np.sin(np.arange(8.0)) * 2, rtol=1e-14)


def test_under_a_jax_transform_the_graph_runs_with_the_rules_of_the_call():
    x = np.float64(3.0)
    graph = trace(lambda x: apply(ScaledSquare(1.0), x, rules=RULES)[0], x)
    own = ExtensionRuleSet(ScaledSquareRule(mark=10.0))
    program = Engine().compile(graph)
    for f, want in (
        (Engine().eval, 6.0),
        (Engine(rules=own).eval, 60.0),
        (lambda _, x: program(x), 6.0),
    ):
        assert jax.grad(lambda x, f=f: f(graph, x))(x) == want
        assert jax.jit(lambda x, f=f: f(graph, x))(x) == 9.0
        np.testing.assert_array_equal(
            jax.vmap(lambda x, f=f: f(graph, x))(np.arange(3.0)), [0.0, 1.0, 4.0]
        )
    ends_in(lambda: jax.grad(lambda x: Engine(rules=NO_RULES).eval(graph, x))(x), ADRuleError)
    engine = Engine(rules=own)
    engine.eval(graph, x)
    engine.eval(grad(graph), x)
    assert engine.stats().size == 2


def test_arguments_that_do_not_fit_are_typed_errors_and_good_ones_still_run():
    engine, graph = Engine(), trace(lambda x: x + 1, np.ones(2))
    program = engine.compile(graph)
    for call in (lambda *xs: engine.eval(graph, *xs), program):
        for _ in range(2):
            assert call(np.ones(2)).tolist() == [2.0, 2.0]
            assert call(jnp.ones(2)).tolist() == [2.0, 2.0]
            each_ends_in(
                (lambda: call(np.ones(3)), ShapeError),
                (lambda: call(np.ones(2, np.float32)), DTypeError, "float32"),
                (lambda: call(np.ma.masked_array(np.ones(2), [True, False])), DTypeError),
                (lambda: call(np.ones(2, np.dtype("float64").newbyteorder())), DTypeError),
                (
                    (
                        lambda: call(*wrong)
                        for wrong in ((), (np.ones(2), np.ones(2)), ({"x": np.ones(2)},))
                    ),
                    InvalidConfig,
                    "nothing for|an array too many",
                ),
            )
            with (
                jax.enable_x64(False),
                pytest.raises(DTypeError, match="while 64-bit types are off"),
            ):
                call(np.ones(2))
    scalar = trace(lambda x: x * 2, jax.ShapeDtypeStruct((), F64))
    assert [engine.eval(scalar, v).item() for v in (1.5, np.float64(1.5), jnp.asarray(1.5))] == [
        3.0
    ] * 3
    ends_in(
        (lambda: engine.eval(wrong_graph, 1.0) for wrong_graph in (lambda x: x, None)),
        InvalidConfig,
        "a Graph",
    )


def test_x64_mode_is_part_of_what_a_program_is_kept_for():
    engine = Engine()
    narrow = trace(lambda i: i * 2, jax.ShapeDtypeStruct((), np.int32))
    assert engine.eval(narrow, np.int32(3)) == 6
    with jax.enable_x64(False):
        assert engine.eval(narrow, np.int32(3)) == 6
        ends_in(
            lambda: engine.eval(narrow, np.int64(2**40)), DTypeError, "while 64-bit types are off"
        )
    assert engine.stats()[:3] == (0, 2, 2)
    wide = trace(lambda i: i.astype(F64).sum(), jax.ShapeDtypeStruct((2,), np.int32))
    program = engine.compile(wide)
    with jax.enable_x64(False):
        ends_in(
            (
                lambda: call(np.ones(2, np.int32))
                for call in (lambda x: engine.eval(wide, x), program)
            ),
            DTypeError,
            "64-bit types",
        )


# What a compiled program tells: cost, memory, text, and who executes what


@pytest.mark.cpu
@pytest.mark.clause("X8.2")
def test_programs_explain_steps_and_routes():
    x = np.random.default_rng(0).normal(size=(3, 3))
    program = Engine().compile(
        trace(lambda x: apply(HostCumulate(), tropical_einsum("ij,jk->ik", x, x))[0] * x + 1.0, x)
    )
    assert [r.kind for r in program.routes] == [RouteKind.LOWERING, RouteKind.HOST]
    assert program.explain().splitlines() == [
        "ExecProgram(6 instructions, 2 segments, 1 host step): (float64[3,3]) -> (float64[3,3])",
        "  0 segment  1 in, 1 out: 1 tenferro-ext-tropical.einsum.v1",
        "  1 host     1 in, 1 out: 1 test-package.host_cumulate.v1",
        "  2 segment  2 in, 1 out: 1 Add, 1 BroadcastInDim, 1 Constant, 1 Mul",
        "  tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its "
        "kernel declines: one reduction does it)",
        "  test-package.host_cumulate.v1 on cpu: host (eager_execute on the host)",
    ]
    want = np.cumsum(brute_force("max_plus", "ij,jk->ik", x, x)[0], -1) * x + 1.0
    np.testing.assert_allclose(program(x), want, rtol=1e-14)


@pytest.mark.cpu
def test_routes_inside_control_flow_are_told_too():
    x = np.ones((2, 2))
    program = compile_std_to_exec(
        trace(
            lambda x: jax.lax.fori_loop(0, 2, lambda i, c: tropical_einsum("ij,jk->ik", c, x), x), x
        )
    )
    assert [str(r) for r in program.routes] == [
        "tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its "
        "kernel declines: one reduction does it)"
    ]
