"""What a Network answers, against all assignments of small models in NumPy; and files in UAI format,
against published numbers.
"""

import itertools
import pathlib

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from ext_tropical import Network
from ext_tropical.models.chain_form import chain_form
from tenferro_jax.errors import ArtifactError, DTypeError, InvalidConfig, ShapeError, Unsupported

from ..helpers import ends_in
from ..oracles import spread
from ..sweep import times
from .small_networks import all_scores, factors, log_sum, probabilities

DATA = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "data"
TEMPERATURE = 0.7


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def in_slices(tables):
    """The same network within less memory than it takes in one piece."""
    whole = Network.from_factors(tables)
    small = Network.from_factors(tables, memory_limit=whole.plan().peak - 1)
    assert small.plan().slices > 1
    return small


@pytest.mark.parametrize(
    ("seed", "variables"),
    [
        *((seed, 6) for seed in range(4)),
        *(pytest.param(s, 12, marks=pytest.mark.slow) for s in range(4)),
    ],
)
def test_scores_and_probabilities_against_all_assignments(seed, variables):
    tables = factors(seed, variables)
    net = Network.from_factors(tables)
    names, scores = all_scores(tables)
    assert net.variables == dict(zip(names, scores.shape, strict=True))
    best = net.best()
    assert bool(best.feasible) is bool(np.isfinite(scores.max()))
    assert float(best.value) == float(net.value()) == pytest.approx(scores.max(), rel=1e-12)
    assert scores[tuple(int(best.labels[x]) for x in names)] == pytest.approx(scores.max(), 1e-12)
    want = log_sum(scores / TEMPERATURE)
    assert float(net.log_partition(temperature=TEMPERATURE)) == pytest.approx(want, rel=1e-12)
    p = probabilities(scores, TEMPERATURE)
    marginals = net.marginals(temperature=TEMPERATURE)
    assert list(marginals) == names
    for axis, name in enumerate(names):
        others = tuple(i for i in range(p.ndim) if i != axis)
        np.testing.assert_allclose(marginals[name], p.sum(others), rtol=1e-9, atol=1e-13)
    want = scipy.stats.entropy(p.ravel())
    assert float(net.entropy(temperature=TEMPERATURE)) == pytest.approx(want, rel=1e-9)
    first, last, *gone = names[1], names[-1], *names[2:4]
    rest = scores.take(0, names.index(last)).take(1, names.index(first))
    given = net.given({first: 1}, **{last: np.int64(0)})
    assert list(given.variables) == [x for x in names if x not in (first, last)]
    assert float(given.value()) == pytest.approx(rest.max(), rel=1e-12)
    assert float(given.log_partition()) == pytest.approx(log_sum(rest), rel=1e-12)
    want = log_sum(scores, tuple(map(names.index, gone)), TEMPERATURE)
    best = net.sum_out(*gone, temperature=TEMPERATURE).best(k=5)
    np.testing.assert_allclose(best.value, np.sort(want, axis=None)[:-6:-1], rtol=1e-11)
    at = tuple(best.labels[x] for x in names if x not in gone)
    np.testing.assert_allclose(want[at], best.value, rtol=1e-11)


def a_chain(rng, variables, size, dtype=np.float64, whole=True):
    """(the variables from end to end, a network): tables in any order, of pairs either way round,
    and of single variables none, one, or another one from evidence.
    """
    order = rng.permutation(variables).tolist()
    scopes = [tuple(rng.permutation(pair).tolist()) for pair in itertools.pairwise(order)]
    scopes += [(name,) for name in order if rng.random() < 0.6]
    seen = [name for name in order if rng.random() < 0.3]
    scopes += [(name, variables + name) for name in seen]
    rng.shuffle(scopes)
    tables = {}
    for scope in scopes:
        shape = (size,) * len(scope)
        scores = rng.integers(-2, 3, shape) if whole else rng.normal(size=shape)
        tables[scope] = np.where(rng.random(shape) < 0.04, -np.inf, scores).astype(dtype)
    net = Network.from_factors(tables).given({variables + name: 0 for name in seen})
    names = list(net.variables)
    return order if names.index(order[0]) < names.index(order[-1]) else order[::-1], net


