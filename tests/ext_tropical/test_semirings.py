"""Semirings: the laws of ours on every dtype, and one of an author's own, which gets everything
else for free; the scalar newtypes: laws, NaN and infinities, NumPy object arrays.
"""

import copy
import dataclasses
import functools
import math
import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ext_tropical import (
    MaxMul,
    MaxPlus,
    MinPlus,
    SelectiveSemiring,
    TropicalEinsum,
    best_assignment,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    or_and,
    register_semiring,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from ext_tropical.semirings.laws import broken_laws
from ext_tropical.semirings.registered import SemiringKey
from ext_tropical.semirings.shipped import SEMIRINGS
from tenferro_jax.errors import DTypeError, Duplicate, InvalidConfig, MalformedFamilyId
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.payload_text import payload_json

from ..helpers import ends_in, passes
from ..oracles import brute_force, object_einsum
from ..sweep import some
from .judges import check_derivatives, refusals


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinLength(SelectiveSemiring):
    """(min, length of the hypotenuse): the least Euclidean length of steps at right angles. Its
    times is not linear.
    """

    id = "tests.min_length.v1"
    dtypes = ("float64", "float32")
    unit: float = 1.0

    def times(self, x, y):
        return jnp.sqrt(x * x + y * y)

    def better(self, y, x):
        return y < x

    def zero(self, dtype):
        return np.asarray(np.inf, dtype)

    def one(self, dtype):
        return np.zeros((), dtype)


PARTS = {name: getattr(MinLength, name) for name in ("times", "better", "zero", "one")}


def made(base, parts, name="Made"):
    """A registered semiring of these parts."""
    return register_semiring(
        dataclasses.dataclass(frozen=True, repr=False)(type(name, (base,), parts))
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=repr)
def test_laws(semiring):
    for dtype in semiring.dtypes:
        if dtype == "bool":
            values = np.array([False, True])
        else:
            values = np.array(
                [0, 1, 2, 3, 7]
                if semiring is max_mul
                else [-5, -1, 0, 1, 7, semiring.zero(jnp.dtype(dtype))],
                dtype,
            )
        assert broken_laws(semiring, values) == {}, dtype


def test_broken_laws_are_found():
    assert broken_laws(max_mul, np.array([-1.0, 1.0, 2.0])).keys() == {
        "zero is neutral for plus",
        "times distributes over plus",
    }

    Wrong = type(
        "Wrong",
        (SelectiveSemiring,),
        {
            "times": lambda self, x, y: x - y,
            "better": lambda self, y, x: y >= x,
            "zero": lambda self, dtype: np.zeros((), dtype),
            "one": lambda self, dtype: np.ones((), dtype),
        },
    )
    assert broken_laws(Wrong(), np.array([0.0, 1.0, 2.0])).keys() == {
        "one is neutral for times", "zero absorbs", "nothing loses to the "
                                                    "identity", "times commutes",
                                                    "times associates",
        "one of two different values is better, of equal ones none", "times distributes over plus",
    }  # fmt: skip


@pytest.mark.slow
def test_a_semiring_of_ones_own_has_values_winners_assignments_and_gradients():
    semiring = MinLength()
    assert broken_laws(semiring, np.array([0.0, 3.0, np.inf])) == {}
    rng = np.random.default_rng(0)
    a, b, c = (rng.uniform(1, 2, shape) for shape in ((3, 40), (40, 5), (5, 4)))
    candidates = np.sqrt(a[:, :, None, None] ** 2 + b[None, :, :, None] ** 2 + c[None, None] ** 2)
    for name in (semiring, "min_length", "tests.min_length.v1"):
        best = best_assignment("ij,jk,kl->il", a, b, c, semiring=name)
        np.testing.assert_allclose(best.value, candidates.min((1, 2)), rtol=1e-14)
    i, k = np.indices((3, 4))
    np.testing.assert_allclose(
        candidates[i, best.labels["j"], best.labels["k"], k], best.value, rtol=1e-14
    )
    check_derivatives(lambda *x: tropical_einsum("ij,jk,kl->il", *x, semiring=semiring), (a, b, c))
    want = jnp.sqrt(a[:, :, None] ** 2 + b**2).min(1)
    np.testing.assert_array_equal(
        jax.vmap(lambda a: tropical_einsum("j,jk->k", a, b, semiring=semiring))(a), want
    )
    nan = a.copy()
    nan[0, 7] = np.nan
    result = tropical_einsum_with_argmax("ij,jk->ik", nan, b, semiring=semiring)
    assert np.isnan(result.value[0]).all()
    assert (result.winner[0] == 7).all()
    assert not np.isnan(result.value[1:]).any()


def test_a_semiring_of_ones_own_conforms_and_is_read_back():
    op = TropicalEinsum(MinLength(2.0), "ij,jk->ik")
    assert repr(op.semiring) == "min_length(unit=2.0)"
    assert ExtensionFactory(TropicalEinsum).decode(payload_json(op)) == op
    assert op != TropicalEinsum(MinLength(3.0), "ij,jk->ik")
    assert op.algebra == MinLength(2.0)
    longer = payload_json(op).replace('"fields":[', '"fields":[1,')
    ends_in(
        lambda: ExtensionFactory(TropicalEinsum).decode(longer),
        InvalidConfig,
        r"given fields \(1, 2.0\); needed the fields of MinLength",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("semiring", "equation"),
    some(
        [
            (min_max, "ij,jk->ik"),
            (or_and, "ij,jk->ik"),
            (MinLength(), "ij,j->i"),
            (max_plus, "ijk->ki"),
        ],
        1,
    ),
    ids=repr,
)
def test_ops_of_every_semiring_conform(semiring, equation):
    passes(TropicalEinsum(semiring, equation))


def test_a_reduction_says_what_is_better_and_a_subclass_states_its_own():
    """What a class changes, JAX's reduction and the library's kernels do not know."""
    parts = {name: PARTS[name] for name in ("times", "one")} | {"dtypes": MinLength.dtypes}
    Least = made(SelectiveSemiring, parts | {"id": "tests.least.v1", "reduction": "min"})
    entries = np.array([0.0, 3.0, np.inf])
    assert broken_laws(Least(), entries) == broken_laws(MinLength(), entries) == {}
    np.testing.assert_array_equal(
        tropical_einsum("i,ij->j", entries, entries[:, None], semiring=Least()), [0.0]
    )
    Same = made(type(max_plus), {"id": "tests.same.v1"})
    assert (max_plus.native_number, Same.native_number, Same.reduction) == (0, None, "max")
    parts = {"id": "tests.other.v1", "better": PARTS["better"], "zero": PARTS["zero"]}
    Other = made(type(max_plus), parts)
    assert Other.reduction == ""
    assert broken_laws(Other(), entries) == {}


def test_a_class_is_registered_once():
    assert register_semiring(MinLength) is MinLength


def test_a_parameter_without_a_value_is_named():
    parts = PARTS | {"id": "tests.scaled.v1", "__annotations__": {"power": float, "unit": float}}
    Scaled = made(SelectiveSemiring, parts, "Scaled")
    for semiring in (Scaled, "scaled", "tests.scaled.v1"):
        ends_in(
            lambda: tropical_einsum("i->", np.array([1.0, 2.0]), semiring=semiring),
            InvalidConfig,
            "semiring tests.scaled.v1: .* missing 2 required .*: 'power' and 'unit'",
        )
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring=Scaled(1.0, 2.0)) == 1


