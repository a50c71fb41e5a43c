"""The whole plan as loops, against its steps one after another."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from opt_einsum.testing import rand_equation

from ext_tropical import max_plus
from ext_tropical.algebra.shipped import SEMIRINGS
from ext_tropical.network import loops, plan_rows, walk
from ext_tropical.network.steps import Mode, TropicalResult, Winners, evaluate
from ext_tropical.network.value import solved_as_network
from tenferro_jax import plan_einsum
from tenferro_jax.errors import Unsupported

from ..sweep import times

DTYPES = ("float32", "float64", "bfloat16", "int32", "float16")


def network(seed, dtype, special=True):
    """A plan and its tables: every third network has a diagonal and a scalar; ties are frequent."""
    equation, shapes = rand_equation(
        3 + seed % 4, 2 + seed % 3, n_out=seed % 4, d_max=4, seed=seed, global_dim=seed % 5 == 0
    )
    if seed % 3 == 0:
        label = equation[0]
        equation = f"{label}{equation.replace('->', ',->')}"
        shapes = [(shapes[0][0], *shapes[0]), *shapes[1:], ()]
    rng = np.random.default_rng(seed)
    tables = []
    for shape in shapes:
        table = rng.integers(-4, 5, shape).astype(float)
        if special and dtype not in ("int32", "bool"):
            odd = rng.choice([np.nan, np.inf, -np.inf], shape)
            table = np.where(rng.random(shape) < 0.02, odd, table)
        tables.append(jnp.asarray(table > 0 if dtype == "bool" else table).astype(dtype))
    return plan_einsum(equation, shapes), tables


def equal(ours, want):
    """Equal in every bit but the sign of a zero and the bits of a NaN."""
    assert (ours.dtype, ours.shape) == (want.dtype, want.shape)
    np.testing.assert_array_equal(*(np.asarray(x.astype("float64")) for x in (ours, want)))


def check_search(plan, semiring, tables, large=None):
    @jax.jit
    def both(*tables):
        value, winners = loops.search(plan, semiring, tables, True, large)
        alone, _ = loops.search(plan, semiring, tables, False, large)
        results = plan_rows.layout(plan)[len(plan.terms) :]
        kept = [
            winners[start : start + math.prod(dict(plan.sizes)[c] for c in step.result)]
            for start, step in zip(results, plan.steps, strict=False)
            if plan_rows.contracted(step)
        ]
        ours = value, alone, jnp.concatenate(kept), walk.coordinates(plan, winners)
        want, steps = evaluate(plan, tables, Mode(semiring, winners=Winners.STEPS))
        return ours, TropicalResult(want, steps, plan.equation.output, semiring)

    (value, alone, winners, found), want = both(*tables)
    # and of the native library, where it computes in this dtype
    native, labels = solved_as_network(plan, tables, Mode(semiring, winners=Winners.LABELS))
    for each in (value, alone, native):
        equal(each, want.value)
    equal(jnp.stack([labels[label] for label in sorted(labels)]), found)
    equal(winners, jnp.concatenate([step.winner.reshape(-1) for step in want.steps]))
    known = want.coordinates()
    equal(found, jnp.stack([known[label] for label in sorted(known)]))


@pytest.mark.few(1)
@pytest.mark.parametrize("seed", range(times(6)))
def test_values_winners_and_coordinates(seed):
    semiring = SEMIRINGS[seed % len(SEMIRINGS)]
    dtype = DTYPES[seed // len(SEMIRINGS) % len(DTYPES)] if semiring.name != "or_and" else "bool"
    plan, tables = network(seed, dtype)
    check_search(plan, semiring, tables)


@pytest.mark.slow
def test_lanes_share_a_cell_and_turns_a_candidate(monkeypatch):
    """Few cells with many candidates; and indices too large for a division in float32."""
    plan = plan_einsum("abc,bcd,c->a", [(3, 40, 50), (40, 50, 2), (50,)])
    rng = np.random.default_rng(0)
    tables = [
        jnp.asarray(rng.integers(-9, 9, shape), "float32")
        for shape in ((3, 40, 50), (40, 50, 2), (50,))
    ]
    assert max(row.lanes for row in plan_rows.forward(plan)) > 1
    check_search(plan, max_plus, tables)
    monkeypatch.setattr(plan_rows, "EXACT_BELOW", 1)
    check_search(plan, max_plus, tables)


@pytest.mark.slow
def test_large_steps_run_between_loops(monkeypatch):
    plan, tables = network(11, "float32", special=False)
    monkeypatch.setattr(loops, "WORTH_A_STEP", 500)
    ran = []

    def large(step, inputs):
        ran.append(step)
        assert [x.ndim for x in inputs] == list(map(len, step.terms))
        small = plan_einsum(step.equation, [x.shape for x in inputs])
        value, steps = evaluate(small, inputs, Mode(max_plus, winners=Winners.STEPS))
        return (value, *(step.winner for step in steps))

    check_search(plan, max_plus, tables, large)
    assert 0 < len(ran) < 2 * len(plan.steps)


def test_a_program_does_not_grow_with_the_plan():
    def size(count):
        labels = [chr(200 + i) for i in range(count)]
        equation = ",".join(x + y for x, y in itertools.pairwise(labels))
        plan = plan_einsum(f"{equation}->", [(2, 2)] * (count - 1))
        tables = [jax.ShapeDtypeStruct((2, 2), "float32")] * (count - 1)
        jaxpr = jax.make_jaxpr(lambda *x: loops.search(plan, max_plus, x, True))(*tables)
        return len(jaxpr.eqns) - 2 * len(tables)

    assert size(60) <= size(20)


def test_a_buffer_beyond_int32_is_refused():
    plan = plan_einsum("ab,bc,cd->ad", [(2**16, 2), (2, 2), (2, 2**16)])
    with pytest.raises(Unsupported, match="entries of tables and results"):
        plan_rows.layout(plan)
