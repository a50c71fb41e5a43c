"""Errors of the tropical einsum: typed, with family_id or the character, and one name for a call."""

import functools
import inspect
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest

from ext_tropical import (
    SelectiveSemiring,
    TropicalEinsum,
    best_assignment,
    closure,
    log_sum_exp,
    max_plus,
    plan_tropical_einsum,
    register,
    tropical_einsum,
    tropical_einsum_with_argmax,
    viterbi,
)
from ext_tropical.semirings.shipped import SEMIRINGS
from tenferro_jax import TensorMeta
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, TenferroError
from tenferro_jax.extension.registry import require_extension_factory
from tenferro_jax.payload_text import payload_json

from ..helpers import ends_in
from .judges import refusals

A, B = np.ones((2, 3)), np.ones((3, 4))
LONG = ((2, 2**31), (2**31, 2))


def product(a=A, b=B, **options):
    return tropical_einsum("ij,jk->ik", a, b, **options)


def test_as_many_entries_are_contracted_as_an_int32_numbers():
    dtype, most = np.dtype("float32"), 2**31 - 1
    metas = [TensorMeta(dtype, shape) for shape in ((2, most), (most, 2))]
    (out,) = TropicalEinsum(max_plus, "ij,jk->ik").infer_output_meta(metas)
    assert out.shape == (2, 2)


@pytest.mark.parametrize(
    ("equation", "column", "text"),
    [
        ("ij,jk,kl->il", 0, "3 operands"),
        ("ii,ik->ik", 0, "label 'i' twice in operand 0"),
        ("ij,jkk->ik", 4, "label 'k' twice in operand 1"),
        ("ij,jk->k", 0, "label 'i' in operand 0 alone"),
        ("ij,jkl->ik", 5, "label 'l' in operand 1 alone"),
    ],
)
def test_what_is_no_step(equation, column, text):
    error = ends_in(lambda: TropicalEinsum(max_plus, equation), InvalidConfig)
    assert text in str(error.value)
    assert str(error.value).endswith(f"\n  {equation}\n  {' ' * column}^")


test_refusals = refusals(
    (InvalidConfig, "^tropical_einsum: given an array", lambda: tropical_einsum(A, A, B)),
    (
        ShapeError,
        "operand 2, axis 0: given label 'k' of size 2, and of size 4 before, in operand 1",
        lambda: tropical_einsum("ij,jk,kl->il", A, B, A),
    ),
    (
        ShapeError,
        "^tropical_einsum 'ij,jk->ik', operand 1, axis 0: given label 'j' of size 2, and of size 3",
        lambda: tropical_einsum("ij,jk->ik", A, A),
    ),
    (
        ShapeError,
        r"operand 0: given shape \(2, 3\) of rank 2; needed rank 3",
        lambda: tropical_einsum("bij,jk->bik", A, B),
    ),
    (
        ShapeError,
        r"2147483648 contracted entries; needed at most 2147483647",
        lambda: jax.eval_shape(
            functools.partial(tropical_einsum, "ij,jk->ik"),
            *(jax.ShapeDtypeStruct(s, "f4") for s in LONG),
        ),
    ),
    (
        DTypeError,
        r"tropical_einsum 'ij,jk->ik': given operands of dtype float64 and float32; needed one "
        r"dtype",
        lambda: product(b=B.astype(np.float32)),
    ),
    *(
        (
            DTypeError,
            rf"given dtype {np.dtype(dtype).name} under max_plus; needed one of float64",
            functools.partial(product, A.astype(dtype), B.astype(dtype)),
        )
        for dtype in (np.complex128, np.uint8, bool, np.int16)
    ),
    (InvalidConfig, "member of Outputs", lambda: TropicalEinsum(max_plus, "ij,jk->ik", "value")),
    (InvalidConfig, "member of Ties", lambda: TropicalEinsum(max_plus, "ij,jk->ik", ties="first")),
    (
        InvalidConfig,
        r"ties: given 'second'; needed 'first' or 'split'",
        lambda: product(ties="second"),
    ),
    (
        InvalidConfig,
        r"'split' under log_sum_exp.*others have no ties",
        lambda: product(ties="split", semiring="log_sum_exp"),
    ),
    *(
        (
            InvalidConfig,
            f"^{ask.__name__} 'ij,jk->ik': given log_sum_exp.*needed a selective semiring",
            functools.partial(ask, "ij,jk->ik", A, B, semiring="log_sum_exp"),
        )
        for ask in (tropical_einsum_with_argmax, best_assignment)
    ),
    (
        InvalidConfig,
        "optimize: given 'best'",
        lambda: tropical_einsum("ij,jk,kl->il", A, B, B.T, optimize="best"),
    ),
    (
        InvalidConfig,
        "optimize: given",
        lambda: tropical_einsum("ij,jk,kl->il", A, B, B.T, optimize=[(0, 5)]),
    ),
    *(
        (
            InvalidConfig,
            r"memory_limit: given .* needed a positive number of bytes",
            functools.partial(product, memory_limit=limit),
        )
        for limit in (0, -1, 1.5, True, "1GB")
    ),
    (
        InvalidConfig,
        r"memory_limit: given 10 bytes; needed at least 6\d\d\d\d bytes: the result",
        lambda: product(memory_limit=10),
    ),
    (
        InvalidConfig,
        r"given <class .*SelectiveSemiring'>; needed a registered semiring",
        lambda: tropical_einsum("i->", A[0], semiring=SelectiveSemiring),
    ),
)


