"""The best assignment by toulbar2: against all assignments, and inside transforms."""

import math
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from benchmarks import network_peers
from ext_tropical import Network
from ext_tropical.models import toulbar2
from ext_tropical.models.bounds import Scores, Tables, is_closed
from ext_tropical.models.toulbar2 import Toulbar2Best
from ext_tropical.models.toulbar2_process import Outcome
from ext_tropical.native.library import native
from tenferro_jax.errors import BackendFailure, DTypeError, InvalidConfig, ShapeError, Unsupported

from .test_bounds import all_scores, grid, score_at, small_network

pytest.importorskip("pytoulbar2", reason="pip install pytoulbar2 (extra toulbar2, on Linux)")
pytestmark = [
    pytest.mark.cpu,
    pytest.mark.skipif(bool(native().problem), reason=native().problem),
]

TRIANGLE = [("a", "b"), ("b", "c"), ("c", "a")]


def without_bounds(problem, sweeps):
    """In place of the sweeps: nothing is known, so toulbar2 decides all."""
    problem.numbers[0] = problem.uppers[:] = 1e9
    yield 0


def with_some_assignment(problem, sweeps):
    """In place of the sweeps: an assignment that need not be the best, and no bound."""
    problem.labels[:] = 0
    problem.numbers[0] = problem.uppers[:] = 1e9
    problem.numbers[1] = FIRST_SCORE[0]
    yield 0


FIRST_SCORE = [-math.inf]
"""The score of the assignment of zeros, or -inf if it is impossible."""


def require_best(net: Network) -> None:
    scores = all_scores(net)
    most = max(scores.values())
    found = net.best(solver="toulbar2")
    assert bool(found.feasible) == (most > -math.inf)
    assert float(found.value) == float(net.value(solver="toulbar2"))
    if found.feasible:
        labels = tuple(found.labels.tolist().values())
        tables = Tables(net.scopes, [np.asarray(x, np.float64) for x in net.tables])
        least = Scores.of(tables).least
        assert float(found.value) == scores[labels]
        assert is_closed(scores[labels], most, least)
    else:
        assert float(found.value) == -math.inf


def require_best_of_many(seed: int, count: int, monkeypatch) -> None:
    rng = np.random.default_rng([seed, 7])
    with jax.enable_x64(True):
        for i in range(count):
            net = small_network(rng)
            FIRST_SCORE[0] = score_at(net, dict.fromkeys(net.variables, 0))
            ways = [toulbar2.improved, without_bounds, with_some_assignment]
            with monkeypatch.context() as patched:
                patched.setattr(toulbar2, "improved", ways[i % 3])
                require_best(net)


@pytest.mark.parametrize("seed", range(4))
def test_small_networks(seed, monkeypatch):
    require_best_of_many(seed, 6, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4, 20))
def test_200_small_networks(seed, monkeypatch):
    require_best_of_many(seed, 12, monkeypatch)


@pytest.mark.parametrize("scale", [1e-6, 1e6, 1e-30, 1e30, 0.1])
def test_scores_of_any_size(scale, monkeypatch):
    monkeypatch.setattr(toulbar2, "improved", without_bounds)
    rng = np.random.default_rng(3)
    scopes = [*TRIANGLE, ("a",), ("b", "d", "c"), ()]
    tables = [scale * rng.normal(size=(3,) * len(scope)) for scope in scopes]
    with jax.enable_x64(True):
        require_best(Network.from_factors(list(zip(scopes, tables, strict=True))))


def test_integers_and_decimals_are_exact(monkeypatch):
    """The best assignment is better than another by one in the last place."""
    monkeypatch.setattr(toulbar2, "improved", without_bounds)
    tables = [np.array([[0, 99_999], [0, 0]]), np.array([100_000, 0])]
    for unit in (1, 0.1, 1e-9):
        net = Network("ab,a->", *[unit * table for table in tables])
        assert net.best(solver="toulbar2").labels.tolist()["a"] == 0
        costs = toulbar2._costs(Tables(net.scopes, net.tables), [99_999 * unit, 1e5 * unit], 9)
        assert costs[0][1].tolist() == [0, 1e5] or unit == 1e-9
    least = np.iinfo(np.int32).min
    whole = np.array([[5, least], [least, 3]], np.int32)
    found = Network("ab,ab->", whole, whole[::-1].copy()).best(solver="toulbar2")
    assert not found.feasible
    assert found.value.dtype == np.int32
    found = Network("ab,bc->", whole, whole).best(solver="toulbar2")
    assert (int(found.value), found.labels.tolist()) == (10, {"a": 0, "b": 0, "c": 0})


