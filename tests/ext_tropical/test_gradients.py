"""The gradient rule: finite differences away from ties, the documented rule at ties, NaN and
all-zero cells; entries at winners and the sums that transpose them, against loops of NumPy; weighted
sums, against np.einsum on the array of all weights.
"""

import functools
import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import log_sum_exp, max_mul, max_plus, min_plus, tropical_einsum
from ext_tropical.native import library
from ext_tropical.native.library import native
from ext_tropical.steps import at_winner
from ext_tropical.steps.at_winner import AtWinner, add_native
from ext_tropical.steps.weighted_sum import Place, WeightedSum
from tenferro_jax.errors import ADRuleError, DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, extensions_in

from ..helpers import ends_in, passes
from ..oracles import brute_force
from ..sweep import ALL, in_turn, some
from .judges import check_derivatives, check_memory_of_second_derivatives, refusals

NAMES = ("max_plus", "min_plus", "max_mul")
EQUATIONS = ("ij,jk->ik", "bij,jk->kbi", "ijk,kjl->li", "i,i->", "ij,ij->ij")


@pytest.mark.few(2)
@pytest.mark.clause("X10.6", "X10.14")
@pytest.mark.parametrize(("name", "equation"), in_turn(NAMES, EQUATIONS, 2))
def test_first_and_second_derivatives(name, equation):
    """Of reals, so that no candidates tie."""
    rng, size = np.random.default_rng(3), dict(zip("bijkl", (2, 3, 18, 3, 2)))
    operands = [
        rng.normal(size=[size[c] for c in term]) for term in equation.split("->")[0].split(",")
    ]
    check_derivatives(
        lambda a, b: tropical_einsum(equation, a, b, semiring=name),
        operands,
        lambda a, b: brute_force(name, equation, a, b)[0],
    )


@pytest.mark.clause("X10.6")
def test_a_slightly_wrong_rule_would_fail_these_checks():
    @jax.custom_jvp
    def wrong(a):
        return tropical_einsum("ij,jk->ik", a, a)

    @wrong.defjvp
    def _(primals, tangents):
        value, tangent = jax.jvp(lambda a: tropical_einsum("ij,jk->ik", a, a), primals, tangents)
        return value, tangent * 1.0005

    a = np.random.default_rng(0).normal(size=(3, 3))
    ends_in(lambda: check_derivatives(wrong, [a]), AssertionError)


def test_nan_and_all_zero_cells_follow_their_winner():
    a = np.array([[1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf]])
    b = np.zeros((3, 1))
    got = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b)[:, 0] @ jnp.array([1.0, 1.0]))(a)
    np.testing.assert_array_equal(got, [[0, 1, 0], [1, 0, 0]])


@pytest.mark.clause("X10.12")
def test_the_value_is_searched_once_in_a_derivative():
    x = np.ones((3, 3))
    jaxpr = jax.make_jaxpr(
        jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b).sum(), argnums=(0, 1))
    )(x, x)
    assert len(list(extensions_in(jaxpr))) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cotangents_of_sixteen_bit_operands_add_up_in_float32(dtype):
    """5,000 cotangents of 1 onto one entry: 16-bit addition would stop at 256 or 2,048."""
    a, b = jnp.zeros((1, 2), dtype), jnp.zeros((2, 5000), dtype)
    got = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b).astype(jnp.float32).sum())(a)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, jnp.array([[5000, 0]], dtype))


# --- ties="split" ---------------------------------------------------------------------------------

MAXIMA = {
    "max_plus": lambda a, b: jnp.max(a[:, :, None] + b[None], 1),
    "min_plus": lambda a, b: jnp.min(a[:, :, None] + b[None], 1),
    "max_mul": lambda a, b: jnp.max(a[:, :, None] * b[None], 1),
}
WEIGHTS = np.cos(np.arange(12.0)).reshape(3, 4)


def split(name, equation="ij,jk->ik"):
    return lambda *xs: tropical_einsum(equation, *xs, semiring=name, ties="split")


