"""Closures against SciPy's graph algorithms; the walks re-walked."""

import functools
import itertools
import pickle

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csgraph, csr_array

from ext_tropical import closure, log_sum_exp
from ext_tropical.graphs.all_pairs import BLOCK
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..helpers import equal
from ..oracles import ALGEBRAS
from ..sweep import in_turn, times
from .judges import refusals, temporary_bytes

INF = np.inf
ONES = {"max_plus": 0.0, "min_plus": 0.0, "max_mul": 1.0, "min_max": -INF, "or_and": True}


def graph(rng, n, density=0.3, low=1, high=9):
    """Integer weights, inf where there is no edge."""
    return np.where(
        rng.random((n, n)) < density, rng.integers(low, high, (n, n)).astype(float), INF
    )


def sparse(weights):
    """The graph for SciPy, whose explicit entries may be 0."""
    at = np.isfinite(weights) & ~np.eye(len(weights), dtype=bool)
    return csr_array((weights[at], np.nonzero(at)), shape=weights.shape)


test_refusals = refusals(
    *(
        (ShapeError, "closure: given shape", functools.partial(closure, np.zeros(shape)))
        for shape in [(2, 3), (3,), (), (2, 3, 3)]
    ),
    (
        DTypeError,
        "closure: given dtype bool under min_plus",
        lambda: closure(np.zeros((2, 2), bool)),
    ),
    (DTypeError, "closure: given", lambda: closure("ab")),
    (InvalidConfig, "given 'dijkstra'", lambda: closure(np.zeros((2, 2)), semiring="dijkstra")),
    (
        InvalidConfig,
        r"closure: given log_sum_exp.*selective",
        lambda: closure(np.zeros((2, 2)), semiring=log_sum_exp()),
    ),
    (
        Unsupported,
        "symbolic shape",
        lambda: jax.eval_shape(
            closure, jax.ShapeDtypeStruct(jax.export.symbolic_shape("n") * 2, np.float64)
        ),
    ),
    *(
        (
            error,
            needed,
            lambda node=node: closure(graph(np.random.default_rng(0), 3)).walk(0, node),
        )
        for node, error, needed in (
            (-1, InvalidConfig, "walk, target: given -1.*nodes from 0 to 2"),
            (3, InvalidConfig, "walk, target: given 3.*nodes from 0 to 2"),
            (1.0, DTypeError, "walk, target: given float.*integers"),
            ([0, 1], ShapeError, r"walk: .*target of shape \(2,\).*jax.vmap"),
        )
    ),
    (InvalidConfig, "walk, source", lambda: closure(np.zeros((0, 0))).walk(0, 0)),
)


# --- closures -------------------------------------------------------------------------------------


def nodes_of(result, source, target):
    walk = result.walk(source, target)
    assert isinstance(walk, np.ndarray)
    assert (walk >= 0).all()
    return walk.tolist()


def check_walks(result, weights, name="min_plus"):
    """Every walk leads from source to target along edges whose product is the value; none where the
    value is the zero.
    """
    algebra, value = ALGEBRAS[name], np.asarray(result.value)
    walks = np.asarray(
        jax.jit(
            lambda r: jax.vmap(jax.vmap(r.walk, (None, 0)), (0, None))(
                *[jnp.arange(len(weights))] * 2
            )
        )(result)
    )
    for s, t in np.ndindex(value.shape):
        nodes = [int(node) for node in walks[s, t] if node >= 0]
        if value[s, t] == algebra.zero:
            assert nodes == []
            continue
        assert (nodes[0], nodes[-1]) == (s, t)
        assert nodes == walks[s, t][: len(nodes)].tolist()
        product = functools.reduce(
            algebra.times, (weights[edge] for edge in itertools.pairwise(nodes)), ONES[name]
        )
        assert product == value[s, t]


def lengths(weights):
    return csgraph.floyd_warshall(sparse(weights))


