"""Forward values under jit, vmap, scan, cond, while, checkpoint, AOT, disable_jit: equal to the NumPy oracle."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ..cases import CASES, LOWERED, ids

sweep = pytest.mark.parametrize("case", CASES, ids=ids(CASES))


def check(got, want, exact=True):
    got, want = tuple(got), tuple(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert g.shape == w.shape
        assert g.dtype == w.dtype
        np.testing.assert_allclose(g, w, rtol=0 if exact and w.dtype.kind == "i" else 1e-13, atol=1e-13)


@sweep
def test_eager_and_jit(case):
    check(case(*case.inputs), case.oracle(*case.inputs))
    check(jax.jit(case)(*case.inputs), case.oracle(*case.inputs))


@sweep
def test_disable_jit_and_leak_checks(case):
    with jax.disable_jit():
        check(case(*case.inputs), case.oracle(*case.inputs))
    with jax.checking_leaks(), jax.enable_checks(True):
        check(jax.jit(lambda *xs: case(*xs))(*case.inputs), case.oracle(*case.inputs))


def stacked(case, axes, size=3):
    """Inputs with a batch axis where axes[i] is not None, and the oracle's outputs stacked."""
    rng = np.random.default_rng(1)
    batch = [rng.permuted(np.stack([x + 0.1 * i for i in range(size)]), axis=0) for x in case.inputs]
    args = [x if a is None else np.moveaxis(b, 0, a) for x, b, a in zip(case.inputs, batch, axes)]
    rows = [case.oracle(*(x if a is None else b[i] for x, b, a in zip(case.inputs, batch, axes))) for i in range(size)]
    return args, [np.stack(column) for column in zip(*rows)]


@sweep
def test_vmap_over_every_subset_of_inputs(case):
    for axes in itertools.product((None, 0, 1), repeat=len(case.inputs)):
        if any(a is not None for a in axes):
            args, want = stacked(case, axes)
            check(jax.vmap(case, in_axes=axes)(*args), want)
            check(jax.jit(jax.vmap(case, in_axes=axes, axis_name="batch"))(*args), want)


@sweep
def test_nested_vmap(case):
    args = [np.stack([np.stack([x, x + 1]), np.stack([x - 1, x * 2]), np.stack([x, -x])]) for x in case.inputs]
    rows = [[case.oracle(*(a[i, j] for a in args)) for j in range(2)] for i in range(3)]
    want = [np.stack([np.stack([rows[i][j][k] for j in range(2)]) for i in range(3)]) for k in range(len(rows[0][0]))]
    check(jax.vmap(jax.vmap(case))(*args), want)
    swapped = [np.swapaxes(a, 0, 1) for a in args]
    check(jax.vmap(jax.vmap(case), in_axes=1)(*swapped), want)


@sweep
def test_scan_while_and_cond(case):
    args = [np.stack([x, x + 1, x - 1]) for x in case.inputs]
    want = [np.stack(column) for column in zip(*(case.oracle(*(a[i] for a in args)) for i in range(3)))]
    _, got = jax.lax.scan(lambda c, xs: (c, case(*xs)), 0, tuple(jnp.asarray(a) for a in args))
    check(got, want)

    first = jax.lax.fori_loop(0, 2, lambda i, v: v + case(*case.inputs)[0], jnp.zeros_like(case.oracle(*case.inputs)[0]))
    np.testing.assert_allclose(first, 2 * case.oracle(*case.inputs)[0], rtol=1e-12)

    def branch(flag, *xs):
        return jax.lax.cond(flag, lambda *xs: case(*xs)[0], lambda *xs: case(*(x + 1 for x in xs))[0], *xs)

    for flag in (True, False):
        moved = [x if flag else x + 1 for x in case.inputs]
        np.testing.assert_allclose(jax.jit(branch)(flag, *case.inputs), case.oracle(*moved)[0], rtol=1e-12)


@sweep
def test_ahead_of_time_and_donation(case):
    compiled = jax.jit(case).lower(*case.inputs).compile()
    check(compiled(*case.inputs), case.oracle(*case.inputs))


def test_donated_input_is_used_up():
    case = CASES[0]
    x = jnp.array(case.inputs[0])
    check(jax.jit(case, donate_argnums=0)(x), case.oracle(case.inputs[0]))
    assert x.is_deleted()


@pytest.mark.parametrize("case", LOWERED, ids=ids(LOWERED))
def test_equal_ops_compile_once(case):
    traces = []

    @functools.partial(jax.jit, static_argnums=0)
    def f(op, *xs):
        traces.append(op)
        return case(*xs)

    f(case.op, *case.inputs)
    f(type(case.op)(**vars_of(case.op)), *case.inputs)
    assert len(traces) == 1


def vars_of(op):
    return {name: getattr(op, name) for name in op.__dataclass_fields__}
