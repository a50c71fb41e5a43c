"""Log-sum-exp against SciPy on the array of all candidates, and its derivatives against finite
differences and jax.nn.logsumexp.
"""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp

from ext_tropical import log_sum_exp, tropical_einsum
from ext_tropical.semirings.registered import SemiringKey
from ext_tropical.steps.log_einsum import LogEinsum, LogEinsumV1, LogEinsumV2
from ext_tropical.steps.weighted_sum import Place, WeightedSum
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import apply

from ..helpers import close, passes
from ..oracles import candidates
from ..sweep import in_turn, some
from .judges import check_derivatives, check_memory_of_second_derivatives, refusals

EQUATIONS = (
    "ij,jk->ik",
    "ij,kj->ki",
    "bij,bjk->kbi",
    "ijk,kjl->li",
    "i,i->",
    "ij,j->i",
    "ij->",
    "ijk->ki",
    "ij->j",
)
SIZES = dict(zip("bijkl", (2, 3, 19, 4, 2)))


def operands(equation, draw):
    return [draw([SIZES[label] for label in term]) for term in equation.split("->")[0].split(",")]


def normal(seed=0):
    return lambda shape: np.random.default_rng(seed).normal(size=shape) * 3


def judge(equation, temperature, *arrays):
    return temperature * logsumexp(candidates(np.add, equation, arrays) / temperature, axis=-1)


def step(equation, temperature=1.0):
    return lambda *xs: tropical_einsum(equation, *xs, semiring=log_sum_exp(temperature))


@pytest.mark.few(4)
@pytest.mark.parametrize(("temperature", "equation"), in_turn([0.05, 1.0, 40.0], EQUATIONS, 1))
def test_values(temperature, equation):
    xs = operands(equation, normal())
    want = judge(equation, temperature, *xs)
    np.testing.assert_allclose(step(equation, temperature)(*xs), want, rtol=1e-13, atol=1e-13)


@pytest.mark.few(3)
@pytest.mark.parametrize("equation", EQUATIONS)
def test_special_values(equation):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        xs = operands(
            equation,
            lambda shape, rng=rng: rng.choice(
                [0.0, 1.0, -1e308, -np.inf, *[np.inf, np.nan][: seed % 3]], shape
            ),
        )
        with np.errstate(all="ignore"):
            total, want = candidates(np.add, equation, xs), judge(equation, 1.0, *xs)
        want = np.where((total == np.inf).any(-1) & ~np.isnan(total).any(-1), np.inf, want)
        np.testing.assert_allclose(step(equation)(*xs), want, rtol=1e-13)


def test_an_empty_contraction_is_the_zero():
    a, b = np.zeros((2, 0)), np.zeros((0, 3))
    np.testing.assert_array_equal(step("ij,jk->ik")(a, b), np.full((2, 3), -np.inf))
    assert step("ij,jk->ik")(b, np.zeros((3, 2))).shape == (0, 2)
    assert jax.grad(lambda a: jnp.exp(step("ij,jk->ik")(a, b)).sum())(a).shape == (2, 0)


@pytest.mark.few(1)
@pytest.mark.clause("X10.6")
@pytest.mark.parametrize("equation", ["bij,bjk->kbi", "i,i->", "ijk->ki"])
def test_first_and_second_derivatives(equation):
    check_derivatives(
        step(equation, 0.7), operands(equation, normal(3)), lambda *xs: judge(equation, 0.7, *xs)
    )