def with_negative_edges(weights):
    """A potential makes edges negative and leaves the weight of every cycle: no cycle of negative
    weight.
    """
    potential = np.random.default_rng(0).integers(-20, 20, len(weights))
    return weights + potential[:, None] - potential


def widest(weights):
    """The least largest edge between two nodes of an undirected graph lies on the minimum spanning
    tree, which has one path.
    """
    tree = csgraph.minimum_spanning_tree(sparse(weights)).toarray()
    tree = np.where(tree > 0, tree, INF)
    want = np.where(np.eye(len(tree), dtype=bool), -INF, np.minimum(tree, tree.T))
    for k in range(len(tree)):
        want = np.minimum(want, np.maximum(want[:, k : k + 1], want[k]))
    return want


def most_probable(chances):
    return 2.0 ** -lengths(np.where(chances > 0, -np.log2(np.maximum(chances, 1e-9)), INF))


def undirected(weights):
    return np.minimum(weights, weights.T)


RNG = np.random.default_rng(7)
GRAPHS = {
    **{
        f"{n} nodes": ("min_plus", graph(RNG, n, density=min(1, 3 / n)), lengths)
        for n in (1, 2, 3, 4, 5, 9, 30, BLOCK, BLOCK + 1, 2 * BLOCK + 3)
    },
    "negative edges": (
        "min_plus",
        with_negative_edges(graph(RNG, 9)),
        lambda weights: csgraph.johnson(sparse(weights)),
    ),
    "cycles of weight zero": ("min_plus", graph(RNG, 9, density=0.5, low=0, high=2), lengths),
    "reachability": (
        "or_and",
        RNG.random((9, 9)) < 0.15,
        lambda edges: np.isfinite(lengths(np.where(edges, 1.0, INF))),
    ),
    "bottlenecks": ("min_max", undirected(graph(RNG, 9, density=0.5, high=100)), widest),
    "most probable": ("max_mul", 2.0 ** -graph(RNG, 9), most_probable),
    "blocks with negative edges": (
        "min_plus",
        with_negative_edges(graph(RNG, 2 * BLOCK + 1, density=0.04)),
        lambda weights: csgraph.johnson(sparse(weights)),
    ),
    "blocks with cycles of weight zero": (
        "min_plus",
        graph(RNG, BLOCK + 40, density=0.05, low=0, high=2),
        lengths,
    ),
    "bottlenecks between blocks": (
        "min_max",
        undirected(graph(RNG, BLOCK + 20, density=0.05, high=4)),
        widest,
    ),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("case", GRAPHS)
def test_values_agree_with_scipy_and_walks_have_them(case):
    name, weights, judge = GRAPHS[case]
    result = closure(weights, semiring=name)
    np.testing.assert_array_equal(result.value, judge(weights))
    assert result.converged.all()
    check_walks(result, weights, name)


@pytest.mark.slow
def test_walks_between_blocks_through_improving_cycles():
    """Values and walks beside them are right; where there is no best walk there is some walk."""
    rng = np.random.default_rng(3)
    n = BLOCK + 30
    for _ in range(times(2)):
        weights, lengths, endless, on_cycle = with_negative_cycles(rng, n)
        result = closure(weights)
        equal((result.value, lengths), (result.converged, ~endless), (result.on_cycle, on_cycle))
        for s, t in rng.integers(0, n, (400, 2)).tolist():
            walk = nodes_of(result, s, t)
            total = sum(weights[edge] for edge in itertools.pairwise(walk))
            assert (len(walk) > 0) == (lengths[s, t] < INF)
            assert not walk or (walk[0], walk[-1]) == (s, t)
            assert np.isfinite(total)
            assert endless[s, t] or not walk or total == lengths[s, t]


FLOATS = {
    "positive": lambda x, _: x,
    "some that sums lose": lambda x, _: np.where(x < 0.5, x * 1e-9, x * 1e3),
    "some next to zero": lambda x, _: np.where(x < 0.5, 1e-12, x),
    "negative ones": lambda x, potential: x + potential[:, None] - potential,
}


@pytest.mark.few(2)
@pytest.mark.parametrize("kind", FLOATS)
def test_rows_of_predecessors_are_trees_though_sums_are_rounded(kind):
    rng = np.random.default_rng(1)
    n = BLOCK + 36
    weights = FLOATS[kind](rng.uniform(0.1, 1, (n, n)), rng.uniform(-3, 3, n))
    weights = np.where(rng.random((n, n)) < 3 / n, weights, INF).astype(np.float32)
    result = closure(weights)
    np.testing.assert_allclose(result.value, csgraph.johnson(sparse(weights)), rtol=1e-5, atol=1e-5)
    before, (row, node) = np.asarray(result.predecessors()), np.indices((n, n))
    for _ in range(n):
        node = np.where((node == row) | (node < 0), node, before[row, node])
    np.testing.assert_array_equal(node == row, result.feasible)


# From lengths to the weights of another semiring; no edge, inf, becomes its zero.
TURNED = {"min_plus": lambda w: w, "max_plus": lambda w: -w, "max_mul": lambda w: 2.0**-w}


def with_negative_cycles(rng, n):
    """A sparse graph whose weights may be negative, and by SciPy: the lengths, -inf through a
    negative cycle, and the nodes on one.
    """
    weights = np.where(
        rng.random((n, n)) < min(0.8, 1.6 / n), rng.integers(-3, 7, (n, n)).astype(float), INF
    )
    reached = np.isfinite(csgraph.floyd_warshall(sparse(np.where(np.isfinite(weights), 1.0, INF))))
    on_cycle = np.diag(weights) < 0
    _, parts = csgraph.connected_components(sparse(weights), connection="strong")
    for part in range(parts.max() + 1):
        members = np.flatnonzero(parts == part)
        try:
            csgraph.johnson(sparse(weights[np.ix_(members, members)]))
            on_cycle[members] |= on_cycle[members].any()
        except csgraph.NegativeCycleError:
            on_cycle[members] = True
    endless = reached[:, on_cycle].astype(int) @ reached[on_cycle].astype(int) > 0
    lengths = csgraph.johnson(sparse(np.where(on_cycle[:, None] | on_cycle, INF, weights)))
    return weights, np.where(endless, -INF, lengths), endless, on_cycle


@pytest.mark.few(1)
@pytest.mark.parametrize(("name", "n"), in_turn(list(TURNED), [7, 1, 2, 3], 2))
def test_walks_through_an_improving_cycle_have_the_infimum(name, n):
    """For exactly the pairs that can use one, in batches, integers and gradients; the others are as
    ever.
    """
    rng = np.random.default_rng(1)
    graphs, lengths, endless, on_cycle = map(
        np.stack, zip(*(with_negative_cycles(rng, n) for _ in range(40)))
    )
    assert 0 < endless.mean() < 1
    assert 0 < on_cycle.mean() < 1
    turn = TURNED[name]
    result = jax.jit(jax.vmap(functools.partial(closure, semiring=name)))(turn(graphs))
    equal((result.value, turn(lengths)), (result.converged, ~endless), (result.on_cycle, on_cycle))
    if name == "max_mul":
        return
    whole = {INF: np.iinfo(np.int32).max, -INF: np.iinfo(np.int32).min}
    narrow = np.vectorize(lambda x: whole.get(x, x), otypes=[np.int32])
    got = jax.jit(jax.vmap(functools.partial(closure, semiring=name)))(narrow(turn(graphs)))
    equal((got.value, narrow(turn(lengths))), (got.converged, ~endless))
    derivative = np.asarray(
        jax.jit(jax.vmap(jax.jacrev(lambda a: closure(a, semiring=name).value)))(turn(graphs[:8]))
    )
    sums = (derivative * np.where(np.isfinite(graphs), turn(graphs), 0)[:8, None, None]).sum(
        (3, 4)
    )  # a length is that of its edges
    finite = np.isfinite(lengths[:8])
    np.testing.assert_array_equal(sums[finite], turn(lengths[:8])[finite])
    assert not derivative[endless[:8]].any()


def test_a_cycle_that_overflows_leaves_the_rest_alone():
    """400 nodes in a ring of weight 4, 400 behind: products round the ring are beyond float32."""
    weights = np.zeros((400, 400), np.float32)
    at = np.arange(399)
    weights[at, at + 1] = np.where(at < 200, 4, 1)
    weights[199, 0] = 4
    want = np.zeros((400, 400), np.float32)
    want[:200], want[200:, 200:] = INF, np.triu(np.ones((200, 200)))
    np.testing.assert_array_equal(closure(weights, semiring="max_mul").value, want)


def test_floats_decide_whether_a_cycle_is_negative():
    """-0.1 - 0.2 + 0.3 is negative as a sum of float64, and zero as integers are."""
    a, b, c = -0.1, -0.2, 0.3
    assert a + b + c < 0
    weights = np.full((3, 3), INF)
    weights[[0, 1, 2], [1, 2, 0]] = a, b, c
    assert np.isneginf(closure(weights).value).all()
    weights[[0, 1, 2], [1, 2, 0]] = -1, -2, 3
    assert closure(weights).converged.all()


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["min_plus", "max_plus"])
def test_gradient_follows_the_walk(name):
    rng = np.random.default_rng(5)
    sign = 1 if name == "min_plus" else -1
    weights = sign * graph(rng, 9, density=0.4, high=4)  # small weights: many paths of equal length
    result = closure(weights, semiring=name)
    gradient = jax.jit(lambda a, s, t: jax.grad(lambda a: closure(a, semiring=name).value[s, t])(a))
    for s, t in np.ndindex(9, 9):
        if not result.feasible[s, t]:
            continue
        want = np.zeros_like(weights)
        for edge in itertools.pairwise(nodes_of(result, s, t)):
            want[edge] += 1
        np.testing.assert_array_equal(gradient(weights, s, t), want)