def test_short_names_stay_ours_and_shared_ones_are_told():
    made(SelectiveSemiring, PARTS | {"id": "tests-other.max_plus.v1"})
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="max_plus") == 2
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="tests-other.max_plus.v1") == 1
    for version in (1, 2):
        made(SelectiveSemiring, PARTS | {"id": f"tests-other.twice.v{version}"})
    ends_in(
        lambda: tropical_einsum("i->", np.array([1.0, 2.0]), semiring="twice"),
        InvalidConfig,
        r"given 'twice'.*one of the ids tests-other.twice.v1, tests-other.twice.v2, which "
        r"share",
    )


test_refusals = refusals(
    *(
        (
            InvalidConfig,
            f"given '{id}'.*needed a registered semiring",
            lambda id=id: SemiringKey(id).semiring,
        )
        for id in ("max_plus", "tests.unheard_of.v1")
    ),
    (
        InvalidConfig,
        "the fields of LogSumExp",
        lambda: SemiringKey(log_sum_exp().id, (1.0, "exact", 2.0)).semiring,
    ),
    (
        InvalidConfig,
        "a reduction 'max', 'min' or ''",
        lambda: made(SelectiveSemiring, PARTS | {"id": "tests.sums.v1", "reduction": "sum"}),
    ),
    *(
        (InvalidConfig, "needed a registered semiring", functools.partial(SemiringKey.of, given))
        for given in (0, None, "max-plus")
    ),
    *(
        ((InvalidConfig, DTypeError), "", functools.partial(broken_laws, "max_plus", values))
        for values in ([[0.0]], [np.nan], np.array([1], np.uint8), "a", None)
    ),
    *(
        (
            InvalidConfig,
            "dataclass that derives from SelectiveSemiring",
            functools.partial(register_semiring, given),
        )
        for given in (int, 3, max_plus, SelectiveSemiring)
    ),
    (
        InvalidConfig,
        "a class that writes times, zero, one, better",
        lambda: made(SelectiveSemiring, {"id": "tests.empty.v1"}),
    ),
    (
        InvalidConfig,
        "needed a frozen dataclass",
        lambda: register_semiring(
            dataclasses.dataclass(type("Mutable", (SelectiveSemiring,), {"id": "tests.mutable.v1"}))
        ),
    ),
    (MalformedFamilyId, "", lambda: made(SelectiveSemiring, {"id": "min_length"})),
    (Duplicate, r"the id 'tests.min_length.v1' of .*MinLength", lambda: made(MinLength, {})),
    (
        InvalidConfig,
        r"field table.*given \[1\].*a bool, int, float or str",
        lambda: tropical_einsum(
            "i,i->",
            *np.ones((2, 2)),
            semiring=made(
                MinLength,
                {"id": "tests.tabled.v1", "__annotations__": {"table": object}, "table": ()},
            )(1.0, [1]),
        ),
    ),
)