@pytest.mark.parametrize("seed", range(4))
def test_chains_against_all_assignments(seed):
    order, net = a_chain(np.random.default_rng(seed), 16, 2)
    assert list(chain_form(net).order) == order
    letters = np.array([*"abcdefghijklmnop"])
    terms = ["".join(letters[list(scope)]) for scope in net.scopes]
    joint = "".join(letters[order])
    scores = sum(spread(table, term, joint) for table, term in zip(net.tables, terms, strict=True))
    first = np.unravel_index(scores.argmax(), scores.shape)
    for found in (net.best(), jax.jit(Network.best)(net)):
        assert float(found.value) == float(net.value()) == scores.max()
        assert [int(found.labels[name]) for name in order] == list(first)
    p = probabilities(scores, TEMPERATURE)
    drawn = net.sample(jax.random.key(seed), (10_000,), temperature=TEMPERATURE)
    for axis, name in enumerate(order):
        one = p.take(1, axis).sum()
        assert abs(np.asarray(drawn[name]).mean() - one) <= 5 * np.sqrt(one * (1 - one) / 10_000)


@pytest.mark.few(2)
@pytest.mark.parametrize("seed", range(times(12)))
def test_a_chain_answers_as_its_plan(seed):
    """The best to the bit: both add the same numbers in the same order."""
    rng = np.random.default_rng(seed)
    size, dtype = 1 + seed % 6, (np.float32, np.float64)[seed % 2]
    _, net = a_chain(rng, 16 + seed % 20, size, dtype, whole=seed % 3 == 0)
    assert chain_form(net)
    best = jax.jit(Network.best)(net)
    closed = jax.jit(lambda: net.best())()
    for held in (net, jax.tree.map(jnp.asarray, net)):
        chex.assert_trees_all_equal(held.best(), best, closed)
        assert float(held.value()) == float(best.value)
    for ask in (Network.log_partition, Network.marginals, Network.entropy):
        if np.isfinite(net.value()):
            close, on_device = (
                1e-4 if dtype == np.float32 else 1e-11,
                jax.tree.map(jnp.asarray, net),
            )
            found = ask(net), ask(on_device), jax.jit(lambda ask=ask: ask(net))()
            chex.assert_trees_all_close(jax.jit(ask)(net), *found, rtol=close, atol=close)


EYE = np.eye(2)


@pytest.mark.parametrize(
    "scopes",
    [
        [(i, (i + 1) % 16) for i in range(16)],  # a ring
        [*((i, i + 1) for i in range(16)), (8, 17)],  # a tree
        [(i, i + 1) for i in range(20) if i != 9],  # two chains
        [*((i, i + 1) for i in range(16)), *((17 + i, 17 + (i + 1) % 3) for i in range(3))],
        [*((i, i + 1) for i in range(16)), ()],
        [*((i, i + 1) for i in range(16)), (3, 4, 5)],
    ],
)
def test_what_is_no_chain(scopes):
    net = Network.from_factors({scope: np.ones((2,) * len(scope)) for scope in scopes})
    assert chain_form(net) is None
    assert float(net.value()) == len(scopes)


def test_a_chain_of_which_something_is_said_keeps_its_plan():
    pairs = {(i, i + 1): EYE for i in range(16)}
    plain = Network.from_factors(pairs)
    others = [
        Network.from_factors(pairs, optimize="greedy"),
        Network.from_factors(pairs, memory_limit=10**9),
        Network.from_factors({**pairs, (16, 17): np.zeros((2, 3))}),
        Network.from_factors({scope: x.astype(np.int32) for scope, x in pairs.items()}),
        Network.from_factors({(i, i + 1): EYE for i in range(14)}),
    ]
    assert chain_form(plain)
    assert not any(map(chain_form, others))
    for net in others:
        assert float(net.value()) == len([x for x in net.tables if x.shape == (2, 2)])


