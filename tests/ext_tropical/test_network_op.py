"""A network as one op: its native answers and its loops against the steps one after another, its
rules, its text.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import pathlib
import re

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from opt_einsum.testing import rand_equation

import ext_tropical.native
from ext_tropical import (
    Network,
    best_assignment,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    tropical_einsum,
)
from ext_tropical.native.library import native
from ext_tropical.networks import loops, plan_rows, walk
from ext_tropical.networks.former import Rows
from ext_tropical.networks.log_derivatives import (
    NetworkCurvature,
    NetworkCurvatureV1,
    NetworkShares,
    NetworkSharesV1,
)
from ext_tropical.networks.many import NetworkBest, NetworkSamples
from ext_tropical.networks.plan_text import plan_in, text_of
from ext_tropical.networks.question import Asked, run_at_once
from ext_tropical.networks.value import TropicalNetwork, solved_as_network
from ext_tropical.networks.walk import NetworkEntries
from ext_tropical.semirings.shipped import SEMIRINGS
from ext_tropical.sequences import chain_op
from ext_tropical.steps.evaluate import Mode, TropicalResult, Winners, evaluate
from tenferro_jax import plan_einsum
from tenferro_jax.errors import BackendFailure, InvalidConfig, ShapeError, Unsupported
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind, routes
from tenferro_jax.testing import check

from ..helpers import ends_in, near
from ..sweep import times
from .judges import OWN, nothing_compiled

needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("semiring", [max_plus, min_plus, max_mul, min_max, log_sum_exp(0.7)])
def test_steps_and_library_agree_on_large_and_on_odd_steps(semiring):
    """Steps for the tiles, runs that are cut, reductions of one long axis; NaN and ties."""
    rng, is_log = np.random.default_rng(0), semiring == log_sum_exp(0.7)
    for equation, shapes in (
        ("abi,bk,ik->ia", [(2, 20, 70), (20, 70), (70, 70)]),
        ("ab,bc,cd->da", [(90, 33), (33, 70), (70, 90)]),
        ("a,ab,b->", [(3,), (3, 1500), (1500,)]),
        ("ab,a,bc->c", [(1100, 3), (1100,), (3, 2)]),
    ):
        odd = rng.choice(np.array([np.inf, -np.inf, np.nan]), 3)
        arrays = [rng.integers(-2, 3, shape).astype("f") for shape in shapes]
        arrays[0].flat[rng.choice(arrays[0].size, 3)] = odd if not is_log else 0
        plan = plan_einsum(equation, shapes)
        mode = Mode(semiring, winners=None if is_log else Winners.LABELS)
        value, labels = solved_as_network(plan, arrays, mode)
        want, known = evaluate(plan, arrays, mode)
        np.testing.assert_allclose(value, want, rtol=3e-6 * is_log, atol=3e-6 * is_log)
        if not is_log:
            chex.assert_trees_all_equal(labels, known)


PLAN = "ab,bc,c->a|1,2:b|0,3:a"
WHOLE = "ab,bc,c->|1,2:b|0,3:"
OPS = (
    TropicalNetwork("min_plus", PLAN, True),
    NetworkEntries("ab,bb", "a", (("a", 2), ("b", 3)), is_sum=True),
    NetworkShares(0.5, PLAN, (0, 2)),
    NetworkSharesV1(0.5, PLAN, (0, 2)),
    NetworkCurvature(0.5, PLAN, (0, 2)),
    NetworkCurvatureV1(0.5, PLAN, (0, 2)),
    NetworkBest(WHOLE, 4),
    NetworkSamples(0.7, WHOLE),
    Rows(9),
)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_check_of_every_family(op):
    """Only an export with symbolic sizes fails: a plan counts entries. Where a table has one entry
    the curvature is zero, and routes differ by its rounding.
    """
    report = check(op, only=() if op is OPS[0] else OWN)
    fails = {"exported_sizes", *["routes"] * isinstance(op, NetworkCurvature)}
    assert {failure.check for failure in report.failures} <= fails, str(report)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ab,bc",
        "ab,bc,c->a",
        "ab,bc,c->a|1,2:b|1,3:a",
        "ab,bc,c->a|1,2:b|0,4:a",
        "ab,bc,c->a|1,2:b|0:a",
        "ab,bc,c->a|1,2:bd|0,3:a",
        "ab,bc,c->a|1,2:|0,3:a",
        "ab,bc,c->a|0,1,2:a",
        "ab,bc,c->a|1,2:b|0,3:ab",
        "ab,bc,c->a|1,2:bb|0,3:a",
        "ab,bc,c->a|x,2:b|0,3:a",
        "ab,bc,c->aa|1,2:b|0,3:a",
    ],
)
def test_a_text_that_is_no_plan_is_refused(text):
    ends_in(lambda: TropicalNetwork("max_plus", text), InvalidConfig, r"network\.v1, plan")


def test_a_plan_as_text_is_the_plan():
    plan = plan_einsum("ab,bc,ca,a->c", [(2, 3), (3, 2), (2, 2), (2,)])
    assert text_of(plan_in(text_of(plan), "a plan")) == text_of(plan)


def test_operands_of_other_sizes_are_refused():
    op = TropicalNetwork("max_plus", PLAN)
    ends_in(
        lambda: apply(op, jnp.ones((2, 3)), jnp.ones((4, 5)), jnp.ones(5)), ShapeError, "size 4"
    )
    ends_in(
        lambda: apply(op, jnp.ones((2, 0)), jnp.ones((0, 5)), jnp.ones(5)), ShapeError, "size 0"
    )


@needs_library
def test_labels_out_of_range_are_refused_natively():
    op = NetworkEntries("ab,b", "a", (("a", 2), ("b", 3)))
    ends_in(
        (
            lambda: run_at_once(
                op, np.array([[0, wrong]], np.int32), np.ones((2, 3), "f"), np.ones(3, "f")
            )
            for wrong in (3, -1)
        ),
        BackendFailure,
        "labels out of range",
    )


@needs_library
def test_the_library_refuses_what_is_no_plan():
    """Every prefix and every changed number of a plan: refused, or an answer; never a crash."""
    from ext_tropical.networks import question  # noqa: PLC0415

    op, arrays = (
        TropicalNetwork("max_plus", PLAN),
        [np.ones(s, "f") for s in ((2, 3), (3, 4), (4,))],
    )
    good = question._call(op, tuple((x.dtype, x.shape) for x in arrays))
    attributes, outputs = good
    plan = attributes["plan"]
    changed = [plan[:n] for n in range(plan.size)]
    for i, number in itertools.product(range(plan.size), (-2, -1, 0, 1, 2, 7, 2**40)):
        other = plan.copy()
        other[i] = number
        changed.append(other)
    refused = 0
    for other in changed:
        call = attributes | {"plan": np.ascontiguousarray(other)}, outputs
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(question, "_call", lambda *_, call=call: call)
            try:
                run_at_once(op, *arrays)
            except BackendFailure:
                refused += 1
    assert refused > 0.7 * len(changed)


@needs_library
@pytest.mark.parametrize("semiring", [max_plus, log_sum_exp(2.0)])
def test_outside_jit_nothing_is_compiled(semiring):
    """Values, derivatives and assignments of networks that were never seen before."""
    arrays = [jnp.ones(shape) for shape in ((2, 3), (3, 4), (4,))]
    jax.block_until_ready((arrays, arrays[0][0] != arrays[0][1, 1]))
    best_assignment("ab,bc,cd->a", jnp.ones((2, 2)), jnp.ones((2, 2)), jnp.ones((2, 2)))
    with nothing_compiled():
        jax.grad(lambda *x: tropical_einsum("vw,wx,x->", *x, semiring=semiring), (0, 1))(*arrays)
        if semiring == max_plus:
            best_assignment("vw,wx,x->v", *arrays)


@needs_library
@pytest.mark.parametrize(
    "ask", [Network.value, Network.best, Network.log_partition, Network.marginals]
)
def test_numpy_tables_reach_the_library_as_they_are(monkeypatch, ask):
    """JAX takes 40 us to convert a table, and the library reads NumPy's memory."""
    rng = np.random.default_rng(0)
    net = Network.from_factors({(i, i + 1): rng.normal(size=(2, 2)) for i in range(40)})
    converted = []

    def asarray(*args, **how):
        converted.append(args)
        return found(*args, **how)

    found = jnp.asarray
    monkeypatch.setattr(jnp, "asarray", asarray)
    answer = ask(net)
    assert len(converted) < 5
    jax.tree.map(np.testing.assert_array_equal, answer, ask(jax.tree.map(found, net)))


