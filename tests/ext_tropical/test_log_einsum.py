"""Log-sum-exp against SciPy on the array of all candidates, and its derivatives against finite
differences and jax.nn.logsumexp.
"""

import functools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

import tenferro_jax as tj
from ext_tropical import log_sum_exp, max_plus, tropical_einsum
from ext_tropical.step.log_einsum import (
    ExactLogEinsum,
    LogEinsum,
    LogEinsumAlone,
    log_einsum_step,
)
from tenferro_jax.engine import Engine
from tenferro_jax.errors import DTypeError, InvalidConfig
from tenferro_jax.extension import apply

from ..sweep import in_turn, some
from .judges import check_derivatives, check_memory_of_second_derivatives, check_refusal, refuse

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


def candidates(equation, *arrays):
    """All candidates in one array, the output's labels first; and the number of those."""
    terms, output = equation.split("->")
    labels = output + "".join(sorted(set(terms) - set(output) - {","}))
    total = 0.0
    with np.errstate(invalid="ignore"):
        for term, x in zip(terms.split(","), arrays, strict=True):
            shape = [x.shape[term.index(label)] if label in term else 1 for label in labels]
            total = total + np.transpose(
                x, sorted(range(x.ndim), key=lambda axis, term=term: labels.index(term[axis]))
            ).reshape(shape)
    return total, len(output)


def judge(equation, temperature, *arrays):
    total, rank = candidates(equation, *arrays)
    return temperature * logsumexp(total / temperature, axis=tuple(range(rank, total.ndim)))


def step(equation, temperature=1.0):
    return lambda *xs: log_einsum_step(equation, *xs, semiring=log_sum_exp(temperature))


@pytest.mark.few(4)
@pytest.mark.parametrize(("temperature", "equation"), in_turn([0.05, 1.0, 40.0], EQUATIONS, 1))
def test_values_on_both_routes(temperature, equation):
    xs = operands(equation, normal())
    want = judge(equation, temperature, *xs)
    for got in (
        step(equation, temperature)(*xs),
        LogEinsum(temperature, equation).eager_execute(*xs)[0],
    ):
        np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


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
            total, rank = candidates(equation, *xs)
            want = judge(equation, 1.0, *xs)
        axes = tuple(range(rank, total.ndim))
        want = np.where((total == np.inf).any(axes) & ~np.isnan(total).any(axes), np.inf, want)
        for got in (step(equation)(*xs), LogEinsum(1.0, equation).eager_execute(*xs)[0]):
            np.testing.assert_allclose(got, want, rtol=1e-13)


def test_an_empty_contraction_is_the_zero():
    a, b = np.zeros((2, 0)), np.zeros((0, 3))
    np.testing.assert_array_equal(step("ij,jk->ik")(a, b), np.full((2, 3), -np.inf))
    assert step("ij,jk->ik")(b, np.zeros((3, 2))).shape == (0, 2)
    gradient = jax.grad(lambda a: jnp.exp(step("ij,jk->ik")(a, b)).sum())(a)
    assert gradient.shape == (2, 0)


@pytest.mark.few(1)
@pytest.mark.clause("X10.6")
@pytest.mark.parametrize("equation", ["bij,bjk->kbi", "i,i->", "ijk->ki"])
def test_first_and_second_derivatives(equation):
    check_derivatives(
        step(equation, 0.7), operands(equation, normal(3)), lambda *xs: judge(equation, 0.7, *xs)
    )


@pytest.mark.slow
@pytest.mark.clause("X10.14")
def test_third_derivatives_are_those_of_jax_nn_logsumexp():
    m, k, n = 2, 20, 3
    a, b, u, v = (
        np.random.default_rng(i).normal(size=s) for i, s in enumerate([(m, k), (k, n)] * 2)
    )

    def third(f):
        along = lambda t: (f(a + t * u, b + t * v) ** 2).sum()
        return jax.jit(jax.jacfwd(jax.jacfwd(jax.grad(along))))(0.3)

    want = third(lambda a, b: 0.5 * jax.nn.logsumexp((a[:, :, None] + b[None]) / 0.5, axis=1))
    np.testing.assert_allclose(third(step("ij,jk->ik", 0.5)), want, rtol=1e-10)


def test_the_gradient_is_the_softmax_of_the_candidates():
    a, b = operands("ij,jk->ik", normal())
    total, _ = candidates("ij,jk->ik", a, b)  # (i, k, j)
    jacobian = jax.jacrev(step("ij,jk->ik", 0.5))(a, b)
    weights = softmax(total / 0.5, axis=-1)
    np.testing.assert_allclose(
        jacobian, np.einsum("ikj,ia->ikaj", weights, np.eye(3)), rtol=1e-12, atol=1e-14
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


@pytest.mark.slow
def test_it_tends_to_max_plus_as_the_temperature_falls():
    a, b = operands("ij,jk->ik", normal())

    def solved(f):
        return jax.jit(jax.value_and_grad(lambda a: (f(a, b).sum(), f(a, b)), has_aux=True))(a)

    (_, limit), hard = solved(lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=max_plus))
    gaps, soft = [], []
    for temperature in (1.0, 0.01, 1e-300):
        (_, value), gradient = solved(step("ij,jk->ik", temperature))
        assert (value >= limit).all()
        assert (
            value - limit <= temperature * np.log(19) + 1e-14
        ).all()  # T log(number of candidates)
        gaps.append(float((value - limit).max()))
        soft.append(float(abs(gradient - hard).max()))
    assert gaps == sorted(gaps, reverse=True)
    assert soft == sorted(soft, reverse=True)
    assert gaps[-1] < 1e-14
    assert soft[-1] < 1e-14


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
def test_transforms_and_graphs():
    a, b = operands("bij,bjk->bik", normal())
    f, g = step("ij,jk->ik", 2.0), step("bij,bjk->bik", 2.0)
    want = judge("bij,bjk->bik", 2.0, a, b)
    np.testing.assert_allclose(jax.jit(jax.vmap(f))(a, b), want, rtol=1e-13)
    np.testing.assert_allclose(jax.vmap(f, (None, 0))(a[0], b)[0], want[0], rtol=1e-13)
    each = jax.vmap(jax.grad(lambda a, b: jnp.sin(f(a, b)).sum(), (0, 1)))(a, b)
    whole = jax.grad(lambda a, b: jnp.sin(g(a, b)).sum(), (0, 1))(a, b)
    for x, y in zip(each, whole, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)
    graph = tj.trace(f, a[0], b[0])
    np.testing.assert_allclose(Engine().eval(graph, a[0], b[0]), want[0], rtol=1e-13)


