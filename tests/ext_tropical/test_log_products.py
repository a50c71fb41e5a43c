"""Log-sum-exp by products of matrices against the sum over all candidates, and both against wider
floats.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import log_sum_exp, tropical_einsum
from ext_tropical.algebra.semiring import SemiringKey
from ext_tropical.network.network_op import TropicalNetwork
from ext_tropical.step.log_einsum import ExactLogEinsum, LogEinsum

from ..sweep import some

SHAPES = (
    (32, 32, 32),
    (64, 64, 64),
    (100, 100, 100),
    (128, 200, 96),
    (33, 70, 65),
    (200, 5, 200),
    (16, 1000, 16),
    (300, 64, 8),
    (8, 64, 300),
    (2, 500, 40),
    (97, 61, 53),
    (64, 300, 2),
)
RANGES = ("moderate", "wide", "extreme")
TEMPERATURE = 0.7


def operands(kind, shape, dtype="float64", seed=0):
    m, k, n = shape
    rng = np.random.default_rng([seed, *shape])
    a, b = (rng.normal(size=s) for s in ((m, k), (k, n)))
    if kind == "wide":
        a, b = (rng.uniform(-80, 80, s) * TEMPERATURE for s in ((m, k), (k, n)))
    if kind == "extreme":
        a[0], b[:, -1] = a[0] * 1e3, b[:, -1] * 1e3
        a[1, 0], b[0] = 400, -400  # the bound of row 1 says nothing about its values
        a[rng.random((m, k)) < 0.1] = -np.inf
        b[:, 0] = -np.inf
    return a.astype(dtype), b.astype(dtype), rng.normal(size=(m, n)).astype(dtype)


def product(accuracy, a, b):
    return tropical_einsum("ij,jk->ik", a, b, semiring=log_sum_exp(TEMPERATURE, accuracy))


@functools.partial(jax.jit, static_argnums=0)
def solved(accuracy, a, b, cotangent):
    """Value and gradients."""
    value, back = jax.vjp(functools.partial(product, accuracy), a, b)
    return value, *back(cotangent)


def wider(a, b, cotangent):
    """The same in NumPy with more digits."""
    kind = np.float64 if a.dtype == np.float32 else np.longdouble
    with np.errstate(invalid="ignore", divide="ignore"):
        p = (a.astype(kind)[:, :, None] + b.astype(kind)) / TEMPERATURE
        top = np.maximum(p.max(1, keepdims=True), np.finfo(a.dtype).min)
        value = top + np.log(np.exp(p - top).sum(1, keepdims=True))
        shares = np.where(p == -np.inf, 0, np.exp(p - value)) * cotangent[:, None]
    return TEMPERATURE * value[:, 0], shares.sum(2), shares.sum(0)


def check_errors(kind, shape, dtype):
    given = operands(kind, shape, dtype)
    for got, exact, want in zip(
        *(solved(accuracy, *given) for accuracy in ("certified", "exact")),
        wider(*given),
        strict=True,
    ):
        finite = np.isfinite(np.asarray(exact))
        np.testing.assert_array_equal(np.isfinite(got), finite)
        np.testing.assert_array_equal(got[~finite], exact[~finite])
        errors = [
            np.sqrt(np.mean((np.asarray(x)[finite] - want[finite]) ** 2)) for x in (got, exact)
        ]
        least = np.finfo(dtype).eps * np.sqrt(np.mean(want[finite] ** 2)) / 8
        assert errors[0] <= 2 * max(errors[1], least)


CASES = list(itertools.product(RANGES, SHAPES, ("float32", "float64")))


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "shape", "dtype"), some(CASES, 4))
def test_errors_are_at_most_twice_those_of_all_candidates(kind, shape, dtype):
    check_errors(kind, shape, dtype)


@pytest.mark.slow
def test_an_extreme_row_leaves_the_other_cells_as_they_were():
    a, b, cotangent = operands("moderate", (200, 40, 200))
    b[0] = -900
    calm = solved("certified", a, b, cotangent)
    a[5, 0] = 900
    wild = solved("certified", a, b, cotangent)
    for x, y, rows in zip(
        calm, wild, (np.arange(200) != 5, np.arange(200) != 5, slice(0)), strict=True
    ):
        np.testing.assert_array_equal(x[rows], y[rows])
    for got, want in zip(wild, wider(a, b, cotangent), strict=True):
        np.testing.assert_allclose(got, want.astype(float), rtol=1e-12, atol=1e-12)


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


def test_infinite_and_nan_candidates_are_as_over_all_candidates():
    rng = np.random.default_rng(0)
    choices = [0.0, 1.0, -700.0, -np.inf, -np.inf, -np.inf]
    a, b = (rng.choice(choices, size=shape) for shape in ((40, 6), (6, 50)))
    a[3, 2], a[4, 1], b[5, 6], a[7], b[:, 9] = np.nan, np.inf, np.inf, -np.inf, -np.inf
    cotangent = rng.normal(size=(40, 50))
    for got, want in zip(
        *(solved(accuracy, a, b, cotangent) for accuracy in ("certified", "exact")), strict=True
    ):
        np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", some(RANGES, 1))
def test_second_derivatives(kind):
    a, b, _ = operands(kind, (20, 24, 23))
    u, v, _ = operands("moderate", (20, 24, 23), seed=1)

    def second(accuracy):
        def loss(a, b):
            value = product(accuracy, a, b)
            return jnp.where(jnp.isfinite(value), jnp.sin(value), 0).sum()

        return jax.jit(lambda: jax.jvp(jax.grad(loss, (0, 1)), (a, b), (u, v))[1])()

    for got, want in zip(second("certified"), second("exact"), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)


def test_what_payloads_say():
    certified, exact = log_sum_exp(0.5), log_sum_exp(0.5, "exact")
    for semiring, fields in ((certified, (0.5, "certified")), (exact, (0.5,))):
        key = SemiringKey.of(semiring)
        assert key.fields == fields
        assert key.semiring == semiring
    assert TropicalNetwork(certified, "a,a->|0,1:") == TropicalNetwork(exact, "a,a->|0,1:")
    a = jnp.zeros((2, 2))
    for accuracy, kind in (("certified", LogEinsum), ("exact", ExactLogEinsum)):
        (eqn,) = jax.make_jaxpr(functools.partial(product, accuracy))(a, a).eqns
        assert eqn.primitive.name == kind.family_id


def test_exact_networks_sum_over_all_candidates():
    tables = [jnp.zeros((2, 2))] * 3
    for accuracy, family in (("certified", "network.v1"), ("exact", "log_einsum.v1")):
        semiring = log_sum_exp(TEMPERATURE, accuracy)
        jaxpr = jax.make_jaxpr(lambda *xs: tropical_einsum("ab,bc,cd->", *xs, semiring=semiring))
        assert f"tenferro-ext-tropical.{family}" in str(jaxpr(*tables))
