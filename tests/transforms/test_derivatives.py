"""First and second derivatives, forward and reverse, against finite differences of the NumPy
oracle, also with 64-bit types off; and vmap over every subset of inputs and every axis.
"""

import itertools

import jax
import numpy as np
import pytest

from .matrix import agree, agree_numerically, sweep


def directions(case, seed=3):
    rng = np.random.default_rng(seed)
    return tuple(rng.normal(size=x.shape) for x in case.inputs)


def along(case, tangents, step=1e-6):
    """The derivative of every output of the oracle along the tangents; None for an
    integer output.
    """
    ahead, behind = (
        case.oracle(*(x + s * step * t for x, t in zip(case.inputs, tangents))) for s in (1, -1)
    )
    return [(a - b) / (2 * step) if a.dtype.kind == "f" else None for a, b in zip(ahead, behind)]


def agree_with_tangents(got, want):
    """Tangents against finite differences; those of integers have the dtype without values."""
    assert len(got) == len(want)
    for g, w in zip(got, want):
        if w is None:
            assert g.dtype == jax.dtypes.float0
        else:
            agree_numerically([g], [w])


def floating(case):
    """The floating outputs; all of them where there are none."""

    def outputs(*xs):
        outs = case(*xs)
        return tuple(out for out in outs if out.dtype.kind == "f") or outs

    return outputs


@pytest.mark.clause("X10.6", "X10.8")
@sweep("jvp")
def test_jvp(case):
    tangents = directions(case)
    outs, got = jax.jvp(case, case.inputs, tangents)
    agree(outs, case.oracle(*case.inputs))
    agree_with_tangents(got, along(case, tangents))


@sweep("linearize")
def test_linearize(case):
    tangents = directions(case)
    outs, linear = jax.linearize(case, *case.inputs)
    agree(outs, case.oracle(*case.inputs))
    agree_with_tangents(linear(*tangents), along(case, tangents))


@pytest.mark.clause("X10.7")
@sweep("vjp")
def test_vjp(case):
    """The adjoint of the derivative: <w, J v> = <J' w, v>, J v from finite differences."""
    tangents = directions(case)
    outs, pullback = jax.vjp(floating(case), *case.inputs)
    if case.kind == "integer outputs":
        (none,) = pullback(tuple(np.zeros(out.shape, jax.dtypes.float0) for out in outs))
        assert not np.any(none)
        return
    weights = tuple(np.cos(np.arange(out.size, dtype=float)).reshape(out.shape) for out in outs)
    got = sum(np.vdot(ct, t) for ct, t in zip(pullback(weights), tangents))
    want = sum(
        np.vdot(w, t) for w, t in zip(weights, (t for t in along(case, tangents) if t is not None))
    )
    np.testing.assert_allclose(got, want, rtol=1e-6)


@pytest.mark.clause("X10.3")
@sweep("grad")
def test_grad(case):
    """With respect to all inputs at once, and to each alone."""
    want = case.gradients(*case.inputs)
    together = jax.grad(case.scalar, case.argnums)
    alone = [jax.grad(case.scalar, i) for i in case.argnums]
    agree_numerically(together(*case.inputs), want, 1e-6)
    agree_numerically(jax.jit(lambda *xs: [g(*xs) for g in alone])(*case.inputs), want, 1e-6)


def second_differences(case, step=1e-4):
    """The Hessian of the oracle's scalar with respect to the first input."""
    x, *rest = case.inputs
    unit = step * np.eye(x.size).reshape(x.size, *x.shape)

    def f(move):
        return case.scalar_oracle(x + move, *rest)

    rows = [[f(a + b) - f(a - b) - f(b - a) + f(-a - b) for b in unit] for a in unit]
    return (np.array(rows) / (4 * step**2)).reshape(*x.shape, *x.shape)


@pytest.mark.clause("X10.14")
@sweep("hessian")
def test_hessian(case):
    """Forward over reverse, and reverse over reverse."""
    want = second_differences(case)
    agree_numerically([jax.jit(jax.hessian(case.scalar))(*case.inputs)], [want], 1e-4)
    agree_numerically([jax.jit(jax.jacrev(jax.grad(case.scalar)))(*case.inputs)], [want], 1e-4)


@pytest.mark.clause("X10.7", "X10.11")
@sweep("linear_transpose")
def test_linear_transpose(case):
    """<w, A x> = <A' w, x> for an op that is linear in its first input, A x from the oracle."""
    x, *rest = case.inputs
    value = case.oracle(x, *rest)[0]
    w = np.cos(np.arange(value.size, dtype=float)).reshape(value.shape)
    (back,) = jax.linear_transpose(lambda x: floating(case)(x, *rest)[0], x)(w.astype(value.dtype))
    np.testing.assert_allclose(np.vdot(w, value), np.vdot(back, x), rtol=1e-12)


# custom_jvp and custom_vjp around an extension: their rule is used, and may use the extension's own


