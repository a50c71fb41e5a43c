"""The scalar newtypes: the laws of a semiring, NaN and infinities, NumPy object arrays."""

import copy
import math
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_tropical import MaxMul, MaxPlus, MinPlus
from tenferro_jax.errors import DTypeError

from ..oracles import brute_force, object_einsum

CLASSES = {"max_plus": MaxPlus, "min_plus": MinPlus, "max_mul": MaxMul}
WHOLE = {"max_plus": (-(2**20), 2**20), "min_plus": (-(2**20), 2**20), "max_mul": (0, 2**16)}
"""Integer ranges in which no float operation of a law rounds; for max_mul the non-negative ones,
where its laws hold.
"""


def scalars(name):
    """Whole numbers and the zero of the semiring."""
    return st.one_of(st.integers(*WHOLE[name]).map(CLASSES[name]), st.just(CLASSES[name]()))


@pytest.mark.parametrize("name", CLASSES)
@given(data=st.data())
def test_laws_of_a_semiring(name, data):
    x, y, z = (data.draw(scalars(name)) for _ in range(3))
    zero, one = CLASSES[name].zero(), CLASSES[name].one()
    assert x + y == y + x
    assert x * y == y * x
    assert (x + y) + z == x + (y + z)
    assert (x * y) * z == x * (y * z)
    assert x * (y + z) == x * y + x * z
    assert x + zero == x == zero + x
    assert x * one == x == one * x
    assert x * zero == zero == zero * x
    assert x + x == x
    assert x + y in (x, y)
    assert hash(x + y) == hash(y + x)


def test_max_mul_does_not_distribute_over_negative_values():
    x, y, z = MaxMul(-1), MaxMul(2), MaxMul(3)
    assert (x * (y + z), x * y + x * z) == (MaxMul(-3), MaxMul(-2))
    assert x + MaxMul.zero() != x


def test_published_small_examples():
    assert (MaxPlus(3) + MaxPlus(5), MaxPlus(3) * MaxPlus(5), MaxPlus().value) == (
        MaxPlus(5),
        MaxPlus(8),
        -math.inf,
    )
    assert (MinPlus(3) + MinPlus(5), MinPlus(3) * MinPlus(5), MinPlus().value) == (
        MinPlus(3),
        MinPlus(8),
        math.inf,
    )
    assert (MaxMul(0.3) + MaxMul(0.5), MaxMul(0.3) * MaxMul(0.5), MaxMul().value) == (
        MaxMul(0.5),
        MaxMul(0.15),
        0.0,
    )


@pytest.mark.parametrize("name", CLASSES)
@given(x=st.floats(), y=st.floats())
def test_every_pair_of_floats_does_what_the_einsum_of_two_candidates_does(name, x, y):
    """A sum is the contraction of the candidates (x) one and (y) one, a product a single candidate:
    brute force judges.
    """
    cls = CLASSES[name]
    one = cls.one().value
    best = brute_force(name, "i,i->", np.array([x, y]), np.array([one, one]))[0]
    np.testing.assert_array_equal((cls(x) + cls(y)).value, best)
    candidate = brute_force(name, "i,i->", np.array([x]), np.array([y]))[0]
    np.testing.assert_array_equal((cls(x) * cls(y)).value, candidate)


@pytest.mark.parametrize("name", CLASSES)
@pytest.mark.parametrize(
    "equation", ["ij,jk->ik", "ii->i", "ij->", "i,j,k->kij", "ij,jk,ki->", "i,i->i"]
)
def test_numpy_einsum_of_object_arrays(name, equation):
    rng = np.random.default_rng(0)
    operands = [
        rng.integers(0, 9, [3] * len(term)).astype(float)
        for term in equation.split("->")[0].split(",")
    ]
    wrap, unwrap = (
        np.vectorize(CLASSES[name], otypes=[object]),
        np.vectorize(lambda s: s.value, otypes=[float]),
    )
    got = np.einsum(equation, *map(wrap, operands), optimize=False)
    np.testing.assert_array_equal(unwrap(got), object_einsum(name, equation, *operands))


def test_sum_starts_from_nothing():
    assert sum([MinPlus(4), MinPlus(2), MinPlus(3)]) == MinPlus(2)


@pytest.mark.parametrize("cls", CLASSES.values())
def test_values_are_frozen_hashable_printable_and_travel(cls):
    x = cls(2)
    assert repr(x) == f"{cls.__name__}(2.0)"
    assert (x == cls(2.0), x == cls(3), x == 2.0, cls(math.nan) == cls(math.nan)) == (
        True,
        False,
        False,
        False,
    )
    assert len({x, cls(2.0), cls(3)}) == 2
    assert len({MaxPlus(1), MinPlus(1), MaxMul(1)}) == 3
    with pytest.raises(AttributeError):
        x.value = 3.0
    assert pickle.loads(pickle.dumps(x)) == copy.deepcopy(x) == x


@pytest.mark.parametrize(
    "value", ["3", None, 1j, [1.0], 10**400], ids=["text", "None", "complex", "list", "huge"]
)
def test_what_is_no_float(value):
    with pytest.raises(DTypeError, match="MaxPlus: given"):
        MaxPlus(value)


def test_numpy_numbers_are_numbers():
    assert (MaxPlus(np.float32(2)), MinPlus(np.int64(2)), MaxMul(True)) == (
        MaxPlus(2),
        MinPlus(2),
        MaxMul(1),
    )
    assert type(MaxPlus(np.float64("inf")).value) is float
    assert math.isnan((MaxPlus(np.float64("inf")) * MaxPlus()).value)


def test_semirings_do_not_mix():
    for other in (MinPlus(1), 1.0, 1):
        for operation in (
            lambda x, y: x + y,
            lambda x, y: x * y,
            lambda x, y: y + x,
            lambda x, y: y * x,
        ):
            with pytest.raises(TypeError, match="unsupported operand"):
                operation(MaxPlus(1), other)
