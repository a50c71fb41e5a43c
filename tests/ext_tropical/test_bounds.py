"""Bounds of networks, against all assignments, and their certificates."""

import dataclasses
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import Network
from ext_tropical.models import certificate_problem
from ext_tropical.native.library import native
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

pytestmark = pytest.mark.skipif(bool(native().problem), reason=native().problem)

KINDS = ("normal", "ties", "impossible", "mostly impossible")


def small_network(rng: np.random.Generator) -> Network:
    """Up to five variables of one to four values; tables of none to four of them."""
    names = "abcde"[: rng.integers(1, 6)]
    sizes = {name: int(rng.integers(1, 5)) for name in names}
    kind = KINDS[rng.integers(len(KINDS))]
    pairs = [((name,), _scores(rng, kind, (sizes[name],))) for name in names]
    for _ in range(rng.integers(0, 8)):
        rank = min(len(names), int(rng.choice([0, 1, 2, 2, 2, 3, 4])))
        scope = tuple(rng.permutation(list(names))[:rank])
        pairs.append((scope, _scores(rng, kind, [sizes[name] for name in scope])))
    return Network.from_factors(pairs)


def _scores(rng: np.random.Generator, kind: str, shape: tuple[int, ...]) -> np.ndarray:
    if kind == "ties":
        return rng.integers(-1, 2, shape).astype(np.float64)
    scores = rng.normal(size=shape)
    share = {"impossible": 0.2, "mostly impossible": 0.6}.get(kind, 0.0)
    return np.where(rng.random(shape) < share, -np.inf, scores)


def all_scores(net: Network) -> dict[tuple[int, ...], float]:
    """The score of each assignment, rounded once."""
    variables = net.variables
    cells = itertools.product(*map(range, variables.values()))
    return {cell: score_at(net, dict(zip(variables, cell, strict=True))) for cell in cells}


def score_at(net: Network, labels: dict[str, int]) -> float:
    entries = [
        float(np.asarray(table)[tuple(labels[name] for name in scope)])
        for scope, table in zip(net.scopes, net.tables, strict=True)
    ]
    return -math.inf if -math.inf in entries else math.fsum(entries)


def require_right(net: Network, bounds) -> None:
    scores = all_scores(net)
    best = max(scores.values())
    labels = tuple(bounds.labels.tolist().values())
    assert bounds.lower <= best <= bounds.upper
    assert bounds.lower == (scores[labels] if bounds.upper > -math.inf else -math.inf)
    if bounds.proved:
        assert best == bounds.lower or best - bounds.lower <= 1e-8
    for axis, name in enumerate(net.variables):
        for value, upper in enumerate(bounds.uppers[name]):
            assert max(x for cell, x in scores.items() if cell[axis] == value) <= upper
    assert certificate_problem(bounds) == ""


@pytest.mark.parametrize("seed", range(20))
def test_bounds_hold_of_small_networks(seed):
    rng = np.random.default_rng(seed)
    for _ in range(10):
        net = small_network(rng)
        require_right(net, net.bounds())


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_bounds_hold_of_10000_small_networks(seed):
    rng = np.random.default_rng([seed, 1])
    for _ in range(100):
        net = small_network(rng)
        bounds = net.bounds(sweeps=int(rng.choice([1, 2, 40])))
        require_right(net, bounds)
        require_damage_is_seen(rng, bounds)


@pytest.mark.parametrize("seed", range(10))
def test_damaged_certificates_are_refused(seed):
    rng = np.random.default_rng([seed, 2])
    for _ in range(10):
        require_damage_is_seen(rng, small_network(rng).bounds())


