"""Network against programs that we did not write: toulbar2, pgmpy with the models it ships,
networkx, SciPy.
"""

import importlib
import itertools
import math
import string
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import opt_einsum
import pytest
import scipy.stats

from benchmarks.network_peers import listed
from ext_tropical import Network


@pytest.fixture(autouse=True)
def wide():
    with jax.enable_x64(True):
        yield


def rows(labels, names, count):
    """Assignments as tuples."""
    at = np.array([labels[name][:count] for name in names])
    return [tuple(row) for row in at.T.tolist()]


# toulbar2


def many_equal(seed, least, most):
    """Tables over one to three variables with two to four values, so many that the number of
    assignments lies between two bounds: each variable has a table with one before it. Scores are
    small integers, of which many sums are equal; a tenth is impossible.
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
        scores = rng.integers(-1, 2, shape).astype(float)
        impossible = rng.random(shape) < 0.1 * (len(scope) > 1)
        tables[tuple(names[i] for i in scope)] = np.where(impossible, -np.inf, scores)
    return tables


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(12))
def test_k_best_and_all_best_against_toulbar2(seed):
    """It lists all assignments above a bound, with a proof; networks of up to 10^11 assignments.
    The bound lets some two thousand pass, most of which are equal to others.
    """
    pytest.importorskip("pytoulbar2", reason="pip install pytoulbar2 (extra test, on Linux)")
    most = 10 ** (5 + seed % 7)
    net, k = Network.from_factors(many_equal(200 + seed, most // 4, most)), 2000
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
    seen = rng.permutation([x for x in bayes.nodes if not list(bayes.successors(x))])[:2].tolist()
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
def test_posteriors_of_a_long_chain_are_as_good_as_those_of_a_plain_scan():
    """In float32, by those of a scan in float64."""
    length, states = 5000, 50
    rng = np.random.default_rng(0)
    start, *steps = np.log(rng.dirichlet(np.ones(states), 1 + states))
    seen = rng.normal(size=(length, states)) * 2 - 3
    names = list(map(opt_einsum.get_symbol, range(length)))
    terms = [names[0], *names, *map("".join, itertools.pairwise(names))]
    tables = [np.asarray(x, np.float32) for x in (start, steps, seen)]

    def posteriors(start, steps, seen):
        def turn(before, own):
            return jax.nn.logsumexp(before[:, None] + steps, 0) + own, None

        def total(seen):
            return jax.nn.logsumexp(jax.lax.scan(turn, start + seen[0], seen[1:])[0])

        return jax.jit(jax.grad(total))(seen)

    with jax.enable_x64(True):
        want = posteriors(*(jnp.asarray(x, float) for x in tables))
    plain = posteriors(*tables)
    net = Network(f"{','.join(terms)}->", tables[0], *tables[2], *[tables[1]] * (length - 1))
    marginals = net.marginals()
    ours = np.stack([marginals[name] for name in names])
    found = [np.asarray(x, float) for x in (ours, plain)]
    missed = [(abs(x.sum(1) - 1).max(), abs(x - np.asarray(want)).max()) for x in found]
    assert all(a <= 2 * b for a, b in zip(*missed, strict=True))
