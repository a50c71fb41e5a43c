"""Tropical einsum, dot_general and reduce_sum against brute force and NumPy object einsum: values,
winners, edges, dtypes, memory; the equation bank under every semiring.
"""

import functools
import itertools
import string
import zlib

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import stablehlo

import ext_tropical
from ext_tropical import (
    TropicalEinsum,
    log_sum_exp,
    max_plus,
    min_plus,
    min_plus_dot_general,
    tropical_dot_general,
    tropical_einsum,
    tropical_einsum_with_argmax,
    tropical_reduce_sum,
)
from ext_tropical.semirings.shipped import SEMIRINGS
from ext_tropical.steps.einsum_op import Outputs
from ext_tropical.steps.kernels import selection
from tenferro_jax.errors import DTypeError, ShapeError
from tenferro_jax.extension import apply

from ..helpers import equal
from ..oracles import ALGEBRAS, brute_force, log_einsum, object_einsum
from ..sweep import ALL, in_turn, some, times
from .bank import OPT_EINSUM, PATTERNS, random_cases, sized
from .judges import check_assignment, refusals, temporary_bytes

NAMES = ("max_plus", "min_plus", "max_mul", "min_max")
EQUATIONS = (
    "ij,jk->ik", "ij,jk->ki", "ji,jk->ik", "ij,kj->ik", "bij,bjk->bik", "ijb,jkb->bik",
    "bij,jk->bik", "ij,bjk->ibk",
    "ijk,jkl->il", "kji,ljk->il", "ijk,kj->i", "i,i->", "i,ij->j", "ij,ij->", "ij,ij->ij", "i,i->i",
    "i,j->ij", "i,j->ji",
    "ij,kl->ikjl", "abij,bajk->kaib", ",i->i", "i,->i", ",->", "ij,jk", "ba,bc",
)  # fmt: skip


def semiring(name):
    return getattr(ext_tropical, name)


KERNELS = {
    "loop": lambda semiring, a, b: selection.in_blocks(semiring, a, b, with_winner=True),
    "at once": lambda semiring, a, b: selection.one_reduction(semiring, (a, b), with_winner=True),
}


@functools.partial(jax.jit, static_argnums=(0, 1))
def every_way(op, kernels, *operands):
    """The value alone, value and winner, and if wanted those by each kernel whichever the sizes
    would choose: one program.
    """
    found = [apply(op, *operands)]
    if kernels:
        matrices = op.layout.matrices(*operands)
        sizes = op.layout.equation.sizes([x.shape for x in operands], op.family_id)
        found += [
            tuple(op.layout.tensor(out, sizes) for out in kernel(op.algebra, *matrices))
            for kernel in KERNELS.values()
        ]
    return tropical_einsum(op.equation, *operands, semiring=op.algebra), found


def check(name, equation, lhs, rhs, kernels=False):
    """Value and winner of every route, and if wanted of every kernel, equal brute force, to the bit
    but for the sign of zero.
    """
    op = TropicalEinsum(semiring(name), equation, Outputs.VALUE_AND_WINNER)
    want = brute_force(name, op.layout.equation.explicit, lhs, rhs)
    value, found = every_way(op, kernels, lhs, rhs)
    for got in (*found, (value,)):
        equal(*zip(got, want, strict=len(got) == 2))
    return want[0]


@pytest.mark.few(6)
@pytest.mark.parametrize(("name", "equation"), in_turn(NAMES, EQUATIONS, 1))
def test_equations(name, equation):
    """Small integers, so that ties are many and sums exact; the two oracles agree on values too."""
    rng, case = np.random.default_rng(len(equation)), sized(equation)
    for _ in range(3):
        operands = [rng.integers(-3, 4, shape).astype(float) for shape in case.shapes]
        explicit = f"{','.join(case.terms)}->{case.output}"
        np.testing.assert_array_equal(
            check(name, equation, *operands), object_einsum(name, explicit, *operands)
        )


SIZES = [(16, 16, 16), (40, 40, 40), (1, 40, 40), (40, 40, 1), (5, 40, 40), (40, 3, 40)]
FLOATING = [s for s in SEMIRINGS if "float32" in s.dtypes]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("semiring", "sizes", "dtype"),
    some(list(itertools.product(FLOATING, SIZES, ["bfloat16", "float16"])), 8),
    ids=str,
)
def test_what_makes_16_bit_operands_is_rounded(semiring, sizes, dtype):
    """Operands made inside the jitted function: widening them must not leave out the rounding to 16
    bits.
    """
    rows, contracted, columns = sizes
    rng = np.random.default_rng(rows)
    lhs, rhs = (
        jnp.asarray(rng.normal(size=shape), dtype)
        for shape in ((rows, contracted), (contracted, columns))
    )

    def made(x):
        return x * jnp.asarray(1.1, dtype)

    def search(lhs, rhs):
        return tropical_einsum_with_argmax("ij,jk->ik", lhs, rhs, semiring=semiring)

    want = jax.jit(search)(jax.jit(made)(lhs), jax.jit(made)(rhs))
    got = jax.jit(lambda lhs, rhs: search(made(lhs), made(rhs)))(lhs, rhs)
    equal((got.value, want.value), (got.winner, want.winner))


