"""What a compiled program tells: cost, memory, text, and who executes what."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum
from tenferro_jax import Engine, compile_std_to_exec, trace
from tenferro_jax.engine import Cost
from tenferro_jax.errors import Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind

from ..extension_ops import HostCumulate
from ..helpers import ends_in
from ..oracles import brute_force


def test_cost_and_memory_of_one_segment_are_what_xla_says_of_the_jitted_function():
    a, b = np.ones((32, 16)), np.ones((16, 64))

    def fn(a, b):
        return jnp.tanh(a @ b).sum(0)

    program = compile_std_to_exec(trace(fn, a, b))
    compiled = jax.jit(fn).lower(a, b).compile()
    want = compiled.cost_analysis()
    assert program.cost() == Cost(want["flops"], want["bytes accessed"])
    assert program.cost().flops >= 2 * 32 * 16 * 64
    memory, stats = program.memory(), compiled.memory_analysis()
    assert (memory.argument, memory.output, memory.temp) == (8 * (32 * 16 + 16 * 64), 8 * 64, stats.temp_size_in_bytes)
    assert memory.peak == memory.argument + memory.output + memory.temp


def test_cost_and_memory_sum_over_segments():
    x = np.ones((100, 100))
    matmul = compile_std_to_exec(trace(lambda x: x @ x, x)).cost().flops
    program = compile_std_to_exec(trace(lambda x: jnp.sin(apply(HostCumulate(), x @ x)[0]) + x, x))
    assert matmul < program.cost().flops < 1.1 * matmul
    memory = program.memory()
    assert (memory.argument, memory.output) == (x.nbytes, x.nbytes)
    assert memory.peak == 3 * x.nbytes  # x, the product, the host's copy of its sums; later the result in place of the product


def test_a_platform_without_analysis_is_a_typed_error(monkeypatch):
    program = compile_std_to_exec(trace(lambda x: x + 1, np.ones(2)))
    for ask in (program.cost, program.memory):
        with monkeypatch.context() as patch:
            patch.setattr(type(program.segments[0].compiled), "cost_analysis", lambda self: None)
            patch.setattr(type(program.segments[0].compiled), "memory_analysis", lambda self: None)
            ends_in(ask, Unsupported, r"without (cost|memory) analysis")


@pytest.mark.clause("X8.2")
def test_programs_explain_steps_and_routes():
    x = np.random.default_rng(0).normal(size=(3, 3))
    program = Engine().compile(trace(lambda x: apply(HostCumulate(), tropical_einsum("ij,jk->ik", x, x))[0] * x + 1.0, x))
    assert [r.kind for r in program.routes] == [RouteKind.LOWERING, RouteKind.HOST]
    assert program.explain().splitlines() == [
        "ExecProgram(6 instructions, 2 segments, 1 host step): (float64[3,3]) -> (float64[3,3])",
        "  0 segment  1 in, 1 out: 1 tenferro-ext-tropical.einsum.v1",
        "  1 host     1 in, 1 out: test-package.host_cumulate.v1",
        "  2 segment  2 in, 1 out: 1 Add, 1 BroadcastInDim, 1 Constant, 1 Mul",
        "  tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its kernel declines: one reduction does it)",
        "  test-package.host_cumulate.v1 on cpu: host (eager_execute on the host)",
    ]
    text = program.as_text()
    assert text.count("HloModule") == 2
    assert text.startswith("// step 0\nHloModule jit_segment_0")
    want = np.cumsum(brute_force("max_plus", "ij,jk->ik", x, x)[0], -1) * x + 1.0
    np.testing.assert_allclose(program(x), want, rtol=1e-14)


def test_routes_inside_control_flow_are_told_too():
    x = np.ones((2, 2))
    program = compile_std_to_exec(trace(lambda x: jax.lax.fori_loop(0, 2, lambda i, c: tropical_einsum("ij,jk->ik", c, x), x), x))
    assert [str(r) for r in program.routes] == [
        "tenferro-ext-tropical.einsum.v1 on cpu: lowering (standard ops, compiled by XLA; its kernel declines: one reduction does it)"
    ]
