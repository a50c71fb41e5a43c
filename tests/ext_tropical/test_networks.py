"""einsum of any number of operands: plans, assignments, slices within a memory limit, and the
gradient that follows.
"""

import functools
import itertools

import chex
import jax
import numpy as np
import opt_einsum
import pytest

from ext_tropical import (
    best_assignment,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from ext_tropical.einsums.slice_lengths import SCRATCH
from ext_tropical.semirings.shipped import SEMIRINGS
from tenferro_jax import export
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..helpers import ends_in
from ..oracles import ALGEBRAS, SIZES_OF_ONE, brute_force, log_einsum, object_einsum
from ..sweep import in_turn
from .judges import (
    assignment_and_gradient,
    check_assignment,
    refusals,
    temporary_bytes,
    uses,
)

FIVE = "ab,bcd,ce,dfe,fa->"


def test_the_leaves_of_a_result_are_its_arrays():
    specs = [jax.ShapeDtypeStruct((2, 2), np.float64)] * 3
    result = jax.eval_shape(functools.partial(tropical_einsum_with_argmax, "ij,jk,kl->il"), *specs)
    assert jax.tree.leaves(result) == [result.value, *(step.winner for step in result.steps)]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    "optimize",
    [
        "auto",
        "optimal",
        "dp",
        "greedy",
        "random-greedy",
        [(0, 1), (0, 1), (0, 1), (0, 1)],
    ],
)
def test_paths_agree_on_integers(optimize):
    rng = np.random.default_rng(0)
    operands = [
        rng.integers(-8, 9, shape).astype(float)
        for shape in ((3, 4), (4, 2, 3), (2, 5), (3, 2, 5), (2, 3))
    ]
    best = best_assignment(FIVE, *operands, semiring=min_plus, optimize=optimize)
    check_assignment("min_plus", FIVE, operands, best.value, best.labels)
    nothing = map(np.ones, [0, 3, 2, (0, 3), (3, 2)])
    assert not np.isfinite(tropical_einsum("a,b,c,ab,bc->b", *nothing, optimize=optimize)).any()


def test_more_than_fifty_two_labels():
    """A chain of eighty matrices, in opt_einsum's symbols and interleaved."""
    rng = np.random.default_rng(0)
    chain = [rng.integers(-8, 9, (3, 3)).astype(float) for _ in range(80)]
    symbols = [opt_einsum.get_symbol(i) for i in range(81)]
    equation = (
        ",".join(a + b for a, b in itertools.pairwise(symbols)) + f"->{symbols[0]}{symbols[-1]}"
    )
    want = chain[0]
    for x in chain[1:]:
        want = (want[:, :, None] + x).max(1)
    np.testing.assert_array_equal(tropical_einsum(equation, *chain), want)
    interleaved = [part for i, x in enumerate(chain) for part in (x, [2 * i, 2 * i + 2])]
    best = best_assignment(*interleaved, [0, 160])
    np.testing.assert_array_equal(best.value, want)
    assert list(best.labels) == list(range(2, 160, 2))
    nodes = [
        np.zeros((3, 3), int) + np.arange(3)[:, None],
        *best.labels.values(),
        np.zeros((3, 3), int) + np.arange(3),
    ]
    np.testing.assert_array_equal(sum(x[i, j] for x, i, j in zip(chain, nodes, nodes[1:])), want)


# --- slices ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(("length", "slices"), [(4, 2), (6, 2), (9, 3), (35, 5), (7, 7)])
def test_a_label_is_split_no_finer_than_needed(length, slices):
    specs = [jax.ShapeDtypeStruct((length,) * 3, np.float32)] * 2
    free = plan_tropical_einsum("abc,abd->cd", *specs)
    assert plan_tropical_einsum("abc,abd->cd", *specs, memory_limit=free.peak - 1).slices == slices


@pytest.mark.parametrize(
    "options",
    [{}, {"memory_limit": 10**9}, {"optimize": [(0, 1)]}, {"optimize": [(1, 0)]}],
    ids=str,
)
def test_the_first_winner_does_not_depend_on_layout(options):
    """Two optima, of NaN too: the first in row-major order of i, j, the labels in order of their
    appearance.
    """
    a, b = np.array([[0.0, 0, 1], [1, 0, 0]]), np.zeros((3, 2))
    for x in (a, np.where(a == 1, np.nan, 0)):
        best = best_assignment("ij,ji->", x, b, **options)
        assert {label: int(i) for label, i in best.labels.items()} == {"i": 0, "j": 2}
    gradients = jax.grad(
        lambda *x: tropical_einsum("ij,ij->", *x, semiring=min_max, **options), (0, 1)
    )(np.ones((1, 1)), np.ones((1, 1)))
    assert [g.item() for g in gradients] == [1, 0]


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("c,b->b", ((2,), (3,))),
        ("ca,b->b", ((2, 2), (3,))),
        ("ed,...->...", ((2, 2), (3, 4))),
    ],
)
def test_labels_have_the_shape_of_the_value(equation, shapes):
    best = best_assignment(equation, *map(np.zeros, shapes))
    assert {index.shape for index in best.labels.values()} == {best.value.shape}


