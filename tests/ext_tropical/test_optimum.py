"""The best assignment of networks that elimination cannot answer, and its proof."""

import math
import pathlib
import re
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ext_tropical.native
from ext_tropical import Network, max_plus
from ext_tropical.models.bounds import Scores, Tables, is_closed
from ext_tropical.models.optimum import Limits, optimum_of
from ext_tropical.native.library import native
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError

from .test_bounds import all_scores, grid, small_network

pytestmark = pytest.mark.skipif(bool(native().problem), reason=native().problem)


SEARCHES = {
    "as it is": Limits(),
    "elimination alone": Limits(first=math.inf),
    "choices, no elimination": Limits(first=1, last=1, cheap=0, fair=0, candidates=0),
    "larger tables, then choices": Limits(first=1, last=64, cheap=0, fair=0, candidates=0),
}
"""A small network is eliminated at once, unless that is forbidden."""


def test_limits_are_those_of_the_header_in_its_order():
    header = pathlib.Path(ext_tropical.native.__file__).with_name("optimum.h").read_text()
    (members,) = re.findall(r"enum OptimumLimit \{(.*?)\};", header, re.DOTALL)
    names = [name.lower() for name in re.findall(r"^ *k(\w+),", members, re.MULTILINE)]
    assert names == [field.replace("_", "") for field in Limits._fields]


def scores_of(net: Network) -> Scores:
    return Scores.of(Tables(net.scopes, [np.asarray(x, np.float64) for x in net.tables]))


def require_best(net: Network, limits: Limits) -> None:
    scores = all_scores(net)
    best = max(scores.values())
    solution = optimum_of(scores_of(net), limits)
    score = scores[tuple(solution.labels.tolist())]
    assert solution.lower == pytest.approx(score, rel=1e-12, abs=1e-12)
    assert score <= best
    assert best <= solution.upper or best == pytest.approx(solution.upper, rel=1e-12)
    assert is_closed(score, solution.upper, 1e-8)
    assert not solution.undecided


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", range(5))
def test_small_networks_are_solved(seed, search):
    rng = np.random.default_rng([seed, 4])
    for _ in range(10):
        require_best(small_network(rng), SEARCHES[search])


@pytest.mark.slow
@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("seed", range(25))
def test_10000_small_networks_are_solved(seed, search):
    rng = np.random.default_rng([seed, 5])
    for _ in range(100):
        require_best(small_network(rng), SEARCHES[search])


@pytest.mark.parametrize("work", [0, 300, 30_000])
def test_a_search_that_ends_early_has_both_ends(work):
    rng = np.random.default_rng(work)
    limits = SEARCHES["choices, no elimination"]._replace(work=work)
    opened = 0
    for _ in range(30):
        net = small_network(rng)
        best = max(all_scores(net).values())
        solution = optimum_of(scores_of(net), limits)
        assert solution.lower - 1e-9 <= best <= solution.upper + 1e-9 or best == -math.inf
        is_open = not is_closed(solution.lower, solution.upper, 1e-8)
        assert is_open <= bool(solution.undecided)
        opened += is_open
    assert opened > 0 or work > 0


@pytest.mark.parametrize(("size", "states"), [(30, 2), (100, 2), (16, 3), (12, 4)])
def test_grids_are_proved(size, states):
    """Of 100 x 100 the gap of the relaxation is ten times what one variable decides: sets of
    variables are proved one by one.
    """
    for seed in range(3):
        net = grid(size, states, seed)
        solution = optimum_of(scores_of(net))
        assert is_closed(solution.lower, solution.upper, scores_of(net).least)
        bounds = net.bounds(sweeps=50)
        assert bounds.lower <= solution.lower + 1e-6
        assert solution.upper <= bounds.upper + 1e-6


@pytest.mark.parametrize("seed", range(3))
def test_a_grid_is_the_same_by_bounds_and_by_elimination(seed):
    net = grid(14, 2, seed)
    with jax.enable_x64(True):
        by_bounds = net.best()
        by_plan = jax.jit(lambda tables: net.like(net.scopes, tables).best())(net.tables)
    assert float(by_bounds.value) == pytest.approx(float(by_plan.value), abs=1e-9)
    assert by_bounds.labels.tolist() == by_plan.labels.tolist()
    assert by_bounds.labels.names == by_plan.labels.names
    assert by_bounds.value.dtype == by_plan.value.dtype
    assert by_bounds.labels.array.dtype == by_plan.labels.array.dtype