@pytest.mark.parametrize("spoil", [-np.inf, np.inf, np.nan])
def test_a_chain_without_an_answer(spoil):
    pairs = {(i, i + 1): np.ones((2, 2)) for i in range(20)}
    net = Network.from_factors({**pairs, (7, 8): np.full((2, 2), spoil)})
    best = net.best()
    chex.assert_trees_all_equal(best, jax.jit(Network.best)(net))
    np.testing.assert_equal(float(best.value), spoil)
    for ask in (Network.marginals, Network.entropy, lambda net: net.sample(jax.random.key(0))):
        with pytest.raises(InvalidConfig, match=r"-inf" if spoil == -np.inf else "NaN or inf"):
            ask(net)


QUESTIONS = {
    "value": Network.value,
    "best": lambda net: net.best().labels,
    "best of integers": lambda net: net.best(k=7),
    "log_partition": Network.log_partition,
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "sum_out": lambda net: net.sum_out("u", "w").value(),
    "given": lambda net: net.given(v=1).log_partition(),
    "sample": lambda net: net.sample(jax.random.key(1), (4, 5)),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_does_not_depend_on_how_it_is_asked(question):
    """Concrete, under jit with the tables as arguments or closed over, of JAX or NumPy arrays,
    in slices, in a batch, and exported for any sizes; equal scores in the order of one plan.
    """
    tables, ask = factors(1, whole="integers" in question), QUESTIONS[question]
    net = Network.from_factors(tables)
    want, on_device = ask(net), jax.tree.map(jnp.asarray, net)
    batch = jax.tree.map(lambda x: jnp.stack([x, x + 1, x]), on_device)
    found = {
        "device": ask(on_device),
        "argument": jax.jit(ask)(net),
        "closed over": jax.jit(lambda: ask(net))(),
        "vmap": jax.tree.map(lambda x: x[2], jax.vmap(ask)(batch)),
        "jit of vmap": jax.tree.map(lambda x: x[0], jax.jit(jax.vmap(ask))(batch)),
    }
    if question not in ("sample", "best of integers"):  # of equals and of draws a slice has its own
        found["slices"] = ask(in_slices(tables))
        asked = jax.jit(lambda tables: ask(net.like(net.scopes, tables)))
        found["symbolic"] = jax.export.export(asked)(
            jax.export.symbolic_args_specs(net.tables, [", ".join(s) for s in net.scopes])
        ).call(net.tables)
    for how, answer in found.items():
        chex.assert_trees_all_close(answer, want, rtol=1e-12, atol=1e-14, custom_message=how)


def test_batches_of_evidence():
    net = Network.from_factors(factors(1))
    values = jnp.arange(net.variables["v"])
    found = jax.jit(jax.vmap(lambda v: net.given(v=v).log_partition()))(values)
    want = [float(net.given(v=int(v)).log_partition()) for v in values]
    np.testing.assert_allclose(found, want, rtol=1e-12)
    assert np.isnan(jax.vmap(lambda v: net.given(v=v).value())(jnp.array([-1, 7]))).all()


QUANTITIES = {
    "value": (Network.value, lambda names, s: s.max()),
    "log_partition": (Network.log_partition, lambda names, s: log_sum(s)),
    "entropy": (Network.entropy, lambda names, s: scipy.stats.entropy(np.exp(s).ravel())),
    "marginals": (
        lambda net: net.marginals()["v"][0],
        lambda names, s: np.exp(s.take(0, names.index("v"))).sum() / np.exp(s).sum(),
    ),
    "best, k=3": (
        lambda net: net.best(k=3).value[2],
        lambda names, s: np.sort(s, axis=None)[-3],
    ),
    "sum_out": (
        lambda net: net.sum_out("u", "w").value(),
        lambda names, s: log_sum(s, tuple(map(names.index, "uw"))).max(),
    ),
}


@pytest.mark.few(2)
@pytest.mark.parametrize("question", QUANTITIES)
def test_derivatives_against_differences_of_sums_over_all_assignments(question):
    """In every entry that is possible, in slices too; log_partition also in second order, along a
    direction of all entries.
    """
    ours, theirs = QUANTITIES[question]
    tables = factors(2, 4)
    net, width = Network.from_factors(tables), 1e-5
    value, slopes = jax.jit(jax.value_and_grad(ours))(net)
    sliced = jax.grad(ours)(in_slices(tables))
    chex.assert_trees_all_close(sliced.tables, slopes.tables, rtol=1e-9, atol=1e-12)
    assert float(value) == pytest.approx(theirs(*all_scores(tables)), rel=1e-12)
    for (scope, table), slope in zip(tables.items(), slopes.tables, strict=True):
        for at in np.argwhere(np.isfinite(table)):
            sides = []
            for step in (width, -width):
                moved = table.copy()
                moved[tuple(at)] += step
                sides.append(theirs(*all_scores(tables | {scope: moved})))
            want = (sides[0] - sides[1]) / (2 * width)
            assert float(slope[tuple(at)]) == pytest.approx(want, rel=1e-6, abs=1e-8)
    if question != "log_partition":
        return
    rng, width = np.random.default_rng(0), 1e-3
    along = {scope: rng.normal(size=table.shape) for scope, table in tables.items()}
    way = net.like(net.scopes, [jnp.asarray(x) for x in along.values()])

    def slope(net):
        return jax.jvp(ours, (net,), (way,))[1]

    found = jax.jit(lambda net: jax.jvp(slope, (net,), (way,))[1])(net)
    low, middle, high = (
        theirs(*all_scores({scope: x + step * along[scope] for scope, x in tables.items()}))
        for step in (-width, 0, width)
    )
    want = (high - 2 * middle + low) / width**2
    assert float(found) == pytest.approx(want, rel=1e-4, abs=1e-5)


def test_impossible_networks():
    net = Network("ab,b->", np.full((2, 2), -np.inf), np.zeros(2))
    assert float(net.value()) == float(net.log_partition()) == -np.inf
    assert not net.best().feasible
    nothing = Network("->", np.full((), -np.inf))
    ends_in(lambda: nothing.sample(jax.random.key(0)), InvalidConfig, "all have the score -inf")
    for question in (Network.marginals, Network.entropy):
        ends_in(lambda: question(net), InvalidConfig, "all have the score -inf")
        assert all(np.isnan(x).all() for x in jax.tree.leaves(jax.jit(question)(net)))


@pytest.mark.few(4)
@pytest.mark.parametrize("spoil", [-np.inf, np.nan, np.inf])
@pytest.mark.parametrize("part", ["scalar", "separate", "many", "given"])
def test_marginals_look_at_every_part(spoil, part):
    """Also at tables that share no variable with those that are asked for."""
    tables = {("a",): np.array([0.0, 1.0])}
    if part == "many":
        tables = {(f"a{i}", f"a{i + 1}"): np.eye(2) for i in range(20)}
    if part == "scalar":
        tables[()] = np.array(spoil)
    else:
        tables[("b",)] = np.array([spoil] * 2 if part != "given" else [spoil, 0.0])

    def ask(net, at):
        return (net.given(b=at) if part == "given" else net).marginals()

    net = Network.from_factors(tables)
    ends_in(
        lambda: ask(net, 0),
        InvalidConfig,
        "all have the score -inf" if spoil == -np.inf else "NaN or inf",
    )
    found = [jax.jit(ask)(net, 0)]
    if part == "given":
        found.append(jax.tree.map(lambda x: x[0], jax.vmap(lambda i: ask(net, i))(np.arange(2))))
    assert all(np.isnan(x).all() for x in jax.tree.leaves(found))
    if part == "given":
        for found in (ask(net, 1), jax.jit(ask)(net, 1)):
            np.testing.assert_allclose(
                found["a"], probabilities(np.array([0.0, 1.0]), 1.0), rtol=1e-6
            )
        assert np.isnan(jax.jit(ask)(net, 5)["a"]).all()


def test_a_network_is_a_pytree_that_prints_and_does_not_change():
    net = Network("ab,bc->", np.zeros((2, 3)), np.zeros((3, 4)))
    leaves, structure = jax.tree.flatten(net)
    assert [x.shape for x in leaves] == [(2, 3), (3, 4)]
    assert jax.tree.unflatten(structure, leaves).variables == {"a": 2, "b": 3, "c": 4}
    assert repr(net) == "Network('ab,bc->', 2 tables)"
    assert str(net).splitlines() == [
        "2 tables of 3 variables with 2 to 4 values, 10^1.4 assignments",
        "value, best, log_partition: 21 candidates, at most 3 entries in a result",
        "marginals, entropy: 63 candidates",
    ]
    assert "with 2 values" in str(Network("ab->", np.zeros((2, 2))))
    small = in_slices(factors(0))
    assert f"in {small.plan().slices} slices" in str(small)
    ends_in(lambda: setattr(net, "tables", ()), AttributeError, "make another one")


PAIR = Network("ab->", np.zeros((2, 3)))


def symbolic(ask):
    return jax.export.export(jax.jit(ask))(jax.export.symbolic_args_specs(PAIR, "a, b"))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Network("ab->a", PAIR.tables[0]), InvalidConfig, "no output"),
        (lambda: Network("ab", PAIR.tables[0]), InvalidConfig, "no output"),
        (lambda: Network("a,b->", np.zeros(2)), InvalidConfig, "given 1 table; needed 2"),
        (lambda: Network("aa->", np.zeros((2, 2))), InvalidConfig, "a variable twice"),
        (lambda: Network("ab->", np.zeros(2)), ShapeError, "an axis for each of its variables"),
        (lambda: Network("a,a->", np.zeros(2), np.zeros(3)), ShapeError, "needed 2, as before"),
        (lambda: Network("a,a->", np.zeros(2), np.zeros(1)), ShapeError, "needed 2, as before"),
        (lambda: Network("a->", np.zeros(0)), ShapeError, "at least one value"),
        (lambda: Network("a->", "scores"), DTypeError, "table 0"),
        (lambda: Network.from_factors({("a", 1): np.zeros((2, 2))}), InvalidConfig, "int, str"),
        (lambda: PAIR.given(a=2), InvalidConfig, "needed an integer, 0 to 1"),
        (lambda: PAIR.given(a=-1), InvalidConfig, "needed an integer, 0 to 1"),
        (lambda: PAIR.given(a=True), InvalidConfig, "given True"),
        (lambda: PAIR.given(a=1.0), InvalidConfig, "given 1.0"),
        (lambda: jax.jit(lambda x: PAIR.given(a=x))(1.0), InvalidConfig, "float"),
        (lambda: PAIR.given(c=0), InvalidConfig, "one of 'a', 'b'"),
        (lambda: PAIR.given({"a": 0}, a=1), InvalidConfig, "variable 'a' twice"),
        (lambda: PAIR.given("a"), InvalidConfig, "a mapping"),
        (lambda: PAIR.sum_out(["a"]), InvalidConfig, "one of 'a', 'b'"),
        (lambda: Network.from_factors({}), InvalidConfig, "at least one"),
        (lambda: Network.from_factors(None), InvalidConfig, "a mapping"),
        (lambda: Network("a,a->", np.float32([0]), np.float64([0])), DTypeError, "one dtype"),
        (lambda: Network("a->", np.array([np.inf, 0])).entropy(), InvalidConfig, "NaN or inf"),
        (lambda: Network("a->", np.array([np.nan, 0])).marginals(), InvalidConfig, "NaN or inf"),
        *(
            (
                lambda bad=bad: Network("a,b->", np.zeros(2), np.full(2, bad)).marginals(),
                InvalidConfig,
                "-inf" if bad == -np.inf else "NaN or inf",
            )
            for bad in (-np.inf, np.inf, np.nan)
        ),
        (lambda: PAIR.sum_out("c"), InvalidConfig, "one of 'a', 'b'"),
        (lambda: PAIR.log_partition(temperature=0), InvalidConfig, "temperature"),
        (lambda: symbolic(lambda net: print(net) or net.best(k=2)), Unsupported, "network_best"),
        (
            lambda: symbolic(lambda net: net.sample(jax.random.key(0))),
            Unsupported,
            "network_samples",
        ),
        (lambda: Network("a->", np.arange(2)).marginals(), DTypeError, "floating"),
        (lambda: Network("a->", np.arange(2)).entropy(), DTypeError, "floating"),
        (lambda: Network("a->", np.arange(2)).log_partition(), DTypeError, "float"),
    ],
)
def test_bad_input_is_a_typed_error(call, error, message):
    ends_in(call, error, message)


