"""Powers and closures against products written out, SciPy's graph algorithms and every path; the walks re-walked."""

import functools
import itertools

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.sparse import csgraph, csr_array

from ext_tropical import ClosureResult, closure, log_sum_exp, matrix_power, min_plus
from tenferro_jax import export
from tenferro_jax.errors import DTypeError, InvalidConfig, ShapeError, Unsupported

from ..oracles import ALGEBRAS, object_einsum

INF = np.inf
ONES = {"max_plus": 0.0, "min_plus": 0.0, "max_mul": 1.0, "min_max": -INF, "or_and": True}


def graph(rng, n, density=0.3, low=1, high=9):
    """Integer weights, inf where there is no edge."""
    return np.where(rng.random((n, n)) < density, rng.integers(low, high, (n, n)).astype(float), INF)


def sparse(weights):
    """The graph for SciPy, whose explicit entries may be 0."""
    at = np.isfinite(weights) & ~np.eye(len(weights), dtype=bool)
    return csr_array((weights[at], np.nonzero(at)), shape=weights.shape)


# --- powers --------------------------------------------------------------------------------------------------------


@pytest.mark.few(5)
@pytest.mark.parametrize("name", ALGEBRAS)
@pytest.mark.parametrize("n", [1, 2, 7])
def test_power_is_the_product_of_so_many_factors(name, n):
    rng = np.random.default_rng(n)
    a = rng.random((4, 4)) < 0.4 if name == "or_and" else rng.integers(0, 4, (4, 4)).astype(float)
    want = functools.reduce(lambda x, y: object_einsum(name, "ij,jk->ik", x, y), [a] * n)
    np.testing.assert_array_equal(matrix_power(a, n, semiring=name), want)


@pytest.mark.few(2)
@pytest.mark.parametrize("name", ALGEBRAS)
def test_power_zero_is_the_identity(name):
    a = np.zeros((2, 3, 3), bool if name == "or_and" else float)
    got = matrix_power(a, 0, semiring=name)
    assert got.dtype == a.dtype
    np.testing.assert_array_equal(got, np.where(np.eye(3, dtype=bool), ONES[name], ALGEBRAS[name].zero)[None].repeat(2, 0))


def test_power_of_batches_and_its_gradient():
    a = np.random.default_rng(0).integers(-5, 5, (2, 3, 4, 4)).astype(float)
    got = matrix_power(a, 5)
    for at in np.ndindex(2, 3):
        np.testing.assert_array_equal(got[at], matrix_power(a[at], 5))
    total = jax.grad(lambda a: matrix_power(a, 5).sum())(a)
    assert total.sum() == 5 * got.size  # every entry is a walk of five edges


def test_power_under_log_sum_exp_is_a_power_of_exponentials():
    a = np.random.default_rng(1).normal(size=(4, 4))
    np.testing.assert_allclose(matrix_power(a, 5, semiring=log_sum_exp()), np.log(np.linalg.matrix_power(np.exp(a), 5)), rtol=1e-12)
    with pytest.raises(InvalidConfig, match=r"closure: given log_sum_exp.*selective"):
        closure(a, semiring=log_sum_exp())


def test_bad_powers():
    for a in (np.ones((2, 3)), np.ones(3), 1.0):
        with pytest.raises(ShapeError, match="matrix_power: given shape"):
            matrix_power(a, 2)
    for n in (-1, 2.0, None, "2"):
        with pytest.raises(InvalidConfig, match="matrix_power, n: given"):
            matrix_power(np.ones((2, 2)), n)
    with pytest.raises(DTypeError, match="matrix_power: given dtype complex128"):
        matrix_power(np.ones((2, 2), complex), 0)


# --- closures ------------------------------------------------------------------------------------------------------


def nodes_of(result, source, target):
    walk = result.walk(source, target)
    assert isinstance(walk, np.ndarray)
    assert (walk >= 0).all()
    return walk.tolist()


def check_walks(result, weights, name="min_plus"):
    """Every walk leads from source to target along edges whose product is the value; none where the value is the zero."""
    algebra, value = ALGEBRAS[name], np.asarray(result.value)
    walks = np.asarray(jax.jit(lambda r: jax.vmap(jax.vmap(r.walk, (None, 0)), (0, None))(*[jnp.arange(len(weights))] * 2))(result))
    for s, t in np.ndindex(value.shape):
        nodes = [int(node) for node in walks[s, t] if node >= 0]
        if value[s, t] == algebra.zero:
            assert nodes == []
            continue
        assert (nodes[0], nodes[-1]) == (s, t)
        assert nodes == walks[s, t][: len(nodes)].tolist()
        product = functools.reduce(algebra.times, (weights[edge] for edge in itertools.pairwise(nodes)), ONES[name])
        assert product == value[s, t]


