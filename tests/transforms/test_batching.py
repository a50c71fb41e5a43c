"""vmap over every subset of inputs and every axis, nested, with names; and with derivatives inside
and outside.
"""

import itertools

import jax
import numpy as np
import pytest

from .matrix import agree, agree_numerically, sweep


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


@pytest.mark.clause("X13.1")
@sweep("grad of vmap of vmap")
def test_nested_vmap_of_grad(case):
    batch = [np.stack([b, 0.7 * b]) for b in case.batch(2)]
    got = jax.jit(jax.grad(lambda *xs: jax.vmap(jax.vmap(case.scalar))(*xs).sum(), case.argnums))(
        *batch
    )
    rows = [case.stacked_gradients(*(b[i] for b in batch)) for i in range(2)]
    agree_numerically(got, [np.stack(column) for column in zip(*rows)])