def test_a_grid_that_no_elimination_answers():
    net = grid(40)  # a result of 2**40 entries
    best = net.best()
    bounds = net.bounds()
    assert bool(best.feasible)
    assert bounds.lower <= float(best.value) + 1e-3
    assert float(best.value) <= bounds.upper + 1e-3
    entries = [
        float(np.asarray(table)[tuple(int(best.labels[name]) for name in scope)])
        for scope, table in zip(net.scopes, net.tables, strict=True)
    ]
    assert math.fsum(entries) == pytest.approx(float(best.value), rel=1e-6)
    assert float(net.value()) == float(best.value)


def test_a_random_field_is_left_to_elimination():
    """Spins: the bound is far from the best score, so elimination answers, as for all before."""
    rng = np.random.default_rng(0)
    pair = np.array([[1.0, -1.0], [-1.0, 1.0]])
    names = {(i, j): f"s{i}_{j}" for i in range(12) for j in range(12)}
    factors = [
        ((name, names[after]), rng.normal() * pair)
        for (i, j), name in names.items()
        for after in ((i + 1, j), (i, j + 1))
        if after in names
    ]
    net = Network.from_factors(factors)
    assert float(net.best().value) == pytest.approx(float(net.contracted(max_plus)), rel=1e-5)


@pytest.mark.parametrize("size", [18, 20])
def test_spins_are_left_to_elimination(size):
    """Their bounds are far off, and elimination takes less than a second."""
    rng = np.random.default_rng(0)
    places = np.arange(size * size).reshape(size, size)
    pairs = [*zip(places[:-1].flat, places[1:].flat, strict=True)]
    pairs += zip(places[:, :-1].flat, places[:, 1:].flat, strict=True)
    factors = [((int(i), int(j)), np.sign(rng.normal()) * np.eye(2)) for i, j in pairs]
    net = Network.from_factors(factors)
    assert float(net.best().value) == float(net.best(1).value[0])
    assert "other questions" not in str(net)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "bool"])
def test_tables_that_elimination_refuses_are_not_searched(dtype):
    tables = [np.zeros(np.shape(x), dtype) for x in grid(14).tables]
    net = grid(14).like(grid(14).scopes, tables)
    for ask in (net.best, net.bounds):
        with pytest.raises(DTypeError):
            ask()
    assert "search" not in str(net)


def test_bfloat16_is_searched():
    net = grid(14)
    tables = [jnp.asarray(x, jnp.bfloat16) for x in net.tables]
    best = net.like(net.scopes, tables).best()
    assert best.value.dtype == jnp.bfloat16
    assert float(best.value) == pytest.approx(float(net.best().value), rel=0.02)


def test_what_is_not_proved_is_an_error_with_both_ends():
    rng = np.random.default_rng(0)
    pair = np.array([[1.0, -1.0], [-1.0, 1.0]])
    scopes = [(f"s{i}", f"s{j}") for i in range(60) for j in range(i)]
    net = Network.from_factors([(scope, rng.normal() * pair) for scope in scopes])
    began = time.monotonic()
    with pytest.raises(ShapeError, match=r"best score between .* and .*, a gap of .* 's\d+'"):
        net.best()
    assert time.monotonic() - began < 100  # 5 s alone


def test_impossible_and_forced_values_of_wide_networks():
    net = grid(20)
    forced = [((name,), np.array([0.0, -np.inf])) for name in list(net.variables)[::3]]
    pairs = [*zip(net.scopes, map(np.asarray, net.tables), strict=True), *forced]
    best = Network.from_factors(pairs).best()
    labels = best.labels.tolist()
    assert all(labels[name] == 0 for (name,), _ in forced)
    impossible = Network.from_factors([*pairs, (("x0_0",), np.array([-np.inf, 0.0]))])
    assert not impossible.best().feasible
    assert float(impossible.best().value) == -math.inf


def test_transforms_take_elimination():
    net = grid(11)
    assert net.best().labels.tolist() == jax.jit(lambda n: n.best())(net).labels.tolist()
    slopes = jax.grad(lambda n: n.best().value)(net)
    ones = [float(jnp.sum(x)) for x in slopes.tables]
    assert ones == [1.0] * len(net.tables)