@pytest.mark.few(4)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 9, 30])
def test_shortest_paths_agree_with_scipy(n):
    rng = np.random.default_rng(n)
    weights = graph(rng, n, density=min(1, 3 / n))
    result = closure(weights)
    np.testing.assert_array_equal(result.value, csgraph.floyd_warshall(sparse(weights)))
    assert result.converged.all()
    assert result.winners.shape == (max(0, int(np.ceil(np.log2(n - 1)))) if n > 1 else 0, n, n)
    check_walks(result, weights)


def test_paths_of_negative_edges_agree_with_scipy():
    """A potential makes edges negative and leaves the weight of every cycle: no cycle of negative weight."""
    rng = np.random.default_rng(0)
    weights = graph(rng, 9)
    potential = rng.integers(-20, 20, 9)
    weights = weights + potential[:, None] - potential
    assert (weights < 0).any()
    result = closure(weights)
    np.testing.assert_array_equal(result.value, csgraph.johnson(sparse(weights)))
    assert result.converged.all()
    check_walks(result, weights)


def test_cycles_of_weight_zero():
    """A walk may go round one, and ends all the same."""
    rng = np.random.default_rng(3)
    weights = graph(rng, 9, density=0.5, low=0, high=2)
    result = closure(weights)
    np.testing.assert_array_equal(result.value, csgraph.floyd_warshall(sparse(weights)))
    assert result.converged.all()
    check_walks(result, weights)


@pytest.mark.slow
def test_a_path_through_every_node_is_found():
    """The longest one there can be, n - 1 edges, for every n around powers of 2."""
    for n in (2, 3, 5, 6, 9):
        weights = np.full((n, n), INF)
        weights[np.arange(n - 1), np.arange(1, n)] = 1
        result = closure(weights)
        assert nodes_of(result, 0, n - 1) == list(range(n))
        assert nodes_of(result, n - 1, 0) == []
        assert result.value[0, n - 1] == n - 1


@pytest.mark.few(2)
@pytest.mark.parametrize("n", [2, 5, 9])
def test_predecessors_lead_back_to_the_source(n):
    rng = np.random.default_rng(n)
    weights = graph(rng, n)
    result = closure(weights)
    value, before = np.asarray(result.value), np.asarray(result.predecessors())
    assert before.dtype == np.int32
    _, theirs = csgraph.floyd_warshall(sparse(weights), return_predecessors=True)
    np.testing.assert_array_equal(before < 0, theirs < 0)  # which of several they name may differ
    for s, t in zip(*np.nonzero(before >= 0)):
        assert value[s, before[s, t]] + weights[before[s, t], t] == value[s, t]
        node, steps = t, 0
        while node != s:
            node, steps = before[s, node], steps + 1
            assert steps < n


@pytest.mark.few(4)
@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("name", ["max_plus", "min_plus", "max_mul"])
def test_converged_is_false_where_walks_get_better_without_end(n, name):
    """Judged by Bellman-Ford's criterion: whether walks of up to 4 n edges beat those of up to 2 n anywhere."""
    rng = np.random.default_rng(n)
    seen = set()
    for _ in range(12):
        values = {"max_plus": [-4, -1, 1], "min_plus": [4, 1, -1], "max_mul": [0.25, 0.5, 2.0]}[name]
        zero = ALGEBRAS[name].zero
        weights = np.where(rng.random((n, n)) < 0.35, rng.choice(np.array(values, float), (n, n)), zero)
        start = np.where(np.eye(n, dtype=bool), ONES[name], zero)
        short = best = start
        for step in range(1, 30 * n + 1):
            best = object_einsum(name, "aij->ij", np.stack([start, object_einsum(name, "ij,jk->ik", best, weights)]))
            short = best if step == 2 * n else short
        converged = np.asarray(closure(weights, semiring=name).converged)
        np.testing.assert_array_equal(converged, best == short)
        seen |= set(converged.ravel().tolist())
    assert seen == {True, False}


