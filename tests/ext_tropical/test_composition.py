"""dot_general, reduce_sum and their twins composed of plain JAX: NumPy judges both, and each the
other.
"""

import dataclasses
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest

from ext_tropical import (
    composition,
    max_plus,
    min_plus_dot_general,
    register_semiring,
    tropical_dot_general,
    tropical_einsum,
    tropical_reduce_sum,
)
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..oracles import ALGEBRAS, brute_force, object_einsum
from .judges import check_refusal, refuse, temporary_bytes

FORMS = {"fused": tropical_dot_general, "composed": composition.tropical_dot_general}
EINSUMS = {"fused": tropical_einsum, "composed": composition.tropical_einsum}
REDUCTIONS = {"fused": tropical_reduce_sum, "composed": composition.tropical_reduce_sum}


def whole(rng, name, shape):
    return (
        rng.random(shape) < 0.5
        if name == "or_and"
        else rng.integers(0 if name == "max_mul" else -4, 5, shape).astype(float)
    )


# --- values ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_published_small_examples(form):
    """The upstream project's own, transposed from column-major."""
    a, b = np.array([[1.0, 3.0], [2.0, 4.0]]), np.array([[10.0, 30.0], [20.0, 40.0]])
    np.testing.assert_array_equal(form(a, b), [[23, 43], [24, 44]])
    np.testing.assert_array_equal(
        form(np.array([[10.0, 0.0], [1.0, 5.0]]), np.array([[1.0, 10.0], [0.0, 1.0]])),
        [[11, 20], [5, 11]],
    )
    np.testing.assert_array_equal(form(a, b, semiring="min_plus"), [[11, 31], [12, 32]])
    np.testing.assert_array_equal(
        form(np.array([[1.0, 3, 5], [2, 4, 6]]), np.array([[10.0], [20], [28]])), [[33], [34]]
    )


@pytest.mark.few(10)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
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
def test_dimension_numbers_are_those_of_lax(name, form, shapes, numbers, equation):
    rng = np.random.default_rng(len(equation))
    lhs, rhs = (whole(rng, name, shape) for shape in shapes)
    got = form(lhs, rhs, numbers, semiring=name)
    np.testing.assert_array_equal(got, object_einsum(name, equation, lhs, rhs))
    lax_numbers = numbers or (((lhs.ndim - 1,), (0,)), ((), ()))
    assert got.shape == jax.lax.dot_general(lhs.astype(float), rhs.astype(float), lax_numbers).shape


def test_min_plus_has_a_name_of_its_own():
    rng = np.random.default_rng(0)
    lhs, rhs = (whole(rng, "min_plus", (3, 3)) for _ in range(2))
    for function in (min_plus_dot_general, composition.min_plus_dot_general):
        np.testing.assert_array_equal(
            function(lhs, rhs), object_einsum("min_plus", "ij,jk->ik", lhs, rhs)
        )
        np.testing.assert_array_equal(
            function(lhs, rhs, (((0,), (0,)), ((), ()))),
            object_einsum("min_plus", "ji,jk->ik", lhs, rhs),
        )


REDUCE = {
    "max_plus": np.max,
    "max_mul": np.max,
    "min_plus": np.min,
    "min_max": np.min,
    "or_and": np.any,
}


@pytest.mark.few(10)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize("form", REDUCTIONS.values(), ids=REDUCTIONS)
@pytest.mark.parametrize("axis", [None, 0, -1, (0, 2), (2, -2), ()])
@pytest.mark.parametrize("keepdims", [False, True])
def test_reduce_sum_agrees_with_numpy(name, form, axis, keepdims):
    x = whole(np.random.default_rng(0), name, (2, 3, 4))
    np.testing.assert_array_equal(
        form(x, axis, keepdims, semiring=name),
        REDUCE[name](x, axis=axis, keepdims=keepdims),
        strict=True,
    )


@pytest.mark.parametrize("form", REDUCTIONS.values(), ids=REDUCTIONS)
def test_reduce_sum_of_nan_of_nothing_and_of_a_scalar(form):
    np.testing.assert_array_equal(
        form(np.array([[1.0, np.nan], [2.0, 3.0]]), axis=1), [np.nan, 3.0]
    )
    for name, algebra in ALGEBRAS.items():
        empty = np.zeros((2, 0), bool if name == "or_and" else float)
        np.testing.assert_array_equal(form(empty, axis=1, semiring=name), [algebra.zero] * 2)
    assert form(3.0) == 3.0
    assert form([1.0, 5.0, 2.0, 3.0]).shape == ()