@pytest.mark.parametrize("offset", [-2e4, 1e5, 1e8])
def test_large_scores_do_not_spoil_probabilities(offset):
    """In float32: what all assignments have in common is taken off before anything is rounded."""
    with jax.enable_x64(False):
        a, b = np.array([[1.0, 0.0, 3.0], [0.5, -2.0, 1.0]]), np.array([0.0, 1.0, -np.inf])
        want = Network("ab,b->", a, b)
        a = (a.astype(np.float32) * 16 + np.float32(offset)).astype(np.float32)
        a = a.astype(float)
        p = np.exp((a + b - (a + b).max()) / 16)
        p /= p.sum()
        net = Network("ab,b->", a.astype(np.float32), b.astype(np.float32))
        assert want.variables == net.variables
        np.testing.assert_allclose(net.marginals(temperature=16.0)["a"], p.sum(1), rtol=1e-4)
        positive = p[p > 0]
        entropy = -(positive * np.log(positive)).sum()
        assert float(net.entropy(temperature=16.0)) == pytest.approx(entropy, abs=1e-4)
        jitted = jax.jit(lambda n: n.entropy(temperature=16.0))(net)
        assert float(jitted) == pytest.approx(entropy, abs=1e-4)


def test_shares_sum_to_one_at_any_temperature():
    net = Network("ab,b->", np.array([[0.0, 1.0], [2.0, 0.0]]), np.array([0.0, 1.0]))
    np.testing.assert_array_equal(net.marginals(temperature=1e-30)["a"], [0.5, 0.5])


