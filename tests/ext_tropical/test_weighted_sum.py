"""Weighted sums against np.einsum on the array of all weights."""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import log_sum_exp, max_mul, max_plus, min_plus
from ext_tropical.step.weighted_sum import Place, WeightedSum
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply

from ..sweep import ALL, in_turn, some
from .judges import refusals

LHS, RHS, OUT = Place
DERIVATIVES = {
    "": lambda a, b: 1.0,
    "l": lambda a, b: b,
    "r": lambda a, b: a,
    "lr": lambda a, b: 1.0,
    "ll": lambda a, b: 0.0,
}


def made(op, sizes, seed=0):
    """(inputs of the op, the array of all weights, its labels, labels of the inputs); integers, so
    that ties are many.
    """
    rng = np.random.default_rng(seed)
    operands = op.layout.equation
    labels = "".join(sorted(set("".join(operands.inputs))))
    size = dict(zip(labels, sizes))
    places = {LHS: operands.inputs[0], RHS: operands.inputs[-1], OUT: operands.output}
    arrays = [
        rng.integers(-2, 3, [size[label] for label in term]).astype(float)
        for term in operands.inputs
    ]
    full = [
        np.einsum(f"{term},{labels}->{labels}", x, np.ones([size[c] for c in labels]))
        for term, x in zip(operands.inputs, arrays)
    ]
    p = (
        full[0]
        if len(full) == 1
        else full[0] * full[1]
        if op.algebra == max_mul
        else full[0] + full[1]
    )
    order = [labels.index(label) for label in operands.output]
    axes = tuple(i for i in range(len(labels)) if i not in order)
    if op.algebra in (max_plus, max_mul, min_plus):
        value = (
            np.min(p, axes, keepdims=True)
            if op.algebra == min_plus
            else np.max(p, axes, keepdims=True)
        )
        weights = (p == value) * (DERIVATIVES[op.partial](*full) if len(full) == 2 else 1.0)
    else:
        value = (
            np.log(np.exp(p / op.algebra.temperature).sum(axes, keepdims=True))
            * op.algebra.temperature
        )
        weights = np.exp((p - value) / op.algebra.temperature)
    value = np.transpose(np.squeeze(value, axes), np.argsort(np.argsort(order)))
    factors = [rng.normal(size=[size[label] for label in places[place]]) for place in op.places]
    return [*arrays, value, *factors], weights, labels, places


def judge(op, inputs, weights, labels, places):
    terms = ",".join([labels, *(places[place] for place in op.places)])
    return np.einsum(
        f"{terms}->{places[op.output]}", weights, *inputs[len(op.layout.equation.inputs) + 1 :]
    )


def check(op, sizes, seed=0):
    inputs, *rest = made(op, sizes, seed)
    want = judge(op, inputs, *rest)
    for got in (apply(op, *inputs)[0], op.eager_execute(*inputs)[0]):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


FACTORS = [(), (LHS,), (RHS,), (OUT,), (LHS, RHS, OUT), (OUT, OUT, LHS), (RHS, RHS)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("semiring", "output"),
    some(list(itertools.product((log_sum_exp(0.7), max_mul, min_plus), Place)), 2),
    ids=str,
)
def test_every_place_of_result_and_factors(semiring, output):
    for equation, places in in_turn(("ij,jk->ik", "bij,jbk->kib"), FACTORS, 1):
        check(
            WeightedSum(semiring, equation, places, output),
            (2, 3, 19, 2) if "b" in equation else (3, 19, 2),
        )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "sizes", [(1, 9, 3), (3, 1, 9), (9, 3, 1), (2, 7, 8), (8, 9, 17), (16, 2, 3)]
)
@pytest.mark.parametrize("output", Place)
def test_sizes_around_those_of_a_block(output, sizes):
    check(WeightedSum(log_sum_exp(), "ij,jk->ik", (LHS, OUT), output), sizes)


@pytest.mark.few(3)
@pytest.mark.parametrize(("m", "k", "n"), [(2, 0, 3), (0, 2, 3), (2, 3, 0)])
@pytest.mark.parametrize("output", Place)
def test_a_sum_of_nothing_is_zero(output, m, k, n):
    op = WeightedSum(max_plus, "ij,jk->ik", (), output)
    inputs = [np.zeros(shape) for shape in ((m, k), (k, n), (m, n))]
    want = np.zeros_like(inputs[list(Place).index(output)])
    for got in (apply(op, *inputs)[0], op.eager_execute(*inputs)[0]):
        np.testing.assert_array_equal(got, want)


@pytest.mark.slow
@pytest.mark.parametrize("output", [LHS, OUT])
@pytest.mark.parametrize("semiring", [log_sum_exp(2.0), max_plus], ids=repr)
def test_one_operand(semiring, output):
    for equation, places in in_turn(("ijk->kj", "ij->", "ij->i"), [(), (LHS,), (OUT, LHS)], 1):
        check(WeightedSum(semiring, equation, places, output), (3, 9, 2))


@pytest.mark.few(2)
@pytest.mark.parametrize("partial", ["l", "r", "lr", "ll"])
@pytest.mark.parametrize("output", Place)
def test_partial_derivatives_of_times(partial, output):
    check(WeightedSum(max_mul, "ij,jk->ik", (LHS, OUT), output, partial), (3, 19, 2))