def ties(seed, *shapes, dtype=np.float64):
    rng = np.random.default_rng(seed)
    return [rng.integers(-2, 3, shape).astype(dtype) for shape in shapes]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "count"), [("max_plus", 20), ("min_plus", 3), ("max_mul", 20), ("max_mul", 1)]
)
def test_at_ties_every_derivative_is_that_of_a_maximum_of_jax(name, count):
    a, b, u, v = ties(count, *[(3, count), (count, 4)] * 2)
    ours, theirs = (
        lambda a, b, f=f: (WEIGHTS * f(a, b) ** 3).sum() for f in (split(name), MAXIMA[name])
    )

    def derivatives(f):
        gradient = jax.grad(f, (0, 1))
        pushed = jax.jvp(gradient, (a, b), (u, v))[1]
        return gradient(a, b), pushed, jax.vjp(gradient, a, b)[1]((u, v))

    chex.assert_trees_all_close(
        *(jax.jit(derivatives, static_argnums=0)(f) for f in (ours, theirs)), rtol=1e-12, atol=1e-12
    )


def test_cells_that_are_nan_or_infeasible_share_too():
    a = np.array([[1.0, np.nan, np.nan, 0.0], [-np.inf] * 4])
    got = jax.grad(lambda a: split("max_plus")(a, np.zeros((4, 1)))[:, 0] @ jnp.array([1.0, 1.0]))(
        a
    )
    np.testing.assert_array_equal(got, [[0, 0.5, 0.5, 0], [0.25] * 4])


def test_an_empty_contraction_has_no_derivative():
    got = jax.grad(lambda a: (split("max_mul")(a, np.zeros((0, 4))) + 1.0).sum())(np.zeros((3, 0)))
    assert got.shape == (3, 0)
    tangent = jax.jvp(
        lambda b: split("max_mul")(np.zeros((3, 0)), b), (np.zeros((0, 4)),), (np.zeros((0, 4)),)
    )[1]
    np.testing.assert_array_equal(tangent, np.zeros((3, 4)))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_share_among_the_winners_before_rounding(dtype):
    a = jnp.asarray([[1.0, 1.0, 256.0]], dtype)
    b = jnp.asarray([[2.0**-12], [2.0**-12], [-255.0 - 2.0]], dtype)  # 1 + 2**-12 is 1 in 16 bits
    got = jax.grad(lambda a: split("max_plus")(a, b).astype(jnp.float32).sum())(a)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got.astype(np.float32), [[0.5, 0.5, 0.0]])
    near = jnp.asarray([[2.0**-12], [2.0**-13], [-300.0]], dtype)
    got = jax.grad(lambda a: split("max_plus")(a, near).astype(jnp.float32).sum())(a)
    np.testing.assert_array_equal(got.astype(np.float32), [[1.0, 0.0, 0.0]])


@pytest.mark.slow
def test_no_order_of_derivative_holds_all_candidates():
    check_memory_of_second_derivatives(split("max_mul"))


# --- entries at winners, and the sums that transpose them: loops of NumPy judge -------------------


BUILT = pytest.mark.skipif(bool(native().problem), reason=str(native()))
LHS, RHS, OUT = Place


def added(op, cells, winner):
    """The sum, cell by cell."""
    sizes, layout = op.sizes([cells.shape, winner.shape]), op.layout
    term = layout.equation.inputs[op.axis]
    total = np.zeros([sizes[label] for label in term], cells.dtype)
    counts = [sizes[label] for label in layout.contracted]
    for at in np.ndindex(cells.shape):
        if 0 <= winner[at] < np.prod(counts):
            known = dict(zip(layout.equation.output, at))
            known |= zip(layout.contracted, np.unravel_index(winner[at], counts))
            total[tuple(known[label] for label in term)] += cells[at]
    return total