@pytest.mark.slow
def test_a_network_of_derivatives_prints():
    found = jax.jacrev(lambda n: n.marginals()["a"])(PAIR)
    assert str(found) == repr(found) == "Network('ab->', 1 table)"


def test_integers_have_a_best_assignment():
    net = Network("ab,b->", np.arange(6, dtype=np.int32).reshape(2, 3), np.int32([9, 0, 0]))
    assert int(net.value()) == 12
    assert {x: int(i) for x, i in net.best().labels.items()} == {"a": 1, "b": 0}


# Files


def test_asia_has_the_published_marginals():
    """Lauritzen and Spiegelhalter 1988, to three digits."""
    marginals = Network.from_uai(DATA / "asia.uai").marginals()
    found = [round(float(marginals[i][0]), 3) for i in range(8)]
    assert found == [0.01, 0.010, 0.5, 0.055, 0.45, 0.065, 0.110, 0.436]


@pytest.mark.parametrize("text", ["2 0 0 6 1", "1 2 0 0 6 1", "2\n0 0\n6 1\n"])
def test_evidence_of_both_kinds_is_read(tmp_path, text):
    (tmp_path / "asia.evid").write_text(text)
    net = Network.from_uai(DATA / "asia.uai", tmp_path / "asia.evid")
    want = Network.from_uai(DATA / "asia.uai").given({0: 0, 6: 1})
    assert net.variables == want.variables
    assert float(net.log_partition()) == float(want.log_partition())


