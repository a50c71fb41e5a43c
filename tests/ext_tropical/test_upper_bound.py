"""The upper bound that has a gradient, against all assignments, `Network.bounds` and differences."""

import itertools

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import Network
from ext_tropical.native.library import native
from ext_tropical.networks import bound_sweeps, bound_turns
from ext_tropical.networks.bound import NetworkBound, TablesDot
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError
from tenferro_jax.extension import apply
from tenferro_jax.extension.routes import RouteKind
from tenferro_jax.testing import check

from ..helpers import ends_in
from ..oracles import central_difference
from .judges import OWN
from .test_bounds import all_scores, grid, small_network

needs_library = pytest.mark.skipif(bool(native().problem), reason=native().problem)

ROUTES = [pytest.param(RouteKind.KERNEL, marks=needs_library), RouteKind.LOWERING]


def op_of(net, sweeps, with_shares=False):
    return NetworkBound(net.equation.removesuffix("->"), sweeps, with_shares)


def bound_and_shares(net, sweeps, route):
    """The answer of one route: the bound, and its derivative by all entries."""
    op, runtimes = op_of(net, sweeps, with_shares=True), NetworkBound.runtimes.only(route)
    return jax.jit(lambda *tables: apply(op, *tables, runtimes=runtimes))(*net.tables)


def generic(seed, tables=9):
    """Tables of none to three of six variables with two or three values, normal scores."""
    rng = np.random.default_rng(seed)
    sizes = dict(zip("abcdef", rng.integers(2, 4, 6).tolist(), strict=True))
    pairs = []
    for rank in [0, 1, 1, 2, 2, 2, 2, 3, 3, 1, 2][:tables]:
        scope = tuple(rng.permutation(list(sizes))[:rank].tolist())
        pairs.append((scope, rng.normal(size=[sizes[name] for name in scope])))
    return Network.from_factors(pairs)


def best_score(net):
    return max(all_scores(net).values())


@needs_library
@pytest.mark.parametrize("seed", range(10))
def test_no_assignment_is_better(seed):
    """Ties, impossible entries, tables of none to four variables; `bounds` with as many sweeps has
    the same upper end, where it did not find its end before.
    """
    rng = np.random.default_rng(seed)
    for _ in range(20):
        net, sweeps = small_network(rng), int(rng.integers(1, 12))
        found, best = float(net.upper_bound(sweeps)), best_score(net)
        assert found >= best - 1e-12
        bounds = net.bounds(sweeps=sweeps)
        if bounds.sweeps == sweeps and all(np.isfinite(x).all() for x in net.tables):
            assert found == pytest.approx(bounds.upper, abs=1e-12)


@needs_library
@pytest.mark.few(3)
@pytest.mark.parametrize("seed", range(12))
def test_routes_agree(seed):
    rng = np.random.default_rng(seed)
    for net in (small_network(rng), generic(seed)):
        given = bound_and_shares(net, 4, RouteKind.KERNEL)
        chex.assert_trees_all_close(given, bound_and_shares(net, 4, RouteKind.LOWERING), atol=1e-12)


@needs_library
def test_routes_agree_where_a_turn_reads_some_candidates_at_once(monkeypatch):
    rng = np.random.default_rng(0)
    net = Network("abc,cd,de,a,e->", *(rng.normal(size=[3] * n) for n in (3, 2, 2, 1, 1)))
    given = bound_and_shares(net, 3, RouteKind.KERNEL)
    monkeypatch.setattr(bound_sweeps, "CANDIDATES", 2)
    chex.assert_trees_all_close(given, bound_and_shares(net, 3, RouteKind.LOWERING), atol=1e-12)


@pytest.mark.parametrize("seed", range(4))
def test_of_a_tree_it_is_the_best_score(seed):
    rng = np.random.default_rng(seed)
    names = rng.permutation(8).tolist()
    edges = [(names[rng.integers(i)], names[i]) for i in range(1, 8)]
    pairs = [(edge, rng.normal(size=(2, 2))) for edge in edges]
    net = Network.from_factors([*pairs, *(((i,), rng.normal(size=2)) for i in range(8))])
    assert float(net.upper_bound()) == pytest.approx(float(net.value()))
    chex.assert_trees_all_close(
        jax.grad(Network.upper_bound)(net), jax.grad(Network.value)(net), atol=1e-9
    )