@pytest.mark.clause("X13.3")
@sweep("inside custom_jvp")
def test_custom_jvp(case):
    """The rule says twice what the extension's own rule says."""

    @jax.custom_jvp
    def doubled(*xs):
        return case.scalar(*xs)

    @doubled.defjvp
    def rule(primals, tangents):
        value, tangent = jax.jvp(case.scalar, primals, tangents)
        return value, 2 * tangent

    got = jax.jit(jax.grad(doubled, case.argnums))(*case.inputs)
    agree_numerically(got, [2 * g for g in case.gradients(*case.inputs)])


@pytest.mark.clause("X13.3")
@sweep("inside custom_vjp")
def test_custom_vjp(case):
    @jax.custom_vjp
    def doubled(*xs):
        return case.scalar(*xs)

    def backward(xs, ct):
        return tuple(2 * ct * g for g in jax.grad(case.scalar, case.argnums)(*xs))

    doubled.defvjp(lambda *xs: (case.scalar(*xs), xs), backward)
    got = jax.jit(jax.grad(doubled, case.argnums))(*case.inputs)
    agree_numerically(got, [2 * g for g in case.gradients(*case.inputs)])


# 64-bit types off: float32 values and derivatives, and integers that stay 32 bits wide


def narrowed(arrays):
    """Floating arrays as float32."""
    return [a.astype(np.float32) if a.dtype.kind == "f" else a for a in arrays]


@sweep("x64 off")
def test_values_and_vmap_with_x64_off(case):
    batch = case.batch(2)
    with jax.enable_x64(False):
        agree(case(*narrowed(case.inputs)), narrowed(case.oracle(*case.inputs)), 1e-5)
        agree(jax.jit(jax.vmap(case))(*narrowed(batch)), narrowed(case.stacked(*batch)), 1e-5)


@sweep("grad with x64 off")
def test_grad_with_x64_off(case):
    with jax.enable_x64(False):
        got = jax.jit(jax.grad(case.scalar, case.argnums))(*narrowed(case.inputs))
        agree_numerically(got, narrowed(case.gradients(*case.inputs)), 1e-4)


def subsets(case):
    """in_axes: for each input None or any axis of its batched form (first and last from rank 3),
    not all None.
    """
    choices = [(None, *(range(x.ndim + 1) if x.ndim < 3 else (0, x.ndim))) for x in case.inputs]
    return [axes for axes in itertools.product(*choices) if any(axis is not None for axis in axes)]


def arranged(batch, case, axes):
    """The batch with its axis where `axes` says; the first element alone where it says None; and
    the same by element.
    """
    args = [
        x if axis is None else np.moveaxis(b, 0, axis)
        for x, b, axis in zip(case.inputs, batch, axes)
    ]
    by_element = [
        np.stack([x] * len(b)) if axis is None else b
        for x, b, axis in zip(case.inputs, batch, axes)
    ]
    return args, by_element


@pytest.mark.clause("X13.1", "X13.2")
@sweep("vmap")
def test_vmap_over_every_subset_of_inputs_and_axes(case):
    batch = case.batch(2)
    args, by_element = zip(*(arranged(batch, case, axes) for axes in subsets(case)))
    mapped = jax.jit(
        lambda args: [
            jax.vmap(case, in_axes=axes, axis_name="batch")(*xs)
            for axes, xs in zip(subsets(case), args)
        ]
    )
    for got, elements in zip(mapped(args), by_element):
        agree(got, case.stacked(*elements))
    agree(jax.vmap(case)(*batch), case.stacked(*batch))


@pytest.mark.clause("X13.1")
@sweep("vmap of vmap")
def test_nested_vmap(case):
    batch = [np.stack([b, 2 * b, -b]) for b in case.batch(2)]
    rows = [case.stacked(*(b[i] for b in batch)) for i in range(3)]
    want = [np.stack(column) for column in zip(*rows)]
    agree(jax.jit(jax.vmap(jax.vmap(case)))(*batch), want)
    agree(jax.jit(jax.vmap(jax.vmap(case), in_axes=1, out_axes=1))(*batch), want)
    outer = [np.moveaxis(b, 1, -1) for b in batch]
    agree(jax.jit(jax.vmap(jax.vmap(case, in_axes=-1)))(*outer), want)


@pytest.mark.clause("X13.1")
@sweep("grad of vmap, vmap of grad")
def test_derivatives_in_and_around_vmap(case):
    batch = case.batch(2)
    choices = [axes for axes in itertools.product((None, 0), repeat=len(batch)) if 0 in axes]
    args, by_element = zip(*(arranged(batch, case, axes) for axes in choices))

    def both(axes, xs):
        inside = jax.vmap(jax.grad(case.scalar, case.argnums), in_axes=axes)
        around = jax.grad(lambda *xs: jax.vmap(case.scalar, in_axes=axes)(*xs).sum(), case.argnums)
        return inside(*xs), around(*xs)

    results = jax.jit(lambda args: [both(axes, xs) for axes, xs in zip(choices, args)])(args)
    for axes, elements, (inside, around) in zip(choices, by_element, results):
        want = case.stacked_gradients(*elements)
        agree_numerically(inside, want)
        agree_numerically(around, [w.sum(0) if axis is None else w for w, axis in zip(want, axes)])