@pytest.mark.few(11)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize(
    "equation",
    [
        "ij,jk->ik",
        "ii->i",
        "ii->",
        "iij,jk->ki",
        "iii,i->i",
        "ij,kl,j->li",
        "ij->ji",
        ",i->i",
        "i,i,i->",
        "ijij->ij",
        "ij,jk",
    ],
)
def test_the_composed_einsum_agrees_with_numpy(name, equation):
    rng = np.random.default_rng(len(equation))
    operands = [whole(rng, name, (3,) * len(term)) for term in equation.split("->")[0].split(",")]
    np.testing.assert_array_equal(
        composition.tropical_einsum(equation, *operands, semiring=name),
        object_einsum(name, equation, *operands),
    )


def test_the_composed_einsum_reads_every_notation():
    rng = np.random.default_rng(0)
    a, b = (
        rng.integers(-4, 5, (5, 2, 3)).astype(float),
        rng.integers(-4, 5, (1, 3, 4)).astype(float),
    )
    want = object_einsum("max_plus", "bij,bjk->bik", a, b.repeat(5, 0))
    np.testing.assert_array_equal(composition.tropical_einsum("...ij,...jk->...ik", a, b), want)
    np.testing.assert_array_equal(composition.tropical_einsum("...ij,jk", a, b[0]), want)
    np.testing.assert_array_equal(
        composition.tropical_einsum(a[0], [0, 1], b[0], [1, 2], [0, 2]), want[0]
    )


SPECIAL = np.array([0.0, 1.0, -2.0, np.inf, -np.inf, np.nan])


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_mul", "min_max"])
def test_both_forms_show_nan_and_infinities_alike(name):
    rng = np.random.default_rng(0)
    for _ in range(5):
        lhs, rhs = rng.choice(SPECIAL, (4, 3)), rng.choice(SPECIAL, (3, 4))
        want = brute_force(name, "ij,jk->ik", lhs, rhs)[0]
        for form in FORMS.values():
            np.testing.assert_array_equal(form(lhs, rhs, semiring=name), want)


@pytest.mark.few(2)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "int64"])
def test_dtypes_of_both_forms(dtype):
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.integers(-300, 300, shape), dtype) for shape in ((3, 20), (20, 4)))
    fused, composed = (form(lhs, rhs) for form in FORMS.values())
    assert fused.dtype == composed.dtype == dtype
    np.testing.assert_array_equal(fused, composed)


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize("shapes", [((2, 0), (0, 3)), ((0, 2), (2, 3)), ((0, 0), (0, 0))])
def test_empty_contractions_of_both_forms(name, shapes):
    lhs, rhs = (np.zeros(shape, bool if name == "or_and" else float) for shape in shapes)
    for form in FORMS.values():
        np.testing.assert_array_equal(
            form(lhs, rhs, semiring=name),
            np.full((len(lhs), rhs.shape[1]), ALGEBRAS[name].zero),
            strict=True,
        )


# --- gradients ------------------------------------------------------------------------------------


def gradients(einsum, equation, operands):
    return jax.grad(
        lambda *xs: (jnp.sin(einsum(equation, *xs)) * 3).sum(), argnums=tuple(range(len(operands)))
    )(*operands)


@pytest.mark.few(1)
@pytest.mark.parametrize("equation", ["ij,jk->ik", "iij,jk->k", "ij,jk,kl->il"])
def test_gradients_agree_where_no_candidates_tie(equation):
    rng = np.random.default_rng(0)
    operands = [rng.normal(size=(3,) * len(term)) for term in equation.split("->")[0].split(",")]
    for fused, composed in zip(
        gradients(tropical_einsum, equation, operands),
        gradients(composition.tropical_einsum, equation, operands),
    ):
        np.testing.assert_allclose(fused, composed, rtol=1e-12, atol=1e-12)


def test_at_a_tie_the_composed_gradient_is_split_and_the_fused_one_goes_to_the_first():
    a, b = np.zeros((1, 2)), np.zeros((2, 1))
    want = {"fused": [[1.0, 0.0]], "composed": [[0.5, 0.5]]}
    for form, function in FORMS.items():
        np.testing.assert_array_equal(jax.grad(lambda a: function(a, b).sum())(a), want[form])
    for form, function in REDUCTIONS.items():
        np.testing.assert_array_equal(jax.grad(lambda a: function(a).sum())(a), want[form])
    split = jax.grad(lambda a: tropical_einsum("ij,jk->ik", a, b, ties="split").sum())(a)
    np.testing.assert_array_equal(split, want["composed"])


