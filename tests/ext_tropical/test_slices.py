"""Slices over the devices of a mesh: memory, messages, and what is refused."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import (
    best_assignment,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_einsum_with_argmax,
)
from ext_tropical.einsums.slice_lengths import SCRATCH
from tenferro_jax.errors import InvalidConfig, Unsupported

from ..helpers import each_ends_in, mesh
from .sums import Modulo

CHAIN = "ij,jk,kl->il"


def tables(semiring, shape=(8, 16), seed=0):
    rng = np.random.default_rng(seed)
    m, n = shape
    shapes = (m, n), (n, n), (n, m)
    if isinstance(semiring, Modulo):
        return [rng.integers(0, 7, s).astype(np.int32) for s in shapes]
    return [rng.integers(1, 5, s).astype(np.float32) for s in shapes]


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
    chex.assert_trees_all_equal(got.coordinates(), best_assignment(CHAIN, *operands).labels)
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
