"""Slices run anywhere: each in any order, in other processes, by a plan that was pickled; merged they
are the einsum with a memory limit, bit for bit.
"""

import functools
import pickle
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import (
    best_assignment,
    log_sum_exp,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from tenferro_jax.einsum.slices import SCRATCH
from tenferro_jax.errors import InvalidConfig, Unsupported

from ..helpers import each_ends_in, mesh
from .judges import refusals
from .sums import Modulo

CHAIN = "ij,jk,kl->il"


def tables(semiring, shape=(8, 16), seed=0):
    rng = np.random.default_rng(seed)
    m, n = shape
    shapes = (m, n), (n, n), (n, m)
    if isinstance(semiring, Modulo):
        return [rng.integers(0, 7, s).astype(np.int32) for s in shapes]
    return [rng.integers(1, 5, s).astype(np.float32) for s in shapes]


def planned(semiring="max_plus", equation=CHAIN, operands=None, more=900):
    operands = tables(semiring) if operands is None else operands
    least = plan_tropical_einsum(equation, *operands, semiring=semiring).peak - SCRATCH
    return plan_tropical_einsum(
        equation, *operands, semiring=semiring, memory_limit=SCRATCH + least // 2 + more
    )


SEMIRINGS = {
    **dict.fromkeys(("max_plus", "min_plus", "max_mul", "min_max")),
    "log_sum_exp": log_sum_exp(0.5),
    "mod 7": Modulo(7),
}


@pytest.mark.parametrize("name", SEMIRINGS)
def test_merged_slices_are_the_einsum_by_a_pickled_plan(name):
    semiring = SEMIRINGS[name] or name
    operands = tables(semiring)
    plan = planned(semiring)
    loaded = pickle.loads(pickle.dumps(plan))
    assert loaded == plan
    assert plan.slices > 2
    parts = [loaded.run(i, *operands) for i in range(plan.slices)]
    want = tropical_einsum(CHAIN, *operands, semiring=semiring, memory_limit=plan.peak)
    found = plan.merge(iter(parts))
    np.testing.assert_array_equal(found.value, want)
    assert found.labels == {}


@pytest.mark.parametrize("name", ["max_plus", "min_max"])
@pytest.mark.parametrize("nan", [False, True])
def test_assignments_are_the_first(name, nan):
    """Few distinct entries, so that several slices have a best assignment; and NaN."""
    operands = tables(name, seed=1)
    if nan:
        operands[1][3, 5] = np.nan
    plan = planned(name, operands=operands)
    parts = [plan.run(i, *operands, labels=True) for i in range(plan.slices)]
    want = best_assignment(CHAIN, *operands, semiring=name, memory_limit=plan.peak)
    chex.assert_trees_all_equal(tuple(plan.merge(parts)), tuple(want))


def test_slices_of_the_output_and_a_plan_of_one_slice():
    operands = tables("max_plus", (32, 2))
    plan = plan_tropical_einsum("ij,jk,kl->il", *operands, memory_limit=SCRATCH + 33_000)
    assert set(plan.sliced) & set("il")
    found = plan.merge([plan.run(i, *operands, labels=True) for i in range(plan.slices)])
    want = best_assignment("ij,jk,kl->il", *operands)
    np.testing.assert_array_equal(found.value, want.value)
    whole = plan_tropical_einsum(CHAIN, *operands)
    assert whole.slices == 1
    np.testing.assert_array_equal(whole.merge([whole.run(0, *operands)]).value, want.value)


def test_an_axis_of_size_one_that_an_ellipsis_repeats():
    x, y = np.ones((1, 4, 8), np.float32), np.arange(96, dtype=np.float32).reshape(3, 8, 4)
    found = plan_tropical_einsum("...ij,...jk->...ik", x, y).run(0, x, y)
    np.testing.assert_array_equal(found.value, tropical_einsum("...ij,...jk->...ik", x, y))


PLAN = planned()
OPERANDS = tables("max_plus")
PARTS = [PLAN.run(i, *OPERANDS) for i in range(PLAN.slices)]
LABELLED = PLAN.run(1, *OPERANDS, labels=True)


def replaced(**fields):
    return [PARTS[0]._replace(**fields), *PARTS[1:]]


run = functools.partial(PLAN.run, 0)
merge = PLAN.merge


test_refusals = refusals(
    (InvalidConfig, "merge.*given slice 3; needed slice 2", lambda: merge([*PARTS[:2], PARTS[3]])),
    (InvalidConfig, "merge.*given slice 0; needed slice 1", lambda: merge([PARTS[0], PARTS[0]])),
    (InvalidConfig, "given 2 slices; needed all", lambda: merge(PARTS[:2])),
    (InvalidConfig, "given 0 slices", lambda: merge([])),
    (
        InvalidConfig,
        "slice 0 of .*float64",
        lambda: merge(replaced(value=PARTS[0].value.astype(float))),
    ),
    (InvalidConfig, "slice 0 of .*float32", lambda: merge(replaced(value=PARTS[0].value[:1]))),
    (InvalidConfig, "slice 1 of .*'j'", lambda: merge([PARTS[0], LABELLED])),
    (InvalidConfig, "slice 1000.*a number from 0 to", lambda: PLAN.run(1000, *OPERANDS)),
    (InvalidConfig, "slice 0.5", lambda: PLAN.run(0.5, *OPERANDS)),
    (InvalidConfig, "run of a plan.*operands float32", lambda: run(*OPERANDS[:2])),
    (InvalidConfig, r"operands float32\(8, 16\), ", lambda: run(OPERANDS[0], *OPERANDS[:2])),
    (InvalidConfig, "operands float64", lambda: run(*(x.astype(float) for x in OPERANDS))),
    (Unsupported, "inside a transform", lambda: jax.jit(lambda *xs: run(*xs).value)(*OPERANDS)),
    (
        InvalidConfig,
        "labels=True under",
        lambda: planned(log_sum_exp()).run(0, *OPERANDS, labels=True),
    ),
)


def test_a_plan_of_numbers():
    plan = plan_tropical_einsum(",->", (), ())
    assert plan.merge([plan.run(0, np.float32(1), np.float32(2))]).value == 3


def test_arrays_are_run_while_something_else_is_traced():
    want = PARTS[0].value.sum()
    np.testing.assert_allclose(jax.jit(lambda x: x + run(*OPERANDS).value.sum())(1.0), 1 + want)


def test_a_part_is_numpy_alone():
    assert [type(x) for x in LABELLED[:2]] == [int, np.ndarray]
    assert {type(x) for x in LABELLED.labels.values()} == {np.ndarray}


# --- over the devices of a mesh -------------------------------------------------------------------


@pytest.mark.cpu
def test_each_device_is_within_the_limit_and_there_is_one_merge():
    shapes = ((8, 96), (96, 96), (96, 8))
    specs = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
    limit = SCRATCH + (plan_tropical_einsum(CHAIN, *specs).peak - SCRATCH) // 4
    run = functools.partial(best_assignment, CHAIN, memory_limit=limit, over="d")
    with jax.set_mesh(mesh((8,))):
        compiled = jax.jit(lambda *xs: tuple(run(*xs))).lower(*specs).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= limit
    found = re.findall(r" (all-[\w-]+|collective-permute)(?:-start)?\(", compiled.as_text())
    assert sorted(set(found)) == ["all-gather", "all-to-all"]
    assert len(found) <= 6  # of the value and two labels


@pytest.mark.cpu
def test_winners_by_label_and_one_slice():
    operands = tables("max_plus")
    with jax.set_mesh(mesh((2,))):
        got = tropical_einsum_with_argmax(CHAIN, *operands, over="d")
        alone = tropical_einsum("ij,jk->ik", np.ones((1, 1)), np.ones((1, 1)), over="d")
    chex.assert_trees_all_equal(got.coordinates(), dict(best_assignment(CHAIN, *operands).labels))
    assert alone == 2


def test_slices_for_workers():
    shapes = ((8, 16), (16, 16), (16, 8))
    assert plan_tropical_einsum(CHAIN, *shapes, slices=1).slices == 1
    for count in (2, 5, 64):
        plan = plan_tropical_einsum(CHAIN, *shapes, slices=count)
        assert count <= plan.slices <= 2 * count
        assert plan.cost <= 2 * plan_tropical_einsum(CHAIN, *shapes).cost
    assert plan_tropical_einsum("ij->i", (2, 3), slices=100).slices == 6


@pytest.mark.cpu
def test_empty_results_and_a_single_entry():
    with jax.set_mesh(mesh((4,))):
        assert tropical_einsum("d,dc->cd", np.ones(0), np.ones((0, 4)), over="d").shape == (4, 0)
        empty = tropical_einsum("ij,jk->", np.ones((0, 8)), np.ones((8, 4)), over="d")
        diagonal = tropical_einsum("aab,b->", np.ones((3, 3, 5)), np.arange(5.0), over="d")
        soft = functools.partial(tropical_einsum, "ij,jk->", semiring="log_sum_exp", over="d")
        slope = jax.grad(soft)(jnp.ones((0, 8)), jnp.ones((8, 4)))
    assert (float(empty), float(diagonal), slope.shape) == (-np.inf, 5, (0, 8))


def test_a_label_without_entries_is_not_sliced():
    """A sliced gradient would differ from that of the steps."""
    x, c = jnp.ones((0, 3)), jnp.ones(10_000)
    free = plan_tropical_einsum("ab,c->c", x, c, slices=4)
    assert free.slices == 1
    run = functools.partial(tropical_einsum, "ab,c->c", memory_limit=free.peak)
    chex.assert_trees_all_equal(
        jax.grad(lambda *xs: run(*xs).sum(), (0, 1))(x, c), (x, jnp.ones(10_000))
    )
    each_ends_in(
        (
            lambda: tropical_einsum("ab,c->c", x, c, memory_limit=free.peak - 1),
            InvalidConfig,
            f"at least {free.peak} bytes",
        )
    )


@pytest.mark.cpu
def test_refusals_over_devices():
    x = tables("max_plus")
    two = mesh((2,))

    def under(**how):
        with jax.set_mesh(two):
            return tropical_einsum(CHAIN, *x, **how)

    each_ends_in(
        (lambda: tropical_einsum(CHAIN, *x, over="d"), InvalidConfig, "no mesh"),
        (lambda: under(over="rows"), InvalidConfig, "over: given 'rows'; needed one of 'd'"),
        (lambda: under(over=()), InvalidConfig, "the name of a mesh axis"),
        (lambda: under(over="d", ties="split"), Unsupported, "Leave out memory_limit and over"),
        (lambda: under(over="d", memory_limit=1), InvalidConfig, "at least"),
        (
            lambda: plan_tropical_einsum(CHAIN, *x, slices=0),
            InvalidConfig,
            "slices: given 0; needed an integer of at least 1",
        ),
    )
