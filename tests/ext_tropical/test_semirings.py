"""Semirings: the laws of ours on every dtype, and one of an author's own, which gets everything
else for free.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import (
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
from ext_tropical.algebra.laws import broken_laws
from ext_tropical.algebra.semiring import SemiringKey
from ext_tropical.algebra.shipped import SEMIRINGS
from tenferro_jax.errors import DTypeError, Duplicate, InvalidConfig, MalformedFamilyId
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.payload_text import payload_json

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
    with pytest.raises(
        InvalidConfig, match=r"given fields \(1, 2.0\); needed the fields of MinLength"
    ):
        ExtensionFactory(TropicalEinsum).decode(longer)


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
    report = tj.check(TropicalEinsum(semiring, equation))
    assert report.ok, str(report)


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
    for given in (Scaled, "scaled", "tests.scaled.v1"):
        with pytest.raises(
            InvalidConfig, match="given Scaled without its parameters power, unit; needed a value"
        ) as error:
            tropical_einsum("i->", np.array([1.0, 2.0]), semiring=given)
        assert error.value.fix == "Pass semiring=Scaled(power=..., unit=...)."
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring=Scaled(1.0, 2.0)) == 1


def test_short_names_stay_ours_and_shared_ones_are_told():
    made(SelectiveSemiring, PARTS | {"id": "tests-other.max_plus.v1"})
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="max_plus") == 2
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="tests-other.max_plus.v1") == 1
    for version in (1, 2):
        made(SelectiveSemiring, PARTS | {"id": f"tests-other.twice.v{version}"})
    with pytest.raises(
        InvalidConfig,
        match=r"given 'twice'.*one of the ids tests-other.twice.v1, tests-other.twice.v2, which "
        r"share",
    ):
        tropical_einsum("i->", np.array([1.0, 2.0]), semiring="twice")


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


@pytest.mark.parametrize("name", MISTAKES)
def test_a_method_that_returns_something_else_is_named(name):
    wrong, text = MISTAKES[name]
    id = f"tests.mistake_in_{name}.v1"
    cls = made(MinLength, {"id": id, name: wrong})
    for call in (
        lambda: tropical_einsum("i,i->", np.ones(2), np.ones(2), semiring=cls()),
        lambda: broken_laws(cls(), np.ones(2)),
    ):
        with pytest.raises(InvalidConfig, match=f"(?s){id}.*{text}"):
            call()


def test_a_times_that_drops_nan_is_found():
    made(
        MinLength, {"id": "tests.drops_nan.v1", "times": lambda self, x, y: jnp.where(y < x, y, x)}
    )
    assert "times keeps NaN" in broken_laws("drops_nan", np.array([0.0, 1.0]))