@pytest.mark.parametrize("names", ["uvwxyz", (3, 0, 5, 1, 4, 2), (9, 7, 5, 3, 2, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_a_network_is_written_and_read(tmp_path, seed, names):
    """Variables named 0 to 5 keep their names, others are numbered as they come."""
    tables = {tuple(names["uvwxyz".index(x)] for x in s): t for s, t in factors(seed).items()}
    net = Network.from_factors(tables)
    net.to_uai(tmp_path / "net.uai")
    again = Network.from_uai(tmp_path / "net.uai")
    order = sorted(net.variables) if set(names) == set(range(6)) else list(net.variables)
    assert again.variables == {order.index(x): size for x, size in net.variables.items()}
    marginals = again.marginals()
    for name, values in net.marginals().items():
        np.testing.assert_allclose(marginals[order.index(name)], values, rtol=1e-11, atol=1e-14)
    for table, read in zip(net.tables, again.tables, strict=True):
        np.testing.assert_allclose(read, table, rtol=1e-14, atol=1e-15)
    assert float(again.entropy()) == pytest.approx(float(net.entropy()), rel=1e-12)


def test_variables_without_a_factor_and_comments(tmp_path):
    (tmp_path / "net.uai").write_text("c two coins\nMARKOV\n2\n2 3\n1\n1 0\n\n2\n .25 7.5e-1\n")
    net = Network.from_uai(tmp_path / "net.uai")
    assert net.variables == {0: 2, 1: 3}
    np.testing.assert_allclose(net.marginals()[1], 1 / 3, rtol=1e-12)


def test_scores_whose_exp_is_infinite_are_not_written(tmp_path):
    for scores in ([0.0, 1000.0], [-1000.0, 0.0], [np.nan, 0.0]):
        net = Network("a->", np.array(scores))
        ends_in(lambda: net.to_uai(tmp_path / "net.uai"), ArtifactError, "scores whose exp")
    assert not (tmp_path / "net.uai").exists()


SMALL = "BAYES 2 2 3 2 1 0 2 0 1 2 .4 .6 6 .1 .2 .7 1 0 0"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "line 0, column 1: given the end; needed BAYES or MARKOV"),
        ("BIF 2", "line 1, column 1: given BIF; needed BAYES or MARKOV"),
        ("MARKOV\n\n  two", "line 3, column 3: given two; needed the number of variables"),
        ("MARKOV 2 2 0", "column 12: given 0; needed a number of values, 1 to 2147483647"),
        ("MARKOV 1 2.5", "given 2.5; needed a number of values"),
        ("MARKOV 1 2 -1", "given -1; needed the number of factors"),
        ("MARKOV 1 2 1 2 0 0", "given 2; needed the number of variables of a factor, 0 to 1"),
        ("MARKOV 2 2 2 1 2 0 0", "needed a variable that the factor does not have yet"),
        ("MARKOV 2 2 2 1 1 2", "given 2; needed a variable, 0 to 1"),
        ("BAYES 2 2 2 2 1 0 2 1 0", "needed each variable as the last of one factor"),
        ("MARKOV 2 2 3 1 2 0 1\n\n5 1", "line 3, column 1: given 5; needed 6 entries"),
        ("MARKOV 1 2 1 1 0 2 .5 half", "given half; needed a finite number of at least 0"),
        ("MARKOV 1 2 1 1 0 2 .5 nan", "given nan"),
        ("MARKOV 1 2 1 1 0 2 .5 inf", "given inf"),
        ("MARKOV 1 2 1 1 0 2 .5 -.5", "given -.5"),
        ("MARKOV 1 2 1 1 0 2 .5 1_0", "given 1_0"),
        ("MARKOV 99999999999999999999999999 2", "needed the number of variables"),
        ("MARKOV ² 2", "needed the number of variables"),
        (SMALL + " 7", "given 7; needed the end"),
    ],
)
def test_a_broken_model_is_a_typed_error(tmp_path, text, message):
    (tmp_path / "net.uai").write_text(text)
    ends_in(lambda: Network.from_uai(tmp_path / "net.uai"), ArtifactError, message)


