"""Semirings: the laws of ours on every dtype, and one of an author's own, which gets everything else for free."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

from ext_tropical import (
    SEMIRINGS,
    SelectiveSemiring,
    Semiring,
    SemiringKey,
    TropicalEinsum,
    best_assignment,
    broken_laws,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    or_and,
    register_semiring,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from tenferro_jax import check_extension
from tenferro_jax.errors import DTypeError, Duplicate, InvalidConfig, MalformedFamilyId
from tenferro_jax.extension.registry import ExtensionFactory
from tenferro_jax.payload_text import payload_json

from ..sweep import some


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class MinLength(SelectiveSemiring):
    """(min, length of the hypotenuse): the least Euclidean length of steps at right angles. Its times is not linear."""

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


@pytest.mark.few(1)
@pytest.mark.parametrize("semiring", SEMIRINGS, ids=repr)
def test_laws(semiring):
    for dtype in semiring.dtypes:
        if dtype == "bool":
            values = np.array([False, True])
        else:
            values = np.array([0, 1, 2, 3, 7] if semiring is max_mul else [-5, -1, 0, 1, 7, semiring.zero(jnp.dtype(dtype))], dtype)
        assert broken_laws(semiring, values) == {}, dtype


@register_semiring
@dataclasses.dataclass(frozen=True, repr=False)
class Hypotenuse(Semiring):
    """(length of the hypotenuse, times): its plus does not select, and it is no log_sum_exp."""

    id = "tests.hypotenuse.v1"
    dtypes = ("float64",)

    def plus(self, x, y):
        return jnp.sqrt(x * x + y * y)

    def times(self, x, y):
        return x * y

    def zero(self, dtype):
        return np.zeros((), dtype)

    def one(self, dtype):
        return np.ones((), dtype)


def test_a_semiring_that_neither_selects_nor_is_log_sum_exp_is_refused_as_the_page_says():
    x = np.ones((2, 2))
    for run in (
        lambda x: tropical_einsum("ij,jk->ik", x, x, semiring=Hypotenuse()),
        lambda x: tropical_einsum_with_argmax("ij,jk->ik", x, x, semiring=Hypotenuse()),
    ):
        with pytest.raises(InvalidConfig, match="needed a selective semiring") as error:
            run(x)
        assert type(error.value) is InvalidConfig


def test_broken_laws_are_found():
    assert broken_laws(max_mul, np.array([-1.0, 1.0, 2.0])).keys() == {"zero is neutral for plus", "times distributes over plus"}

    class Wrong(SelectiveSemiring):
        def times(self, x, y):
            return x - y

        def better(self, y, x):
            return y >= x

        def zero(self, dtype):
            return np.zeros((), dtype)

        def one(self, dtype):
            return np.ones((), dtype)

    assert broken_laws(Wrong(), np.array([0.0, 1.0, 2.0])).keys() == {
        "one is neutral for times", "zero absorbs", "nothing loses to the identity", "times commutes", "times associates",
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
    np.testing.assert_allclose(candidates[i, best.labels["j"], best.labels["k"], k], best.value, rtol=1e-14)
    check_grads(lambda *x: tropical_einsum("ij,jk,kl->il", *x, semiring=semiring), (a, b, c), order=2, eps=1e-6)
    want = jnp.sqrt(a[:, :, None] ** 2 + b**2).min(1)
    np.testing.assert_array_equal(jax.vmap(lambda a: tropical_einsum("j,jk->k", a, b, semiring=semiring))(a), want)
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
    with pytest.raises(InvalidConfig, match=r"given fields \(1, 2.0\); needed the fields of MinLength"):
        ExtensionFactory(TropicalEinsum).decode(longer)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("semiring", "equation"),
    some([(min_max, "ij,jk->ik"), (or_and, "ij,jk->ik"), (MinLength(), "ij,j->i"), (max_plus, "ijk->ki")], 2),
    ids=repr,
)
def test_ops_of_every_semiring_conform(semiring, equation):
    report = check_extension(TropicalEinsum(semiring, equation))
    assert report.ok, str(report)


def test_registration_is_strict():
    @dataclasses.dataclass(frozen=True)
    class Same(MinLength):
        pass

    with pytest.raises(Duplicate, match=r"the id 'tests.min_length.v1' of .*MinLength"):
        register_semiring(Same)
    assert register_semiring(MinLength) is MinLength

    @dataclasses.dataclass(frozen=True)
    class Nameless(SelectiveSemiring):
        id = "min_length"

    with pytest.raises(MalformedFamilyId):
        register_semiring(Nameless)

    @dataclasses.dataclass
    class Mutable(SelectiveSemiring):
        id = "tests.mutable.v1"

    with pytest.raises(InvalidConfig, match="needed a frozen dataclass"):
        register_semiring(Mutable)
    for given in (int, 3, max_plus, SelectiveSemiring):
        with pytest.raises(InvalidConfig, match="a dataclass that derives from SelectiveSemiring"):
            register_semiring(given)

    @dataclasses.dataclass(frozen=True)
    class Empty(SelectiveSemiring):
        id = "tests.empty.v1"

    with pytest.raises(InvalidConfig, match="a class that writes times, zero, one, better"):
        register_semiring(Empty)
    with pytest.raises(InvalidConfig, match="needed a registered semiring"):
        tropical_einsum("i,i->", np.ones(2), np.ones(2), semiring=Nameless())


def test_a_parameter_without_a_value_is_named():
    members = {name: getattr(MinLength, name) for name in ("times", "better", "zero", "one")} | {"id": "tests.scaled.v1"}
    members["__annotations__"] = {"power": float, "unit": float}
    Scaled = register_semiring(dataclasses.dataclass(frozen=True)(type("Scaled", (SelectiveSemiring,), members)))
    for given in (Scaled, "scaled", "tests.scaled.v1"):
        with pytest.raises(InvalidConfig, match="given Scaled without its parameters power, unit; needed a value") as error:
            tropical_einsum("i->", np.array([1.0, 2.0]), semiring=given)
        assert error.value.fix == "Pass semiring=Scaled(power=..., unit=...)."
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring=Scaled(1.0, 2.0)) == 1


def test_short_names_stay_ours_and_shared_ones_are_told():
    def class_of(id):
        members = {name: getattr(MinLength, name) for name in ("times", "better", "zero", "one")}
        return register_semiring(dataclasses.dataclass(frozen=True)(type("Other", (SelectiveSemiring,), members | {"id": id})))

    class_of("tests-other.max_plus.v1")
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="max_plus") == 2
    assert tropical_einsum("i->", np.array([1.0, 2.0]), semiring="tests-other.max_plus.v1") == 1
    class_of("tests-other.twice.v1")
    class_of("tests-other.twice.v2")
    with pytest.raises(InvalidConfig, match=r"given 'twice'.*one of the ids tests-other.twice.v1, tests-other.twice.v2, which share"):
        tropical_einsum("i->", np.array([1.0, 2.0]), semiring="twice")


def test_a_key_names_what_is_registered():
    for id in ("max_plus", "tests.unheard_of.v1"):
        with pytest.raises(InvalidConfig, match=f"given '{id}'.*needed a registered semiring"):
            SemiringKey(id).semiring  # noqa: B018
    with pytest.raises(InvalidConfig, match="the fields of LogSumExp"):
        SemiringKey(log_sum_exp().id, (1.0, 2.0)).semiring  # noqa: B018

    with pytest.raises(InvalidConfig, match="an id and a tuple of bool, int, float or str"):
        SemiringKey(max_plus.id, [])
    for given in (0, None, "max-plus"):
        with pytest.raises(InvalidConfig, match="needed a registered semiring"):
            SemiringKey.of(given)


MISTAKES = {
    "dtypes": (5, "dtypes is 5"),
    "zero": (lambda self, dtype: np.zeros(3, dtype), r"zero\(float32\) returns float32\[3\], where float32\[\] is needed"),
    "one": (lambda self, dtype: np.int32(0), "one.* returns int32"),
    "identity": (5, "identity.* raises TypeError"),
    "times": (lambda self, x, y: (x + y)[..., None], r"times returns float32\[2,? ?1\], where float32\[2\] is needed"),
    "plus": (lambda self, x, y: None, "plus returns object"),
    "better": (lambda self, y, x: True, r"better returns bool\[\], where bool\[2\]"),
    "best": (lambda self, x, axis: x, "best returns"),
    "may_make_nan": (lambda self, a, b: 3, "may_make_nan returns int"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_method_that_returns_something_else_is_named(name):
    made, text = MISTAKES[name]
    id = f"tests.mistake_in_{name}.v1"
    cls = register_semiring(dataclasses.dataclass(frozen=True, repr=False)(type("Mistake", (MinLength,), {"id": id, name: made})))
    for call in (lambda: tropical_einsum("i,i->", np.ones(2), np.ones(2), semiring=cls()), lambda: broken_laws(cls(), np.ones(2))):
        with pytest.raises(InvalidConfig, match=f"(?s){id}.*{text}"):
            call()


def test_parameters_are_what_payloads_hold():
    @register_semiring
    @dataclasses.dataclass(frozen=True, repr=False)
    class Tabled(MinLength):
        id = "tests.tabled.v1"
        table: object = ()

    with pytest.raises(InvalidConfig, match=r"field table.*given \[1\].*a bool, int, float or str"):
        tropical_einsum("i,i->", np.ones(2), np.ones(2), semiring=Tabled(1.0, [1]))


def test_what_laws_are_tried_on():
    for values in ([[0.0]], [np.nan], np.array([1], np.uint8), "a", None):
        with pytest.raises((InvalidConfig, DTypeError)):
            broken_laws("max_plus", values)

    @register_semiring
    @dataclasses.dataclass(frozen=True, repr=False)
    class DropsNaN(MinLength):
        id = "tests.drops_nan.v1"

        def times(self, x, y):
            return jnp.where(y < x, y, x)

    assert "times keeps NaN" in broken_laws("drops_nan", np.array([0.0, 1.0]))


@pytest.mark.slow
def test_reachability():
    """or_and against powers of an integer matrix."""
    rng = np.random.default_rng(0)
    edges = rng.random((20, 20)) < 0.1
    walks = tropical_einsum("ij,jk,kl->il", edges, edges, edges, semiring=or_and)
    np.testing.assert_array_equal(walks, np.linalg.matrix_power(edges.astype(int), 3) > 0)
    best = best_assignment("ij,jk,kl->il", edges, edges, edges, semiring="or_and")
    i, j = np.nonzero(best.feasible)
    assert (
        edges[i, best.labels["j"][i, j]] & edges[best.labels["j"][i, j], best.labels["k"][i, j]] & edges[best.labels["k"][i, j], j]
    ).all()
    assert 0 < len(i) < 400