@pytest.mark.slow
def test_walks_are_the_same_wherever_a_result_is_asked_first():
    """A result keeps its predecessors; never those of a program that is being traced."""
    weights = graph(np.random.default_rng(11), 8, density=0.5)
    want = np.asarray(closure(weights).predecessors())
    result = closure(weights)
    with jax.checking_leaks():
        inside = jax.jit(lambda i: result.predecessors()[i])(jnp.arange(8))
    exported = jax.export.export(jax.jit(lambda a: closure(a).predecessors()))(weights)
    for found in (
        inside,
        result.predecessors(),
        pickle.loads(pickle.dumps(result)).predecessors(),
        jax.tree.map(jnp.copy, result).predecessors(),
        jax.jit(closure)(weights).predecessors(),
        jax.export.deserialize(exported.serialize()).call(weights),
    ):
        np.testing.assert_array_equal(found, want)


@pytest.mark.few(1)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_memory_is_that_of_a_few_matrices(with_gradient):
    n = 300
    spec = jax.ShapeDtypeStruct((n, n), np.float32)
    fn = jax.grad(lambda a: closure(a).value.sum()) if with_gradient else closure
    assert temporary_bytes(fn, spec) < (90 if with_gradient else 40) * n * n * 4


def test_what_is_empty_or_out_of_reach():
    result = closure(np.zeros((0, 0)))
    assert jax.jit(result.walk)(0, -1).tolist() == []
    assert result.value.shape == result.predecessors().shape == (0, 0)
    np.testing.assert_array_equal(
        jax.jit(closure(graph(np.random.default_rng(0), 3)).walk)(0, 7), -1
    )


def test_nan_is_never_hidden():
    """An edge of unknown weight: every pair may use it, as nothing but its weight says that it is
    no use.
    """
    weights = graph(np.random.default_rng(0), 5)
    weights[1, 2] = np.nan
    assert np.isnan(closure(weights).value).all()