def test_it_falls_with_the_sweeps():
    net = grid(8, 3)
    found = [float(net.upper_bound(sweeps)) for sweeps in (1, 2, 4, 8, 16)]
    assert all(later < before for before, later in itertools.pairwise(found)), found


# --- the gradient ---------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("seed", "sweeps"), [(0, 1), (1, 3), (2, 30)])
def test_the_gradient_is_that_of_differences(route, seed, sweeps):
    """Of the bound after any number of sweeps, and not only of the best one."""
    net = generic(seed, tables=11)
    op = op_of(net, sweeps)
    run = jax.jit(lambda *tables: apply(op, *tables)[0])
    tables = [np.array(x) for x in net.tables]
    _, flat = bound_and_shares(net, sweeps, route)
    wanted = [central_difference(run, tables, i).ravel() for i in range(len(tables))]
    np.testing.assert_allclose(flat, np.concatenate(wanted), atol=1e-8)


def test_the_gradient_of_each_table_sums_to_1():
    """Each score that is moved with all others of its table moves the bound by as much."""
    for seed in range(6):
        for x in jax.grad(Network.upper_bound)(generic(seed)).tables:
            assert float(x.sum()) == pytest.approx(1)
    assert {float(x.sum()) for x in jax.grad(Network.upper_bound)(grid(5, 3)).tables} <= {1.0}


@pytest.mark.parametrize("route", ROUTES)
def test_the_gradient_gives_the_bound_back(route):
    """The bound of the scores times a number is the bound times this number."""
    for seed in range(5):
        net = small_network(np.random.default_rng(100 + seed))
        bound, shares = bound_and_shares(net, 3, route)
        entries = np.concatenate([np.ravel(x) for x in net.tables])
        if bound > -np.inf:
            total = np.where(shares == 0, 0, entries) @ shares
            assert float(total) == pytest.approx(float(bound), abs=1e-12)


def test_the_second_derivative_is_zero():
    net = generic(0)
    curved = jax.jvp(jax.grad(Network.upper_bound), (net,), (net,))[1]
    chex.assert_trees_all_equal(curved, jax.tree.map(jnp.zeros_like, net))


@pytest.mark.parametrize("route", ROUTES)
def test_impossible_values_have_no_share_and_give_no_nan(route):
    net = Network("ab,bc,b->", [[0.0, -np.inf], [1.0, -np.inf]], [[1.0, 2.0], [9, 9]], [0.0, 5.0])
    bound, shares = bound_and_shares(net, 3, route)
    assert float(bound) == 3
    np.testing.assert_array_equal(shares, [0, 0, 1, 0, 0, 1, 0, 0, 1, 0])


@pytest.mark.parametrize("route", ROUTES)
def test_bounds_that_are_no_numbers(route):
    """Where nothing is possible, and where a score is NaN or inf."""
    nothing = [[0.0, -np.inf], [-np.inf, -np.inf]]
    for table, wanted in (
        (nothing, -np.inf),
        ([[0.0, np.nan]] * 2, np.nan),
        ([[np.inf] * 2] * 2, np.nan),
    ):
        net = Network("ab,b->", table, [-np.inf, 1.0])
        bound, shares = bound_and_shares(net, 2, route)
        np.testing.assert_array_equal(bound, wanted)
        np.testing.assert_array_equal(shares, np.zeros(6))


# --- transforms -----------------------------------------------------------------------------------


def test_tables_of_one_variable_and_of_none():
    net = Network("a,a,,b->", [0.0, 2.0], [1.0, 0.0], 3.0, [4.0])
    assert float(net.upper_bound()) == 9
    assert float(jax.jit(op_of(net, 2).lower_to_standard_ops)(*net.tables)[0]) == 9
    assert float(Network("->", 2.0).upper_bound()) == 2
    assert float(jax.jit(NetworkBound("", 1).lower_to_standard_ops)(jnp.float32(2))[0]) == 2


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_programs_and_batches_have_the_same_answer(dtype):
    """Tables that are passed or closed over; a batch of some tables, which others share."""
    net = jax.tree.map(lambda x: jnp.asarray(x, dtype), generic(3))
    found = jax.value_and_grad(Network.upper_bound)(net)
    assert found[0].dtype == dtype
    chex.assert_trees_all_equal(found, jax.jit(jax.value_and_grad(Network.upper_bound))(net))
    chex.assert_trees_all_equal(found[0], jax.jit(lambda: net.upper_bound())())

    def moved(x):
        tables = [net.tables[0], *(table + x for table in net.tables[1:])]
        return jax.value_and_grad(Network.upper_bound)(net.like(net.scopes, tables))

    steps = jnp.arange(6, dtype=dtype).reshape(2, 3)
    each = [moved(x) for x in steps.ravel()]
    looped = jax.tree.map(lambda *x: jnp.stack(x).reshape(2, 3, *x[0].shape), *each)
    chex.assert_trees_all_equal(jax.vmap(jax.vmap(moved))(steps), looped)
    chex.assert_trees_all_equal(jax.jit(jax.vmap(jax.vmap(jax.jit(moved))))(steps), looped)


