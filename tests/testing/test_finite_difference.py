"""Extrapolated differences against derivatives known by hand, and the places where there
are none.
"""

import numpy as np
import pytest

from tenferro_jax.testing.finite_differences import directional

X = np.array([0.3, -1.7, 2.5])
V = np.array([1.0, -0.5, 2.0])


@pytest.mark.parametrize(
    ("fn", "slope"),
    [
        (np.sin, np.cos),
        (np.exp, np.exp),
        (np.tanh, lambda x: 1 / np.cosh(x) ** 2),
        (lambda x: x**7, lambda x: 7 * x**6),
        (abs, np.sign),
    ],
    ids=["sin", "exp", "tanh", "power", "abs"],
)
def test_smooth_functions_to_a_millionth(fn, slope):
    (found,) = directional(lambda x: [fn(x)], [X], [V])
    assert found.smooth.all()
    np.testing.assert_allclose(found.value, slope(X) * V, rtol=1e-7)


def test_complex_directions():
    z, v = np.array([0.5 + 1.0j, -0.25j]), np.array([1.0 - 2.0j, 0.5j])
    (found,) = directional(lambda z: [z**3], [z], [v])
    np.testing.assert_allclose(found.value, 3 * z**2 * v, rtol=1e-7)


def test_kinks_jumps_and_infinities_have_no_derivative():
    at = np.array([0.0, 1e-9, 1.0, 0.5])

    def fn(x):
        with np.errstate(all="ignore"):
            return [abs(x), np.floor(x), np.log(x - 0.75), np.where(x < 0.75, -np.inf, x)]

    kink, jump, log, infinite = directional(fn, [at], [np.ones(4)])
    assert kink.smooth.tolist() == [False, False, True, True]
    assert jump.smooth.tolist() == [False, False, False, True]
    assert log.smooth.tolist() == [False, False, True, False]
    assert infinite.smooth.tolist() == [False, False, True, False]