@pytest.mark.slow
def test_a_gradient_exported_with_symbolic_sizes():
    n, m = jax.export.symbolic_shape("n, m")
    gradient = jax.grad(lambda a, b: jnp.sin(step("ij,jk->ik")(a, b)).sum(), (0, 1))
    program = tj.export(
        gradient, *(jax.ShapeDtypeStruct(shape, jnp.float64) for shape in ((n, m), (m, n)))
    )
    loaded = tj.load_exported(program.to_bytes())
    for sizes in ((3, 19), (9, 2)):
        a, b = normal()(sizes), normal(1)(sizes[::-1])
        for x, y in zip(loaded.call(a, b), gradient(a, b), strict=True):
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14)


@pytest.mark.slow
def test_no_order_of_derivative_holds_all_candidates():
    check_memory_of_second_derivatives(step("ij,jk->ik"))


A = np.ones((2, 2))


@refuse(
    *(
        (
            InvalidConfig,
            r"log_sum_exp, temperature: .*positive finite",
            functools.partial(log_sum_exp, temperature),
        )
        for temperature in (0, -1.0, np.inf, np.nan, True, "1", None)
    ),
    (InvalidConfig, "accuracy: .*'certified' or 'exact'", lambda: log_sum_exp(1.0, "fast")),
    (
        InvalidConfig,
        "normal number of float32",
        lambda: step("ij,jk->ik", 1e-40)(np.float32(A), np.float32(A)),
    ),
    (DTypeError, "int64 under log_sum_exp", lambda: step("ij->i")(A.astype(int))),
    (DTypeError, "float64 and float32", lambda: step("ij,jk->ik")(A, np.float32(A))),
    (InvalidConfig, "label 'i' twice in operand 0", lambda: step("ii->i")(A)),
)
def test_refusals(error, text, call):
    check_refusal(error, text, call)


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
@pytest.mark.parametrize("kind", [LogEinsum, LogEinsumAlone, ExactLogEinsum])
def test_the_family_conforms(kind, equation):
    report = tj.check(kind(0.7, equation))
    assert report.ok, report


SHIFTS = (0.0, 1e2, 1e4, 1e5, 1e6)


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("accuracy", ["certified", "exact"])
@pytest.mark.parametrize(("temperature", "equation"), in_turn([1.0, 0.3, 7.0], EQUATIONS, 1))
def test_shares_of_a_cell_sum_to_1_whatever_is_added_to_all_scores(
    equation, temperature, accuracy, dtype
):
    """Forward and reverse; a value rounded by eps times a shift tells no shares. The last sizes are
    those of a product of matrices.
    """
    eps = float(np.finfo(dtype).eps)
    op = functools.partial(tropical_einsum, equation, semiring=log_sum_exp(temperature, accuracy))
    large = [normal()((30, 20)), normal(1)((20, 30))]
    cases = [operands(equation, normal()), *([large] if equation == "ij,jk->ik" else [])]
    rank = len(equation.split("->")[1])

    @jax.jit
    def shares(x, *rest):
        moved = jax.jvp(lambda x: op(x, *rest), (x,), (jnp.ones_like(x),))[1]
        return jax.jacrev(op)(x, *rest), moved

    for arrays in cases:
        for shift in SHIFTS:
            xs = [jnp.asarray(x + shift / len(arrays), dtype) for x in arrays]
            jacobian, moved = shares(*xs)
            rows = np.asarray(jacobian, float).sum(tuple(range(rank, jacobian.ndim)))
            np.testing.assert_allclose(rows, 1, rtol=0, atol=4 * eps)
            np.testing.assert_allclose(moved, 1, rtol=0, atol=4 * eps)


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


def test_files_from_before_the_sums_have_the_same_shares():
    x = jnp.asarray(normal()((30, 20)) + 1e5, jnp.float32)
    for kind in (LogEinsumAlone, ExactLogEinsum):
        for equation, *xs in (("ij->i", x), ("ij,jk->ik", x, x.T)):
            op = kind(1.0, equation)
            value = lambda x, op=op, rest=xs[1:]: apply(op, x, *rest)[0]
            rows = jax.jvp(value, (x,), (jnp.ones_like(x),))[1]
            np.testing.assert_allclose(rows, 1, rtol=0, atol=4 * float(np.finfo("float32").eps))
