"""Network against programs that we did not write, and against all assignments of larger models:
toulbar2, pgmpy with the models it ships, networkx, SciPy.
"""

import collections
import importlib
import math
import string
import warnings

import jax
import jax.numpy as jnp
import networkx as nx
import numpy as np
import pytest
import scipy.stats

from benchmarks.network_peers import listed
from ext_tropical import Network

from .test_model import log_sum


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def model(seed, least, most, whole=False):
    """Tables over one to three variables with two to four values, so many that the number of
    assignments lies between two bounds: each variable has a table with one before it. Scores are
    normal, or small integers, of which many sums are equal; a tenth is impossible.
    """
    rng = np.random.default_rng(seed)
    sizes = []
    while math.prod(sizes) < least:
        room = most // math.prod(sizes)
        sizes.append(int(rng.integers(2, 5)) if room >= 4 else room)
    names, count = string.ascii_lowercase, len(sizes)
    scopes = {(i,) for i in range(count)}
    scopes |= {(int(rng.integers(max(0, i - 4), i)), i) for i in range(1, count)}
    for _ in range(count // 2):
        near = rng.integers(max(1, count - 4)) + rng.permutation(min(5, count))
        scopes.add(tuple(near[near < count][:3].tolist()))
    tables = {}
    for scope in sorted(scopes):
        shape = [sizes[i] for i in scope]
        scores = rng.integers(-1, 2, shape).astype(float) if whole else rng.normal(size=shape)
        impossible = rng.random(shape) < 0.1 * (len(scope) > 1)
        tables[tuple(names[i] for i in scope)] = np.where(impossible, -np.inf, scores)
    return tables


def joint(tables):
    """(variables, the score of each assignment), without arrays of indices."""
    sizes = {x: n for scope, t in tables.items() for x, n in zip(scope, t.shape, strict=True)}
    names = sorted(sizes)
    total = np.zeros([sizes[x] for x in names])
    for scope, table in tables.items():
        order = sorted(range(len(scope)), key=lambda i: scope[i])
        shape = [sizes[x] if x in scope else 1 for x in names]
        total += table.transpose(order).reshape(shape)
    return names, total


def rows(labels, names, count):
    """Assignments as tuples."""
    at = np.array([labels[name][:count] for name in names])
    return [tuple(row) for row in at.T.tolist()]


LARGE = [
    (0, 2048, 4096),
    *(pytest.param(seed, 2**16, 2**20 - 1, marks=pytest.mark.slow) for seed in range(1, 9)),
]


# Against all assignments


@pytest.mark.parametrize(("seed", "least", "most"), LARGE)
def test_lists_and_counts_against_all_assignments(seed, least, most):
    """Integer scores: many assignments are equal, so that no tie may be lost."""
    tables = model(seed, least, most, whole=True)
    names, scores = joint(tables)
    assert least <= scores.size <= most
    net = Network.from_factors(tables)
    falling = np.sort(scores, axis=None)[::-1]
    k = min(1500, scores.size // 2)
    best = net.best(k=k)
    np.testing.assert_array_equal(best.value, falling[:k])
    certain = int(
        (falling[:k] > falling[k - 1]).sum()
    )  # which equals of the last are listed is free
    assert certain > 100
    found = rows(best.labels, names, k)
    want = np.argwhere(scores > falling[k - 1])
    assert sorted(found[:certain]) == [tuple(row) for row in want.tolist()]
    possible = int(np.isfinite(falling[:k]).sum())
    assert len(set(found[:possible])) == possible
    at = tuple(np.array(found[:possible]).T)
    np.testing.assert_array_equal(scores[at], falling[:possible])
    every = sorted(tuple(x[name] for name in names) for x in net.all_best())
    assert every == [tuple(row) for row in np.argwhere(scores == falling[0]).tolist()]
    assert net.count() == np.isfinite(scores).sum()
    assert net.count(within=0) == len(every)
    for gap in (0.5, 1, 3):
        assert net.count(within=gap) == (scores >= falling[0] - gap).sum()


@pytest.mark.parametrize(("seed", "least", "most"), LARGE)
def test_sums_and_marginal_map_against_all_assignments(seed, least, most):
    tables = model(seed, least, most)
    names, scores = joint(tables)
    net, temperature = Network.from_factors(tables), 0.6
    p = np.exp((scores - scores.max()) / temperature)
    p /= p.sum()
    found = net.log_partition(temperature=temperature)
    assert float(found) == pytest.approx(log_sum(scores / temperature), rel=1e-12)
    assert float(net.value()) == pytest.approx(scores.max(), rel=1e-12)
    marginals = net.marginals(temperature=temperature)
    for axis, name in enumerate(names):
        others = tuple(i for i in range(p.ndim) if i != axis)
        np.testing.assert_allclose(marginals[name], p.sum(others), rtol=1e-9, atol=1e-13)
    want = scipy.stats.entropy(p.ravel())
    assert float(net.entropy(temperature=temperature)) == pytest.approx(want, rel=1e-9)
    rng = np.random.default_rng(seed)
    out = sorted(rng.choice(names, len(names) // 2, replace=False).tolist())
    kept = [name for name in names if name not in out]
    sums = log_sum(scores, tuple(map(names.index, out)), temperature)
    best = net.sum_out(*out, temperature=temperature).best(k=5)
    np.testing.assert_allclose(best.value, np.sort(sums, axis=None)[:-6:-1], rtol=1e-11)
    at = tuple(np.array(rows(best.labels, kept, 5)).T)
    np.testing.assert_allclose(sums[at], best.value, rtol=1e-11)


QUANTITIES = {
    "value": (Network.value, lambda names, s: s.max()),
    "log_partition": (Network.log_partition, lambda names, s: log_sum(s)),
    "entropy": (Network.entropy, lambda names, s: scipy.stats.entropy(np.exp(s).ravel())),
    "marginals": (
        lambda net: net.marginals()["b"][0],
        lambda names, s: np.exp(s.take(0, names.index("b"))).sum() / np.exp(s).sum(),
    ),
    "best, k=3": (
        lambda net: net.best(k=3).value[2],
        lambda names, s: np.sort(s, axis=None)[-3],
    ),
    "sum_out": (
        lambda net: net.sum_out("a", "c").value(),
        lambda names, s: log_sum(s, tuple(map(names.index, "ac"))).max(),
    ),
}


@pytest.mark.parametrize(
    "question",
    [q if q == "log_partition" else pytest.param(q, marks=pytest.mark.slow) for q in QUANTITIES],
)
def test_derivatives_against_differences_of_sums_over_all_assignments(question):
    """In every entry that is possible; log_partition also in second order, along a direction of all
    of them.
    """
    ours, theirs = QUANTITIES[question]
    tables = model(2, 81, 200)
    net, width = Network.from_factors(tables), 1e-5
    value, slopes = jax.jit(jax.value_and_grad(ours))(net)
    assert float(value) == pytest.approx(theirs(*joint(tables)), rel=1e-12)
    for (scope, table), slope in zip(tables.items(), slopes.tables, strict=True):
        for at in np.argwhere(np.isfinite(table)):
            sides = []
            for step in (width, -width):
                moved = table.copy()
                moved[tuple(at)] += step
                sides.append(theirs(*joint(tables | {scope: moved})))
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
        theirs(*joint({scope: x + step * along[scope] for scope, x in tables.items()}))
        for step in (-width, 0, width)
    )
    want = (high - 2 * middle + low) / width**2
    assert float(found) == pytest.approx(want, rel=1e-4, abs=1e-5)


# Samples

FAMILY = 0.01
"""The probability that one right test of all fails: each has its share of it (Bonferroni)."""

DRAWS = 400_000


@pytest.mark.parametrize(
    "seed", [pytest.param(s, marks=pytest.mark.slow) if s else s for s in range(30)]
)
def test_samples_have_the_probabilities(seed):
    """30 networks of 81 to 4,096 assignments, float32 and float64 in turn, 400,000 draws each, a
    temperature of 1.5: Pearson's chi-squared over all assignments, those that are expected less
    than five times together, and over the values of each variable by `marginals`.
    """
    tables = model(100 + seed, 81, 4096)
    names, scores = joint(tables)
    assert 81 <= scores.size <= 4096
    net = Network.from_factors({s: t.astype(("f4", "f8")[seed % 2]) for s, t in tables.items()})
    drawn = net.sample(jax.random.key(seed), (DRAWS,), temperature=1.5)
    at = np.ravel_multi_index([np.asarray(drawn[name]) for name in names], scores.shape)
    have = np.bincount(at, minlength=scores.size)
    p = np.exp((scores - scores.max()) / 1.5).ravel()
    want = p / p.sum() * DRAWS
    assert not have[want == 0].any()
    rare = want < 5
    pairs = [[np.append(x[~rare], x[rare].sum()) for x in (have, want)]]
    shares = net.marginals(temperature=1.5)
    for name in names:
        share = np.asarray(shares[name], np.float64)
        counts = np.bincount(np.asarray(drawn[name]), minlength=len(share))
        pairs.append([counts, share / share.sum() * DRAWS])
    for i, (have, want) in enumerate(pairs):
        have, want = (x[want > 0] for x in (have, want))
        chance = scipy.stats.chisquare(have, want * (DRAWS / want.sum())).pvalue
        assert chance > FAMILY / 30 / (2 if i == 0 else 2 * len(names)), i


# networkx

NAMED = ["frucht", "karate_club", "truncated_cube", "dodecahedral", "desargues", "pappus"]
NAMED += ["chvatal", "heawood", "moebius_kantor", "icosahedral", "truncated_tetrahedron"]
NAMED += ["davis_southern_women", "florentine_families", "petersen", "sedgewick_maze"]


@pytest.mark.few(2)
@pytest.mark.parametrize("name", NAMED)
def test_maximum_independent_sets_of_named_graphs(name):
    """They are the largest cliques of the complement, which networkx lists; and the heaviest one by
    its branch and bound.
    """
    graph = nx.convert_node_labels_to_integers(getattr(nx, f"{name}_graph")())
    complement = nx.complement(graph)
    apart = np.array([[0.0, 0.0], [0.0, -np.inf]])
    pairs = dict.fromkeys(graph.edges, apart)

    def network(weights):
        return Network.from_factors(pairs | {(i,): np.array([0.0, w]) for i, w in weights.items()})

    net = network(dict.fromkeys(graph, 1.0))
    sizes = collections.defaultdict(list)
    for clique in nx.find_cliques(complement):
        sizes[len(clique)].append(sorted(clique))
    assert int(net.value()) == max(sizes)
    assert net.count(within=0) == len(sizes[max(sizes)])
    found = sorted([i for i in graph if chosen[i]] for chosen in net.all_best())
    assert found == sorted(sizes[max(sizes)])
    if len(graph) < 30:
        assert net.count() == 1 + sum(1 for _ in nx.enumerate_all_cliques(complement))
    weights = dict(zip(graph, np.random.default_rng(0).integers(1, 100, len(graph)).tolist()))
    nx.set_node_attributes(complement, weights, "weight")
    heaviest, weight = nx.max_weight_clique(complement)
    best = network({i: float(w) for i, w in weights.items()}).best()
    assert int(best.value) == weight
    assert sum(weights[i] for i in graph if int(best.labels[i])) == weight
    assert graph.subgraph(heaviest).number_of_edges() == 0


# toulbar2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_k_best_and_all_best_against_toulbar2(seed):
    """It lists all assignments above a bound, with a proof; networks of up to 10^11 assignments.
    The bound lets some two thousand pass, most of which are equal to others.
    """
    pytest.importorskip("pytoulbar2", reason="pip install pytoulbar2 (extra test, on Linux)")
    most = 10 ** (5 + seed % 7)
    tables = model(200 + seed, most // 4, most, whole=True)
    net, k = Network.from_factors(tables), 2000
    best = net.best(k=k)
    bound = float(best.value[-1]) + 0.5
    theirs = listed(net.equation, [np.asarray(x) for x in net.tables], bound)
    scores, labels = zip(*theirs, strict=True)
    certain = int((best.value > bound).sum())
    assert len(theirs) == certain > 20 * len(set(np.round(scores)))
    np.testing.assert_allclose(best.value[:certain], scores, atol=1e-5)
    assert sorted(rows(best.labels, net.variables, certain)) == sorted(labels)
    every = [tuple(x.values()) for x in net.all_best()]
    assert sorted(every) == sorted(x for score, x in theirs if score > scores[0] - 0.5)
    for within in range(int(scores[0] - bound) + 1):
        assert net.count(within=within) == sum(x > scores[0] - within - 0.5 for x in scores)


# pgmpy, and the models it ships

SHIPPED = ["asia", "cancer", "earthquake", "survey", "sachs", "child", "alarm", "insurance"]
SHIPPED += ["win95pts", "hepar2", "hailfinder"]


def shipped(name):
    """A model of pgmpy with normalised tables, and pgmpy."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pgmpy = pytest.importorskip("pgmpy", reason="pip install pgmpy (extra pgmpy)")
        importlib.import_module("pgmpy.inference")
        importlib.import_module("pgmpy.readwrite")
        bayes = importlib.import_module("pgmpy.utils").get_example_model(name)
    for table in bayes.get_cpds():
        table.normalize()
    return pgmpy, bayes


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", SHIPPED)
def test_published_networks_against_pgmpy(name):
    """Prior, and after two findings: probability of the findings, marginals, marginal MAP; the
    entropy by the entropies of the tables (chain rule).
    """
    pgmpy, bayes = shipped(name)
    names = {table.variable: table.state_names[table.variable] for table in bayes.get_cpds()}
    with np.errstate(divide="ignore"):
        net = Network.from_factors(
            {tuple(table.variables): np.log(table.values) for table in bayes.get_cpds()}
        )
    assert float(net.log_partition()) == pytest.approx(0, abs=1e-12)
    judge = pgmpy.inference.VariableElimination(bayes)

    def query(asked, evidence=None):
        found = judge.query(list(asked), evidence=evidence, show_progress=False)
        return found.values.transpose([found.variables.index(x) for x in asked])

    rng = np.random.default_rng(len(names))
    entropy = 0.0
    for table in bayes.get_cpds():
        own = query(table.variables)
        above = own.sum(0)
        entropy += scipy.stats.entropy(own.ravel()) - scipy.stats.entropy(above.ravel())
    assert float(net.entropy()) == pytest.approx(entropy, rel=1e-9)
    leaves = [x for x in bayes.nodes if not list(bayes.successors(x))]
    seen = rng.permutation(leaves)[:2].tolist()
    chances = query(seen)
    at = np.unravel_index(int(rng.choice(chances.size, p=chances.ravel())), chances.shape)
    given = net.given(dict(zip(seen, map(int, at))))
    evidence = {x: names[x][i] for x, i in zip(seen, at)}
    assert float(given.log_partition()) == pytest.approx(np.log(chances[at]), abs=1e-10)
    for model, known in ((net, None), (given, evidence)):
        shares, best = model.marginals(), rng.permutation(list(model.variables))[:3].tolist()
        for variable in rng.permutation(list(model.variables))[:12].tolist():
            want = query([variable], known)
            np.testing.assert_allclose(shares[variable], want, rtol=1e-8, atol=1e-12)
        together = query(best, known)
        alone = model.sum_out(*(x for x in model.variables if x not in best)).best(k=2)
        total = float(model.log_partition())
        want = np.sort(together, axis=None)[-2:][::-1]
        np.testing.assert_allclose(np.exp(np.asarray(alone.value) - total), want, rtol=1e-8)
        states = judge.map_query(best, evidence=known, show_progress=False)
        chosen = tuple(names[x].index(states[x]) for x in best)
        assert together[chosen] == pytest.approx(want[0], rel=1e-9)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["asia", "cancer", "survey", "child"])
def test_files_against_pgmpy(name, tmp_path):
    """pgmpy reads what `to_uai` writes."""
    pgmpy, bayes = shipped(name)
    with np.errstate(divide="ignore"):
        tables = {tuple(x.variables): np.log(x.values) for x in bayes.get_cpds()}
    net = Network.from_factors(tables)
    net.to_uai(tmp_path / "net.uai")
    read = pgmpy.readwrite.UAIReader(str(tmp_path / "net.uai"))
    markov = read.get_model()
    number = {variable: f"var_{i}" for i, variable in enumerate(net.variables)}
    assert len(markov.factors) == len(tables)
    for scope, table in tables.items():
        own = [number[x] for x in scope]
        (found,) = [f for f in markov.factors if f.variables == own]
        np.testing.assert_allclose(found.values, np.exp(table), rtol=1e-14)