@pytest.mark.parametrize("equation", ["a,b,c->abc", "c,c,c->c"])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_networks_that_contract_nothing(equation, dtype):
    """float16 goes by standard ops, as exports do."""
    x = jnp.arange(3, dtype=dtype)
    assert best_assignment(equation, x, x, x).labels == {}
    f = jax.grad(lambda x: tropical_einsum(equation, x, x, x).sum())
    want = [27.0] * 3 if "b" in equation else [3.0] * 3
    assert f(x).tolist() == want
    assert jax.export.export(jax.jit(f))(x).call(x).tolist() == want


@pytest.mark.parametrize("terms", ["", "a", "ab", "bb", "cab", "abcd", ",a,cb,ddb"])
def test_entries_are_those_that_numpy_indexes(terms):
    """By the library and by standard ops, with as many axes as a table has; and the transpose."""
    sizes, rng = {"a": 2, "b": 3, "c": 4, "d": 2}, np.random.default_rng(0)
    labels = np.array([rng.integers(sizes[label], size=2) for label in "bcd"], np.int32)
    index = dict(zip("bcd", labels, strict=True), a=np.arange(2))
    tables = [rng.normal(size=[sizes[x] for x in term]) for term in terms.split(",")]
    places = [tuple(index[x] for x in term) for term in terms.split(",")]
    want = np.stack(
        [np.broadcast_to(table[place], 2) for table, place in zip(tables, places, strict=True)]
    )
    added = [np.zeros_like(table) for table in tables]
    for table, place, row in zip(added, places, want, strict=True):
        np.add.at(table, place, row if place else row.sum())
    op = NetworkEntries(terms, "a", tuple(sizes.items()))
    back = dataclasses.replace(op, is_transposed=True)
    for run in (apply, lambda op, *arrays: jax.jit(op.lower_to_standard_ops)(*arrays)):
        np.testing.assert_array_equal(run(op, labels, *tables)[0], want)
        jax.tree.map(np.testing.assert_array_equal, list(run(back, labels, want)), added)