def dense(seed: int, variables: int = 30, forbidden: float = 0.1) -> Network:
    """Random pairs of variables of four values, of which some values exclude each other."""
    rng = np.random.default_rng(seed)
    factors = [((f"x{i}",), rng.random(4)) for i in range(variables)]
    for i in range(variables):
        for j in range(i):
            if rng.random() < 0.4:
                scores = rng.random((4, 4))
                scores[rng.random((4, 4)) < forbidden] = -np.inf
                factors.append(((f"x{j}", f"x{i}"), scores))
    return Network.from_factors(factors)


@pytest.mark.parametrize("seed", range(3))
def test_dense_networks(seed):
    net = dense(seed)
    found = net.best(solver="toulbar2")
    assert float(found.value) == pytest.approx(float(net.best().value), abs=1e-4)
    entries = score_at(net, found.labels.tolist())
    assert float(found.value) == pytest.approx(entries, abs=1e-4)
    finite = [np.maximum(np.asarray(x, np.float64), -1e3) for x in net.tables]
    theirs = network_peers.solved(net.equation, finite, 60)
    assert float(found.value) == pytest.approx(theirs, abs=1e-3)


def test_no_possible_assignment_is_proved_by_search():
    """Five variables of four values, all different."""
    same = np.where(np.eye(4), -np.inf, 0.0)
    pairs = [((f"x{i}", f"x{j}"), same) for i in range(5) for j in range(i)]
    net = Network.from_factors(pairs)
    assert net.bounds().upper > -math.inf
    found = net.best(solver="toulbar2")
    assert not found.feasible
    assert float(found.value) == -math.inf


def test_what_bounds_prove_is_not_searched(monkeypatch):
    monkeypatch.setattr(toulbar2, "_answer_of", lambda problem: pytest.fail("toulbar2 was asked"))
    net = grid(6, 2, 1)
    assert float(net.best(solver="toulbar2").value) == pytest.approx(float(net.value()), rel=1e-6)


# --- transforms -----------------------------------------------------------------------------------


def frustrated(seed: int = 0, count: int = 6) -> Network:
    """All pairs of some variables of three values: the bounds prove nothing."""
    rng = np.random.default_rng(seed)
    scopes = [(f"x{i}", f"x{j}") for i in range(count) for j in range(i)]
    return Network.from_factors([(scope, rng.normal(size=(3, 3))) for scope in scopes])


def asked(net):
    found = net.best(solver="toulbar2")
    return found.value, found.labels.array, found.feasible


def test_transforms_agree_with_eager():
    net = frustrated()
    assert not net.bounds().proved
    want = asked(net)
    assert float(want[0]) == pytest.approx(float(net.value()), abs=1e-5)
    for got in (jax.jit(asked)(net), jax.jit(lambda: asked(net))()):
        for x, y in zip(got, want, strict=True):
            np.testing.assert_array_equal(x, y)
            assert x.dtype == y.dtype
    nets = [frustrated(seed) for seed in range(3)]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *nets)
    for mapped in (jax.vmap(asked), jax.jit(jax.vmap(asked))):
        for i, one in enumerate(map(asked, nets)):
            for x, y in zip(mapped(stacked), one, strict=True):
                np.testing.assert_array_equal(x[i], y)
    with pytest.raises(ShapeError, match="an axis for each variable"):
        asked(stacked)


def test_the_gradient_is_one_at_the_entries_of_the_assignment():
    net = frustrated()
    labels = net.best(solver="toulbar2").labels.tolist()
    for differentiate in (jax.grad, lambda f: jax.jit(jax.grad(f))):
        slopes = differentiate(lambda n: n.value(solver="toulbar2"))(net)
        for scope, slope in zip(net.scopes, slopes.tables, strict=True):
            want = np.zeros((3, 3))
            want[tuple(labels[name] for name in scope)] = 1
            np.testing.assert_array_equal(slope, want)
    with jax.enable_x64(True):
        table, h = np.asarray(net.tables[0], np.float64), 1e-3

        def at(first):
            tables = [jnp.asarray(x, jnp.float64) for x in net.tables[1:]]
            return net.like(net.scopes, [first, *tables]).value(solver="toulbar2")

        slope = jax.grad(at)(jnp.asarray(table))
        for cell in np.ndindex(table.shape):
            change = np.zeros_like(table)
            change[cell] = h
            quotient = (at(jnp.asarray(table + change)) - at(jnp.asarray(table - change))) / (2 * h)
            assert float(slope[cell]) == pytest.approx(float(quotient), abs=1e-9)


