"""The engine: one compilation for equal graphs, a bounded cache that threads share, checked calls;
what a program tells; how a graph becomes steps: what XLA sees, where the host stands between.
"""

import chex
import jax
import jax.export
import jax.monitoring
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from benchmarks import training_step
from benchmarks.measure import canonical_hlo
from ext_tropical import tropical_einsum
from tenferro_jax import export, trace
from tenferro_jax.engine import Engine, compile_std_to_exec
from tenferro_jax.engine.exec_program import HostStep, Segment
from tenferro_jax.errors import (
    ADRuleError,
    BackendFailure,
    DTypeError,
    InvalidConfig,
    ShapeError,
    Unsupported,
)
from tenferro_jax.extension import ExtensionRuleSet, apply
from tenferro_jax.extension.routes import RouteKind
from tenferro_jax.extension.rules import NO_RULES
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops.linalg import Solve, ValidateNonsingular

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


def test_a_symbolic_graph_is_bound_once_for_each_size():
    (b,) = jax.export.symbolic_shape("b")
    engine = Engine()
    graph = trace(lambda x: jnp.flip(x) * x.shape[0], jax.ShapeDtypeStruct((b,), F64))
    for size in (2, 3, 2, 3, 2):
        x = np.arange(size) * 1.0
        np.testing.assert_array_equal(engine.eval(graph, x), x[::-1] * size)
    assert engine.stats() == (3, 2, 128, 2)
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
    program = Engine().compile(trace(lambda x: jnp.sin(x) * 2, x))
    mesh = jax.make_mesh(
        (4,), ("d",), axis_types=(jax.sharding.AxisType.Auto,), devices=jax.devices()[:4]
    )
    for place in (jax.devices()[2], jax.NamedSharding(mesh, jax.P("d"))):
        out = program(jax.device_put(x, place))
        np.testing.assert_allclose(out, np.sin(np.arange(8.0)) * 2, rtol=1e-14)
        assert len(out.sharding.device_set) == (4 if isinstance(place, jax.NamedSharding) else 1)
        assert jax.devices()[2] in out.sharding.device_set
    np.testing.assert_allclose(program(x), np.sin(np.arange(8.0)) * 2, rtol=1e-14)


def test_under_a_jax_transform_the_graph_runs_with_its_rules():
    x = np.float64(3.0)
    graph = trace(lambda x: apply(ScaledSquare(1.0), x, rules=RULES)[0], x)
    marked = graph.with_rules(ExtensionRuleSet(ScaledSquareRule(mark=10.0)))
    program = Engine().compile(graph)
    for f, want in (
        (lambda x: Engine().eval(graph, x), 6.0),
        (lambda x: Engine().eval(marked, x), 60.0),
        (program, 6.0),
    ):
        assert jax.grad(f)(x) == want
        assert jax.jit(f)(x) == 9.0
        np.testing.assert_array_equal(jax.vmap(f)(np.arange(3.0)), [0.0, 1.0, 4.0])
    ends_in(
        lambda: jax.grad(lambda x: Engine().eval(graph.with_rules(NO_RULES), x))(x), ADRuleError
    )


def test_arguments_that_do_not_fit_are_typed_errors_and_good_ones_still_run():
    engine, graph = Engine(), trace(lambda x: x + 1, np.ones(2))
    for call in (lambda *xs: engine.eval(graph, *xs), engine.compile(graph)):
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
    assert engine.stats() == (0, 2, 128, 2)
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
def test_programs_tell_their_steps_and_routes():
    x = np.random.default_rng(0).normal(size=(3, 3))
    program = Engine().compile(
        trace(lambda x: apply(HostCumulate(), tropical_einsum("ij,jk->ik", x, x))[0] * x + 1.0, x)
    )
    assert [r.kind for r in program.routes] == [RouteKind.LOWERING, RouteKind.HOST]
    assert [*map(str, (program, *program.routes))] == [
        "ExecProgram(6 instructions, 2 segments, 1 host step): (float64[3,3]) -> (float64[3,3])",
        "tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its "
        "kernel declines: one reduction does it)",
        "test-package.host_cumulate.v1 on cpu: host (eager_execute on the host)",
    ]
    want = np.cumsum(brute_force("max_plus", "ij,jk->ik", x, x)[0], -1) * x + 1.0
    np.testing.assert_allclose(program(x), want, rtol=1e-14)