@pytest.mark.slow
def test_a_program_for_all_sizes():
    """One exported program at 2 x 2, and at 2 x 3 times 3 x 1; the same for the gradient."""
    m, k, n = jax.export.symbolic_shape("m, k, n")
    specs = (jax.ShapeDtypeStruct((m, k), np.float64), jax.ShapeDtypeStruct((k, n), np.float64))
    for form in FORMS.values():
        for fn in (form, jax.grad(lambda a, b: form(a, b).sum())):
            program = jax.export.export(jax.jit(fn))(*specs)
            for shapes in (((2, 2), (2, 2)), ((2, 3), (3, 1))):
                operands = [np.random.default_rng(0).normal(size=shape) for shape in shapes]
                np.testing.assert_array_equal(program.call(*operands), fn(*operands))


# --- errors ---------------------------------------------------------------------------------------


A = np.zeros((2, 2))
X = np.zeros((2, 3))


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
@refuse(
    *(
        (InvalidConfig, r"dimension_numbers: given .*needed \(\(lhs contracted", (A, A, numbers))
        for numbers in (
            3,
            "ij",
            ((0, 0), ((), ())),
            (((0,), (0,)),),
            (((0,), (0,)), ((), ()), ()),
            (((0.0,), (0,)), ((), ())),
        )
    ),
    (InvalidConfig, "as many axes of lhs as of rhs", (A, A, (((0, 1), (0,)), ((), ())))),
    (InvalidConfig, "each axis once", (A, A, (((0,), (0,)), ((0,), (1,))))),
    *(
        (
            ShapeError,
            rf"axes of rhs: given axis {axis} of an operand of rank 2",
            (A, A, (((0,), (axis,)), ((), ()))),
        )
        for axis in (2, -1)
    ),
    (ShapeError, "of size 2, and of size 3", (X, X)),
    (ShapeError, "rank 0 and 2", (1.0, A)),
    (DTypeError, "float64 and float32", (A, A.astype(np.float32))),
    *((DTypeError, "", (value, A)) for value in ("a", None, A + 0j)),
    (InvalidConfig, "given 'max_times'", (A, A, None, "max_times")),
)
def test_refused_products(form, error, text, call):
    check_refusal(
        error, text, lambda: form(*call[:3], **({"semiring": call[3]} if call[3:] else {}))
    )


@pytest.mark.parametrize("form", REDUCTIONS.values(), ids=REDUCTIONS)
@refuse(
    *((InvalidConfig, r"axis: given .*an integer", (X, axis)) for axis in (1.0, "a", (0, None))),
    (InvalidConfig, "each axis once", (X, (1, -1))),
    *((ShapeError, "of an array of rank 2", (X, axis)) for axis in (2, -3, (0, 5))),
    (DTypeError, "", (X + 0j,)),
)
def test_axes_that_cannot_be_reduced(form, error, text, call):
    check_refusal(error, text, lambda: form(*call))


def test_composed_equations_that_cannot_be_read():
    check_refusal(
        InvalidConfig, "output label 'z'", lambda: composition.tropical_einsum("ij,jk->iz", A, A)
    )


def test_a_semiring_that_jax_has_no_reduction_for():
    @register_semiring
    @dataclasses.dataclass(frozen=True, repr=False)
    class Nearest(type(max_plus)):
        id = "tests-composition.nearest.v1"

    with pytest.raises(
        Unsupported,
        match="given semiring nearest; needed one of max_plus, min_plus, max_mul, min_max, or_and",
    ):
        composition.tropical_einsum("ij->i", np.zeros((2, 2)), semiring=Nearest())


@pytest.mark.cpu
@pytest.mark.slow
def test_the_composed_form_holds_all_candidates_and_the_fused_one_does_not():
    n = 128
    specs = [jax.ShapeDtypeStruct((n, n), np.float32)] * 2
    memory = {
        form: temporary_bytes(jax.grad(lambda a, b, f=f: f(a, b).sum()), *specs)
        for form, f in FORMS.items()
    }
    assert memory["composed"] > n**3
    assert memory["fused"] < 24 * n * n * 4


@pytest.mark.parametrize("how", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_more_candidates_than_any_machine_holds_are_refused(how):
    """XLA aborts the process where a size does not fit 64 bits."""
    symbols = [opt_einsum.get_symbol(i) for i in range(201)]
    equation = ",".join(a + b for a, b in itertools.pairwise(symbols)) + "->"
    tables = [np.zeros((2, 2))] * 200
    with pytest.raises(
        ShapeError,
        match=r"given \d+ candidates, the product of the sizes of 201 labels; needed at most "
        r"281474976710656",
    ):
        how(lambda tables: composition.tropical_einsum(equation, *tables))(tables)