SPECIAL = np.array([0.0, -0.0, 1.0, -2.0, 3.5, np.inf, -np.inf, np.nan])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 2**32 - 1),
    contracted=st.sampled_from([1, 6, 17, 33]),
    few=st.integers(2, 8),
)
@settings(max_examples=times(12))
def test_special_values(name, seed, contracted, few):
    """NaN operands, inf - inf, 0 * inf, all-zero cells, signed zeros: value and winner by rule."""
    rng = np.random.default_rng(seed)
    values = rng.permutation(SPECIAL)[:few]
    check(
        name,
        "ij,jk->ik",
        rng.choice(values, (2, contracted)),
        rng.choice(values, (contracted, 2)),
        kernels=True,
    )


KEPT = [
    ((16, 4), (4, 64)),
    ((64, 2), (2, 64)),
    ((8, 1), (1, 16)),
    ((64, 33), (33, 1)),
    ((16, 40), (40, 64)),
]
KEPT_CASES = [
    *some(list(itertools.product(["max_plus", "min_plus"], ["float32", "float64"], KEPT)), 6),
    ("max_plus", "float32", ((2, 2050), (2050, 3))),  # into parts of the contracted axis
    ("min_plus", "float64", ((3, 2050), (2050, 2))),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype", "shapes"), KEPT_CASES, ids=str)
def test_nan_is_kept_where_xla_vectorises(name, dtype, shapes):
    """XLA CPU's maximum loses NaN for some of these shapes."""
    rng = np.random.default_rng(0)
    for at in (0, shapes[0][1] - 1):
        lhs, rhs = (rng.normal(size=shape).astype(dtype) for shape in shapes)
        lhs[1, at] = rhs[at, -1] = np.nan
        check(name, "ij,jk->ik", lhs, rhs, kernels=True)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("name", "contracted"), in_turn(NAMES, [1, 2, 3, 7, 15, 16, 17, 31, 32, 33, 48, 100], 1)
)
def test_every_block_boundary(name, contracted):
    rng = np.random.default_rng(contracted)
    check(
        name,
        "ij,jk->ik",
        rng.normal(size=(3, contracted)),
        rng.normal(size=(contracted, 2)),
        kernels=True,
    )


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "columns"), in_turn(NAMES, [128, 129, 127, 257], 1))
def test_every_tile_of_columns(name, columns):
    """With more rows than those for which columns are not cut."""
    rng = np.random.default_rng(columns)
    rhs = rng.choice(
        [-2.0, -1.0, 0.0, 1.0, 2.0, np.inf, np.nan],
        (17, columns),
        p=[0.2, 0.2, 0.2, 0.19, 0.2, 0.005, 0.005],
    )
    lhs = rng.integers(-2, 3, (selection.UNCUT_ROWS + 1, 17)).astype(float)
    check(name, "ij,jk->ik", lhs, rhs, kernels=True)


def test_the_first_winner_of_all_parts_of_a_long_contraction():
    """The best is in the second part, in both, or in both and twice."""
    count = 2 * selection.PART_ENTRIES
    lhs, rhs = np.zeros((count, 1)), np.zeros((count, 3))
    for column, rows in enumerate(([-2], [7, -2], [9, -5, -2])):
        rhs[rows, column] = 1.0
    found = jax.jit(KERNELS["loop"], static_argnums=0)(max_plus, lhs[None], rhs[None])
    chex.assert_trees_all_equal(
        found, (np.ones((1, 1, 3)), np.array([[[count - 2, 7, 9]]], np.int32))
    )


@pytest.mark.few(5)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "shapes", [((0, 3), (3, 2)), ((2, 3), (3, 0)), ((2, 0), (0, 3)), ((0, 0), (0, 0))]
)
def test_empty_dimensions(name, shapes):
    operands = [np.ones(shape) for shape in shapes]
    check(name, "ij,jk->ik", *operands)
    result = tropical_einsum_with_argmax("ij,jk->ik", *operands, semiring=semiring(name))
    if shapes[0][1] == 0:
        assert not result.feasible.any()
        assert (result.coordinates()["j"] == -1).all()
    gradient = jax.grad(
        lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=semiring(name)).sum()
    )(*operands)
    if shapes[0][1] == 0 or shapes[1][1] == 0:
        assert not gradient.any()


