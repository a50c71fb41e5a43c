"""What several files judge by: an assignment put back into the operands, and derivatives by
differences.
"""

import contextlib
import functools

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import best_assignment, tropical_einsum

from ..oracles import ALGEBRAS, central_difference, object_einsum

# The checks of what a family writes itself; what all families share is checked of one of them.
OWN = ("jvp", "linear", "inactive_slots", "vjp", "linear_transpose", "vmap", "routes")


def places(equation, labels, shape):
    """For each operand the index of the entry that each cell of the output uses."""
    inputs, output = equation.split("->")
    index = dict(zip(output, np.indices(shape), strict=True)) | {
        label: np.asarray(i) for label, i in labels.items()
    }
    return [tuple(index[label] for label in term) for term in inputs.split(",")]


def product_at(times, equation, operands, labels, shape):
    """The product of the operands' entries at an assignment, in NumPy."""
    used = zip(operands, places(equation, labels, shape), strict=True)
    return functools.reduce(times, (np.asarray(x)[place] for x, place in used))


def check_assignment(name, equation, operands, value, labels):
    """The value is NumPy's, and the product of the operands at the labels has it: the assignment is
    optimal.
    """
    want = object_einsum(name, equation, *operands)
    np.testing.assert_array_equal(value, want, strict=True)
    assert set(labels) == set(equation.split("->")[0]) - set(equation.split("->")[1]) - {","}
    np.testing.assert_array_equal(
        product_at(ALGEBRAS[name].times, equation, operands, labels, want.shape), want
    )


def assignment_and_gradient(equation, *operands, semiring="max_plus", **options):
    """The best assignment, and the gradient of the sum of all cells: one program."""

    @jax.jit
    def solve(*xs):
        total = jax.grad(
            lambda *xs: tropical_einsum(equation, *xs, semiring=semiring, **options).sum(),
            tuple(range(len(xs))),
        )
        return best_assignment(equation, *xs, semiring=semiring, **options), total(*xs)

    return solve(*operands)


def uses(equation, operands, labels, shape):
    """How often an assignment uses each entry: the gradient of the sum of all cells where times
    adds.
    """
    counts = [np.zeros(np.shape(x)) for x in operands]
    for count, place in zip(counts, places(equation, labels, shape), strict=True):
        np.add.at(count, place, 1)
    return counts


def check_derivatives(f, operands, oracle=None):
    """First and second derivatives of f in both modes, all in one program.

    The first are judged by differences of the NumPy function `oracle`, where there is one, or of f;
    the second by differences of the first.
    """
    rng = np.random.default_rng(0)
    along = tuple(rng.normal(size=np.shape(x)) for x in operands)
    every = tuple(range(len(operands)))

    def scalar(*xs, f=f, xp=jnp):
        value = f(*xs)
        return (xp.sin(value) * np.cos(np.arange(value.size)).reshape(value.shape)).sum()

    def push(fn):
        return lambda *xs: jax.jvp(fn, xs, along)[1]

    gradient = jax.grad(scalar, every)

    def pulled(*xs):
        return sum((g * t).sum() for g, t in zip(gradient(*xs), along, strict=True))

    @jax.jit
    def derivatives(*xs):
        second = (
            push(gradient)(*xs),
            jax.grad(push(scalar), every)(*xs),
            jax.grad(pulled, every)(*xs),
        )
        return scalar(*xs), gradient(*xs), push(scalar)(*xs), second, push(push(scalar))(*xs)

    value, first, slope, second, bend = derivatives(*operands)
    step = 1e-5
    ends = [
        derivatives(*(x + sign * step * t for x, t in zip(operands, along, strict=True)))
        for sign in (1, -1)
    ]

    def difference(of):
        return jax.tree.map(
            lambda up, down: (np.asarray(up) - np.asarray(down)) / (2 * step), *map(of, ends)
        )

    close = functools.partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-5)
    close(slope, difference(lambda end: end[0]))
    close(slope, sum((g * t).sum() for g, t in zip(first, along, strict=True)))
    for each in second:
        close(each, difference(lambda end: end[1]))
    close(bend, difference(lambda end: end[2]))
    if oracle:
        numbers = functools.partial(scalar, f=oracle, xp=np)
        differences = [central_difference(numbers, list(operands), i) for i in every]
        chex.assert_trees_all_close(
            (value, *first), (numbers(*operands), *differences), rtol=1e-6, atol=1e-6
        )


@contextlib.contextmanager
def nothing_compiled():
    """XLA compiles nothing in the block."""
    seen = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: seen.append(name))
    try:
        yield
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [name for name in seen if "backend_compile" in name]


def temporary_bytes(f, *specs):
    """What XLA allocates beside operands and results."""
    return jax.jit(f).lower(*specs).compile().memory_analysis().temp_size_in_bytes


def check_memory_of_second_derivatives(f):
    """No array of all candidates is held; the program of the second derivative computes value and
    gradient as well.
    """
    m, k, n = 400, 420, 440

    def gradient(f):
        return lambda a, b: sum(
            x.sum() for x in jax.grad(lambda a, b: jnp.sin(f(a, b)).sum(), (0, 1))(a, b)
        )

    specs = [jax.ShapeDtypeStruct(shape, np.float32) for shape in ((m, k), (k, n))]
    one = 4 * max(m * k, k * n, m * n)
    assert temporary_bytes(gradient(gradient(f)), *specs) < 40 * one < 4 * m * k * n / 4


def refusals(*rows):
    """A test of cases: an error, what its message matches, a call that raises it."""

    @pytest.mark.parametrize(("error", "text", "call"), rows)
    def test(error, text, call):
        with pytest.raises(error, match=text or None):
            call()

    return test