def test_batches_in_standard_ops():
    net, op = generic(4), op_of(generic(4), 5, with_shares=True)
    several = [np.stack([x, 2 * x, -x]) for x in net.tables]
    found = jax.jit(jax.vmap(op.lower_to_standard_ops))(*several)
    each = [op.lower_to_standard_ops(*(x[i] for x in several)) for i in range(3)]
    chex.assert_trees_all_close(found, tuple(map(jnp.stack, zip(*each, strict=True))), atol=1e-12)


@pytest.mark.parametrize("platform", ["cpu", "cuda"])
def test_exports_have_no_kernel(platform):
    """Standard ops alone, which another machine runs."""
    net = generic(5)

    def gradient(tables):
        return jax.grad(Network.upper_bound)(net.like(net.scopes, tables)).tables

    exported = jax.export.export(jax.jit(gradient), platforms=[platform])(net.tables)
    read = jax.export.deserialize(exported.serialize())
    assert "stablehlo.custom_call" not in read.mlir_module()
    if platform == "cpu":
        chex.assert_trees_all_close(read.call(net.tables), gradient(net.tables), atol=1e-12)


def test_what_is_refused():
    pair = np.zeros((2, 2))
    ends_in(lambda: Network("ab->", pair).upper_bound(0), InvalidConfig, r"upper_bound, sweeps")
    ends_in(lambda: Network("ab->", pair.astype(int)).upper_bound(), DTypeError, "int")
    ends_in(lambda: NetworkBound("aa", 1), InvalidConfig, "twice")
    batch = jax.tree.map(lambda x: np.stack([x, x]), Network("ab->", pair))
    ends_in(batch.upper_bound, ShapeError, "rank")
    ends_in(lambda: apply(NetworkBound("ab", 1), pair[:0]), ShapeError, "size 0")
    ends_in(lambda: apply(TablesDot("ab", SIZES), pair[0], pair), ShapeError, "dimensions 2 and 6")


SIZES = (("a", 2), ("b", 3))
OPS = (
    NetworkBound("ab,bc,c,,ca", 3),
    NetworkBound("abc,bd,d", 2, with_shares=True),
    TablesDot("a,ba,", SIZES),
    TablesDot("a,ba,", SIZES, is_transposed=True),
)


@pytest.mark.few(2)
@pytest.mark.slow
@pytest.mark.parametrize("op", OPS, ids=lambda op: type(op).__name__)
def test_check(op):
    """Only an export with symbolic sizes fails: the loops count entries."""
    report = check(op, only=() if op is OPS[0] else OWN)
    assert {failure.check for failure in report.failures} <= {"exported_sizes"}, str(report)


# --- the turns of the loop ------------------------------------------------------------------------


def test_turns_take_variables_that_share_no_table():
    """Of a grid by its diagonals, each variable once."""
    net = grid(5, 2)
    op = op_of(net, 1)
    turns = bound_turns.turns_of(op.scopes, op.sizes_of(net.tables))
    assert turns.shape[0] == 9
    assert (turns.lanes.sizes > 0).sum() == 25


def test_the_program_does_not_grow_with_the_network():
    sizes = []
    for side in (4, 8):
        net = grid(side, 2)
        op = op_of(net, 2, with_shares=True)
        turns = bound_turns.turns_of(op.scopes, op.sizes_of(net.tables))
        entries = np.zeros(turns.starts[-1])
        made = jax.make_jaxpr(lambda x, t=turns: bound_sweeps.bounded(t, x, 2, True))(entries)
        sizes.append(str(made).count(" = "))
    assert sizes[0] == sizes[1]