# --- how a graph becomes steps --------------------------------------------------------------------


def cumulate(x):
    return apply(HostCumulate(), x)[0]


X = np.arange(6.0).reshape(2, 3)
W = np.ones((3, 3)) + 3 * np.eye(3)
ONE_SEGMENT = {
    "elementwise": (lambda x: jnp.tanh(x) * 2 + x, (np.ones((3, 3)),)),
    "outputs twice, an input as output, one unused": (
        lambda x, y, z: (x + y, x, x + y),
        (np.ones(3), np.ones(3), np.ones(2)),
    ),
    "constants alone": (lambda x: (jnp.arange(4.0), x @ x), (np.ones((3, 3)),)),
    "contraction and reductions": (
        lambda x, y: jnp.einsum("bij,bjk->ik", x, y).sum(0),
        (np.ones((2, 3, 4)), np.ones((2, 4, 5))),
    ),
    "tropical": (lambda x: tropical_einsum("ij,jk->ik", x, x), (np.ones((3, 3)),)),
    "a training step": (training_step.step, training_step.arguments(8, 4, 5, 3)),
    "dense layers": (
        lambda x: jax.grad(lambda w: (jax.nn.log_softmax(jax.nn.relu(x @ w)) ** 2).sum())(W),
        (X,),
    ),
    "gelu": (jax.nn.gelu, (X,)),
    "scan": (lambda x: jax.lax.scan(lambda c, r: (c + r, c * r), x[0], x), (X,)),
    "cond": (lambda x: jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x), (X,)),
    "switch": (
        lambda x: jax.lax.switch(x[0, 0].astype(int), [jnp.sin, jnp.cos, jnp.tanh], x),
        (X,),
    ),
    "while": (lambda x: jax.lax.while_loop(lambda x: x.sum() < 100, lambda x: x * 2 + 1, x), (X,)),
    "while under vmap": (
        jax.vmap(lambda r: jax.lax.while_loop(lambda r: r.sum() < 100, lambda r: r * 2 + 1, r)),
        (X,),
    ),
    "counted loop": (lambda x: jax.lax.fori_loop(0, 5, lambda i, x: x * i, x), (X,)),
    "sort": (lambda x: (jnp.sort(x, 1), jnp.argsort(x, 1)), (X,)),
    "convolution": (lambda x: jnp.convolve(x[0], x[1]), (X,)),
    "cumulative": (lambda x: jnp.cumsum(x, 0), (X,)),
    "indexed update": (lambda x: x.at[jnp.array([0, 1])].set(1.0)[jnp.array([1, 0])], (X,)),
    "gradient of a scan": (
        jax.grad(lambda x: jax.lax.scan(lambda c, r: (jnp.sin(c) + r, c * r), x[0], x)[1].sum()),
        (X,),
    ),
    "linear solve": (lambda x: jnp.linalg.solve(W, x.T), (X,)),
    "second derivative": (jax.vmap(jax.vmap(jax.grad(jax.grad(jax.scipy.special.erf)))), (X,)),
}


@pytest.mark.few(4)
@pytest.mark.parametrize(("fn", "args"), ONE_SEGMENT.values(), ids=ONE_SEGMENT)
def test_without_host_ops_xla_sees_what_jit_would_show_it(fn, args):
    program = compile_std_to_exec(trace(fn, *args))
    (segment,) = program.steps
    assert canonical_hlo(segment.compiled.as_text()) == canonical_hlo(
        jax.jit(fn).lower(*args).compile().as_text()
    )
    chex.assert_trees_all_equal(program(*args), jax.jit(fn)(*args))


