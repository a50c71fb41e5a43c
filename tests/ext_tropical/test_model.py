"""Network against all assignments of small models in NumPy, and against published numbers."""

import itertools
import json
import pathlib

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import pytest

from ext_tropical import Network
from tenferro_jax.errors import ArtifactError, DTypeError, InvalidConfig, ShapeError, Unsupported

from ..helpers import ends_in

DATA = pathlib.Path(__file__).parents[2] / "docs" / "examples" / "data"
TEMPERATURE = 0.7


def factors(seed, impossible=0.1):
    """Nine tables of none to three of six variables with two or three values, in float64."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("uvwxyz", map(int, rng.integers(2, 4, 6)), strict=True))
    scopes = {("u", "v"), ("w",), ("x", "y", "z")}  # so that each variable is in one
    while len(scopes) < 9:
        scopes.add(tuple(rng.choice(list(sizes), rng.integers(0, 4), replace=False).tolist()))
    tables = {}
    for scope in sorted(scopes):
        scores = rng.normal(size=[sizes[x] for x in scope])
        tables[scope] = np.where(
            rng.random(scores.shape) < impossible * len(scope), -np.inf, scores
        )
    return tables


def all_scores(tables):
    """(variables, the score of each assignment)."""
    names = list(dict.fromkeys(itertools.chain(*tables)))
    sizes = {x: n for scope, t in tables.items() for x, n in zip(scope, t.shape, strict=True)}
    total = np.zeros([sizes[x] for x in names])
    at = dict(zip(names, np.indices(total.shape), strict=True))
    for scope, table in tables.items():
        total = total + table[tuple(at[x] for x in scope)]
    return names, total


def probabilities(scores):
    weights = np.exp((scores - scores.max()) / TEMPERATURE)
    return weights / weights.sum()


def log_sum(scores, axes=None, temperature=1.0):
    with np.errstate(divide="ignore"):
        return temperature * np.log(np.exp(scores / temperature).sum(axes))


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("seed", range(6))
def test_every_question_against_all_assignments(seed):
    tables = factors(seed)
    net = Network.from_factors(tables)
    names, scores = all_scores(tables)
    assert net.variables == dict(zip(names, scores.shape, strict=True))
    best = net.best()
    assert bool(best.feasible) is bool(np.isfinite(scores.max()))
    assert float(best.value) == float(net.value()) == pytest.approx(scores.max(), rel=1e-12)
    assert scores[tuple(int(best.labels[x]) for x in names)] == pytest.approx(scores.max(), 1e-12)
    want = log_sum(scores / TEMPERATURE)
    assert float(net.log_partition(temperature=TEMPERATURE)) == pytest.approx(want, rel=1e-12)
    p = probabilities(scores)
    marginals = net.marginals(temperature=TEMPERATURE)
    assert list(marginals) == names
    for axis, name in enumerate(names):
        others = tuple(i for i in range(p.ndim) if i != axis)
        np.testing.assert_allclose(marginals[name], p.sum(others), rtol=1e-10, atol=1e-14)
    want = -(p[p > 0] * np.log(p[p > 0])).sum()
    assert float(net.entropy(temperature=TEMPERATURE)) == pytest.approx(want, rel=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_evidence_and_sums_against_all_assignments(seed):
    tables = factors(seed)
    net = Network.from_factors(tables)
    names, scores = all_scores(tables)
    rest = scores.take(1, names.index("v")).take(0, [x for x in names if x != "v"].index("x"))
    given = net.given({"v": 1}, x=np.int64(0))
    assert list(given.variables) == [x for x in names if x not in "vx"]
    assert float(given.value()) == pytest.approx(rest.max(), rel=1e-12)
    assert float(given.log_partition()) == pytest.approx(log_sum(rest), rel=1e-12)
    summed = net.sum_out("u", "z", temperature=TEMPERATURE)
    axes = tuple(map(names.index, "uz"))
    want = log_sum(scores, axes, TEMPERATURE)
    best = summed.best()
    assert float(best.value) == pytest.approx(want.max(), rel=1e-12)
    kept = [x for x in names if x not in "uz"]
    assert sorted(best.labels) == sorted(kept)
    assert want[tuple(int(best.labels[x]) for x in kept)] == pytest.approx(want.max(), rel=1e-12)


def test_marginal_map_is_not_the_best_assignment():
    p = np.array([[0.4, 0.0, 0.0], [0.2, 0.2, 0.2]])
    with np.errstate(divide="ignore"):
        net = Network("ab->", np.log(p))
    assert int(net.best().labels["a"]) == 0
    assert int(net.sum_out("b").best().labels["a"]) == 1


QUESTIONS = {
    "value": Network.value,
    "best": lambda net: net.best().labels,
    "log_partition": Network.log_partition,
    "marginals": Network.marginals,
    "entropy": Network.entropy,
    "sum_out": lambda net: net.sum_out("u", "w").value(),
}


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_answer_does_not_depend_on_how_it_is_asked(question):
    """Concrete, under jit with the tables as arguments or closed over, of JAX or NumPy arrays,
    in slices, and in a batch.
    """
    tables, ask = factors(0), QUESTIONS[question]
    net = Network.from_factors(tables)
    want = ask(net)
    on_device = Network.from_factors({s: jnp.asarray(t) for s, t in tables.items()})
    small = Network.from_factors(tables, memory_limit=net.plan().peak - 1)
    assert small.plan().slices > 1
    batch = jax.tree.map(lambda x: jnp.stack([x, x + 1, x]), on_device)
    routes = {
        "device": ask(on_device),
        "argument": jax.jit(ask)(net),
        "closed over": jax.jit(lambda: ask(net))(),
        "closed over, device": jax.jit(lambda: ask(on_device))(),
        "slices": ask(small),
        "vmap": jax.tree.map(lambda x: x[2], jax.vmap(ask)(batch)),
        "jit of vmap": jax.tree.map(lambda x: x[0], jax.jit(jax.vmap(ask))(batch)),
    }
    for route, found in routes.items():
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-14, err_msg=route),
            found,
            want,
        )


def test_batches_of_evidence():
    tables = factors(1)
    net = Network.from_factors(tables)
    values = jnp.arange(net.variables["v"])
    found = jax.jit(jax.vmap(lambda v: net.given(v=v).log_partition()))(values)
    want = [float(net.given(v=int(v)).log_partition()) for v in values]
    np.testing.assert_allclose(found, want, rtol=1e-12)
    outside = jax.vmap(lambda v: net.given(v=v).value())(jnp.array([-1, 7]))
    assert np.isnan(outside).all()


@pytest.mark.slow
@pytest.mark.parametrize("question", ["value", "log_partition", "marginals", "entropy"])
def test_derivatives_against_differences(question):
    rng = np.random.default_rng(0)
    net = Network("ab,bc,ca->", *rng.normal(size=(3, 2, 2)))
    order = 2 if question == "log_partition" else 1
    jax.test_util.check_grads(QUESTIONS[question], (net,), order=order, eps=1e-4)


def test_impossible_networks():
    net = Network("ab,b->", np.full((2, 2), -np.inf), np.zeros(2))
    assert float(net.value()) == float(net.log_partition()) == -np.inf
    assert not net.best().feasible
    for question in (Network.marginals, Network.entropy):
        ends_in(lambda: question(net), InvalidConfig, "all have the score -inf")
        inside = jax.tree.leaves(jax.jit(question)(net))
        assert all(np.isnan(x).all() for x in inside)


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
            np.testing.assert_allclose(found["a"], probabilities(np.array([0.0, 0.7])), rtol=1e-6)
        assert np.isnan(jax.jit(ask)(net, 5)["a"]).all()


def test_evidence_of_probability_zero():
    """Either is tuberculosis or cancer: it cannot be no (1) where one of them is yes (0)."""
    net = Network.from_uai(DATA / "asia.uai")
    names = list(json.loads((DATA / "asia.json").read_text()))
    given = net.given({names.index("lung"): 0, names.index("either"): 1})
    assert float(given.log_partition()) == -np.inf
    assert not given.best().feasible
    assert given.count() == 0
    for ask in (Network.marginals, Network.entropy, lambda n: n.sample(jax.random.key(0))):
        ends_in(lambda ask=ask: ask(given), InvalidConfig, "tables and evidence that allow")


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
    whole = Network.from_factors(factors(0))
    small = Network.from_factors(factors(0), memory_limit=whole.plan().peak - 1)
    assert f"in {small.plan().slices} slices" in str(small)
    ends_in(lambda: setattr(net, "tables", ()), AttributeError, "make another one")


PAIR = Network("ab->", np.zeros((2, 3)))


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: Network("ab->a", PAIR.tables[0]), InvalidConfig, "no output"),
        (lambda: Network("ab", PAIR.tables[0]), InvalidConfig, "no output"),
        (lambda: Network("a,b->", np.zeros(2)), InvalidConfig, "given 1 tables; needed 2"),
        (lambda: Network("aa->", np.zeros((2, 2))), InvalidConfig, "a variable twice"),
        (lambda: Network("ab->", np.zeros(2)), ShapeError, "an axis for each of 2"),
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
        (lambda: PAIR.given({"a": 0}, a=1), InvalidConfig, "no variable twice"),
        (lambda: PAIR.given("a"), InvalidConfig, "a mapping"),
        (lambda: PAIR.sum_out(["a"]), InvalidConfig, "one of 'a', 'b'"),
        (lambda: Network.from_factors({}), InvalidConfig, "at least one"),
        (lambda: Network.from_factors(None), InvalidConfig, "a mapping"),
        (lambda: Network("a,a->", np.float32([0]), np.float64([0])), DTypeError, "one dtype"),
        (lambda: jax.jit(lambda n: n.to_uai("x"))(PAIR), Unsupported, "concrete tables"),
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


def test_a_network_of_derivatives_prints():
    found = jax.jacrev(lambda n: n.marginals()["a"])(PAIR)
    assert str(found) == repr(found) == "Network('ab->', 1 tables)"


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


def test_a_written_network_takes_the_evidence_of_the_file_it_came_from(tmp_path):
    (tmp_path / "net.uai").write_text("MARKOV 2  2 3  2  1 1  2 0 1  3 1 2 3  6 1 2 3 4 5 6")
    (tmp_path / "net.evid").write_text("1 1 2")
    net = Network.from_uai(tmp_path / "net.uai")
    assert list(net.variables) == [1, 0]
    net.to_uai(tmp_path / "again.uai")
    found = (
        Network.from_uai(tmp_path / x, tmp_path / "net.evid") for x in ("net.uai", "again.uai")
    )
    for each in found:
        np.testing.assert_allclose(each.marginals()[0], [3 / 9, 6 / 9], rtol=1e-12)


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
    ends_in(lambda: Network.from_uai(tmp_path / "image.uai"), ArtifactError, "byte 0x89 at 0")
    ends_in(lambda: Network.from_uai(tmp_path / "none.uai"), FileNotFoundError, "none.uai")