def require_damage_is_seen(rng: np.random.Generator, bounds) -> None:
    """Each claim is made too good by little; or the messages prove less than what is claimed."""
    damaged = [dataclasses.replace(bounds, lower=math.nextafter(bounds.lower, math.inf))]
    if bounds.lower == -math.inf:
        damaged = []
    if bounds.upper > -math.inf:
        tight = 1e-12 * max(1.0, abs(bounds.upper))
        damaged.append(dataclasses.replace(bounds, upper=bounds.upper - tight))
    several = [i for i, messages in enumerate(bounds.messages) if messages]
    if several and bounds.upper > -math.inf:
        messages = list(map(list, bounds.messages))
        i = int(rng.choice(several))
        scope = bounds.network.scopes[i]
        possible = bounds.uppers[scope[0]] > -np.inf
        if possible.sum() > 1:  # the table gains what no other has lost, where it can be used
            a = int(rng.choice(np.flatnonzero(possible)))
            messages[i][0] = messages[i][0].copy()
            messages[i][0][a] -= 100.0
            damaged.append(dataclasses.replace(bounds, messages=tuple(map(tuple, messages))))
    for bad in damaged:
        assert certificate_problem(bad) != ""


@pytest.mark.parametrize("seed", range(5))
def test_a_reparametrized_network_has_the_same_scores(seed):
    rng = np.random.default_rng([seed, 3])
    with jax.enable_x64(True):
        for _ in range(10):
            net = small_network(rng)
            bounds = net.bounds(sweeps=3)
            other = bounds.reparametrized
            assert other.variables == net.variables
            for cell, score in all_scores(net).items():
                labels = dict(zip(net.variables, cell, strict=True))
                np.testing.assert_allclose(score_at(other, labels), score, atol=1e-12)
            if bounds.upper > -math.inf:
                allowed = {name: x > -np.inf for name, x in bounds.uppers.items()}
                largest = [_largest(s, t, allowed) for s, t in zip(other.scopes, other.tables)]
                assert sum(largest) == pytest.approx(bounds.upper, abs=1e-9)


def _largest(scope, table, allowed) -> float:
    return np.asarray(table)[np.ix_(*(allowed[name] for name in scope))].max()


def grid(n: int, values: int = 2, seed: int = 0) -> Network:
    rng = np.random.default_rng(seed)
    pairs = [((i, j), rng.normal(size=values)) for i in range(n) for j in range(n)]
    named = {place: f"x{place[0]}_{place[1]}" for place, _ in pairs}
    factors = [((named[place],), own) for place, own in pairs]
    for (i, j), _ in pairs:
        for neighbour in ((i + 1, j), (i, j + 1)):
            if neighbour in named:
                scope = named[i, j], named[neighbour]
                factors.append((scope, rng.normal(size=(values, values))))
    return Network.from_factors(factors)


@pytest.mark.parametrize(("n", "values"), [(8, 2), (6, 3), (5, 4)])
def test_bounds_of_grids_hold_the_best_score_of_elimination(n, values):
    for seed in range(3):
        net = grid(n, values, seed)
        with jax.enable_x64(True):
            best = float(net.value())
        bounds = net.bounds()
        assert bounds.lower - 1e-9 <= best <= bounds.upper + 1e-9
        assert bounds.gap < 0.03 * best
        assert certificate_problem(bounds) == ""


def test_a_tree_is_proved():
    rng = np.random.default_rng(0)
    pairs = [((f"x{i // 3}", f"x{i}"), rng.normal(size=(3, 3))) for i in range(1, 200)]
    net = Network.from_factors(pairs)
    bounds = net.bounds()
    assert bounds.proved
    assert bounds.lower == pytest.approx(float(net.value()), rel=1e-5)
    assert repr(bounds) == f"Bounds({bounds.lower:.9g}, proved)"


def test_forbidden_values_are_propagated():
    """A cycle of three that must differ pairwise and equal its neighbour: nothing is possible."""
    equal = np.where(np.eye(2) > 0, 0.0, -np.inf)
    net = Network("ab,bc,a,c->", equal, equal, [0.0, -np.inf], [-np.inf, 0.0])
    bounds = net.bounds()
    assert (bounds.lower, bounds.upper, bounds.gap, bounds.proved) == (
        -math.inf,
        -math.inf,
        0,
        True,
    )
    assert repr(bounds) == "Bounds(no assignment is possible)"
    assert certificate_problem(bounds) == ""
    assert net.given(c=0).bounds().upper == -math.inf


def test_more_sweeps_never_make_bounds_worse():
    net = grid(12)
    few, many = net.bounds(sweeps=5), net.bounds(sweeps=200)
    assert many.upper <= few.upper + 1e-9
    assert many.lower >= few.lower
    assert few.sweeps == 5