@pytest.mark.slow
@pytest.mark.parametrize("semiring", [max_plus, max_mul, log_sum_exp(0.5)])
def test_a_symbolic_batch_of_networks_is_exported(semiring):
    (n,) = jax.export.symbolic_shape("n")
    rng = np.random.default_rng(0)
    b, c, a = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in ((4, 5), (5, 3), (2, 3, 4)))

    def value(a):
        return tropical_einsum("ab,bc,ca->a", a, b, c, semiring=semiring)

    functions = [value, jax.grad(lambda a: value(a).sum())]
    if semiring == max_plus:
        functions.append(lambda a: best_assignment("ab,bc,ca->a", a, b, c))
    for f in functions:
        mapped = jax.jit(jax.vmap(f))
        program = jax.export.export(mapped)(jax.ShapeDtypeStruct((n, 3, 4), "float32"))
        near(program.call(a), mapped(a))


@pytest.mark.parametrize(
    ("equation", "y", "others", "want"),
    [
        ("a,ab,b->", [np.inf, 1, 0], (np.zeros((3, 2), "f"), np.zeros(2, "f")), [np.nan, 0, 0]),
        *(
            (f"a,{terms}->", [1, 2], [np.full((2,) * len(terms), -np.inf, "f")], [0, 0])
            for terms in ("", "a", "b", "bc", "ab")
        ),
        ("a,b,c->", [1, 2], (np.zeros(2, "f"), np.full(2, -np.inf, "f")), [0, 0]),
    ],
)
def test_shares_of_an_infinite_value_are_the_same_everywhere(equation, y, others, want):
    def value(y):
        return tropical_einsum(equation, y, *others, semiring=log_sum_exp())

    y, f = jnp.array(y, jnp.float32), jax.jit(jax.grad(value))
    for found in (f(y), jax.grad(value)(y), jax.export.export(f)(y).call(y)):
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("semiring", [max_plus, log_sum_exp(0.5)])
def test_a_few_large_matrices_are_steps_of_their_own(semiring):
    """The loops of networks take up to 800 times as long for them."""
    big, small = jax.ShapeDtypeStruct((70, 70), "float32"), jax.ShapeDtypeStruct((9, 9), "float32")

    def families(x):
        run = routes(lambda x: tropical_einsum("ij,jk,kl->il", x, x, x, semiring=semiring), x)
        return {route.family_id for route in run}

    step = "log_einsum.v3" if semiring != max_plus else "einsum.v1"
    assert families(big) == {f"tenferro-ext-tropical.{step}"}
    assert families(small) == {"tenferro-ext-tropical.network.v1"}


