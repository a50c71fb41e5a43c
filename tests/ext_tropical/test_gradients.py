"""The gradient rule: finite differences away from ties, the documented rule at ties, NaN and all-zero cells."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import ext_tropical
from ext_tropical import max_plus, min_plus, tropical_einsum
from tenferro_jax.extension.routes import extensions_in

from ..oracles import brute_force, central_difference

NAMES = ("max_plus", "min_plus", "max_mul")
EQUATIONS = ("ij,jk->ik", "bij,jk->kbi", "ijk,kjl->li", "i,i->", "ij,ij->ij")
everywhere = pytest.mark.parametrize(("name", "equation"), list(itertools.product(NAMES, EQUATIONS)))


def contraction(name, equation):
    """A function of two arrays, and the arrays: reals, so that no candidates tie."""
    rng, size = np.random.default_rng(3), dict(zip("bijkl", (2, 3, 18, 3, 2)))
    lhs, rhs = (rng.normal(size=[size[c] for c in term]) for term in equation.split("->")[0].split(","))
    return lambda a, b: tropical_einsum(equation, a, b, semiring=getattr(ext_tropical, name)), lhs, rhs


@pytest.mark.few(5)
@pytest.mark.clause("X10.6")
@everywhere
def test_finite_differences(name, equation):
    f, lhs, rhs = contraction(name, equation)

    def scalar(a, b):
        v = brute_force(name, equation, a, b)[0]
        return (np.sin(v) * np.cos(np.arange(v.size)).reshape(v.shape)).sum()

    weights = np.cos(np.arange(f(lhs, rhs).size)).reshape(f(lhs, rhs).shape)
    got = jax.jit(jax.grad(lambda a, b: (jnp.sin(f(a, b)) * weights).sum(), argnums=(0, 1)))(lhs, rhs)
    for i in (0, 1):
        np.testing.assert_allclose(got[i], central_difference(scalar, [lhs, rhs], i), rtol=1e-6, atol=1e-6)


@pytest.mark.few(1)
@pytest.mark.clause("X10.6")
@everywhere
def test_both_modes_twice(name, equation):
    f, lhs, rhs = contraction(name, equation)
    check_grads(jax.jit(lambda a, b: jnp.sin(f(a, b))), (lhs, rhs), order=2, modes=("fwd", "rev"), eps=1e-6, rtol=1e-5, atol=1e-5)


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
    with pytest.raises(AssertionError):
        check_grads(wrong, (a,), order=1, modes=("fwd",), eps=1e-6, rtol=1e-5, atol=1e-5)


@pytest.mark.clause("X10.14")
def test_second_order_through_a_smooth_function():
    """out is piecewise linear in max_plus, so the Hessian of sum(out**2) is 2 J'J, J one-hot at the winners."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 2))
    winner = brute_force("max_plus", "ij,jk->ik", a, b)[1]
    jacobian = np.zeros((2, 2, 2, 3))
    for i, k in np.ndindex(2, 2):
        jacobian[i, k, i, winner[i, k]] = 1
    rows = jacobian.reshape(4, 6)
    want = (2 * rows.T @ rows).reshape(2, 3, 2, 3)
    f = lambda a: (tropical_einsum("ij,jk->ik", a, b) ** 2).sum()  # noqa: E731
    for hessian in (jax.hessian(f), jax.jacrev(jax.jacrev(f)), jax.jacfwd(jax.jacfwd(f)), jax.jacrev(jax.jacfwd(f))):
        np.testing.assert_allclose(jax.jit(hessian)(a), want, rtol=1e-12)
    third = jax.jit(jax.jacfwd(jax.hessian(lambda a: (tropical_einsum("ij,jk->ik", a, b) ** 3).sum())))(a)
    want3 = 6 * np.einsum("np,nq,nr->pqr", rows, rows, rows).reshape(2, 3, 2, 3, 2, 3)
    np.testing.assert_allclose(third, want3, rtol=1e-12)


def test_mixed_second_derivatives_of_max_mul():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 3)), rng.normal(size=(3, 2))
    f = lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=ext_tropical.max_mul).sum()  # noqa: E731
    mixed = jax.jit(jax.jacfwd(jax.grad(f), argnums=1))(a, b)
    winner = brute_force("max_mul", "ij,jk->ik", a, b)[1]
    want = np.zeros((2, 3, 3, 2))
    for i, k in np.ndindex(2, 2):
        want[i, winner[i, k], winner[i, k], k] += 1
    np.testing.assert_array_equal(mixed, want)


@pytest.mark.parametrize(("semiring", "sign"), [(max_plus, 1.0), (min_plus, -1.0)])
def test_at_a_tie_the_first_winner_takes_all(semiring, sign):
    a, b = sign * np.array([[1.0, 1.0, 0.0]]), sign * np.array([[0.0], [0.0], [1.0]])
    got = jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=semiring).sum(), argnums=(0, 1))(a, b)
    np.testing.assert_array_equal(got[0], [[1, 0, 0]])
    np.testing.assert_array_equal(got[1], [[1], [0], [0]])


def test_nan_and_all_zero_cells_follow_their_winner():
    a = np.array([[1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf]])
    b = np.zeros((3, 1))
    got = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b)[:, 0] @ jnp.array([1.0, 1.0]))(a)
    np.testing.assert_array_equal(got, [[0, 1, 0], [1, 0, 0]])


def test_gradient_total_mass():
    """Every output entry sends its cotangent to exactly one entry of each operand."""
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(5, 40)), rng.normal(size=(40, 6))
    got = jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b).sum(), argnums=(0, 1))(a, b)
    for g in got:
        assert g.sum() == 30
        assert (g >= 0).all()
        np.testing.assert_array_equal(g, np.round(g))


def test_integers_have_no_gradient():
    with pytest.raises(TypeError):
        jax.grad(lambda a: tropical_einsum("i,i->", a, a))(np.arange(3))


@pytest.mark.clause("X10.12")
def test_the_value_is_searched_once_in_a_derivative():
    x = np.ones((3, 3))
    jaxpr = jax.make_jaxpr(jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b).sum(), argnums=(0, 1)))(x, x)
    assert len(list(extensions_in(jaxpr))) == 1


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cotangents_of_sixteen_bit_operands_add_up_in_float32(dtype):
    """5,000 cotangents of 1 onto one entry: 16-bit addition would stop at 256 or 2,048."""
    a, b = jnp.zeros((1, 2), dtype), jnp.zeros((2, 5000), dtype)
    got = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b).astype(jnp.float32).sum())(a)
    assert got.dtype == dtype
    np.testing.assert_array_equal(got, jnp.array([[5000, 0]], dtype))
