"""A network as one op: its native answers against the steps one after another, its rules, its text."""

from __future__ import annotations

import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

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
from ext_tropical.network.entries import NetworkEntries
from ext_tropical.network.log_derivatives import NetworkCurvature, NetworkShares
from ext_tropical.network.many import NetworkBest, NetworkSamples
from ext_tropical.network.plan_text import plan_in, text_of
from ext_tropical.network.question import _eager
from ext_tropical.network.steps import Mode, TropicalResult, Winners, evaluate
from ext_tropical.network.value import TropicalNetwork, solved_as_network
from ext_tropical.network.walk import Rows
from ext_tropical.step.native.library import native
from tenferro_jax import plan_einsum, routes
from tenferro_jax.conformance import check
from tenferro_jax.errors import BackendFailure, InvalidConfig, ShapeError
from tenferro_jax.extension import apply

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
        want, steps = evaluate(plan, arrays, mode)
        np.testing.assert_allclose(value, want, rtol=3e-6 * is_log, atol=3e-6 * is_log)
        if not is_log:
            known = TropicalResult(want, steps, plan.equation.output, semiring).coordinates()
            chex.assert_trees_all_equal(labels, dict(known))


def close(f, g, *args):
    for x, y in zip(jax.tree.leaves(f(*args)), jax.tree.leaves(g(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


def test_the_op_takes_part_in_a_mapped_network():
    equation, shapes = "ab,bc,c->a", [(2, 3), (3, 4), (4,)]
    rng = np.random.default_rng(2)
    x = [jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes]
    xs = jnp.stack([x[1], -x[1]], 1)  # the batch axis is the second one
    got = jax.vmap(lambda b: tropical_einsum(equation, x[0], b, x[2]), 1)(xs)
    want = [tropical_einsum(equation, x[0], xs[:, i], x[2]) for i in range(2)]
    np.testing.assert_array_equal(got, want)


PLAN = "ab,bc,c->a|1,2:b|0,3:a"
OPS = {
    "value": TropicalNetwork("max_plus", PLAN),
    "labels": TropicalNetwork("min_plus", PLAN, True),
    "log": TropicalNetwork(log_sum_exp(0.5), PLAN),
    "entries": NetworkEntries("ab,b", "a", (("a", 2), ("b", 3))),
    "sum": NetworkEntries("ab,bb", "a", (("a", 2), ("b", 3)), is_sum=True),
    "added": NetworkEntries("ab,b", "a", (("a", 2), ("b", 3)), True, True),
    "shares": NetworkShares(0.5, PLAN, (0, 2)),
    "cotangents": NetworkShares(0.5, PLAN, (0, 2), True),
    "curvature": NetworkCurvature(0.5, PLAN, (0, 2)),
    "turned curvature": NetworkCurvature(0.5, PLAN, (0, 2), True),
    "best": NetworkBest("ab,bc,c->|1,2:b|0,3:", 4),
    "samples": NetworkSamples(0.7, "ab,bc,c->|1,2:b|0,3:"),
    "rows": Rows(9),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_check_of_every_form(name):
    """Only an export with symbolic sizes fails: a plan counts entries. Where a table has one entry
    the curvature is zero, and routes differ by its rounding.
    """
    fails = {"exported_sizes"} | ({"routes"} if "curvature" in name else set())
    report = check(OPS[name], order=1 if "curvature" in name else 2)
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
    with pytest.raises(InvalidConfig, match=r"network\.v1, plan"):
        TropicalNetwork("max_plus", text)


def test_a_plan_as_text_is_the_plan():
    plan = plan_einsum("ab,bc,ca,a->c", [(2, 3), (3, 2), (2, 2), (2,)])
    assert text_of(plan_in(text_of(plan), "a plan")) == text_of(plan)


def test_operands_of_other_sizes_are_refused():
    op = TropicalNetwork("max_plus", PLAN)
    with pytest.raises(ShapeError, match="size 4"):
        apply(op, jnp.ones((2, 3)), jnp.ones((4, 5)), jnp.ones(5))
    with pytest.raises(ShapeError, match="size 0"):
        apply(op, jnp.ones((2, 0)), jnp.ones((0, 5)), jnp.ones(5))


@needs_library
def test_labels_out_of_range_are_refused_natively():
    op = NetworkEntries("ab,b", "a", (("a", 2), ("b", 3)))
    for wrong in (3, -1):
        with pytest.raises(BackendFailure, match="labels out of range"):
            _eager(op, np.array([[0, wrong]], np.int32), np.ones((2, 3), "f"), np.ones(3, "f"))


@needs_library
def test_the_library_refuses_what_is_no_plan():
    """Every prefix and every changed number of a plan: refused, or an answer; never a crash."""
    from ext_tropical.network import question  # noqa: PLC0415

    op, arrays = (
        TropicalNetwork("max_plus", PLAN),
        [np.ones(s, "f") for s in ((2, 3), (3, 4), (4,))],
    )
    good = question._call(op, tuple((x.dtype, x.shape) for x in arrays))
    plan = good.attributes["plan"]
    changed = [plan[:n] for n in range(plan.size)]
    for i, number in itertools.product(range(plan.size), (-2, -1, 0, 1, 2, 7, 2**40)):
        other = plan.copy()
        other[i] = number
        changed.append(other)
    refused = 0
    for other in changed:
        call = good._replace(attributes=good.attributes | {"plan": np.ascontiguousarray(other)})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(question, "_call", lambda *_, call=call: call)
            try:
                _eager(op, *arrays)
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
    seen = []
    jax.monitoring.register_event_duration_secs_listener(lambda name, *_, **__: seen.append(name))
    try:
        jax.grad(lambda *x: tropical_einsum("vw,wx,x->", *x, semiring=semiring), (0, 1))(*arrays)
        if semiring == max_plus:
            best_assignment("vw,wx,x->v", *arrays)
    finally:
        jax.monitoring.clear_event_listeners()
    assert not [name for name in seen if "backend_compile" in name]


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
def test_networks_that_contract_nothing(equation):
    """float16 goes by standard ops, as exports do."""
    for dtype in ("float16", "float32"):
        x = jnp.arange(3, dtype=dtype)
        assert best_assignment(equation, x, x, x).labels == {}
        f = jax.grad(lambda x: tropical_einsum(equation, x, x, x).sum())
        want = [27.0] * 3 if "b" in equation else [3.0] * 3
        assert f(x).tolist() == want
        assert jax.export.export(jax.jit(f))(x).call(x).tolist() == want


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
        exported = jax.export.export(mapped)(jax.ShapeDtypeStruct((n, 3, 4), "float32"))
        close(exported.call, mapped, a)


def test_shares_of_an_infinite_value_are_the_same_everywhere():
    def value(y):
        return tropical_einsum(
            "a,ab,b->", y, jnp.zeros((3, 2), "f"), jnp.zeros(2, "f"), semiring=log_sum_exp()
        )

    y, f = jnp.array([jnp.inf, 1, 0], jnp.float32), jax.jit(jax.grad(value))
    for found in (f(y), jax.grad(value)(y), jax.export.export(f)(y).call(y)):
        np.testing.assert_array_equal(found, [np.nan, 0, 0])


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
