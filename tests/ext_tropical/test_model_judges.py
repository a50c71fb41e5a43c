"""Network against a program that we did not write: toulbar2."""

import math
import string

import jax
import numpy as np
import pytest

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
