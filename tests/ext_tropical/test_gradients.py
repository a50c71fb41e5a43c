"""The gradient rule: finite differences away from ties, the documented rule at ties, NaN and
all-zero cells.
"""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import max_plus, min_plus, tropical_einsum
from tenferro_jax.extension.routes import extensions_in

from ..oracles import brute_force
from ..sweep import in_turn
from .judges import check_derivatives, check_memory_of_second_derivatives

NAMES = ("max_plus", "min_plus", "max_mul")
EQUATIONS = ("ij,jk->ik", "bij,jk->kbi", "ijk,kjl->li", "i,i->", "ij,ij->ij")


@pytest.mark.few(4)
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
    with pytest.raises(AssertionError):
        check_derivatives(wrong, [a])


@pytest.mark.parametrize(("semiring", "sign"), [(max_plus, 1.0), (min_plus, -1.0)])
def test_at_a_tie_the_first_winner_takes_all(semiring, sign):
    a, b = sign * np.array([[1.0, 1.0, 0.0]]), sign * np.array([[0.0], [0.0], [1.0]])
    got = jax.grad(
        lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=semiring).sum(), argnums=(0, 1)
    )(a, b)
    np.testing.assert_array_equal(got[0], [[1, 0, 0]])
    np.testing.assert_array_equal(got[1], [[1], [0], [0]])


def test_nan_and_all_zero_cells_follow_their_winner():
    a = np.array([[1.0, np.nan, 2.0], [-np.inf, -np.inf, -np.inf]])
    b = np.zeros((3, 1))
    got = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b)[:, 0] @ jnp.array([1.0, 1.0]))(a)
    np.testing.assert_array_equal(got, [[0, 1, 0], [1, 0, 0]])


def test_integers_have_no_gradient():
    with pytest.raises(TypeError):
        jax.grad(lambda a: tropical_einsum("i,i->", a, a))(np.arange(3))


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
        pulled = jax.vjp(gradient, a, b)[1]((u, v))
        return gradient(a, b), pushed, pulled

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
