"""Slices over the devices of a mesh: values, assignments and winners bit by bit those of one
device, whatever the semiring, the mesh, its kind, and where the operands are.
"""

import functools
import re

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
from tenferro_jax import einsum
from tenferro_jax.einsum.slices import SCRATCH
from tenferro_jax.errors import InvalidConfig, Unsupported

from ..helpers import each_ends_in
from .test_pieces import CHAIN, SEMIRINGS, tables

pytestmark = pytest.mark.cpu
AUTO, EXPLICIT = jax.sharding.AxisType.Auto, jax.sharding.AxisType.Explicit


def mesh_of(shape, kind=AUTO):
    axes, devices = ("d", "e")[: len(shape)], jax.devices()[: np.prod(shape)]
    return jax.make_mesh(shape, axes, axis_types=(kind,) * len(shape), devices=devices)


def equal(got, want, **near):
    if near:
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, **near), got, want)
    else:
        jax.tree.map(np.testing.assert_array_equal, got, want)


@pytest.mark.slow
@pytest.mark.parametrize("name", SEMIRINGS)
def test_values_are_those_of_one_device(name):
    semiring = SEMIRINGS[name] or name
    operands = [jnp.asarray(x) for x in tables(semiring)]
    run = functools.partial(tropical_einsum, CHAIN, semiring=semiring)
    with jax.set_mesh(mesh_of((8,))):
        got = run(*operands, over="d")
    equal(got, run(*operands), **({"rtol": 1e-5} if name == "log_sum_exp" else {}))


MESHES = [((8,), AUTO, "d"), ((2, 3), EXPLICIT, ("d", "e")), ((2, 4), AUTO, "e")]


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "kind", "over"), MESHES, ids=str)
@pytest.mark.parametrize("nan", [False, True])
@pytest.mark.parametrize("equation", [CHAIN, "ij,jk,kl->", "ij,jk,kl->jl"])
def test_first_assignments_wherever_the_operands_are(shape, kind, over, nan, equation):
    """Few distinct entries: several devices have a best assignment; also in max_mul's two runs."""
    operands = tables("max_plus", seed=3)
    if nan:
        operands[1][3, 5] = np.nan
    mesh = mesh_of(shape, kind)
    for semiring in ("max_plus", "min_max"):
        run = functools.partial(best_assignment, equation, semiring=semiring, over=over)
        want = best_assignment(equation, *operands, semiring=semiring)
        split = [jax.device_put(x, jax.NamedSharding(mesh, jax.P("d"))) for x in operands[:1]]
        calls = [lambda run=run: run(*split, *operands[1:])]  # the mesh of the operand
        if semiring == "max_plus":
            calls += [
                lambda run=run: jax.jit(lambda *rest: run(*operands[:1], *rest))(*operands[1:])
            ]
        for number, call in enumerate(calls):
            if number:
                with jax.set_mesh(mesh):
                    got = call()
            else:
                got = call()
            equal(tuple(got), tuple(want))


def test_each_device_is_within_the_limit_and_there_is_one_merge():
    shapes = ((8, 96), (96, 96), (96, 8))
    specs = [jax.ShapeDtypeStruct(s, np.float32) for s in shapes]
    free = plan_tropical_einsum(CHAIN, *specs)
    limit = SCRATCH + (free.peak - SCRATCH) // 4
    run = functools.partial(best_assignment, CHAIN, memory_limit=limit, over="d")
    with jax.set_mesh(mesh_of((8,))):
        compiled = jax.jit(lambda *xs: tuple(run(*xs))).lower(*specs).compile()
    memory = compiled.memory_analysis()
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes <= limit
    found = re.findall(r" (all-[\w-]+|collective-permute)(?:-start)?\(", compiled.as_text())
    assert sorted(set(found)) == ["all-gather", "all-to-all"]
    assert len(found) <= 6  # of the value and two labels


def test_winners_by_label_and_one_slice():
    operands = tables("max_plus")
    with jax.set_mesh(mesh_of((2,))):
        got = tropical_einsum_with_argmax(CHAIN, *operands, over="d")
        alone = tropical_einsum("ij,jk->ik", np.ones((1, 1)), np.ones((1, 1)), over="d")
    want = best_assignment(CHAIN, *operands)
    equal(got.coordinates(), dict(want.labels))
    assert alone == 2


def test_slices_for_workers():
    shapes = ((8, 16), (16, 16), (16, 8))
    assert plan_tropical_einsum(CHAIN, *shapes, slices=1).slices == 1
    for count in (2, 5, 64):
        plan = plan_tropical_einsum(CHAIN, *shapes, slices=count)
        assert count <= plan.slices <= 2 * count
        assert plan.cost <= 2 * plan_tropical_einsum(CHAIN, *shapes).cost
    assert plan_tropical_einsum("ij->i", (2, 3), slices=100).slices == 6


def test_empty_results_and_a_single_entry():
    with jax.set_mesh(mesh_of((4,))):
        assert tropical_einsum("d,dc->cd", np.ones(0), np.ones((0, 4)), over="d").shape == (4, 0)
        empty = tropical_einsum("ij,jk->", np.ones((0, 8)), np.ones((8, 4)), over="d")
        diagonal = tropical_einsum("aab,b->", np.ones((3, 3, 5)), np.arange(5.0), over="d")
        assert einsum("ij,jk->ik", np.ones((0, 8)), np.ones((8, 4)), over="d").shape == (0, 4)
        soft = functools.partial(tropical_einsum, "ij,jk->", semiring="log_sum_exp", over="d")
        slope = jax.grad(soft)(jnp.ones((0, 8)), jnp.ones((8, 4)))
    assert (float(empty), float(diagonal), slope.shape) == (-np.inf, 5, (0, 8))


def test_a_label_without_entries_is_not_sliced():
    """A sliced gradient would differ from that of the steps."""
    x, c = jnp.ones((0, 3)), jnp.ones(10_000)
    free = plan_tropical_einsum("ab,c->c", x, c, slices=4)
    assert free.slices == 1
    run = functools.partial(tropical_einsum, "ab,c->c", memory_limit=free.peak)
    equal(jax.grad(lambda *xs: run(*xs).sum(), (0, 1))(x, c), (x, jnp.ones(10_000)))
    each_ends_in(
        (
            lambda: tropical_einsum("ab,c->c", x, c, memory_limit=free.peak - 1),
            InvalidConfig,
            f"at least {free.peak} bytes",
        )
    )


def test_refusals():
    x = tables("max_plus")
    mesh = mesh_of((2,))

    def under(**how):
        with jax.set_mesh(mesh):
            return tropical_einsum(CHAIN, *x, **how)

    each_ends_in(
        (lambda: tropical_einsum(CHAIN, *x, over="d"), InvalidConfig, "no mesh"),
        (lambda: under(over="rows"), InvalidConfig, "over: given 'rows'; needed one of 'd'"),
        (lambda: under(over=()), InvalidConfig, "the name of a mesh axis"),
        (lambda: under(over="d", progress=True), Unsupported, "Leave out progress or over"),
        (lambda: under(over="d", ties="split"), Unsupported, "Leave out memory_limit and over"),
        (lambda: under(over="d", memory_limit=1), InvalidConfig, "at least"),
        (
            lambda: plan_tropical_einsum(CHAIN, *x, slices=0),
            InvalidConfig,
            "slices: given 0; needed a positive integer",
        ),
    )
