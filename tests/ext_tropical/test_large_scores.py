"""Scores that are large beside their differences, and low temperatures. The judge is a sum over all
assignments in NumPy, of the tables without the large numbers.
"""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import Chain, Network, log_sum_exp, tropical_einsum
from ext_tropical.sequences import chain_entropy
from tenferro_jax.errors import InvalidConfig

from ..helpers import ends_in
from .small_networks import all_scores, probabilities

QUESTIONS = {
    "marginals": lambda net: net.marginals(),
    "gradient": lambda net: jax.grad(Network.log_partition)(net).tables,
    "entropy": lambda net: net.entropy(),
    "after sum_out": lambda net: net.sum_out(*list(net.variables)[1::3]).marginals(),
}
WAYS = {"eager": lambda f: f, "jit": jax.jit, "lowered": lambda f: jax.jit(tj.lowered(f))}


def path_tables(count, dtype):
    """Those of a path: one for each variable, and one for each pair of neighbours."""
    rng = np.random.default_rng(count)
    single = {(i,): rng.normal(size=2).astype(dtype) for i in range(count)}
    pairs = {(i, i + 1): rng.normal(size=(2, 2)).astype(dtype) for i in range(count - 1)}
    return {**single, **pairs}


def with_constants(tables, number):
    """A network with two tables more, of one number: of one variable, and of two."""
    first, second = next(iter(tables)), list(tables)[-1]
    shape = tables[second].shape
    dtype = tables[first].dtype
    scopes = [*tables, first, second, ()]
    extra = [np.full(2, number, dtype), np.full(shape, -number, dtype), dtype.type(number)]
    return Network.from_factors(tables).like(scopes, [*tables.values(), *extra])


def answers(tables):
    """What the questions give, but for the order of the tables: shares of their entries."""
    names, scores = all_scores({k: x.astype(np.float64) for k, x in tables.items()})
    p = probabilities(scores, 1.0)
    shares = []
    for scope in tables:
        axes = [names.index(x) for x in scope]
        others = tuple(i for i in range(p.ndim) if i not in axes)
        shares.append(p.sum(others))
    single = {x: p.sum(tuple(i for i in range(p.ndim) if i != a)) for a, x in enumerate(names)}
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)))
    return {"marginals": single, "gradient": shares, "entropy": entropy, "after sum_out": single}


