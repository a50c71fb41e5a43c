"""What is an index or a bool for Python or NumPy is one here, and what names a variable: text and
integers of either, members of an Enum.
"""

import enum
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from ext_tropical import (
    Chain,
    Network,
    align,
    log_sum_exp,
    plan_tropical_einsum,
    tropical_einsum,
    tropical_reduce_sum,
)
from ext_tropical.graphs.paths import EdgeGraph, shortest_paths
from ext_tropical.graphs.segments import segment_max
from ext_tropical.sequences.ctc import ctc_loss
from tenferro_jax.errors import ArtifactError, DTypeError, InvalidConfig

from ..helpers import close, ends_in, equal

RNG = np.random.default_rng(19)
TABLES = RNG.normal(size=(3, 2, 2)).astype(np.float32)
Coin = enum.Enum("Coin", "red green blue")
Letter = enum.Enum("Letter", {"x": "x", "y": "y", "z": "z"}, type=str)
Place = enum.IntEnum("Place", "first second third")
KINDS = {
    "numpy_text": [*np.array(["x", "y", "z"])],
    "numpy_integers": [*np.arange(3)],
    "members": [*Coin],
    "text_members": [*Letter],
    "integer_members": [*Place],
}
TWO = [np.int64(2), np.uint8(2), np.array(2), jnp.int32(2)]


def ring(names, tables=TABLES):
    edges = zip(names, [*names[1:], names[0]], strict=True)
    return Network.from_factors(zip(edges, tables, strict=True))


def scores(tables):
    """By every assignment of the ring."""
    found = {}
    for x, y, z in itertools.product(range(2), repeat=3):
        found[x, y, z] = tables[0][x, y] + tables[1][y, z] + tables[2][z, x]
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_every_kind_are_variables(kind):
    names, every = KINDS[kind], scores(TABLES)
    net = ring(names)
    best = net.best()
    assert tuple(int(best.labels[name]) for name in names) == max(every, key=every.get)
    weights = {labels: np.exp(score) for labels, score in every.items()}
    total = sum(weights.values())
    ones = [sum(w for x, w in weights.items() if x[i]) / total for i in range(3)]
    for ask in (Network.marginals, jax.jit(Network.marginals)):
        found = ask(net)
        close(*((found[name][1], p) for name, p in zip(names, ones, strict=True)), rtol=1e-5)
    left = net.given({names[0]: np.int8(1)}).sum_out(names[1])
    assert [*left.variables] == [names[2]]
    assert net.count_by([(names[0], np.arange(2))]) == {0: 4, 1: 4}
    assert [*net.sample(jax.random.key(0), np.array([2]))] == names


def test_numpy_names_become_those_of_python():
    kinds = [
        type(name) for name in (*ring(KINDS["numpy_text"]).variables, *ring(range(3)).scopes[0])
    ]
    assert kinds == [str] * 3 + [int] * 2


def test_pairs_may_have_the_same_variables_again():
    pairs = [(("a", "b"), TABLES[0]), (("a", "b"), TABLES[1]), ("a", TABLES[2, 0])]
    net, total = Network.from_factors(pairs), TABLES[0] + TABLES[1] + TABLES[2, 0][:, None]
    close((net.value(), total.max()), (net.log_partition(), np.log(np.exp(total).sum())), rtol=1e-5)
    equal((net.given([("b", 1)]).value(), total[:, 1].max()))


def test_scores_of_integers_are_counted_and_listed_exactly():
    """2**24 + 1 is no float32."""
    large = 2**24
    tables = np.array([[[large, large + 1], [0, 3]], [[0, 1], [2, 0]], [[0, 0], [1, 0]]], np.int32)
    tables[2, 1, 1] = np.iinfo(np.int32).min  # impossible
    net, every = ring("xyz", tables), scores(tables.astype(np.int64))
    possible = {labels: score for labels, score in every.items() if labels[2] * labels[0] == 0}
    top = max(possible.values())
    assert net.count() == len(possible)
    for gap in (0, 1, np.float32(2.5), np.array(large)):
        near = {labels for labels, score in possible.items() if score >= top - gap}
        assert net.count(within=gap) == len(near)
        found = [tuple(one.values()) for one in net.all_best(within=gap)]
        assert (set(found), len(found)) == (near, len(near))
    sums = Network("a,a->", *np.full((2, 2), 2**30, np.int32))
    assert sums.count(within=1) == 2
    with jax.enable_x64(True):
        ends_in(
            lambda: Network("a->", np.array([2**60, 0])).count(within=1),
            DTypeError,
            r"^Network.count: given integers whose sums may reach 1152921504606846976",
        )


def test_more_variables_than_numpy_has_letters_and_axes_are_counted():
    """70 of one value each, which no array of NumPy can have as axes."""
    names = [f"x{i}" for i in range(70)]
    tables = [((name, "y"), np.zeros((1, 2))) for name in names]
    net = Network.from_factors([*tables, ("y", np.array([0.0, 1.0]))])
    assert (net.count(), net.count(within=0), net.count(within=2)) == (2, 1, 2)
    assert net.count_by({"y": (0, 3), "x0": (5,)}) == {5: 1, 8: 1}


