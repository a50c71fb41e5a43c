"""A network as one op: its native answers against the steps one after another, its rules, its text."""

from __future__ import annotations

import itertools
import string

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from opt_einsum import get_symbol

from ext_tropical import (
    Network,
    best_assignment,
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
    tropical_einsum,
)
from ext_tropical.network.log_derivatives import NetworkShares
from ext_tropical.network.native_network import _eager
from ext_tropical.network.network_entries import NetworkEntries
from ext_tropical.network.network_op import TropicalNetwork, solved_as_network
from ext_tropical.network.plan_text import steps_in, steps_of
from ext_tropical.network.steps import Mode, TropicalResult, Winners, evaluate
from ext_tropical.step.native.library import native
from tenferro_jax import plan_einsum, routes
from tenferro_jax.conformance import check
from tenferro_jax.errors import BackendFailure, InvalidConfig, ShapeError
from tenferro_jax.extension import apply

needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)


def network(seed, tables=9, labels=7, outputs=1, most=4):
    """An equation, and shapes: tables of up to three labels, diagonals and scalars among them."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip(string.ascii_lowercase, rng.integers(1, most + 1, labels), strict=False))
    terms = ["".join(rng.choice(list(sizes), rng.integers(0, 4))) for _ in range(tables)] + list(
        sizes
    )
    output = "".join(rng.permutation(list(sizes))[:outputs])
    shapes = [tuple(int(sizes[c]) for c in term) for term in terms]
    return f"{','.join(terms)}->{output}", shapes


def tables_of(rng, shapes, dtype, spoiled=0.0):
    """Small integers, so that there are ties; a share of the entries inf, -inf or NaN."""
    arrays = []
    for shape in shapes:
        x = rng.integers(-2, 3, shape).astype(dtype)
        if dtype.kind == "b":
            x = rng.random(shape) < 0.6
        elif np.issubdtype(dtype, np.floating):
            bad = rng.choice(np.array([np.inf, -np.inf, np.nan]), shape)
            x = np.where(rng.random(shape) < spoiled, bad, x).astype(dtype)
        arrays.append(jnp.asarray(x))
    return arrays


def both(equation, arrays, semiring):
    """(value, labels) of the op, and of the steps one after another."""
    plan = plan_einsum(equation, [x.shape for x in arrays])
    ours = solved_as_network(plan, arrays, Mode(semiring, winners=Winners.LABELS))
    value, steps = evaluate(plan, arrays, Mode(semiring, winners=Winners.STEPS))
    return ours, (value, TropicalResult(value, steps, plan.equation.output, semiring).coordinates())


CASES = [
    *((semiring, "float32") for semiring in (max_plus, min_plus, max_mul, min_max)),
    *((max_plus, dtype) for dtype in ("float64", "int32", "bfloat16")),
    (or_and, "bool"),
]


@pytest.mark.parametrize(
    ("semiring", "dtype"),
    [CASES[0], *(pytest.param(*case, marks=pytest.mark.slow) for case in CASES[1:])],
)
def test_values_and_first_winners_are_those_of_the_steps(semiring, dtype):
    with jax.enable_x64(dtype == "float64"):
        for seed, spoiled in itertools.product(range(2), (0.0, 0.02)):
            equation, shapes = network(seed, outputs=seed)
            arrays = tables_of(np.random.default_rng(seed), shapes, jnp.dtype(dtype), spoiled)
            (value, labels), (want, known) = both(equation, arrays, semiring)
            np.testing.assert_array_equal(value, want)
            assert {c: np.asarray(i).tolist() for c, i in labels.items()} == {
                c: np.asarray(i).tolist() for c, i in known.items()
            }


@pytest.mark.slow
@needs_library
@pytest.mark.parametrize("semiring", [max_plus, min_plus, max_mul, min_max, log_sum_exp(0.7)])
def test_loops_and_library_agree_on_large_and_on_odd_steps(semiring):
    """Steps for the tiles, runs that are cut, reductions of one long axis; NaN and ties."""
    rng = np.random.default_rng(0)
    for equation, shapes in (
        ("abi,bk,ik->ia", [(2, 20, 70), (20, 70), (70, 70)]),
        ("ab,bc,cd->da", [(90, 33), (33, 70), (70, 90)]),
        ("a,ab,b->", [(3,), (3, 1500), (1500,)]),
        ("ab,a,bc->c", [(1100, 3), (1100,), (3, 2)]),
    ):
        arrays = tables_of(rng, shapes, np.dtype("float32"), 1e-4)
        if semiring == log_sum_exp(0.7):
            plan = plan_einsum(equation, shapes)
            value, want = (
                f(plan, arrays, Mode(semiring))[0] for f in (solved_as_network, evaluate)
            )
            np.testing.assert_allclose(value, want, rtol=3e-6, atol=3e-6)
            continue
        (value, labels), (want, known) = both(equation, arrays, semiring)
        np.testing.assert_array_equal(value, want)
        for label, index in known.items():
            np.testing.assert_array_equal(labels[label], index)


def close(f, g, *args):
    for x, y in zip(jax.tree.leaves(f(*args)), jax.tree.leaves(g(*args)), strict=True):
        np.testing.assert_allclose(x, y, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("semiring", [max_plus, max_mul, log_sum_exp(0.5)])
@pytest.mark.slow
def test_derivatives_are_those_of_the_steps(semiring):
    equation, shapes = "ab,bc,ca,a->c", [(2, 3), (3, 2), (2, 2), (2,)]
    rng = np.random.default_rng(1)
    arrays = [jnp.asarray(rng.uniform(0.2, 2, shape), jnp.float32) for shape in shapes]
    plan = plan_einsum(equation, shapes)

    def ours(*arrays):
        return (jnp.sin(solved_as_network(plan, arrays, Mode(semiring))[0])).sum()

    def steps(*arrays):
        return (jnp.sin(evaluate(plan, arrays, Mode(semiring))[0])).sum()

    tangents = tuple(jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    close(jax.grad(ours, (0, 2)), jax.grad(steps, (0, 2)), *arrays)
    close(*(lambda *a, f=f: jax.jvp(f, a, tangents) for f in (ours, steps)), *arrays)
    close(jax.hessian(ours, (1, 3)), jax.hessian(steps, (1, 3)), *arrays)
    close(
        *(jax.jacrev(jax.jacfwd(f, 2), 0) for f in (ours, steps)),
        *arrays,
    )
    batch = [jnp.stack([x, x * 1.1, x[::-1]]) for x in arrays[:2]] + arrays[2:]
    for f in (lambda f: f, lambda f: jax.grad(f, (0, 3))):
        close(*(jax.jit(jax.vmap(f(g), (0, 0, None, None))) for g in (ours, steps)), *batch)


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
}


@pytest.mark.slow
@pytest.mark.parametrize("name", OPS)
def test_check_of_every_form(name):
    """Only an export with symbolic sizes fails: a plan counts entries (docs/limits.md)."""
    report = check(OPS[name])
    assert {failure.check for failure in report.failures} <= {"exported_sizes"}, str(report)


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
    assert steps_in(steps_of(plan).text, "a plan") == steps_of(plan)


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
    from ext_tropical.network import native_network  # noqa: PLC0415

    op, arrays = (
        TropicalNetwork("max_plus", PLAN),
        [np.ones(s, "f") for s in ((2, 3), (3, 4), (4,))],
    )
    good = native_network._call(op, tuple((x.dtype, x.shape) for x in arrays))
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
            patch.setattr(native_network, "_call", lambda *_, call=call: call)
            try:
                _eager(op, *arrays)
            except BackendFailure:
                refused += 1
    assert refused > 0.7 * len(changed)


def test_many_tables_and_symbols():
    """A chain with labels beyond the alphabet."""
    n = 120
    terms = [get_symbol(i) + get_symbol(i + 1) for i in range(n)]
    rng = np.random.default_rng(0)
    arrays = [rng.normal(size=(2, 2)).astype("f") for _ in terms]
    value = tropical_einsum(f"{','.join(terms)}->", *arrays)
    best = np.zeros(2, "f")
    for x in arrays:
        best = (best[:, None] + x).max(0)
    np.testing.assert_allclose(value, best.max(), rtol=1e-5)


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
    of_jax = Network.from_factors(
        dict(zip(net.scopes, jax.tree.map(found, net.tables), strict=True))
    )
    jax.tree.map(np.testing.assert_array_equal, answer, ask(of_jax))


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