def test_a_network_says_which_way_its_questions_take():
    first, second, third = str(grid(60)).splitlines()
    assert first.endswith("tables of 3600 variables with 2 values, 10^1083.7 assignments")
    assert (
        second
        == "value, best of concrete tables: by a search with bounds first, of at most 6e+08 entries"
    )
    assert third.startswith("other questions: too wide, since elimination would compare more than")
    searched = str(grid(14)).splitlines()
    assert searched[1].startswith("value, best, log_partition: ")
    assert searched[-1] == second
    assert "search" not in str(grid(5))
    limited = Network.from_factors({("a", "b"): np.zeros((2, 2))}, memory_limit=10**9)
    assert "search" not in str(limited)
    wide = grid(60)
    other = Network(wide.equation, *wide.tables, optimize="greedy")
    assert "Network.plan: given a step with a result of" in str(other)


@pytest.mark.parametrize(("scale", "constant"), [(1e-9, 0.0), (1e-30, 0.0), (1.0, 1e9)])
def test_small_scores_and_a_large_constant_change_no_assignment(scale, constant):
    net = grid(14, 2, 8)
    tables = [scale * np.asarray(x) for x in net.tables]
    with jax.enable_x64(True):
        pairs = [*zip(net.scopes, tables, strict=True), ((), np.float64(constant))]
        other = Network.from_factors(pairs)
        assert other.best().labels.tolist() == net.best().labels.tolist()


def test_integers_of_a_wide_network():
    net = grid(40)
    tables = [np.rint(10 * np.asarray(x)).astype(np.int32) for x in net.tables]
    integers = net.like(net.scopes, tables)
    floats = net.like(net.scopes, [x.astype(np.float32) for x in tables])
    assert integers.best().value.dtype == np.int32
    assert int(integers.best().value) == int(floats.best().value)


def test_nan_in_a_wide_network_is_refused():
    net = grid(40)
    bad = net.like(net.scopes, [np.full(2, np.nan), *net.tables[1:]])
    with pytest.raises(InvalidConfig, match="too wide for elimination"):
        bad.best()


@pytest.mark.parametrize(
    "scopes", [[("a",), ("b",), ()], [("a", "b"), ("c", "d"), ()], [("a",), ()]]
)
def test_parts_whose_results_have_no_axes_are_walked_in_standard_ops(scopes):
    """In float16, which the native library does not have."""
    rng = np.random.default_rng(0)
    tables = [rng.integers(0, 9, (2,) * len(scope)).astype(np.float16) for scope in scopes]
    net = Network.from_factors(list(zip(scopes, tables, strict=True)))
    scores = all_scores(net)
    best = net.best()
    assert float(best.value) == max(scores.values())
    assert scores[tuple(best.labels.tolist().values())] == max(scores.values())


def test_a_wide_network_that_a_program_closes_over():
    net = grid(20)
    want = net.best()
    value, labels = jax.jit(lambda: (net.best().value, net.best().labels.array))()
    assert float(value) == float(want.value)
    assert labels.tolist() == want.labels.array.tolist()
    assert float(jax.grad(lambda scale: scale * net.value())(2.0)) == float(want.value)


def test_integers_that_do_not_hold_the_best_score_of_a_wide_network():
    net = grid(40)
    tables = [np.full(np.shape(x), 2**20, np.int32) for x in net.tables]
    with pytest.raises(DTypeError, match="int32 with a best score of 4949278720"):
        net.like(net.scopes, tables).best()


def with_large_integers(net: Network) -> Network:
    """Its scores, some of them beyond what float64 has exactly."""
    tables = [np.rint(10 * np.asarray(x)).astype(np.int64) for x in net.tables]
    tables[0] += 2**55
    return net.like(net.scopes, list(map(jnp.asarray, tables)))


def test_integers_whose_sums_are_not_exact_are_not_searched():
    with jax.enable_x64(True), pytest.raises(DTypeError, match="whose sums may be"):
        with_large_integers(grid(40)).best()


@pytest.mark.slow
def test_elimination_has_integers_whose_sums_are_not_exact():
    net = grid(14)
    small = net.like(net.scopes, [np.rint(10 * np.asarray(x)) for x in net.tables])
    with jax.enable_x64(True):
        found = with_large_integers(net).best()
        assert int(found.value) == 2**55 + int(small.best().value)


def test_parts_of_integers_are_each_proved_by_a_gap_below_one():
    """Together their gaps may be above one."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        factors = []
        for part in range(4):
            for i, j in ((0, 1), (1, 2), (2, 0), (2, 3), (3, 0)):
                scope = f"x{part}_{i}", f"x{part}_{j}"
                factors.append((scope, rng.integers(-3, 4, (2, 2)).astype(np.float64)))
        net = Network.from_factors(factors)
        best = float(net.best(k=1).value[0])
        for limits in SEARCHES.values():
            solution = optimum_of(scores_of(net), limits)
            assert solution.lower == solution.upper == best