def test_coordinates_along_labels_of_one_entry():
    x = np.random.default_rng(0).permutation(np.arange(12.0)).reshape(2, 3, 1, 2, 1)
    found = tropical_einsum_with_argmax("iabcd->i", x).coordinates()
    want = np.unravel_index(x.reshape(2, -1).argmax(1), x.shape[1:])
    chex.assert_trees_all_equal([found[c] for c in "abcd"], [w.astype(np.int32) for w in want])


@pytest.mark.few(3)
@pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_mul"])
@pytest.mark.parametrize("dtype", ["int32", "int64"])
def test_integers(name, dtype):
    rng = np.random.default_rng(0)
    lhs, rhs = (rng.integers(-50, 50, shape).astype(dtype) for shape in ((3, 20), (20, 4)))
    result = tropical_einsum_with_argmax("ij,jk->ik", lhs, rhs, semiring=semiring(name))
    assert result.value.dtype == dtype
    np.testing.assert_array_equal(result.value, object_einsum(name, "ij,jk->ik", lhs, rhs))


def test_integer_infinities_absorb_and_other_overflow_wraps():
    low, high = np.iinfo(np.int32).min, np.iinfo(np.int32).max
    lhs = np.array([[low, 5], [low, low], [high, 1]], np.int32)
    got = tropical_einsum("ij,jk->ik", lhs, np.array([[-7, 1], [2, low]], np.int32))
    np.testing.assert_array_equal(got, [[7, low], [low, low], [high - 7, low]])
    shortest = tropical_einsum(
        "ij,jk->ik",
        np.array([[high, 4]], np.int32),
        np.array([[-3], [6]], np.int32),
        semiring=min_plus,
    )
    equal(
        (shortest, [[10]]),
        (tropical_einsum("i,i->", np.array([high], np.int32), np.array([2], np.int32)), low + 1),
    )


@pytest.mark.few(3)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("name", NAMES)
def test_sixteen_bit_floats_compute_in_float32(name, dtype):
    rng = np.random.default_rng(0)
    lhs, rhs = (jnp.asarray(rng.normal(size=shape), dtype) for shape in ((3, 20), (20, 4)))
    wide = [np.asarray(x.astype(np.float32)) for x in (lhs, rhs)]
    value, winner = brute_force(name, "ij,jk->ik", *wide)
    result = tropical_einsum_with_argmax("ij,jk->ik", lhs, rhs, semiring=semiring(name))
    assert result.value.dtype == dtype
    equal((result.value, jnp.asarray(value).astype(dtype)), (result.winner, winner))
    grads = jax.grad(
        lambda a, b: tropical_einsum("ij,jk->ik", a, b, semiring=semiring(name)).sum()
    )(lhs, rhs)
    assert grads.dtype == dtype


@pytest.mark.parametrize("search", KERNELS.values(), ids=KERNELS)
def test_the_first_candidate_is_searched_too(search):
    """Where inf - inf may come, and the first candidate is NaN, or the best before a NaN that is no
    candidate.
    """
    rows = jnp.array([[[np.inf], [1.0]], [[2.0], [1.0]]])
    value, winner = search(max_plus, rows, jnp.array([[[-np.inf], [0.0]], [[0.0], [0.0]]]))
    equal((value.ravel(), [np.nan, 2.0]), (winner.ravel(), [0, 0]))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", NAMES)
def test_another_program_judges_the_lowering(name):
    """The StableHLO reference interpreter runs what we lower to; comparing with XLA alone would
    compare XLA with itself.
    """
    rng = np.random.default_rng(0)
    lhs, rhs = rng.choice(SPECIAL[:7], (2, 18)), rng.choice(SPECIAL, (18, 2))
    fn = jax.jit(
        lambda a, b: tuple(
            jax.tree.leaves(tropical_einsum_with_argmax("ij,jk->ik", a, b, semiring=semiring(name)))
        )
    )
    text = fn.lower(lhs, rhs).compiler_ir("stablehlo")
    with text.context:
        arguments = [ir.DenseElementsAttr.get(np.ascontiguousarray(x)) for x in (lhs, rhs)]
        judged = [np.array(out) for out in stablehlo.eval_module(text, arguments)]
    for got, w in zip(judged, brute_force(name, "ij,jk->ik", lhs, rhs)):
        np.testing.assert_array_equal(got.reshape(w.shape), w)