def test_every_cut_of_a_model_is_a_typed_error(tmp_path):
    words = SMALL.split()
    for count in range(len(words)):
        (tmp_path / "net.uai").write_text(" ".join(words[:count]))
        ends_in(lambda: Network.from_uai(tmp_path / "net.uai"), ArtifactError, "the end")


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("2 0 0", ArtifactError, "given the end; needed a variable"),
        ("2 0 0 0 1", ArtifactError, "a variable that was not named before"),
        ("1 0 x", ArtifactError, "column 5: given x; needed a value"),
        ("1 9 0", InvalidConfig, "given 9; needed one of"),
        ("1 0 2", InvalidConfig, "given 2; needed an integer, 0 to 1"),
    ],
)
def test_broken_evidence_is_a_typed_error(tmp_path, text, error, message):
    (tmp_path / "net.evid").write_text(text)
    ends_in(lambda: Network.from_uai(DATA / "asia.uai", tmp_path / "net.evid"), error, message)


def test_files_that_are_no_text_or_are_missing(tmp_path):
    (tmp_path / "image.uai").write_bytes(b"\x89PNG")
    ends_in(lambda: Network.from_uai(tmp_path / "image.uai"), ArtifactError, "needed BAYES")
    ends_in(lambda: Network.from_uai(tmp_path / "none.uai"), FileNotFoundError, "none.uai")