def test_gradients_of_cells_without_feasible_candidates_are_zero():
    a = np.array([[-np.inf, -np.inf, -np.inf], [0.0, -np.inf, np.log(3.0)]])
    f = step("ij,jk->ik")
    b = np.zeros((3, 1))
    np.testing.assert_allclose(
        jax.jacrev(f)(a, b)[:, 0],
        [[[0, 0, 0], [0, 0, 0]], [[0, 0, 0], [0.25, 0, 0.75]]],
        rtol=1e-14,
    )
    hessian = jax.hessian(lambda a: f(a, b)[1, 0])(a)
    np.testing.assert_allclose(
        hessian[1, :, 1], [[0.1875, 0, -0.1875], [0, 0, 0], [-0.1875, 0, 0.1875]], rtol=1e-14
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_narrow_dtypes_are_computed_in_float32(dtype):
    a, b = (jnp.asarray(x, dtype) for x in operands("ij,jk->ik", normal()))
    wide = [np.asarray(x, np.float64) for x in (a, b)]
    got = step("ij,jk->ik", 0.5)(a, b)
    assert got.dtype == dtype
    want = judge("ij,jk->ik", 0.5, *wide)
    eps = float(jnp.finfo(dtype).eps)
    np.testing.assert_allclose(np.asarray(got, np.float64), want, rtol=2 * eps, atol=2 * eps)
    gradient = jax.grad(lambda a: step("ij,jk->ik", 0.5)(a, b).astype(jnp.float32).sum())(a)
    assert gradient.dtype == dtype
    want = jax.grad(lambda a: step("ij,jk->ik", 0.5)(a, wide[1]).sum())(wide[0])
    np.testing.assert_allclose(np.asarray(gradient, np.float64), want, rtol=4 * eps, atol=1e-5)


@pytest.mark.slow
def test_no_order_of_derivative_holds_all_candidates():
    check_memory_of_second_derivatives(step("ij,jk->ik"))


A = np.ones((2, 2))


test_refusals = refusals(
    *(
        (
            InvalidConfig,
            r"log_sum_exp, temperature: .*positive finite",
            functools.partial(log_sum_exp, temperature),
        )
        for temperature in (0, -1.0, np.inf, 10**400, np.nan, True, "1", None)
    ),
    (InvalidConfig, "accuracy: .*'certified', the only one", lambda: log_sum_exp(1.0, "exact")),
    (
        InvalidConfig,
        "normal number of float32",
        lambda: step("ij,jk->ik", 1e-40)(np.float32(A), np.float32(A)),
    ),
    (DTypeError, "int64 under log_sum_exp", lambda: step("ij->i")(A.astype(int))),
    (DTypeError, "float64 and float32", lambda: step("ij,jk->ik")(A, np.float32(A))),
    (InvalidConfig, "label 'i' twice in operand 0", lambda: LogEinsum(1.0, "ii->i")),
)


@pytest.mark.parametrize(
    ("x", "y"),
    [
        (0.0, 1.0),
        (np.inf, np.inf),
        (-np.inf, -np.inf),
        (-np.inf, 2.0),
        (np.inf, 1.0),
        (np.nan, 1.0),
    ],
)
def test_plus_of_the_semiring(x, y):
    with np.errstate(invalid="ignore"):
        want = 0.5 * np.logaddexp(x / 0.5, y / 0.5)
    np.testing.assert_allclose(log_sum_exp(0.5).plus(x, y), want, rtol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("equation", some(["ij->j", "ij,jk->ik"], 1))
@pytest.mark.parametrize("kind", [LogEinsum, LogEinsumV2])
def test_the_family_conforms(kind, equation):
    passes(kind(0.7, equation))


SHIFTS = (0.0, 1e2, 1e4, 1e5, 1e6)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("temperature", "equation"), in_turn([1.0, 0.3, 7.0], EQUATIONS, 1))
def test_shares_of_a_cell_sum_to_1_whatever_is_added_to_all_scores(equation, temperature, dtype):
    """Forward and reverse; a value rounded by eps times a shift tells no shares. The last sizes are
    those of a product of matrices.
    """
    eps = float(np.finfo(dtype).eps)
    op = functools.partial(tropical_einsum, equation, semiring=log_sum_exp(temperature))
    large = [normal()((30, 20)), normal(1)((20, 30))]
    cases = [operands(equation, normal()), *([large] if equation == "ij,jk->ik" else [])]
    rank = len(equation.split("->")[1])

    @jax.jit
    def shares(x, *rest):
        return (
            jax.jacrev(op)(x, *rest),
            jax.jvp(lambda x: op(x, *rest), (x,), (jnp.ones_like(x),))[1],
        )

    for arrays in cases:
        for shift in SHIFTS:
            jacobian, moved = shares(*[jnp.asarray(x + shift / len(arrays), dtype) for x in arrays])
            rows = np.asarray(jacobian, float).sum(tuple(range(rank, jacobian.ndim)))
            close((rows, 1), (moved, 1), rtol=0, atol=4 * eps)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_second_derivatives_whatever_is_added_to_all_scores(dtype):
    """Entries are those of jax.nn.logsumexp, and rows sum to 0."""
    eps = float(np.finfo(dtype).eps)
    ours = jax.jit(jax.hessian(lambda x: tropical_einsum("i->", x, semiring=log_sum_exp())))
    peer = jax.jit(jax.hessian(jax.nn.logsumexp))
    matrix = jnp.asarray(normal(1)((20, 50)), dtype)

    @jax.jit
    def bent(x):
        """Of the shares of matrices, along a shift of all scores."""
        value = lambda x: tropical_einsum("ij,jk->ik", x, matrix.T, semiring=log_sum_exp())
        return jax.jvp(jax.grad(lambda x: value(x).sum()), (x,), (jnp.ones_like(x),))[1]

    for shift in SHIFTS:
        x = jnp.asarray(normal()(50) + shift, dtype)
        hessian = ours(x)
        np.testing.assert_allclose(hessian, peer(x), rtol=16 * eps, atol=4 * eps)
        np.testing.assert_allclose(np.asarray(hessian, float).sum(1), 0, atol=4 * eps)
        np.testing.assert_allclose(bent(matrix + shift), 0, atol=4 * 20 * eps)


@pytest.mark.slow
def test_what_files_from_before_say():
    """The same op without sums, whose shares are the same; and a semiring with an accuracy."""
    x = jnp.asarray(normal()((30, 20)) + 1e5, jnp.float32)
    for equation, *xs in (("ij->i", x), ("ij,jk->ik", x, x.T)):
        op = LogEinsumV1(1.0, equation)
        value = lambda x, op=op, rest=xs[1:]: apply(op, x, *rest)[0]
        rows = jax.jvp(value, (x,), (jnp.ones_like(x),))[1]
        np.testing.assert_allclose(rows, 1, rtol=0, atol=4 * float(np.finfo("float32").eps))
    keys = [SemiringKey(log_sum_exp().id, fields) for fields in ((0.5,), (0.5, "certified"))]
    written = [WeightedSum(key, "ij->i").semiring for key in keys]
    assert [(key.id, key.fields) for key in written] == [(key.id, key.fields) for key in keys]
    assert {key.semiring for key in keys} == {log_sum_exp(0.5)}


# --- products of matrices: sizes from which they are used -----------------------------------------

SHAPES = (
    (32, 32, 32),
    (100, 100, 100),
    (33, 70, 65),
    (200, 5, 200),
    (16, 1000, 16),
    (300, 64, 8),
    (8, 64, 300),
    (64, 300, 2),
)
RANGES = ("moderate", "wide", "extreme")
T = 0.7


def matrices(kind, shape, dtype="float64", seed=0):
    m, k, n = shape
    rng = np.random.default_rng([seed, *shape])
    a, b = (rng.normal(size=s) for s in ((m, k), (k, n)))
    if kind == "wide":
        a, b = (rng.uniform(-80, 80, s) * T for s in ((m, k), (k, n)))
    if kind == "extreme":
        a[0], b[:, -1] = a[0] * 1e3, b[:, -1] * 1e3
        a[1, 0], b[0] = 400, -400  # the bound of row 1 says nothing about its values
        a[rng.random((m, k)) < 0.1] = -np.inf
        b[:, 0] = -np.inf
    return a.astype(dtype), b.astype(dtype), rng.normal(size=(m, n)).astype(dtype)


@jax.jit
def solved(a, b, cotangent):
    """Value and gradients."""
    value, back = jax.vjp(step("ij,jk->ik", T), a, b)
    return value, *back(cotangent)


def wider(a, b, cotangent):
    """The same in NumPy with more digits."""
    kind = np.float64 if a.dtype == np.float32 else np.longdouble
    with np.errstate(invalid="ignore", divide="ignore"):
        p = (a.astype(kind)[:, :, None] + b.astype(kind)) / T
        top = np.maximum(p.max(1, keepdims=True), np.finfo(a.dtype).min)
        value = top + np.log(np.exp(p - top).sum(1, keepdims=True))
        shares = np.where(p == -np.inf, 0, np.exp(p - value)) * cotangent[:, None]
    return T * value[:, 0], shares.sum(2), shares.sum(0)


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "shape", "dtype"),
    some(list(itertools.product(RANGES, SHAPES, ("float32", "float64"))), 4),
)
def test_errors_against_wider_floats(kind, shape, dtype):
    given = matrices(kind, shape, dtype)
    for got, want in zip(solved(*given), wider(*given), strict=True):
        finite = np.isfinite(np.asarray(want, dtype))
        np.testing.assert_array_equal(got[~finite], np.asarray(want, dtype)[~finite])
        error = np.sqrt(np.mean((np.asarray(got)[finite] - want[finite]) ** 2))
        assert error <= 8 * np.finfo(dtype).eps * np.sqrt(np.mean(want[finite] ** 2))