def test_memory_stays_far_below_the_array_of_candidates():
    n = 256
    spec = jax.ShapeDtypeStruct((n, n), np.float32)
    fn = jax.grad(lambda a, b: tropical_einsum("ij,jk->ik", a, b).sum(), argnums=(0, 1))
    assert (
        temporary_bytes(fn, spec, spec) < 24 * n * n * 4
    )  # a few results; all candidates would be n * n * n * 4


@pytest.mark.clause("X13.2")
def test_vmap_is_one_more_label():
    jaxpr = str(
        jax.make_jaxpr(
            jax.vmap(lambda a, b: tropical_einsum("ij,jk->ik", a, b), in_axes=(0, None))
        )(np.ones((5, 2, 3)), np.ones((3, 4)))
    )
    assert "equation='aij,jk->aik'" in jaxpr


def test_labels_do_not_run_out():
    """Under 52 letters and two maps; one contracted entry in all."""
    letters = string.ascii_letters
    equation = f"{letters[:27]},{letters[26:]}->{letters[:26]}{letters[27:]}"
    op = TropicalEinsum(max_plus, equation).batched((0, None))[0].batched((None, 0))[0]
    assert len(set(op.layout.equation.output)) == 53
    assert TropicalEinsum(max_plus, "ij,jk->ik").batched((None, 1))[0].equation == "ij,jak->aik"


# --- dot_general and reduce_sum -------------------------------------------------------------------


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
    equal(
        (tropical_dot_general(a, b), [[23, 43], [24, 44]]),
        (tropical_dot_general(c, d), [[11, 20], [5, 11]]),
        (min_plus_dot_general(a, b), [[11, 31], [12, 32]]),
        (
            min_plus_dot_general(a, b, (((0,), (0,)), ((), ()))),
            object_einsum("min_plus", "ji,jk->ik", a, b),
        ),
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


# --- the equation bank ----------------------------------------------------------------------------


# Few whole numbers and the zero of each semiring: products are exact, ties and impossible cells
# many.
VALUES = {
    "max_plus": [-2.0, -1.0, 0.0, 1.0, -np.inf],
    "min_plus": [-1.0, 0.0, 1.0, 2.0, np.inf],
    "max_mul": [0.0, 1.0, 2.0, 3.0],
    "min_max": [-1.0, 0.0, 1.0, np.inf, -np.inf],
    "or_and": [False, True],
}


def data(name, case):
    rng = np.random.default_rng(zlib.crc32(f"{name} {case.equation}".encode()))
    return [rng.choice(VALUES[name], shape) for shape in case.shapes]


def check_case(name, case):
    operands = data(name, case)
    check_assignment(
        name, f"{','.join(case.terms)}->{case.output}", operands, *solve(case, operands, name)
    )


def solve(case, operands, name):
    """Value and coordinates."""

    @jax.jit
    def found(*xs):
        result = tropical_einsum_with_argmax(case.equation, *xs, semiring=name)
        return result.value, result.coordinates()

    return found(*operands)


def chosen(cases, count):
    """So many (semiring, case) with each semiring in turn, ten times as many in the large sweep."""
    picked, count = np.random.default_rng(0).permutation(len(cases)), count * (10 if ALL else 1)
    return [
        (name, cases[picked[i % len(cases)]])
        for i, name in zip(range(count), itertools.cycle(VALUES))
    ]


def named(pairs):
    return {"argvalues": pairs, "ids": [f"{name}:{case.equation}" for name, case in pairs]}


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "case"), **named(chosen([sized(equation) for equation in OPT_EINSUM], len(OPT_EINSUM)))
)
def test_the_list_of_opt_einsum(name, case):
    check_case(name, case)


@pytest.mark.few(2)
@pytest.mark.parametrize(("name", "case"), **named(chosen(random_cases(30), 15)))
def test_random_networks(name, case):
    check_case(name, case)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    ("name", "case"), **named(chosen([sized(equation) for equation in PATTERNS], 80))
)
def test_every_pattern_of_repeated_labels(name, case):
    check_case(name, case)


SMOOTH = [sized(equation) for equation in (*OPT_EINSUM, *PATTERNS)]


@pytest.mark.few(4)
@pytest.mark.parametrize(
    "case", SMOOTH if ALL else SMOOTH[:69:6] + SMOOTH[69::600], ids=lambda case: case.equation
)
def test_log_sum_exp(case):
    operands = data("max_plus", case)
    np.testing.assert_allclose(
        tropical_einsum(case.equation, *operands, semiring=log_sum_exp(0.5)),
        log_einsum(0.5, case.equation, *operands),
        rtol=1e-12,
        atol=1e-12,
    )