def test_what_is_taken():
    assert tropical_einsum("i->", A[0], semiring=log_sum_exp) == tropical_einsum(
        "i->", A[0], semiring=log_sum_exp(1.0)
    )
    result = tropical_einsum_with_argmax("ij,jk->ik", [[0.0, 1.0]], [[2.0], [3.0]])
    assert (result.value.item(), result.coordinates()["j"].item()) == (4.0, 1)


def test_integers_beyond_32_bits_while_64_are_off():
    with (
        jax.enable_x64(False),
        pytest.raises(
            DTypeError, match=r"tropical_einsum 'ij,jk->ik', operand 0.*enable_x64\(True\)"
        ),
    ):
        product(2**40 + A.astype(int), B.astype(int))


@pytest.mark.parametrize("call", [tropical_einsum, tropical_einsum_with_argmax, best_assignment])
def test_wrong_numbers_of_operands(call):
    for equation in ("ij,jk->ik", "ij,jk,kl->il", "...ij,jk->...ik"):
        for given in ((), (A,), (A, B, B, B)):
            ends_in(
                lambda: call(equation, *given),
                InvalidConfig,
                f"given {len(given)} operands?; needed {equation.count(',') + 1}",
            )
    ends_in(lambda: call(A), InvalidConfig, "Pass the equation first")


def test_unknown_semirings_are_told_the_known():
    for given in ("max-plus", "", None, 3, SelectiveSemiring()):
        error = ends_in(
            lambda: tropical_einsum("ij,jk->ik", A, B, semiring=given),
            InvalidConfig,
            "needed a registered semiring: ",
        )
        assert all(repr(known) in str(error.value) for known in SEMIRINGS)
    np.testing.assert_array_equal(
        tropical_einsum("ij,jk->ik", A, B, semiring="min_plus"), np.full((2, 4), 2)
    )


def test_a_dtype_that_was_narrowed_is_named_with_the_one_given():
    x = np.ones((2, 2), np.uint64)
    calls = (
        lambda x: tropical_einsum("ij->i", x),
        lambda x: closure(x),
    )
    calls += (lambda x: viterbi(x[0], x, x),)
    for call in calls:
        for x64, told in (
            (True, "dtype uint64 under"),
            (False, r"dtype uint32 \(from uint64, while 64-bit types are off\) under"),
        ):
            with (
                jax.enable_x64(x64),
                pytest.raises(DTypeError, match=f"given {told} m.._plus; needed one of"),
            ):
                call(x)
    both = r"float32 \(from float64, while 64-bit types are off\) and int32; needed one dtype"
    with jax.enable_x64(False), pytest.raises(DTypeError, match=f"given operands of dtype {both}"):
        tropical_einsum("ij,j->i", np.ones((2, 2)), np.ones(2, np.int32))


def test_payload():
    op = TropicalEinsum(max_plus, "ij,jk->ik")
    register()
    factory = require_extension_factory(op.family_id)
    assert factory.decode(payload_json(op)) == op
    assert factory.instantiate_default() == op
    assert (factory.family_id, factory.version) == (op.family_id, 1)
    for wrong in ("someone.else.v1", "tenferro-ext-tropical.max_plus.v2"):
        ends_in(
            lambda: factory.decode(
                payload_json(op).replace("tenferro-ext-tropical.max_plus.v1", wrong)
            ),
            InvalidConfig,
            f"given '{wrong}'; needed a registered semiring",
        )


@pytest.mark.parametrize(
    "operand",
    [None, "a", object(), [[1.0], [1.0, 2.0]], np.ma.masked_array([1.0]), np.array([1.0], ">f8")],
    ids=lambda v: type(v).__name__,
)
@pytest.mark.parametrize("call", [tropical_einsum, tropical_einsum_with_argmax])
def test_what_is_no_array(call, operand):
    ends_in(
        lambda: call("i,i->", operand, np.ones(1)),
        DTypeError,
        f"^{call.__name__} 'i,i->', operand 0",
    )