@pytest.mark.clause("X8.9")
def test_host_ops_stand_between_segments_in_the_order_of_the_graph():
    def fn(x, y):
        a, b = cumulate(jnp.sin(x)), cumulate(jnp.cos(y))
        return cumulate(a * b) + x, a

    x, y = np.random.default_rng(1).normal(size=(2, 3, 4))
    program = compile_std_to_exec(trace(fn, x, y))
    assert [type(s) for s in program.steps] == [*[Segment, HostStep] * 3, Segment]
    assert [r.kind for r in program.routes] == [RouteKind.HOST] * 3
    a, b = np.cumsum(np.sin(x), -1), np.cumsum(np.cos(y), -1)
    for have, want in zip(program(x, y), (np.cumsum(a * b, -1) + x, a)):
        assert isinstance(have, jax.Array)
        np.testing.assert_allclose(have, want, rtol=1e-14)
    assert repr(program).startswith(
        "ExecProgram(7 instructions, 4 segments, 3 host steps): (float64[3,4], float64[3,4]) -> "
    )


@pytest.mark.parametrize(
    ("fn", "kinds"),
    {
        "host first and last": (cumulate, [HostStep]),
        "an input and a host result": (lambda x: (x, cumulate(x)), [Segment, HostStep]),
        "a constant into the host": (
            lambda x: cumulate(jnp.ones((2, 3))) + x[:2, :3],
            [Segment, HostStep, Segment],
        ),
        "a constant on both sides": (
            lambda x: cumulate(x + jnp.arange(4.0)[None]) * jnp.arange(4.0)[None],
            [Segment, HostStep, Segment],
        ),
        "a constant as output": (lambda x: (cumulate(x), jnp.ones(2)), [HostStep, Segment]),
        "mapped": (jax.vmap(cumulate), [HostStep]),
        "nothing at all": (lambda x: (), [Segment]),
    }.values(),
)
def test_steps_around_a_host_op(fn, kinds):
    x = np.random.default_rng(2).normal(size=(3, 4))
    program = compile_std_to_exec(trace(fn, x))
    assert [type(s) for s in program.steps] == kinds
    want, have = jax.tree.leaves(fn(jnp.asarray(x))), jax.tree.leaves(program(x))
    assert all(isinstance(h, jax.Array) for h in have)
    chex.assert_trees_all_close(have, want, rtol=1e-14)


@pytest.mark.clause("X8.9")
def test_a_host_op_inside_a_loop_stays_a_callback():
    x = np.arange(4.0)
    program = compile_std_to_exec(
        trace(lambda x: lax.fori_loop(0, 2, lambda i, c: cumulate(c), x), x)
    )
    assert [type(s) for s in program.steps] == [Segment]
    assert [r.kind for r in program.routes] == [RouteKind.HOST]
    np.testing.assert_array_equal(program(x), np.cumsum(np.cumsum(x)))


def test_last_uses_are_those_that_a_forward_scan_finds():
    program = compile_std_to_exec(
        trace(lambda x, y: (cumulate(x * y) + y * jnp.sin(y), x), np.ones((2, 2)), np.ones((2, 2)))
    )
    flat = program.instructions
    for at, instruction in enumerate(flat):
        for slot, last in zip(instruction.inputs, instruction.last_use):
            later = (
                any(slot in other.inputs for other in flat[at + 1 :])
                or slot in program.graph.outputs
            )
            assert last == (not later)
    for instruction in flat:
        assert [m.shape for m in instruction.metas] == [
            program.slots[i].shape for i in instruction.outputs
        ]


def test_validate_nonsingular_is_a_host_step_that_speaks_for_the_values():
    builder = GraphBuilder()
    matrix, columns = builder.input(np.eye(3)), builder.input(np.ones((3, 1)))
    (checked,) = builder.add(ValidateNonsingular(), matrix)
    graph = builder.build(list(builder.add(Solve(), checked, columns)))
    engine = Engine()
    assert engine.eval(graph, 2 * np.eye(3), np.ones((3, 1)))[0].tolist() == [[0.5]] * 3
    assert [type(step).__name__ for step in engine.compile(graph).steps] == ["HostStep", "Segment"]
    each_ends_in(
        (
            lambda: engine.eval(graph, np.ones((3, 3)), np.ones((3, 1))),
            BackendFailure,
            r"ValidateNonsingular: given a singular matrix; needed nonsingular matrices",
        ),
        (
            (lambda: jax.jit(graph.to_jax())(np.eye(3), np.ones((3, 1))), lambda: export(graph)),
            Unsupported,
            r"ValidateNonsingular: given a call in a compiled program.*Engine\.eval",
        ),
    )
