"""Eager calls, jit, disable_jit, ahead-of-time compilation, donation, and JAX's own checks."""

import functools

import chex
import jax
import jax.numpy as jnp
import pytest

from tenferro_jax.extension import apply
from tenferro_jax.extension.carrier import Extension

from ..cases import CASES, ids
from .matrix import agree, agree_numerically, sweep


@pytest.mark.clause("X8.10")
@sweep("eager")
def test_eager(case):
    agree(case(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X8.10")
@sweep("jit")
def test_jit(case):
    agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


@sweep("disable_jit")
def test_disable_jit(case):
    with jax.disable_jit():
        agree(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("ahead of time")
def test_ahead_of_time(case):
    agree(jax.jit(case).lower(*case.inputs).compile()(*case.inputs), case.oracle(*case.inputs))


@pytest.mark.clause("X13.3")
@sweep("donation")
def test_donated_inputs_are_overwritten_and_the_results_are_right(case):
    """Every input has an output of its own shape beside the op's: its buffer is reused while the op
    reads it.
    """
    arrays = [jnp.array(x) for x in case.inputs]
    outs, moved = jax.jit(
        lambda *xs: (case(*xs), [x + 1 for x in xs]), donate_argnums=case.argnums
    )(*arrays)
    agree(outs, case.oracle(*case.inputs))
    agree(moved, [x + 1 for x in case.inputs])
    assert all(x.is_deleted() for x in arrays)


def check_value_vmap_and_grad(case):
    """The three in one program."""
    batch = case.batch(2)
    differentiable = case.kind != "integer outputs"

    def program(xs, batch):
        return (
            case(*xs),
            jax.vmap(case)(*batch),
            jax.grad(case.scalar, case.argnums)(*xs) if differentiable else (),
        )

    value, mapped, gradients = jax.jit(program)(case.inputs, batch)
    agree(value, case.oracle(*case.inputs))
    agree(mapped, case.stacked(*batch))
    agree_numerically(gradients, case.gradients(*case.inputs) if differentiable else ())


@sweep("checking_leaks")
def test_no_tracer_leaks(case):
    with jax.checking_leaks():
        check_value_vmap_and_grad(case)


@sweep("enable_checks")
def test_jax_finds_nothing_to_complain_about(case):
    with jax.enable_checks(True):
        check_value_vmap_and_grad(case)


@pytest.mark.few(5)
@pytest.mark.parametrize("case", CASES, ids=ids(CASES))
def test_equal_ops_are_traced_once(case):
    @functools.partial(jax.jit, static_argnums=0)
    @chex.assert_max_traces(1)
    def f(carrier, *xs):
        return apply(carrier, *xs, runtimes=case.runtimes)

    carrier = Extension.of(case.op)
    rebuilt = type(carrier.op)(
        **{
            name: getattr(carrier.op, name)
            for name in getattr(carrier.op, "__dataclass_fields__", ())
        }
    )
    f(carrier, *case.inputs)
    f(Extension(rebuilt, carrier.batching), *case.inputs)