def test_time_and_progress():
    seen = []
    bounds = grid(12, 4).bounds(progress=lambda *now: seen.append(now), seconds=0)
    assert seen == [(pytest.approx(bounds.lower), bounds.upper, bounds.sweeps)]
    assert bounds.sweeps == 16


def test_float32_and_integers():
    table = np.float32([[0.1, 0.2], [0.3, 0.1]])
    assert Network("ab->", table).bounds().lower == float(np.float32(0.3))
    assert Network("ab->", np.int32([[3, 2], [1, 5]])).bounds().upper == pytest.approx(5)


def test_a_network_of_numbers_alone():
    bounds = Network("->", 2.5).bounds()
    assert (bounds.lower, bounds.upper, bounds.labels.tolist()) == (2.5, 2.5, {})


def test_refusals():
    net = Network("ab->", [[0.0, 1.0], [2.0, 0.0]])
    with pytest.raises(InvalidConfig, match=r"Network\.bounds, sweeps: given 0"):
        net.bounds(sweeps=0)
    with pytest.raises(InvalidConfig, match=r"Network\.bounds, seconds: given -1"):
        net.bounds(seconds=-1)
    with pytest.raises(InvalidConfig, match="NaN or inf among the scores"):
        Network("a->", [0.0, np.nan]).bounds()
    with pytest.raises(Unsupported, match=r"Network\.bounds.*inside a transform"):
        jax.jit(lambda x: Network("ab->", x).bounds().lower)(jnp.zeros((2, 2)))


def frustrated(scale: float) -> Network:
    table = scale * np.array([[0.0, 1.0], [1.0, 0.0]])
    return Network("ab,bc,ca->", table, table, table)


@pytest.mark.parametrize("scale", [1e-30, 1e-9, 1.0, 1e30])
def test_a_gap_is_one_for_scores_of_any_size(scale):
    with jax.enable_x64(True):
        table = scale * np.array([[0.0, 1.0], [1.0, 0.1]])
        bounds = Network("ab,bc,ca->", table, table, table).bounds()
        assert bounds.upper - bounds.lower > 0.1 * scale
        assert not bounds.proved


def test_integers_are_proved_by_a_gap_below_one():
    bounds = frustrated(1.0).bounds()
    assert (bounds.lower, round(bounds.upper, 9), bounds.proved) == (2.0, 3.0, False)
    assert Network("ab,bc->", np.eye(2), np.eye(2)).bounds().proved


def test_a_reparametrized_network_keeps_float64_and_what_is_impossible():
    inf = np.inf
    first, second = np.array([[-0.5, -inf], [-inf, -inf]]), np.array([[-2.3, -0.2], [-1.2, -inf]])
    bounds = Network("ab,bc->", first, second).bounds()
    other = bounds.reparametrized
    assert {x.dtype for x in other.tables} == {np.dtype(np.float64)}
    own = [table for scope, table in zip(other.scopes, other.tables) if len(scope) == 1]
    assert [np.isinf(x).tolist() for x in own] == [[False, True], [False, True], [False, False]]


def test_malformed_certificates_are_refused():
    bounds = frustrated(1.0).bounds()
    nan = [tuple(np.full_like(x, np.nan) for x in each) for each in bounds.messages]
    for change in (
        {"upper": math.nan},
        {"lower": math.nan},
        {"messages": ()},
        {"messages": None},
        {"messages": tuple(nan)},
        {"labels": {}},
        {"network": Network("ab->", np.eye(2))},
    ):
        assert certificate_problem(dataclasses.replace(bounds, **change)) != ""


def test_more_refusals():
    with jax.enable_x64(True):
        large = np.full((2, 2), 1.7e308)
        with pytest.raises(InvalidConfig, match="beyond float64"):
            Network("ab,bc->", large, large).bounds()
    net = frustrated(1.0)
    with pytest.raises(InvalidConfig, match=r"Network\.bounds, progress: given 3"):
        net.bounds(progress=3)
    with pytest.raises(DTypeError, match="complex64"):
        Network("a->", np.zeros(2, np.complex64)).bounds()
    with pytest.raises(ShapeError, match="more axes than variables"):
        jax.tree.map(lambda x: np.stack([x, x]), net).bounds()