def test_walks_end_where_nothing_converges():
    weights = np.full((5, 5), -1.0)
    result = closure(weights)
    assert not result.converged.any()
    walk = result.walk(0, 1).tolist()
    assert (walk[0], walk[-1]) == (0, 1)


TURNED = {"min_plus": lambda w: w, "max_plus": lambda w: -w, "max_mul": lambda w: 2.0**-w}
"""From lengths to the weights of another semiring; no edge, inf, becomes its zero."""


def with_negative_cycles(rng, n):
    """A sparse graph whose weights may be negative, and by SciPy: the lengths, -inf through a negative cycle, and the nodes on one."""
    weights = np.where(rng.random((n, n)) < 1.6 / n, rng.integers(-3, 7, (n, n)).astype(float), INF)
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
    kept = np.where(on_cycle[:, None] | on_cycle, INF, weights)
    lengths = csgraph.johnson(sparse(kept))
    return weights, np.where(endless, -INF, lengths), endless, on_cycle


@pytest.mark.few(1)
@pytest.mark.parametrize("name", TURNED)
def test_walks_through_an_improving_cycle_have_the_infimum(name):
    """For exactly the pairs that can use one, in batches, integers and gradients; the others are as ever."""
    rng = np.random.default_rng(1)
    graphs, lengths, endless, on_cycle = map(np.stack, zip(*(with_negative_cycles(rng, 7) for _ in range(40))))
    assert 0.1 < endless.mean() < 0.9
    assert 0.1 < on_cycle.mean() < 0.9
    turn = TURNED[name]
    result = jax.jit(jax.vmap(functools.partial(closure, semiring=name)))(turn(graphs))
    np.testing.assert_array_equal(result.value, turn(lengths))
    np.testing.assert_array_equal(result.converged, ~endless)
    np.testing.assert_array_equal(result.on_cycle, on_cycle)
    if name == "max_mul":
        return
    whole = {INF: np.iinfo(np.int32).max, -INF: np.iinfo(np.int32).min}
    narrow = np.vectorize(lambda x: whole.get(x, x), otypes=[np.int32])
    got = jax.jit(jax.vmap(functools.partial(closure, semiring=name)))(narrow(turn(graphs)))
    np.testing.assert_array_equal(got.value, narrow(turn(lengths)))
    np.testing.assert_array_equal(got.converged, ~endless)
    derivative = np.asarray(jax.jit(jax.vmap(jax.jacrev(lambda a: closure(a, semiring=name).value)))(turn(graphs[:8])))
    sums = (derivative * np.where(np.isfinite(graphs), turn(graphs), 0)[:8, None, None]).sum((3, 4))  # a length is that of its edges
    finite = np.isfinite(lengths[:8])
    np.testing.assert_array_equal(sums[finite], turn(lengths[:8])[finite])
    assert not derivative[endless[:8]].any()


def test_improving_cycles_are_exported():
    rng = np.random.default_rng(0)
    found = (with_negative_cycles(rng, 7) for _ in range(99))
    weights, lengths, endless, _ = next(case for case in found if case[2].any() and not case[2].all())
    program = export(lambda a: (closure(a).value, closure(a).on_cycle), jax.ShapeDtypeStruct((7, 7), np.float64))
    value, on_cycle = program.call(weights)
    np.testing.assert_array_equal(value, lengths)
    np.testing.assert_array_equal(on_cycle, np.diag(endless))


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


def test_reachability_agrees_with_scipy():
    rng = np.random.default_rng(6)
    edges = rng.random((9, 9)) < 0.15
    result = closure(edges, semiring="or_and")
    reached = np.isfinite(csgraph.floyd_warshall(sparse(np.where(edges, 1.0, INF))))
    np.testing.assert_array_equal(result.value, reached)
    assert 0 < reached.sum() < reached.size
    check_walks(result, edges, "or_and")


def test_bottlenecks_agree_with_the_minimum_spanning_tree():
    """The least largest edge between two nodes of an undirected graph lies on the minimum spanning tree."""
    rng = np.random.default_rng(7)
    weights = graph(rng, 9, density=0.5, high=100)
    weights = np.minimum(weights, weights.T)
    result = closure(weights, semiring="min_max")
    tree = csgraph.minimum_spanning_tree(sparse(weights)).toarray()
    tree = np.where(tree > 0, tree, INF)
    tree = np.minimum(tree, tree.T)
    want = np.where(np.eye(9, dtype=bool), -INF, tree)
    for k in range(9):  # in a tree there is one path
        want = np.minimum(want, np.maximum(want[:, k : k + 1], want[k]))
    np.testing.assert_array_equal(result.value, want)
    check_walks(result, weights, "min_max")