def test_it_keeps_the_contract_of_ops():
    rng = np.random.default_rng(0)
    op = Toulbar2Best(((0, 1), (1, 2), (2, 0), (0,), ()))
    tables = [rng.normal(size=(2,) * len(scope)) for scope in op.scopes]
    with jax.enable_x64(True):
        report = tj.check(op, *tables)
    assert report.ok, "\n".join(map(str, report.failures))
    routes = tj.routes(lambda n: n.value(solver="toulbar2"), frustrated())
    assert [route.kind.name for route in routes] == ["HOST"]


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"solver": "cplex"}, 'given \'cplex\'; needed "auto" or "toulbar2"'),
        ({"k": 3, "solver": "toulbar2"}, "given 3 with toulbar2; needed no k"),
        ({"seconds": 3}, 'seconds: given 3; needed solver="toulbar2"'),
        ({"seconds": -1, "solver": "toulbar2"}, "given -1; needed a number of at least 0"),
    ],
)
def test_options_are_refused(options, text):
    with pytest.raises(InvalidConfig) as caught:
        frustrated().best(**options)
    assert text in str(caught.value)


def test_a_missing_package_is_said(monkeypatch):
    monkeypatch.setattr(toulbar2.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unsupported, match=r"Network.value, .*pip install 'tenferro-jax\[toulbar2"):
        frustrated().value(solver="toulbar2")


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_nan_and_inf(bad):
    net = frustrated()
    wrong = net.like(net.scopes, [np.full((3, 3), bad), *net.tables[1:]])
    with pytest.raises(InvalidConfig, match=r"Network\.value, toulbar2: given NaN or inf"):
        wrong.value(solver="toulbar2")
    with pytest.raises(BackendFailure, match="NaN or inf among"), tj.host_errors():
        jax.block_until_ready(jax.jit(lambda n: n.value(solver="toulbar2"))(wrong))


def test_integers_that_do_not_hold_the_score():
    net = Network("a,a->", *2 * [np.array([2**31 - 1, 0], np.int32)])
    with pytest.raises(DTypeError, match="a dtype that holds the score"):
        net.value(solver="toulbar2")


def test_time_that_ends_the_search_is_an_error_with_both_ends():
    net = dense(0, 60, 0.02)
    with pytest.raises(ShapeError, match=r"between .* and .* is the best .* in 0.5 seconds"):
        net.best(solver="toulbar2", seconds=0.5)


def test_time_that_ends_without_an_answer(monkeypatch):
    """toulbar2 is ended by its parent; and what it knew before is the answer."""
    monkeypatch.setattr(toulbar2, "_answer_of", lambda problem: Outcome(None, 0.0, True))
    net, bounds = frustrated(), frustrated().bounds()
    with pytest.raises(ShapeError, match=f"{bounds.lower:.9g} and {bounds.upper:.9g}: "):
        net.best(solver="toulbar2", seconds=1)


def test_a_process_that_fails_is_said(monkeypatch, tmp_path):
    broken = pathlib.Path(tmp_path, "broken.py")
    broken.write_text("raise SystemExit('nothing works')")
    monkeypatch.setattr(toulbar2.toulbar2_process, "__file__", str(broken))
    with pytest.raises(BackendFailure, match="toulbar2 ended with 1: nothing works"):
        frustrated().best(solver="toulbar2")


def test_it_cannot_be_exported():
    with pytest.raises(Unsupported, match=r"toulbar2_best\.v1"):
        tj.export(lambda n: n.value(solver="toulbar2"), frustrated())


def test_payloads_that_are_no_numbering():
    with pytest.raises(InvalidConfig, match="in the order of first appearance"):
        Toulbar2Best(((1,), (0,)))