@pytest.mark.few(2)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("question", QUESTIONS)
@pytest.mark.parametrize("count", [5, 16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_in_a_table_changes_no_probability(dtype, count, question, way):
    with jax.enable_x64(dtype == "float64"):
        tables = path_tables(count, dtype)
        net = with_constants(tables, 2.0**26 if dtype == "float32" else 2.0**55)
        want = answers(tables)[question]
        got = WAYS[way](QUESTIONS[question])(net)
        tolerance = 2e-5 if dtype == "float32" else 1e-13
        if question == "gradient":
            got = got[: len(tables)]
            np.testing.assert_allclose(np.sum(got[0]), 1, rtol=tolerance)
        if isinstance(got, dict):
            got, want = [*got.values()], [want[name] for name in got]
        jax.tree.map(
            functools.partial(np.testing.assert_allclose, rtol=tolerance),
            [*got] if isinstance(got, list | tuple) else got,
            want,
        )


@pytest.mark.parametrize("count", [5, 16])
def test_a_constant_in_a_table_changes_no_sample(count):
    tables = path_tables(count, "float32")
    want = answers(tables)["marginals"]
    draws = with_constants(tables, 2.0**26).sample(jax.random.key(0), (40_000,))
    for name, row in draws.items():
        assert np.mean(row) == pytest.approx(want[name][1], abs=0.01)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("count", [2, 6, 24])
def test_a_large_score_that_is_impossible_costs_the_others_no_digits(count, way):
    """1e8 is one score of a table, which another table forbids."""
    tables = {(i, i + 1): np.zeros((3, 3), np.float32) for i in range(count - 1)}
    tables |= {(i,): np.float32([0.3, 1.7, 1e8]) for i in range(count)}
    tables = {**tables, (0, count - 1, count): np.zeros((3, 3, 1), np.float32)}
    masks = [np.float32([0, 0, -np.inf])] * count
    net = Network.from_factors(tables)
    net = net.like([*net.scopes, *[(i,) for i in range(count)]], [*net.tables, *masks])
    value = WAYS[way](Network.log_partition)(net)
    np.testing.assert_allclose(value, count * np.logaddexp(0.3, 1.7), rtol=2e-6)
    slopes = WAYS[way](jax.grad(Network.log_partition))(net).tables[-1]
    np.testing.assert_allclose(slopes[0], 1 / (1 + np.exp(1.4)), rtol=2e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_each_network_of_a_batch_has_numbers_of_its_own(way):
    tables = path_tables(20, "float32")
    net = Network.from_factors(tables)
    offsets = np.float32([0, 2.0**26, -(2.0**26)])

    def slopes(offset):
        moved = [x + offset * (1 - 2 * (i % 2)) for i, x in enumerate([0 * y for y in net.tables])]
        whole = net.like([*net.scopes, *net.scopes], [*net.tables, *moved])
        return jax.grad(Network.log_partition)(whole).tables[: len(tables)]

    want = jax.grad(Network.log_partition)(net).tables
    found = WAYS[way](jax.vmap(slopes))(offsets)
    for a, b in zip(found, want, strict=True):
        np.testing.assert_allclose(a, np.broadcast_to(b, a.shape), rtol=2e-5)


@pytest.mark.slow
def test_the_third_derivative_does_not_see_numbers_that_tables_share():
    # of 20 variables that are no chain: one op, whose third derivative is that of its steps
    tables = {**path_tables(20, "float32"), (0, 10): np.zeros((2, 2), np.float32)}

    def third(net):
        value = lambda x: net.like(net.scopes, [x, *net.tables[1:]]).log_partition()
        return jax.jacfwd(jax.jacfwd(jax.grad(value)))(jnp.asarray(net.tables[0]))

    want = third(Network.from_factors(tables))
    assert np.abs(want).max() > 0.01
    np.testing.assert_allclose(third(with_constants(tables, 2.0**26)), want, atol=1e-5)


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_each_cell_of_an_einsum_has_numbers_of_its_own(way):
    """Rows of one table share different large numbers, in an order of the output that is not that
    of the tables.
    """
    rng = np.random.default_rng(0)
    a, b, c = (rng.normal(size=size).astype(np.float32) for size in [(4, 3), (3, 4), (4, 2)])
    rows, columns = np.float32([0, 2.0**26, -(2.0**26), 8]), np.float32([2.0**27, 1])

    def slopes(a, b, c):
        f = lambda b: tropical_einsum("ij,jk,kl->li", a, b, c, semiring=log_sum_exp)
        return jax.jacrev(f)(b)

    found = WAYS[way](slopes)(a + 0 * a, b, c)
    ask = WAYS[way](lambda a, b, c: tropical_einsum("ij,jk,kl->li", a, b, c, semiring=log_sum_exp))
    moved = 0 * a + rows[:, None], b, 0 * c + columns
    want = np.logaddexp.reduce(np.logaddexp.reduce(b, 0)) + columns[:, None] + rows
    np.testing.assert_allclose(ask(*moved), want, rtol=1e-6)
    flat = np.exp(b - np.logaddexp.reduce(b.reshape(-1)))
    np.testing.assert_allclose(
        WAYS[way](slopes)(*moved), np.broadcast_to(flat, found.shape), rtol=2e-5
    )


@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("count", [6, 30])
def test_a_mask_that_every_assignment_must_take_changes_no_probability(count, way):
    # Two values that meet are masked by a large finite score, and others are impossible there.
    tables = path_tables(count, "float32")
    other = path_tables(count, "float32")
    middle = (2, 3)
    tables[middle] = tables[middle] + np.float32([[0, -1e6], [0, 0]])
    other[middle] = tables[middle] - np.float32([[0, -1e6], [0, 0]])
    for each in (tables, other):
        each[2,] = np.float32([each[2,][0], -np.inf])
        each[3,] = np.float32([-np.inf, each[3,][1]])
    net = Network.from_factors(tables)
    got = WAYS[way](Network.marginals)(net)
    if count < 20:
        want = answers(other)["marginals"]
    else:
        with jax.enable_x64(True):
            wide = {scope: x.astype(np.float64) for scope, x in other.items()}
            want = Network.from_factors(wide).marginals()
    for name, row in got.items():
        np.testing.assert_allclose(row, want[name], atol=2e-6)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("count", [5, 16])
def test_entropy_at_low_temperatures(count):
    tables = path_tables(count, "float32")
    net = Network.from_factors(tables)
    _, scores = all_scores({k: x.astype(np.float64) for k, x in tables.items()})
    for temperature in (1.0, 0.1, 1e-2, 1e-4, 1e-6, 1e-30):
        p = probabilities(scores, temperature)
        want = -np.sum(p * np.log(np.where(p > 0, p, 1)))
        ask = functools.partial(Network.entropy, temperature=temperature)
        slope = jax.jit(jax.grad(ask))(net).tables
        for got in (ask(net), jax.jit(ask)(net)):
            assert got >= 0
            assert got == pytest.approx(want, rel=1e-4, abs=1e-5)
        assert all(np.isfinite(x).all() for x in slope)


@pytest.mark.parametrize("temperature", [1e-39, 1e-38, 1e39])
@pytest.mark.parametrize("count", [5, 16])
@pytest.mark.parametrize("question", ["log_partition", "marginals", "entropy", "sample", "sum_out"])
def test_a_temperature_beyond_floats_is_an_error_whatever_the_network(question, count, temperature):
    net = Network.from_factors(path_tables(count, "float32"))
    args = {"sample": [jax.random.key(0)], "sum_out": [1]}.get(question, [])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ends_in(
            lambda: getattr(net, question)(*args, temperature=temperature),
            InvalidConfig,
            "a normal number of float32",
        )


@pytest.mark.few(1)
@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("steps", [1, 5])
@pytest.mark.parametrize("banded", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_a_number_that_an_array_of_a_chain_shares_changes_no_probability(part, banded, steps, way):
    """2^26 in place of zeros: of the initial scores, the moves, the emission or the final ones."""
    rng = np.random.default_rng(part)
    shapes = [(3,), (steps, 2 if banded else 3, 3), (6, 3), (3,)]
    tables = [rng.normal(size=shape).astype(np.float32) for shape in shapes]
    tables[part][...] = 0
    moved = [x + np.float32(2.0**26) * (i == part) for i, x in enumerate(tables)]

    def ask(initial, moves, emission, final):
        chain = Chain(initial, moves, emission, final=final, banded=banded)
        found = chain.marginals()
        slope = jax.grad(
            lambda x: Chain(initial, moves, x, final=final, banded=banded).log_partition()
        )
        drawn = chain.sample(jax.random.key(0), (50,))
        every = chain.log_prob(np.int32([0, 0, 1, 1, 2, 2]))
        return (
            found.states,
            found.transitions,
            chain.entropy(),
            slope(jnp.asarray(emission)),
            every,
            drawn,
        )

    got = WAYS[way](ask)(*moved)
    with jax.enable_x64(True):  # scores that are small, in more digits
        wide = [x.astype(np.float64) for x in tables]
        want = ask(*wide)[:-1]
    for a, b in zip(got, want, strict=False):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[-1], WAYS[way](ask)(*tables)[-1])
    number = {0: 1, 1: 5, 2: 6, 3: 1}[part] * 2.0**26
    total = Chain(*moved[:3], final=moved[3], banded=banded).log_partition()
    assert float(total) == pytest.approx(number, rel=1e-6)


@pytest.mark.parametrize("way", [lambda f: f, jax.jit])
@pytest.mark.parametrize("offset", [0.0, 1e5, -1e6, 1e8, -1e20, 1e30])
def test_a_number_that_a_time_shares_changes_no_log_prob(offset, way):
    emission = np.float32([[0, 1], [1, 0], [0, 2], [0, 0]])
    transition = np.float32([[1, 0], [0, 0.5]])
    initial = np.zeros(2, np.float32)
    states = np.array([1, 1, 1, 1])
    _, scores = all_scores(
        {
            **{(t,): emission[t].astype(float) for t in range(4)},
            **{(t, t + 1): transition.astype(float) for t in range(3)},
        }
    )
    wanted = np.log(probabilities(scores, 1.0))[tuple(states)]
    shifted = emission + np.float32([[0], [0], [0], [offset]])
    found = way(lambda x: Chain(initial, transition, x).log_prob(states))(shifted)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_a_probability_is_at_most_one():
    """By rounding the logarithm was above 0, and the loss of a CRF below."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        transition = 10 * rng.normal(size=(3, 3)).astype(np.float32)
        emission = (30 * rng.normal(size=(20, 3)) - 1e5).astype(np.float32)
        chain = Chain(np.zeros(3, np.float32), transition, emission)
        assert chain.log_prob(chain.best().states) <= 0


@pytest.mark.few(3)
@pytest.mark.parametrize("way", [lambda f: f, jax.jit])
@pytest.mark.parametrize("has_final", [False, True])
@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_no_chains_have_no_large_scores(lead, has_final, way):
    final = np.zeros(3, np.float32) if has_final else None
    emission = np.zeros((*lead, 4, 3), np.float32)
    chain = Chain(np.zeros(3, np.float32), np.zeros((3, 3), np.float32), emission, final=final)
    ask = way(lambda chain: (chain.log_partition(), chain.marginals().states, chain.entropy()))
    assert [x.shape for x in ask(chain)] == [lead, emission.shape, lead]


LARGE = np.array([[1e6, 0.0], [0.0, 0.0], [0.3, 0.7]])


@pytest.mark.few(1)
@pytest.mark.parametrize("way", WAYS)
def test_large_scores_of_a_chain_cost_its_entropy_no_digits(way):
    """Two choices are certain, and a third is free: log_partition is 2e6."""
    chain = Chain(*(x.astype("float32") for x in (LARGE[0], np.zeros((2, 2)), LARGE)))
    p = 1 / (1 + np.exp(-0.4))
    entropy = WAYS[way](lambda chain: chain.entropy())
    want = -p * np.log(p) - (1 - p) * np.log(1 - p) + np.log(2)
    np.testing.assert_allclose(entropy(chain), want, rtol=1e-5)
    emissions = jnp.stack([chain.emission, jnp.zeros((3, 2), jnp.float32)])
    several = Chain(chain.initial, chain.transition, emissions)
    np.testing.assert_allclose(entropy(several), [want, 2 * np.log(2)], rtol=1e-5)


@pytest.mark.parametrize("scale", [1e8, 1e30])
def test_the_entropy_of_a_certain_sequence_is_zero(scale):
    initial, transition = np.array([0.1, 0.7]), np.array([[0.2, -0.5], [0.8, 0.3]])
    emission = np.array([[0.3, -0.2], [0.6, 0.1], [-0.9, 0.4]])
    for dtype in (np.float32, np.float64):
        scores = [(x * scale).astype(dtype) for x in (initial, transition, emission)]
        np.testing.assert_allclose(Chain(*scores).entropy(), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize("form", ["plain", "band", "steps", "columns"])
def test_the_entropy_by_times_has_the_derivatives_of_that_from_the_expectation(form, monkeypatch):
    rng = np.random.default_rng(3)
    lead = (4,) if form == "steps" else ()
    rows = 2 if form == "band" else 3
    scores = [rng.normal(size=s) for s in ((3,), (*lead, rows, 3), (5, 3))]
    scores[1][..., 0, 1] = -np.inf
    more = (
        {"banded": True} if form == "band" else {"columns": [0, 2, 0]} if form == "columns" else {}
    )
    scores[2][4] = np.nan  # behind the length
    entropy = lambda *scores: Chain(*scores, lengths=4, **more).entropy()

    def orders(*scores):
        return (
            entropy(*scores),
            jax.grad(entropy, (0, 1, 2))(*scores),
            jax.hessian(entropy)(*scores),
        )

    found = []
    for tolerance in (1e3, 0.0):  # the one way, the other one
        monkeypatch.setattr(chain_entropy, "TOLERANCE", tolerance)
        jax.clear_caches()
        found.append(jax.jit(lambda *scores: orders(*scores))(*scores))
    close = functools.partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-10)
    jax.tree.map(close, *found)