def test_sliced_einsums_are_exported():
    spec = jax.ShapeDtypeStruct((64, 64), np.float32)
    limit = SCRATCH + 75_000
    assert plan_tropical_einsum("ij,jk,ki->", spec, spec, spec, memory_limit=limit).slices > 1
    program = export(
        lambda *x: tropical_einsum("ij,jk,ki->", *x, memory_limit=limit), spec, spec, spec
    )
    a = np.random.default_rng(0).integers(-9, 9, (64, 64)).astype(np.float32)
    assert program.call(a, a, a) == tropical_einsum("ij,jk,ki->", a, a, a)


def test_nan_and_infeasible_cells_in_slices():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(64, 64)), rng.normal(size=(64, 64))
    a[3, 40], a[5] = np.nan, -np.inf
    limit = SCRATCH + 160_000
    assert plan_tropical_einsum("ij,jk->ik", a, b, memory_limit=limit).slices > 1
    best, whole = (best_assignment("ij,jk->ik", a, b, memory_limit=m) for m in (limit, None))
    chex.assert_trees_all_equal(best, whole)
    assert np.isnan(best.value[3]).all()
    assert (best.labels["j"][3] == 40).all()
    assert not best.feasible[5].any()
    assert best.feasible[4].all()


def check_memory(equation, specs, limit, solve, **options):
    plan = plan_tropical_einsum(equation, *specs, memory_limit=limit, **options)
    memory = (
        jax.jit(lambda *x: solve(equation, *x, memory_limit=limit, **options))
        .lower(*specs)
        .compile()
        .memory_analysis()
    )
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= plan.peak <= limit


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("equation", "shapes", "dtype", "semiring"),
    [
        ("abc->b", ((40, 50, 60),), "float32", max_plus),
        ("cbde,ba->ba", ((32, 50, 2, 17), (50, 3)), "int32", max_plus),
        ("fc,bce->", ((64, 32), (50, 32, 64)), "bfloat16", max_plus),
        ("bcd,cfe,ce->bf", ((50, 32, 8), (32, 64, 50), (32, 50)), "float32", log_sum_exp(0.5)),
        ("jbi,kbj->ikb", ((64, 8, 64), (64, 8, 64)), "bfloat16", log_sum_exp()),
    ],
)
def test_reductions_sixteen_bits_and_other_algebras_are_within_the_plan(
    equation, shapes, dtype, semiring
):
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    free = plan_tropical_einsum(equation, *specs, semiring=semiring)
    for limit in (free.peak, free.peak * 3 // 4):
        check_memory(equation, specs, limit, tropical_einsum, semiring=semiring)


STEPS = [
    ("ij,jk->ik", ((256, 256), (256, 256))),
    ("ij,kj->ki", ((256, 256), (256, 256))),
    ("ij,jk->ik", ((16, 4096), (4096, 16))),
    ("bij,bjk->bik", ((8, 64, 64), (8, 64, 64))),
    ("bij,bjk->bik", ((500, 3, 40), (500, 40, 33))),
    ("ij,jk->ik", ((1000, 20), (20, 1000))),
    ("ij,j->i", ((256, 256), (256,))),
    ("i,i->", ((65536,), (65536,))),
    ("ij->j", ((256, 256),)),
]
ALGEBRAS_AND_DTYPES = [
    (s, dtype)
    for s in (max_plus, max_mul, log_sum_exp(2.0))
    for dtype in ("float32", "bfloat16", "int32", "float64")
    if dtype in s.dtypes
]


@pytest.mark.cpu
@pytest.mark.few(8)
@pytest.mark.parametrize(("algebra", "step"), in_turn(ALGEBRAS_AND_DTYPES, STEPS, 4), ids=str)
def test_a_step_allocates_no_more_than_documented(algebra, step):
    """12 b (m n + k (m + n)) bytes, twice that for 64 bits, a third more for 16, 40 for
    log_sum_exp, and 64 KiB, beside operands and results.
    """
    (semiring, dtype), (equation, shapes) = algebra, step
    work = 8 if dtype == "float64" else 4
    specs = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
    solve = tropical_einsum_with_argmax if semiring in SEMIRINGS else tropical_einsum

    def fn(*x):
        return jax.tree.leaves(solve(equation, *x, semiring=semiring))

    out = np.prod(jax.eval_shape(fn, *specs)[0].shape)
    read = sum(np.prod(shape) for shape in shapes)
    copies = 10 if semiring not in SEMIRINGS else 4 if dtype == "bfloat16" else 3
    assert temporary_bytes(fn, *specs) <= work * copies * (out + read) + SCRATCH


def test_three_hundred_matrices_are_one_op():
    chain = [jax.ShapeDtypeStruct((2, 2), np.float32)] * 300
    symbols = [opt_einsum.get_symbol(i) for i in range(301)]
    equation = ",".join(map("".join, itertools.pairwise(symbols))) + f"->{symbols[0]}{symbols[-1]}"

    def f(*x):
        return tropical_einsum(equation, *x, optimize="greedy")

    names = [eqn.primitive.name for eqn in jax.make_jaxpr(f)(*chain).eqns]
    assert names == ["tenferro-ext-tropical.network.v1"]


# --- what is printed, and what is refused ---------------------------------------------------------


MATRICES = np.ones((2, 2, 2))
LARGE = np.ones((64, 64))


test_refusals = refusals(
    *(
        (
            ShapeError,
            "plan_tropical_einsum 'ij->', operand 0",
            functools.partial(plan_tropical_einsum, "ij->", operand),
        )
        for operand in (3, None, "ab", (2, -1), (2, 2.7), (True, 2), [[1, 2], [3, 4]])
    ),
    (DTypeError, "dtype: given 'foo'", lambda: plan_tropical_einsum("ij->", (2, 2), dtype="foo")),
    (
        ShapeError,
        "a result of 73786976294838206464 entries, .*; needed",
        lambda: tropical_einsum(
            f"{','.join(map(opt_einsum.get_symbol, range(66)))}->"
            + "".join(map(opt_einsum.get_symbol, range(66))),
            *[np.zeros(2)] * 66,
        ),
    ),
    *(
        (
            InvalidConfig,
            "optimize",
            functools.partial(tropical_einsum, "ij,jk->ik", *MATRICES, optimize=given),
        )
        for given in (
            "nope",
            3,
            [],
            [(0, 0)],
            [(0, 5)],
            [3],
            [(0, 1), 3],
            [[[0], 1]],
            {0: 1},
            np.array([[0, 5]]),
        )
    ),
    *(
        (InvalidConfig, "", functools.partial(tropical_einsum, "ij,jk->ik", *MATRICES, **options))
        for options in ({"memory_limit": [1]}, {"memory_limit": np.float32(3)})
    ),
    (
        Unsupported,
        "ties='split' in slices",
        lambda: tropical_einsum(
            "ij,jk->ik", LARGE, LARGE, ties="split", memory_limit=SCRATCH + 160_000
        ),
    ),
)


def test_what_plans_take():
    plan = plan_tropical_einsum("ij,j->i", np.zeros((2, 3)), np.zeros(3))
    assert repr(plan) == f"TropicalPlan('ij,j->i', 1 steps, 1 slices, peak {plan.peak})"
    assert tropical_einsum("ij,jk->ik", *MATRICES, optimize=np.array([[0, 1]])).tolist() == [
        [2, 2],
        [2, 2],
    ]


def test_limits_that_cannot_be_reached_say_the_least():
    error = ends_in(
        lambda: plan_tropical_einsum(
            FIVE, (9, 8), (8, 7, 6), (7, 5), (6, 4, 5), (4, 9), memory_limit=1000
        ),
        InvalidConfig,
    )
    least = int(str(error.value).split("at least ")[1].split(" bytes")[0])
    plan = plan_tropical_einsum(
        FIVE, (9, 8), (8, 7, 6), (7, 5), (6, 4, 5), (4, 9), memory_limit=least
    )
    assert plan.peak <= least
    ends_in(
        lambda: plan_tropical_einsum(
            FIVE, (9, 8), (8, 7, 6), (7, 5), (6, 4, 5), (4, 9), memory_limit=least - 1
        ),
        InvalidConfig,
        f"needed at least {least} bytes",
    )


def test_plans_are_equal_if_what_they_allocate_is():
    single, again, double = (
        plan_tropical_einsum("ij,jk->ik", (4, 5), (5, 6), dtype=dtype)
        for dtype in ("float32", np.float32, "float64")
    )
    assert single == again
    assert hash(single) == hash(again)
    assert single.peak < double.peak
    assert single != double


# --- sizes of 1 beside longer ones: those of the repeated entries ---------------------------------


NAMES = [name for name in ALGEBRAS if name != "or_and"]


def repeated(equation, operands):
    """The operands with sizes of 1 repeated by NumPy, in explicit equations without an ellipsis."""
    terms = equation.split("->")[0].split(",")
    sizes = {}
    for term, x in zip(terms, operands, strict=True):
        sizes |= {
            label: size
            for label, size in zip(term, x.shape, strict=True)
            if sizes.get(label, 1) == 1
        }
    return [
        np.broadcast_to(x, [sizes[label] for label in term])
        for term, x in zip(terms, operands, strict=True)
    ]


@pytest.mark.few(3)
@pytest.mark.parametrize(("name", "case"), in_turn(NAMES, SIZES_OF_ONE, 1), ids=str)
def test_values_and_assignments(name, case):
    equation, shapes = case
    rng = np.random.default_rng(0)
    operands = [
        rng.integers(0 if name == "max_mul" else -4, 5, shape).astype(float) for shape in shapes
    ]
    best = best_assignment(equation, *operands, semiring=name)
    if 0 in (size for shape in shapes for size in shape):
        assert best.value == ALGEBRAS[name].zero
        assert best.labels["i"] == -1
        return
    np.testing.assert_array_equal(best.value, object_einsum(name, equation, *operands))
    if "..." not in equation and "->" in equation:
        check_assignment(name, equation, repeated(equation, operands), best.value, best.labels)


@pytest.mark.parametrize(
    ("equation", "shapes"),
    [
        ("ij,jk->ik", [(2, 1), (3, 4)]),
        ("bij,bjk->bik", [(1, 2, 3), (4, 3, 1)]),
        ("ij,j->i", [(3, 4), (1,)]),
    ],
)
def test_winners_are_the_first_of_the_repeated_entries(equation, shapes):
    """Small integers, so that there are ties and no rounding."""
    rng = np.random.default_rng(0)
    operands = [rng.integers(-2, 3, shape).astype(float) for shape in shapes]
    result = tropical_einsum_with_argmax(equation, *operands)
    value, winner = brute_force("max_plus", equation, *repeated(equation, operands))
    np.testing.assert_array_equal(result.value, value)
    np.testing.assert_array_equal(result.coordinates()["j"], winner)


@pytest.mark.few(1)
@pytest.mark.parametrize("memory_limit", [None, SCRATCH + 3000])
def test_gradients_count_the_uses_of_an_entry(memory_limit):
    rng = np.random.default_rng(0)
    operands = [
        rng.permutation(20).astype(float).reshape(20, 1),
        rng.permutation(400).astype(float).reshape(20, 20),
        np.array([[0.5]]),
    ]
    equation = "ij,jk,kl->il"
    assert (plan_tropical_einsum(equation, *operands, memory_limit=memory_limit).slices > 1) == (
        memory_limit is not None
    )
    best, gradients = assignment_and_gradient(equation, *operands, memory_limit=memory_limit)
    counts = uses(equation, repeated(equation, operands), best.labels, best.value.shape)
    for x, count, gradient in zip(operands, counts, gradients, strict=True):
        ones = tuple(axis for axis, size in enumerate(x.shape) if size == 1)
        np.testing.assert_array_equal(gradient, count.sum(ones, keepdims=True))


def test_the_soft_neighbour_broadcasts_too():
    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 1)), rng.normal(size=(3, 4))
    np.testing.assert_allclose(
        tropical_einsum("ij,jk->ik", a, b, semiring=log_sum_exp(0.7)),
        log_einsum(0.7, "ij,jk->ik", *repeated("ij,jk->ik", [a, b])),
        rtol=1e-12,
    )


def test_a_diagonal_has_one_size():
    with pytest.raises(ShapeError, match="'i' of size 3, and of size 1 before"):
        tropical_einsum("ii->i", np.ones((1, 3)))


@pytest.mark.parametrize("equation", ["i,j->", "ij,jk->", "aij,jk->ik", "ab,cd->bd", "aab,b->b"])
@pytest.mark.parametrize("low", [-9, -4, 0])
def test_max_mul_of_two_operands_is_exact_for_entries_of_any_sign(equation, low):
    rng, terms = np.random.default_rng(0), equation.split("->")[0].split(",")
    operands = [rng.integers(low, low + 9, (3,) * len(term)).astype(float) for term in terms]
    best = best_assignment(equation, *operands, semiring="max_mul")
    check_assignment("max_mul", equation, operands, best.value, best.labels)
