"""How a graph becomes steps: what XLA sees, where the host stands between, what is given back."""

import chex
import jax
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
from tenferro_jax.errors import BackendFailure, DTypeError, InvalidConfig, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind
from tenferro_jax.graph import GraphBuilder
from tenferro_jax.ops.linalg import Solve, ValidateNonsingular

from ..extension_ops import HostCumulate
from ..helpers import each_ends_in


def cumulate(x):
    return apply(HostCumulate(), x)[0]


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
    "loop": (lambda x: lax.fori_loop(0, 3, lambda i, c: jnp.sin(c) + x, x), (np.ones(3),)),
    "while": (
        lambda x: lax.while_loop(lambda c: c.sum() < 9.0, lambda c: c + x, x),
        (np.ones(3),),
    ),  # cond: one clamp more
    "tropical": (lambda x: tropical_einsum("ij,jk->ik", x, x), (np.ones((3, 3)),)),
    "a training step": (training_step.step, training_step.arguments(8, 4, 5, 3)),
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


def test_the_comparison_of_programs_tells_them_apart():
    texts = {
        canonical_hlo(jax.jit(f).lower(np.ones(3)).compile().as_text())
        for f in (jnp.sin, jnp.cos, lambda x: jnp.sin(x) + 1)
    }
    assert len(texts) == 3


@pytest.mark.clause("X8.9")
def test_host_ops_stand_between_as_few_segments_as_their_depth_asks():
    def fn(x, y):
        a, b = (
            cumulate(jnp.sin(x)),
            cumulate(jnp.cos(y)),
        )  # one level: one segment before, one after
        return cumulate(a * b) + x, a

    x, y = np.random.default_rng(1).normal(size=(2, 3, 4))
    program = compile_std_to_exec(trace(fn, x, y))
    assert [type(s) for s in program.steps] == [
        Segment,
        HostStep,
        HostStep,
        Segment,
        HostStep,
        Segment,
    ]
    assert [r.kind for r in program.routes] == [RouteKind.HOST] * 3
    a, b = np.cumsum(np.sin(x), -1), np.cumsum(np.cos(y), -1)
    for have, want in zip(program(x, y), (np.cumsum(a * b, -1) + x, a)):
        assert isinstance(have, jax.Array)
        np.testing.assert_allclose(have, want, rtol=1e-14)
    assert repr(program).startswith(
        "ExecProgram(7 instructions, 3 segments, 3 host steps): (float64[3,4], float64[3,4]) -> "
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
        "a constant as output": (lambda x: (cumulate(x), jnp.ones(2)), [Segment, HostStep]),
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


def test_constants_do_not_travel_between_segments():
    program = compile_std_to_exec(
        trace(lambda x: cumulate(x * jnp.arange(4.0)) * jnp.arange(4.0), np.ones(4))
    )
    assert [(len(s.inputs), len(s.outputs)) for s in program.segments] == [(1, 1), (1, 1)]


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


def test_refusals():
    (b,) = jax.export.symbolic_shape("b")
    each_ends_in(
        (
            lambda: compile_std_to_exec(trace(lambda x: x, jax.ShapeDtypeStruct((b,), np.float64))),
            InvalidConfig,
            r"symbolic inputs float64\[b\]",
        ),
        (lambda: compile_std_to_exec(lambda x: x), InvalidConfig, "needed a Graph"),
    )
    graph = trace(lambda i: i.astype(np.float64).sum(), jax.ShapeDtypeStruct((2,), np.int32))
    with jax.enable_x64(False), pytest.raises(DTypeError, match="64-bit types"):
        compile_std_to_exec(graph)


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