@pytest.mark.slow
def test_terms_that_underflow_are_not_lost():
    """Beside the bound 0 of each cell its candidates are -87 once and -88 a thousand times, whose
    exponentials are below the least normal number.
    """
    a, b = np.full((64, 1002), -88, np.float32), np.zeros((1002, 64), np.float32)
    a[:, 0], a[:, 1], b[0] = 0, -87, -200
    value, slope = jax.value_and_grad(
        lambda a: tropical_einsum("ij,jk->ik", a, b, semiring="log_sum_exp").mean()
    )(a)
    total = 1 + 1000 * np.exp(-1)
    np.testing.assert_allclose(value, -87 + np.log(total), rtol=1e-6)
    np.testing.assert_allclose(slope[0, 1:3] * 64, np.array([1, np.exp(-1)]) / total, rtol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ["infinite", *RANGES])
def test_products_are_the_sums_over_all_candidates(kind):
    """Of values and of the sums that derivatives of any order are made of."""
    rng = np.random.default_rng(0)
    if kind == "infinite":
        choices = [0.0, 1.0, -700.0, -np.inf, -np.inf, -np.inf]
        a, b = (rng.choice(choices, size=shape) for shape in ((40, 6), (6, 50)))
        a[3, 2], a[4, 1], b[5, 6], a[7], b[:, 9] = np.nan, np.inf, np.inf, -np.inf, -np.inf
    else:
        a, b, _ = matrices(kind, (40, 24, 50))
    log = LogEinsum(T, "ij,jk->ik", True)
    shapes = a.shape, b.shape, (len(a), b.shape[1])
    factors = [rng.normal(size=shape) for shape in shapes]

    @jax.jit
    def pairs(a, b, *factors):
        factors = dict(zip(Place, factors, strict=True))
        outs = log.lower_to_standard_ops(a, b)
        found = list(zip(outs, log.from_candidates(a, b), strict=True))
        for places, output in (
            ((Place.LHS,), Place.OUT),
            ((Place.OUT, Place.RHS), Place.LHS),
            ((Place.LHS, Place.OUT), Place.LHS),
        ):
            op = WeightedSum(log_sum_exp(T), "ij,jk->ik", places, output)
            given = (a, b, outs[1], *map(factors.get, places))
            found.append((op.lower_to_standard_ops(*given)[0], op.from_candidates(*given)))
        return found

    value, *sums, first, second, third = pairs(a, b, *factors)
    close(value, *(sums if kind == "infinite" else ()), rtol=1e-12, atol=1e-12)
    close(first, second, third, rtol=1e-9, atol=1e-9)
