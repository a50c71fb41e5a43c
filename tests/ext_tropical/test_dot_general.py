"""dot_general and reduce_sum: NumPy judges both."""

import functools
import itertools

import jax
import jax.export
import numpy as np
import pytest

from ext_tropical import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum
from tenferro_jax.errors import DTypeError, ShapeError

from ..oracles import ALGEBRAS, object_einsum
from .judges import refusals


def whole(rng, name, shape):
    return (
        rng.random(shape) < 0.5
        if name == "or_and"
        else rng.integers(0 if name == "max_mul" else -4, 5, shape).astype(float)
    )


def test_published_small_examples():
    """The upstream project's own, transposed from column-major."""
    a, b = np.array([[1.0, 3.0], [2.0, 4.0]]), np.array([[10.0, 30.0], [20.0, 40.0]])
    c, d = np.array([[10.0, 0.0], [1.0, 5.0]]), np.array([[1.0, 10.0], [0.0, 1.0]])
    np.testing.assert_array_equal(tropical_dot_general(a, b), [[23, 43], [24, 44]])
    np.testing.assert_array_equal(tropical_dot_general(c, d), [[11, 20], [5, 11]])
    np.testing.assert_array_equal(min_plus_dot_general(a, b), [[11, 31], [12, 32]])
    np.testing.assert_array_equal(
        min_plus_dot_general(a, b, (((0,), (0,)), ((), ()))),
        object_einsum("min_plus", "ji,jk->ik", a, b),
    )


@pytest.mark.few(8)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize(
    ("shapes", "numbers", "equation"),
    [
        (((2, 3), (3, 4)), None, "ij,jk->ik"),
        (((2, 3), (3,)), None, "ij,j->i"),
        (((3,), (3,)), None, "i,i->"),
        (((2, 5, 3), (5, 3, 4)), (((2,), (1,)), ((1,), (0,))), "ibj,bjk->bik"),
        (((2, 5, 3), (3, 5, 4)), (([2, 1], [0, 1]), ((), ())), "iab,bak->ik"),
        (((2, 3), (3, 2)), (((), ()), ((0, 1), (1, 0))), "ij,ji->ij"),
        (((2,), (3, 4)), (((), ()), ((), ())), "i,jk->ijk"),
        (((), ()), (((), ()), ((), ())), ",->"),
    ],
)
def test_dimension_numbers_are_those_of_lax(name, shapes, numbers, equation):
    rng = np.random.default_rng(len(equation))
    lhs, rhs = (whole(rng, name, shape) for shape in shapes)
    got = tropical_dot_general(lhs, rhs, numbers, semiring=name)
    np.testing.assert_array_equal(got, object_einsum(name, equation, lhs, rhs))
    lax_numbers = numbers or (((lhs.ndim - 1,), (0,)), ((), ()))
    assert got.shape == jax.lax.dot_general(lhs.astype(float), rhs.astype(float), lax_numbers).shape


REDUCE = {
    "max_plus": np.max,
    "max_mul": np.max,
    "min_plus": np.min,
    "min_max": np.min,
    "or_and": np.any,
}


@pytest.mark.parametrize("name", ALGEBRAS)
def test_reduce_sum_agrees_with_numpy(name):
    x = whole(np.random.default_rng(0), name, (2, 3, 4))
    for axis, keepdims in itertools.product((None, 0, -1, (0, 2), (2, -2), ()), (False, True)):
        np.testing.assert_array_equal(
            tropical_reduce_sum(x, axis, keepdims, semiring=name),
            REDUCE[name](x, axis=axis, keepdims=keepdims),
            strict=True,
        )
    np.testing.assert_array_equal(
        tropical_reduce_sum(x[:, :0], axis=1, semiring=name), np.full((2, 4), ALGEBRAS[name].zero)
    )


def test_reduce_sum_of_nan_and_of_a_scalar():
    np.testing.assert_array_equal(
        tropical_reduce_sum(np.array([[1.0, np.nan], [2.0, 3.0]]), axis=1), [np.nan, 3.0]
    )
    assert tropical_reduce_sum(3.0) == 3.0
    assert tropical_reduce_sum([1.0, 5.0, 2.0, 3.0]).shape == ()


A = np.zeros((2, 2))
X = np.zeros((2, 3))


PRODUCTS = (
    *(
        (ShapeError, r"needed what jax.lax.dot_general takes", (A, A, numbers))
        for numbers in (
            3,
            "ij",
            ((0, 0), ((), ())),
            (((0,), (0,)),),
            (((0,), (0,)), ((), ()), ()),
            (((0.0,), (0,)), ((), ())),
            (((0, 1), (0,)), ((), ())),
            (((0,), (0,)), ((0,), (1,))),
            (((0,), (2,)), ((), ())),
            (((0,), (-1,)), ((), ())),
        )
    ),
    (ShapeError, r"shapes \(2, 3\) and \(2, 3\)", (X, X)),
    (ShapeError, r"shapes \(2, 1\) and \(3, 4\)", (np.ones((2, 1)), np.ones((3, 4)))),
    (ShapeError, r"shapes \(\) and \(2, 2\)", (1.0, A)),
    (DTypeError, "float64 and float32", (A, A.astype(np.float32))),
    (DTypeError, "tropical_dot_general, lhs", ("a", A)),
    (DTypeError, "", (A + 0j, A)),
)
REDUCTIONS = (
    *(
        (ShapeError, "axis: given .* for an array of rank 2; needed an axis", (X, axis))
        for axis in (1.0, "a", (0, None), (1, -1), 2, -3, (0, 5))
    ),
    (DTypeError, "", (X + 0j,)),
)
test_refusals = refusals(
    *(
        (error, text, functools.partial(call, *given))
        for call, rows in ((tropical_dot_general, PRODUCTS), (tropical_reduce_sum, REDUCTIONS))
        for error, text, given in rows
    )
)