@pytest.mark.parametrize("op", [
    WeightedSum(log_sum_exp(0.7), "ij,jk->ik", (LHS, OUT), RHS),
    WeightedSum(max_mul, "ij,jk->ik", (LHS, RHS), OUT, "l"),
])  # fmt: skip
def test_derivatives_and_transposes_stay_in_the_family(op):
    inputs, weights, labels, places = made(op, (3, 9, 2))
    f = lambda *xs: apply(op, *xs)[0]
    jaxpr = jax.make_jaxpr(
        lambda *xs: jax.grad(lambda *ys: (f(*ys) ** 2).sum(), tuple(range(len(xs))))(*xs)
    )(*inputs)
    names = {eqn.primitive.name for eqn in jaxpr.jaxpr.eqns}
    assert WeightedSum.family_id in names
    assert not names & {"scan", "while", "gather", "scatter", "scatter-add"}
    moved = np.random.default_rng(5).normal(size=inputs[-1].shape)
    tangent = jax.jvp(lambda x: f(*inputs[:-1], x), (inputs[-1],), (moved,))[1]
    np.testing.assert_allclose(
        tangent, judge(op, [*inputs[:-1], moved], weights, labels, places), rtol=1e-12, atol=1e-12
    )
    w = np.random.default_rng(6).normal(size=tangent.shape)
    (back,) = jax.linear_transpose(lambda x: f(*inputs[:-1], x), moved)(w)
    np.testing.assert_allclose((back * moved).sum(), (w * tangent).sum(), rtol=1e-12)


@pytest.mark.parametrize("linear", [(0,), (3, 4)])
def test_there_is_no_transpose_but_in_one_factor(linear):
    op = WeightedSum(max_mul, "ij,jk->ik", (LHS, RHS), OUT, "l")
    inputs = [np.ones(shape) for shape in ((3, 1), (1, 2), (3, 2), (3, 1), (1, 2))]

    def f(*moving):
        return apply(op, *({**dict(enumerate(inputs)), **dict(zip(linear, moving))}.values()))[0]

    with pytest.raises(ADRuleError, match=f"NOT_DIFFERENTIABLE for input {linear[0]}"):
        jax.linear_transpose(f, *(inputs[i] for i in linear))(np.ones((3, 2)))


def test_what_does_not_count_is_left_out_whatever_its_factors_are():
    a, b, f = np.array([[1.0, -np.inf, 0.0]]), np.zeros((3, 1)), np.array([[1.0, np.nan, 0.0]])
    for semiring, value in ((log_sum_exp(), np.log(np.e + 1)), (max_plus, 1.0)):
        got = apply(WeightedSum(semiring, "ij,jk->ik", (LHS,)), a, b, np.full((1, 1), value), f)[0]
        np.testing.assert_allclose(got, np.exp(1 - value).reshape(1, 1), rtol=1e-14)
    infinite = np.array(
        [[np.inf], [1.0], [1.0]]
    )  # the derivative of times at the loser is infinite
    got = apply(
        WeightedSum(max_mul, "ij,jk->ik", (LHS,), OUT, "l"),
        np.array([[-1.0, 2.0, 1.0]]),
        infinite,
        np.full((1, 1), 2.0),
        np.ones((1, 3)),
    )
    np.testing.assert_array_equal(got[0], [[1.0]])


def test_nan_candidates_are_the_winners_of_a_cell():
    op = WeightedSum(max_plus, "ij->i", (LHS,))
    a = np.array([[1.0, np.nan, np.nan]])
    inputs = a, np.array([np.nan]), np.array([[1.0, 2.0, 4.0]])
    for got in (apply(op, *inputs)[0], op.eager_execute(*inputs)[0]):
        np.testing.assert_array_equal(got, [6.0])


def test_symbolic_sizes():
    n, m = jax.export.symbolic_shape("n, m")
    op = WeightedSum(log_sum_exp(), "ij,jk->ik", (OUT,), LHS)
    program = tj.export(
        lambda *xs: apply(op, *xs)[0],
        *(jax.ShapeDtypeStruct(s, jnp.float64) for s in ((n, m), (m, 2), (n, 2), (n, 2))),
    )
    for sizes in ((3, 19, 2), (9, 1, 2)):
        inputs, *rest = made(op, sizes)
        np.testing.assert_allclose(
            program.call(*inputs), judge(op, inputs, *rest), rtol=1e-12, atol=1e-12
        )


ONES = {shape: np.ones(shape) for shape in ((2, 3), (3, 4), (2, 4))}
OP = WeightedSum(max_plus, "ij,jk->ik", (LHS,))


test_refusals = refusals(
    *(
        (InvalidConfig, text, functools.partial(WeightedSum, *payload))
        for payload, text in (
            ((max_plus, "ij->i", (RHS,)), "field places: .*of 1 operand"),
            ((max_plus, "ij->i", (), OUT, "l"), "field partial"),
            ((max_plus, "ij,jk->ik", (), OUT, "x"), "field partial"),
            ((max_plus, "ij,jk->ik", ("lhs",)), "field places"),
            ((max_plus, "ij,jk->ik", (), "out"), "field places"),
        )
    ),
    (ShapeError, "", lambda: apply(OP, *ONES.values(), ONES[3, 4])),
    (
        DTypeError,
        "float32 or float64",
        lambda: apply(OP, *map(np.float16, (*ONES.values(), ONES[2, 3]))),
    ),
    (InvalidConfig, "expected 4 inputs, got 3", lambda: apply(OP, *ONES.values())),
)


CONFORMING = [
    WeightedSum(max_plus, "ijk->ki"),
    WeightedSum(log_sum_exp(0.7), "ij,jk->ik", (LHS,), RHS),
    WeightedSum(max_mul, "ij,jk->ik", (LHS,), OUT, "l"),
    WeightedSum(max_mul, "bij,bjk->bik", (OUT, RHS), LHS, "lr"),
]


@pytest.mark.slow
@pytest.mark.parametrize("op", CONFORMING if ALL else CONFORMING[:1])
def test_the_family_conforms(op):
    report = tj.check(op, order=2 if ALL else 1)  # second derivatives are judged above
    assert report.ok, report