def test_impossible_integers_are_written_as_zeros(tmp_path):
    table = np.array([[0, 1], [np.iinfo(np.int32).min, 0]], np.int32)
    Network("ab->", table).to_uai(tmp_path / "pair.uai")
    back = Network.from_uai(tmp_path / "pair.uai")
    close((np.exp(back.tables[0]), [[1, np.e], [0, 1]]))
    (tmp_path / "seen").write_text("1 7 0")
    ends_in(
        lambda: Network.from_uai(tmp_path / "pair.uai", tmp_path / "seen"),
        InvalidConfig,
        r"^Network.from_uai, evidence .*seen: given 7; needed one of 0, 1\.$",
    )
    (tmp_path / "seen").write_text("1 1 5")
    ends_in(
        lambda: Network.from_uai(tmp_path / "pair.uai", tmp_path / "seen"),
        InvalidConfig,
        r"^Network.from_uai, evidence .*seen, variable 1: given 5; needed an integer, 0 to 1",
    )
    ends_in(lambda: Network("a->", [1e9]).to_uai(tmp_path / "no"), ArtifactError, "table 0")


@pytest.mark.few(2)
@pytest.mark.parametrize("two", TWO, ids=lambda x: type(x).__name__)
def test_what_python_takes_as_an_index_is_one(two):
    a = TABLES[0]
    chain = Chain(a[0], a, RNG.normal(size=(3, 2)).astype(np.float32))
    graph = EdgeGraph([0, 0, 1], [1, 2, 2], n=two + 1)
    paths = shortest_paths(graph, np.float32([4, 9, 3]), [0, 1, 0])
    logits = RNG.normal(size=(3, 4)).astype(np.float32)
    plan = plan_tropical_einsum("ij,jk->ik", (two, 2), (2, two), slices=two)
    assert (graph.n, plan.slices) == (3, 2)
    pairs = [
        (ring("xyz").best(k=two).value, ring("xyz").best(k=2).value),
        (chain.best(k=two).score, chain.best(k=2).score),
        (ring("xyz").given(x=two - 1).value(), ring("xyz").given(x=1).value()),
        (paths.path(two, at=two), [0, 1, 2]),
        (paths.edges(two, at=(two,)), [0, 2]),
        (align(a, gap=-1, band=two).score, align(a, gap=-1, band=2).score),
        (ctc_loss(logits, [0, 1], blank=two), ctc_loss(logits, [0, 1], blank=2)),
        (segment_max(a[0], [0, 1], two).value, a[0]),
        (tropical_reduce_sum(a, axis=two - 1), a.max(1)),
        (
            tropical_einsum("ij,jk->ik", a, a, memory_limit=np.array(10**6)),
            tropical_einsum("ij,jk->ik", a, a),
        ),
    ]
    equal(*pairs)


@pytest.mark.parametrize("yes", [np.True_, np.array(True), jnp.array(True), 1])
def test_what_is_a_bool_is_one(yes):
    a = TABLES[0]
    chain = Chain(a[0], a[:1], a, banded=yes)
    found = jax.jit(lambda chain: chain.best().score)(chain)
    equal((found, Chain(a[0], a[:1], a, banded=True).best().score))
    assert tropical_reduce_sum(a, 0, yes).shape == (1, 2)


def test_temperatures_of_numpy_leave_the_dtype_and_are_hashed():
    with jax.enable_x64(True):
        net = ring("xyz")
        for half in (np.float64(0.5), np.float32(0.5), np.array(0.5), jnp.float32(0.5)):
            found = net.log_partition(temperature=half)
            assert (found.dtype, log_sum_exp(half)) == (np.float32, log_sum_exp(0.5))
            equal((found, net.log_partition(temperature=0.5)))


def test_options_of_numpy_are_static_data():
    net = Network("ab,bc->", *TABLES[:2], memory_limit=np.array(10**6), optimize=[(0, np.int64(1))])
    equal((jax.jit(Network.value)(net), Network("ab,bc->", *TABLES[:2]).value()))


@pytest.mark.parametrize("gap", [np.int64(-1), np.float64(-1), np.array(-1), np.float16(-1)])
def test_gaps_of_numpy_take_the_dtype_of_the_scores(gap):
    with jax.enable_x64(True):
        equal((align(TABLES[0], gap=gap).score, align(TABLES[0], gap=-1).score))
    traced = jax.jit(lambda gap: align(TABLES[0], gap=gap).score)(-1)  # weak, an integer
    equal((traced, align(TABLES[0], gap=-1).score))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"gap": 8}, "align, gap: 8 makes a gap better than none under max_plus"),
        ({"gap": -1, "gap_open": np.int64(11)}, "align, gap_open: 11 makes a gap better"),
        ({"gap": -2, "semiring": "min_plus"}, "align, gap: -2 makes .* 2 makes it worse"),
    ],
)
def test_a_gap_that_is_better_than_none_is_warned_of(options, text):
    with pytest.warns(UserWarning, match=text) as warned:
        align(TABLES[0], **options)
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        align(TABLES[0], gap=jnp.float32(8))  # perhaps learned


def test_graphs_are_stacked_whether_they_are_sorted_or_not():
    graphs = [EdgeGraph([0, 0, 1], [1, 2, 2], n=3), EdgeGraph([1, 0, 0], [2, 1, 2], n=3)]
    minutes = np.float32([[4, 9, 3], [3, 4, 9]])
    stack = jax.tree.map(lambda *x: jnp.stack(x), *graphs)
    found = jax.vmap(lambda graph, w: shortest_paths(graph, w, 0).distances)(stack, minutes)
    equal((found, [[0, 4, 7], [0, 4, 7]]))