def test_most_probable_walks():
    rng = np.random.default_rng(8)
    chances = np.where(rng.random((9, 9)) < 0.5, 0.5 ** rng.integers(1, 5, (9, 9)), 0.0)
    result = closure(chances, semiring="max_mul")
    np.testing.assert_array_equal(result.value, 2.0 ** -closure(np.where(chances > 0, -np.log2(np.maximum(chances, 1e-9)), INF)).value)
    check_walks(result, chances, "max_mul")


def test_integers_and_sixteen_bits():
    rng = np.random.default_rng(9)
    weights = graph(rng, 9)
    want = csgraph.floyd_warshall(sparse(weights))
    most = np.iinfo(np.int32).max
    whole = np.where(np.isfinite(weights), weights, most).astype(np.int32)
    np.testing.assert_array_equal(closure(whole).value, np.where(np.isfinite(want), want, most))
    np.testing.assert_array_equal(closure(jnp.asarray(weights, "bfloat16")).value.astype(float), want)


def test_the_result_is_a_pytree_for_jit_and_vmap():
    rng = np.random.default_rng(10)
    many = np.stack([graph(rng, 5) for _ in range(3)])
    results = jax.jit(jax.vmap(closure))(many)
    assert isinstance(results, ClosureResult)
    walks = jax.jit(jax.vmap(lambda r: r.walk(0, 4)))(results)
    befores = jax.vmap(lambda r: r.predecessors())(results)
    for i, weights in enumerate(many):
        one = closure(weights, semiring=min_plus)
        np.testing.assert_array_equal(results.value[i], one.value)
        np.testing.assert_array_equal(walks[i][walks[i] >= 0], one.walk(0, 4))
        np.testing.assert_array_equal(befores[i], one.predecessors())


@pytest.mark.few(1)
@pytest.mark.parametrize("with_gradient", [False, True])
def test_memory_is_that_of_a_few_matrices_for_each_squaring(with_gradient):
    n, squarings = 128, 7
    spec = jax.ShapeDtypeStruct((n, n), np.float32)
    fn = (lambda a: jax.grad(lambda a: closure(a).value.sum())(a)) if with_gradient else closure
    memory = jax.jit(fn).lower(spec).compile().memory_analysis()
    assert memory.temp_size_in_bytes < (12 + 6 * squarings) * n * n * 4  # all candidates would be n times a matrix


def test_empty_and_bad_input():
    result = closure(np.zeros((0, 0)))
    assert jax.jit(result.walk)(0, -1).tolist() == [-1, -1]
    assert (result.value.shape, result.winners.shape, result.predecessors().shape) == ((0, 0), (0, 0, 0), (0, 0))
    for shape in [(2, 3), (3,), (), (2, 3, 3)]:
        with pytest.raises(ShapeError, match="closure: given shape"):
            closure(np.zeros(shape))
    with pytest.raises(DTypeError, match="closure: given dtype bool under min_plus"):
        closure(np.zeros((2, 2), bool))
    with pytest.raises(DTypeError, match="closure: given"):
        closure("ab")
    with pytest.raises(InvalidConfig, match="given 'dijkstra'"):
        closure(np.zeros((2, 2)), semiring="dijkstra")
    (n,) = jax.export.symbolic_shape("n")
    with pytest.raises(Unsupported, match="a symbolic size, n"):
        jax.export.export(jax.jit(closure))(jax.ShapeDtypeStruct((n, n), np.float64))
    result = closure(graph(np.random.default_rng(0), 3))
    for node in (-1, 3, 1.0, [0, 1]):
        with pytest.raises(InvalidConfig, match=r"walk, target: given.*an integer scalar from 0 to 2"):
            result.walk(0, node)
    np.testing.assert_array_equal(jax.jit(result.walk)(0, 7), -1)
    with pytest.raises(InvalidConfig, match="walk, source"):
        closure(np.zeros((0, 0))).walk(0, 0)


def test_nan_is_never_hidden():
    """An edge of unknown weight: every pair may use it, as nothing but its weight says that it is no use."""
    weights = graph(np.random.default_rng(0), 5)
    weights[1, 2] = np.nan
    assert np.isnan(closure(weights).value).all()