@pytest.mark.slow
def test_errors_of_long_equations_show_the_step_and_the_ends():
    """All pairs of 70 variables of two values: no order has small results, nor do slices help."""
    symbols = [opt_einsum.get_symbol(i) for i in range(70)]
    equation = ",".join(map("".join, itertools.combinations(symbols, 2))) + "->"
    shapes = [(2, 2)] * (70 * 69 // 2)
    error = ends_in(
        lambda: plan_tropical_einsum(equation, *shapes, memory_limit=10**8),
        ShapeError,
        r"'ab,ac,.*\.\.\..*->': given a result of \d+ entries.* labels, in step \d+",
    )
    assert "slices within memory_limit" in str(error.value)
    assert "in the output" not in str(error.value)
    ends_in(
        lambda: plan_tropical_einsum("a,b,c->abc", *[(2**20,)] * 3, memory_limit=10**8),
        ShapeError,
        r"a result of \d+ entries.*in step \d+, c,ab->abc; .*Keep fewer labels in the output",
    )
    assert len(str(error.value)) < 600


@pytest.mark.parametrize("fn", [tropical_einsum, tropical_einsum_with_argmax, best_assignment])
def test_an_eager_step_is_checked_once(fn, monkeypatch):
    """The second call of one step runs what the first one compiled; every other call is checked."""
    x = jnp.float32([[0, 3], [1, 2]])
    want = jax.tree.leaves(fn("ij,jk->ik", x, x, ties="first"))
    monkeypatch.setattr("ext_tropical.einsums.call.checked_call", None)
    for got, expected in zip(
        jax.tree.leaves(fn("ij,jk->ik", x + 0, x, ties="first")), want, strict=True
    ):
        np.testing.assert_array_equal(got, expected)
    ends_in(
        (
            lambda: fn(
                changed.pop("equation", "ij,jk->ik"),
                x,
                changed.pop("rhs", x),
                **({"ties": "first"} | changed),
            )
            for changed in (
                {"equation": "ik,kj->ij"},
                {"ties": "split"},
                {"rhs": x[:, :1]},
                {"over": 1},
            )
        ),
        TypeError,
        "not callable",
    )


# --- one call has one name for its place in all its errors ----------------------------------------

X, Y = np.ones((2, 3), np.float32), np.ones((3, 4), np.float32)
CALLS = {
    "tropical_einsum": tropical_einsum,
    "tropical_einsum_with_argmax": tropical_einsum_with_argmax,
    "best_assignment": best_assignment,
    "plan_tropical_einsum": plan_tropical_einsum,
}
OPERANDS = {  # equation, operands
    "ij,jk->ik": [
        (X,),
        (X, Y, Y),
        (X, X),
        (X[0], Y),
        (X[None], Y),
        (X, "a text"),
        (X, None),
        (X, "max_plus"),
        (X, Y.astype(np.float64).astype(complex)),
        (X, Y.astype("int32")),
        (X.astype("int8"), Y.astype("int8")),
        (),
    ],
    "ij,jk,kl->il": [(X, Y), (X, Y, X), (X, Y, Y.T.astype("int32")), (X, Y, [[1.0], [2.0, 3.0]])],
    "ii,ij->j": [(X, X)],
    "...ij,...jk->...ik": [(X, Y[0]), (X[0], Y)],
    "ij,jk->i1": [(X, Y)],
    "ij;jk": [(X, Y)],
    "ij,jk->iz": [(X, Y)],
    "ij,jk->ik->": [(X, Y)],
    "..ij,jk": [(X, Y)],
    "ij->ij,": [(X,)],
    "i,i->" + 60 * " ": [(X[0], Y[:2, 0])],
}
OPTIONS = [
    {"semiring": "no_such"},
    {"semiring": 3},
    {"ties": "second"},
    {"ties": "split", "semiring": "log_sum_exp"},
    {"optimize": "no_such"},
    {"optimize": 3},
    {"optimize": [(0, 7)]},
    {"optimize": [{}]},
    {"memory_limit": -1},
    {"memory_limit": "much"},
    {"memory_limit": 1},
    {"over": "no_axis"},
    {"over": 3},
    {"slices": 0},
    {"dtype": "no_dtype"},
]


# A plan needs no dtypes that fit.
NO_MISTAKE = {("ij,jk->ik", 8), ("ij,jk->ik", 9), ("ij,jk->ik", 10), ("ij,jk,kl->il", 2)}


def bad_calls():
    for name, call in CALLS.items():
        taken = inspect.signature(call).parameters
        for equation, groups in OPERANDS.items():
            for i, operands in enumerate(groups):
                if name != "plan_tropical_einsum" or (equation, i) not in NO_MISTAKE:
                    yield pytest.param(name, equation, operands, {}, id=f"{name} {equation} {i}")
        for options in OPTIONS:
            if not options.keys() <= taken.keys():
                continue
            for equation, operands in (("ij,jk->ik", (X, Y)), ("ij,jk,kl->il", (X, Y, Y.T))):
                yield pytest.param(name, equation, operands, options, id=f"{name} {options}")


@pytest.mark.parametrize(("name", "equation", "operands", "options"), list(bad_calls()))
def test_every_error_begins_with_the_call(name, equation, operands, options):
    call = CALLS[name]
    error = ends_in(lambda: call(equation, *operands, **options), TenferroError).value
    written = equation if len(equation) <= 80 else f"{equation[:40]}...{equation[-22:]}"
    place = f"{call.__name__} {written!r}"
    assert error.where == place or error.where.startswith(f"{place}, "), error.where
    assert str(error).startswith(f"{error.where}: given {error.given}")
    rest = error.where[len(place) :]
    assert not re.search(r"einsum|tenferro|assignment|equation", rest), error.where
