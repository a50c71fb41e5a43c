"""Labels of assignments: a mapping of names over one array, under transforms and in files."""

import collections
import pickle

import chex
import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

import tenferro_jax as tj
from ext_tropical import Network, best_assignment, register, tropical_einsum_with_argmax
from ext_tropical.einsums import Labels
from tenferro_jax.errors import ShapeError

from ..helpers import ends_in

SCOPES = [("x", "b"), ("b", "y"), ("y",), ("a", "x")]
NAMES = ["x", "b", "y", "a"]


def network(seed=0, size=3):
    rng = np.random.default_rng(seed)
    tables = {scope: rng.normal(size=(size,) * len(scope)) for scope in SCOPES}
    return Network.from_factors(tables)


@pytest.mark.parametrize("shape", [(), (3,), (2, 3)])
@pytest.mark.parametrize("count", [0, 1, 5])
def test_a_mapping_of_names_in_their_order(shape, count):
    names = [(i, "of five") for i in range(count)]
    array = np.random.default_rng(0).integers(-1, 9, (*shape, count), np.int32)
    for held in (array, jnp.asarray(array)):
        labels = Labels(names, held)
        assert list(labels) == names
        assert len(labels) == count
        for place, name in enumerate(names):
            chex.assert_equal(labels[name].dtype, np.dtype("int32"))
            np.testing.assert_array_equal(labels[name], array[..., place])
        assert labels.tolist() == {x: array[..., i].tolist() for i, x in enumerate(names)}
    with pytest.raises(KeyError):
        labels["another"]


def test_other_names_in_another_order():
    labels = Labels("abc", jnp.array([[0, 1, 2], [3, 4, 5]]))
    turned = {"C": "c", "A": "a"}
    for found in (labels.renamed(turned), jax.jit(lambda x: x.renamed(turned))(labels)):
        assert found.tolist() == {"C": [2, 5], "A": [0, 3]}


@pytest.mark.parametrize("k", [None, 4])
def test_answers_of_a_network_by_any_way(k):
    """Eager, in a program, in one from a file, and for a batch: the same names in the same order."""
    net = network()
    want = net.best(k).labels
    assert list(want) == NAMES
    ask = jax.jit(lambda net: net.best(k).labels)
    exported = jax.export.export(ask)(net)
    both = jax.tree.map(lambda x, y: jnp.stack([x, y]), net, network(1))
    batched = jax.vmap(lambda net: net.best(k).labels)(both)
    first = jax.tree.map(lambda x: x[0], batched)
    for found in (ask(net), exported.call(net), first):
        assert list(found) == NAMES
        assert found.tolist() == want.tolist()
    assert jax.tree.map(lambda x: x[1], batched).tolist() == network(1).best(k).labels.tolist()


@pytest.mark.parametrize("k", [None, 2])
def test_all_labels_inside_a_program(k):
    """As items, as values, by name and as they are; closed over and as an argument."""
    net = network()
    want = net.best(k).labels.tolist()
    asks = {
        "items": lambda labels: dict(labels.items()),
        "values": lambda labels: dict(zip(labels, labels.values(), strict=True)),
        "names": dict,
        "mapped": lambda labels: jax.lax.map(lambda i: dict(labels.items()), jnp.arange(2)),
    }
    for name, ask in asks.items():
        closed = jax.jit(lambda ask=ask: ask(net.best(k).labels))()
        found = jax.jit(lambda net, ask=ask: ask(net.best(k).labels))(net)
        for got in (closed, found):
            rows = {x: y[0] if name == "mapped" else y for x, y in got.items()}
            assert {x: y.tolist() for x, y in rows.items()} == want


def test_what_a_user_maps_over_leaves():
    """All leaves of an answer have the axes of its value in front."""
    best = network().best(4)
    third = jax.tree.map(lambda x: x[2], best)
    assert third.labels.tolist() == {name: row[2] for name, row in best.labels.tolist().items()}
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *[network(i).best() for i in range(3)])
    assert stacked.value.shape == stacked.labels["y"].shape == (3,)
    _, kept = jax.lax.scan(lambda c, i: (c, best.labels), 0, jnp.arange(2))
    assert kept["y"].shape == (2, 4)
    cut = jax.tree.map(lambda x: x[..., :2], best).labels
    behind = jax.vmap(lambda net: net.best().labels, out_axes=-1)(
        jax.tree.map(lambda x, y: jnp.stack([x, y]), network(), network(1))
    )
    for labels in (cut, behind):
        assert "Labels" in repr(labels)
        for ask in (lambda x: x["y"], Labels.tolist, Labels.items, Labels.values):
            ends_in(
                lambda ask=ask, labels=labels: ask(labels), ShapeError, "names on the last axis"
            )


def test_more_variables_than_letters_of_one_case():
    """Letters beyond z come before a in the order of texts."""
    scopes = [(i, i + 1) for i in range(60)]
    tables = {scope: np.diag([0.0, 1.0 + scope[0] % 2]) for scope in [*scopes, (60, 0)]}
    net = Network.from_factors(tables)
    assert list(net.best().labels) == list(range(61))
    assert net.best().labels.tolist() == jax.jit(Network.best)(net).labels.tolist()


def test_the_interleaved_form_has_the_labels_that_were_written():
    a, b = np.arange(6.0).reshape(2, 3), np.arange(3.0)
    best = best_assignment(a, [7, 3], b, [3], [])
    assert best.labels.tolist() == {3: 2, 7: 1}


def test_labels_of_a_batch_and_of_no_candidates():
    x = jnp.arange(12.0).reshape(2, 2, 3)
    found = jax.vmap(lambda x: tropical_einsum_with_argmax("ij,kj->ik", x, x).coordinates())(x)
    assert found["j"].shape == (2, 2, 2)
    empty = tropical_einsum_with_argmax("ij,jk->ik", jnp.ones((2, 0)), jnp.ones((0, 2)))
    assert empty.coordinates().tolist() == {"j": [[-1, -1], [-1, -1]]}
    assert best_assignment("i,j->ij", x[0, 0], x[0, 0]).labels == {}


def test_a_graph_and_a_program_in_files_give_them_again(tmp_path):
    x = jnp.arange(9.0).reshape(3, 3)
    graph = tj.trace(lambda x: best_assignment("ij,jk,kl->", x, x, x).labels, x)
    register()
    read = tj.from_wire(tj.to_wire(graph))
    want = best_assignment("ij,jk,kl->", x, x, x).labels.tolist()
    assert read.to_jax()(x).tolist() == want
    exported = tj.export(lambda x: best_assignment("ij,jk,kl->", x, x, x).labels, x)
    path = tmp_path / "labels.bin"
    exported.save(path)
    assert tj.load_exported(path).call(x).tolist() == want


def test_a_pickle_a_copy_and_what_is_printed():
    best = network().best()
    assert pickle.loads(pickle.dumps(best.labels)).tolist() == best.labels.tolist()
    assert repr(best.labels) == f"Labels({best.labels.tolist()})"
    assert "Labels('a', 'b': " in str(jax.eval_shape(lambda x: Labels("ab", x), jnp.arange(2)))
    assert isinstance(best.labels, collections.abc.Mapping)
    assert dict(best.labels) == best.labels
