"""ties="split": JAX's own maximum, which shares equally, and finite differences are the judges."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import tropical_einsum

from .judges import check_memory_of_second_derivatives

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