MISTAKES = {
    "dtypes": (5, "dtypes is 5"),
    "zero": (
        lambda self, dtype: np.zeros(3, dtype),
        r"zero\(float32\) returns float32\[3\], where float32\[\] is needed",
    ),
    "one": (lambda self, dtype: np.int32(0), "one.* returns int32"),
    "identity": (5, "identity.* raises TypeError"),
    "times": (
        lambda self, x, y: (x + y)[..., None],
        r"times returns float32\[2,? ?1\], where float32\[2\] is needed",
    ),
    "plus": (lambda self, x, y: None, "plus returns object"),
    "better": (lambda self, y, x: True, r"better returns bool\[\], where bool\[2\]"),
    "best": (lambda self, x, axis: x, "best returns"),
    "may_make_nan": (lambda self, a, b: 3, "may_make_nan returns int"),
}


@pytest.mark.parametrize("package", ["tests", "tenferro-ext-tropical"])
@pytest.mark.parametrize("name", MISTAKES)
def test_a_method_that_returns_something_else_is_named(name, package):
    """Under an id of the shipped ones too: these alone are not tried."""
    wrong, text = MISTAKES[name]
    id = f"{package}.mistake_in_{name}.v1"
    cls = made(MinLength, {"id": id, name: wrong})
    ends_in(
        (
            lambda: tropical_einsum("i,i->", np.ones(2), np.ones(2), semiring=cls()),
            lambda: broken_laws(cls(), np.ones(2)),
        ),
        InvalidConfig,
        f"(?s){id}.*{text}",
    )


def test_a_times_that_drops_nan_is_found():
    made(
        MinLength, {"id": "tests.drops_nan.v1", "times": lambda self, x, y: jnp.where(y < x, y, x)}
    )
    assert "times keeps NaN" in broken_laws("drops_nan", np.array([0.0, 1.0]))


# --- scalars --------------------------------------------------------------------------------------


CLASSES = {"max_plus": MaxPlus, "min_plus": MinPlus, "max_mul": MaxMul}
# Integer ranges in which no float operation of a law rounds; for max_mul the non-negative ones,
# where its laws hold.
WHOLE = {"max_plus": (-(2**20), 2**20), "min_plus": (-(2**20), 2**20), "max_mul": (0, 2**16)}


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
    ends_in(lambda: setattr(x, "value", 3.0), AttributeError)
    assert pickle.loads(pickle.dumps(x)) == copy.deepcopy(x) == x


@pytest.mark.parametrize("value", ["3", None, 1j, [1.0]], ids=["text", "None", "complex", "list"])
def test_what_is_no_float(value):
    ends_in(lambda: MaxPlus(value), DTypeError, "MaxPlus: given")


def test_numpy_numbers_are_numbers():
    assert (MaxPlus(np.float32(2)), MinPlus(np.int64(2)), MaxMul(True)) == (
        MaxPlus(2),
        MinPlus(2),
        MaxMul(1),
    )
    assert type(MaxPlus(np.float64("inf")).value) is float
    assert math.isnan((MaxPlus(np.float64("inf")) * MaxPlus()).value)


@pytest.mark.parametrize("other", [MinPlus(1), 1.0, 1])
def test_semirings_do_not_mix(other):
    ends_in(
        (
            lambda: operation(MaxPlus(1), other)
            for operation in (
                lambda x, y: x + y,
                lambda x, y: x * y,
                lambda x, y: y + x,
                lambda x, y: y * x,
            )
        ),
        TypeError,
        "unsupported operand",
    )