# --- labels ---------------------------------------------------------------------------------------


@needs_library
@pytest.mark.cpu
def test_labels_under_jit_are_one_call_of_the_library():
    """XLA compiles no function for each label, and one that puts them in order."""
    net = Network.from_factors({(i, i + 1): np.eye(2) * (i % 3 - 1) for i in range(60)})
    ask = jax.jit(lambda net: net.best().labels)
    kinds = {route.family_id.split(".")[1]: route.kind for route in routes(ask, net)}
    assert kinds == {"network": RouteKind.KERNEL}
    assert ask.lower(net).compile().as_text().count(" fusion(") <= 1
    assert ask(net) == net.best().labels


@needs_library
@pytest.mark.cpu
@pytest.mark.parametrize("ask", [Network.marginals, Network.entropy], ids=["marginals", "entropy"])
def test_a_program_has_no_index_for_each_table(ask):
    """XLA takes 20 ms to compile one: 400 tables took it 7 to 14 s."""
    net = Network.from_factors({(i, i + 1): np.eye(2) * (i % 3 - 1) for i in range(60)})
    assert jax.jit(ask).lower(net).as_text().count("stablehlo.gather") < 5


# --- the whole plan as loops, against its steps one after another ---------------------------------


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


def test_rows_become_one_array_and_columns_again_by_name():
    row = plan_rows.Turn(segment=3, end=5, row=1, chunk=0)
    nested = plan_rows.Divisions(divisors=row, coefficients=np.arange(6).reshape(2, 3))
    table, unpacked = plan_rows.packed([nested, nested])
    assert table.tolist() == [[3, 5, 1, 0, 0, 1, 2, 3, 4, 5]] * 2
    columns = unpacked(jnp.asarray(table)[:1])
    assert {x: y.tolist() for x, y in columns.divisors._asdict().items()} == {
        "segment": [[3]],
        "end": [[5]],
        "row": [[1]],
        "chunk": [[0]],
    }
    assert columns.coefficients.tolist() == [[[0, 1, 2], [3, 4, 5]]]


def test_a_walk_reads_the_rows_of_values_from_the_last_step():
    plan = plan_einsum("ab,bc,cd,de->", [(2, 3), (3, 4), (4, 2), (2, 5)])
    rows = plan_rows.choices(plan)
    assert sorted(row.number for row in rows) == list(range(len(plan.steps)))
    assert rows[0].number == len(plan.steps) - 1
    level = {row.number: row.level for row in rows}
    for number, step in enumerate(plan.steps):
        read = [i - len(plan.terms) for i in step.operands if i >= len(plan.terms)]
        assert all(level[i] > level[number] for i in read)


def test_a_buffer_beyond_int32_is_refused():
    plan = plan_einsum("ab,bc,cd->ad", [(2**16, 2), (2, 2), (2, 2**16)])
    with pytest.raises(Unsupported, match="entries of tables and results"):
        plan_rows.layout(plan)


# --- the table of questions -----------------------------------------------------------------------


def test_questions_are_those_of_the_native_library():
    """The headers have the names, the numbers, and what each question takes and gives."""
    found = re.findall(r"^  k(\w+) = (\d+), +// ([^;\n]*)", header("network.h"), re.MULTILINE)
    theirs = {in_capitals(name): (int(number), text) for name, number, text in found}
    assert theirs == {asked.name: asked.value for asked in Asked}
    (one,) = re.findall(r"enum Asks : int64_t \{(.*?)\}", header("chains.h"))
    theirs = {in_capitals(x): int(number) for x, number in re.findall(r"k(\w+) = (\d+)", one)}
    assert theirs == {asked.name: asked.value for asked in chain_op.Asked}


def header(name):
    return (pathlib.Path(ext_tropical.native.__file__).parent / name).read_text()


def in_capitals(name):
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper()