@pytest.mark.few(2)
@BUILT
@pytest.mark.cpu
@pytest.mark.parametrize(
    ("equation", "cells", "summed"),
    [
        ("ij,jk->ik", (19, 37), (11,)),
        ("ji,kj->ki", (33, 18), (11,)),
        ("bij,jbk->kib", (17, 20, 3), (5,)),
        ("iajb,bka->jik", (4, 5, 6), (3, 2)),
        ("ij,jk->ik", (2, 40), (20000,)),  # entries that no scratch holds
        ("ij->i", (50,), (9,)),
        ("i,j->ij", (20, 30), ()),
    ],
)
def test_sums_are_those_of_a_loop(equation, cells, summed):
    """Integers, so that every order of adding is exact; winners outside are left out."""
    rng, calls, wanted = np.random.default_rng(0), [], []
    count = np.prod(summed, dtype=int)
    for place in (LHS, RHS)[: equation.count(",") + 1]:
        for dtype in (np.float32, np.float64):
            winner = rng.integers(-2, count + 2, cells, np.int32)
            given = rng.integers(-9, 9, cells).astype(dtype)
            calls.append((AtWinner(equation, place, summed), given, winner))
            wanted += [added(*calls[-1])] * 2
    by_xla = functools.partial(apply, runtimes=AtWinner.runtimes.only(RouteKind.LOWERING))
    got = jax.jit(lambda: [fn(*call)[0] for call in calls for fn in (add_native, by_xla)])()
    for x, want in zip(got, wanted, strict=True):
        np.testing.assert_array_equal(x, want, strict=True)


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", [max_mul, max_plus])
def test_derivatives_of_every_order_go_by_the_op(semiring, monkeypatch):
    monkeypatch.setattr(at_winner, "LEAST_CELLS", 1)
    rng = np.random.default_rng(1)

    def f(a, b):
        return tropical_einsum("bij,bjk->kbi", a, b, semiring=semiring)

    a, b = rng.normal(size=(2, 3, 8)), rng.normal(size=(2, 8, 3))
    check_derivatives(f, (a, b), lambda a, b: brute_force(semiring.name, "bij,bjk->kbi", a, b)[0])
    found = extensions_in(jax.make_jaxpr(jax.grad(lambda a: f(a, b).sum()))(a))
    assert {op.family_id.split(".")[1] for op, *_ in found} == {"einsum", "at_winner"}


@BUILT
@pytest.mark.cpu
def test_malformed_calls_are_refused_by_the_handler():
    def call(result=(4, 5), winner=(4, 4), **changed):
        attributes = {
            "to_rows": True,
            "sizes": np.array([1, 5, 4, 4]),
            "strides": np.array([0, 1, 5]),
        }
        fn = jax.ffi.ffi_call(
            library.target("at_winner"), jax.ShapeDtypeStruct(result, jnp.float32)
        )
        run = jax.jit(lambda x, w: fn(x, w, **(attributes | changed)))
        return run(jnp.ones((4, 4), jnp.float32), jnp.zeros(winner, jnp.int32))

    np.testing.assert_array_equal(call()[:, 0], [4, 4, 4, 4])
    for text, changed in {
        "malformed attributes": {"sizes": np.array([1, 5, 4])},
        "malformed operands": {"strides": np.array([0, 1, 6])},
        "at_winner: malformed operands": {"winner": (4, 3)},
        "tropical at_winner: malformed": {"result": (4, 6)},
    }.items():
        with pytest.raises(jax.errors.JaxRuntimeError, match=text):
            jax.block_until_ready(call(**changed))


test_refusals_at_winners = refusals(
    (InvalidConfig, "place", lambda: AtWinner("ij->i", RHS)),
    (InvalidConfig, "place", lambda: AtWinner("ij,jk->ik", OUT)),
    (InvalidConfig, "summed", lambda: AtWinner("ij,jk->ik", LHS, (2, 3))),
    (InvalidConfig, "summed", lambda: AtWinner("ij,jk->ik", LHS, (0,))),
    (
        ShapeError,
        "",
        lambda: apply(AtWinner("ij,jk->ik"), np.ones((2, 3)), np.ones((3, 4), np.int32)),
    ),
)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("op", [AtWinner("bij,bjk->kbi", RHS), AtWinner("ij,jk->ik", LHS, (3,))])
def test_the_family_of_entries_at_winners_conforms(op):
    report = tj.check(op, order=1)
    assert report.ok, report


# --- weighted sums, against np.einsum on the array of all weights ---------------------------------


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
    (got,) = apply(op, *inputs)
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
    np.testing.assert_array_equal(apply(op, *inputs)[0], want)


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
    inputs = np.array([[1.0, np.nan, np.nan]]), np.array([np.nan]), np.array([[1.0, 2.0, 4.0]])
    np.testing.assert_array_equal(apply(op, *inputs)[0], [6.0])


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
    passes(op, order=2 if ALL else 1)  # second derivatives are judged above
