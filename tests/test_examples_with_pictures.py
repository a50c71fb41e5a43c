"""The programs of docs/examples that draw: each prints what its page says and writes its picture,
and what it computes is right in the eyes of other people's code.
"""

import fnmatch
import graphlib
import importlib
import itertools
import os
import pathlib
import re
import shutil

import jax
import networkx as nx
import numpy as np
import pytest
import scipy.optimize

from .helpers import python
from .house import ROOT
from .sweep import times

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "docs/examples"
LARGEST = 60_000


@pytest.fixture(autouse=True)
def _as_users_have_it():
    """JAX's default configuration; a program that needs 64 bits says so."""
    with (
        jax.enable_x64(False),
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
    ):
        yield


ARGUMENTS = {
    "crf_tagger.py": [],
    "ffi_kernel.py": ["--size=200"],
    "grid_decisions.py": [],
    "shortest_path_layer.py": [],
    "tropical_attention.py": ["--steps=500"],
}
NUMBER = re.compile(r"\d+(?:\.\d+)?")


def alike(line, shown, tolerance):
    """The same words; numbers that training gives may differ between releases."""
    words, numbers = (
        [use(text) for text in (line, shown)]
        for use in (lambda text: NUMBER.sub("#", text.strip()), NUMBER.findall)
    )
    return words[0] == words[1] and np.allclose(*np.array(numbers, float), rtol=tolerance, atol=0)


@pytest.mark.parametrize("program", ARGUMENTS)
def test_a_program_prints_what_the_page_says_and_draws(program, tmp_path):
    if program == "ffi_kernel.py":
        needs_a_compiler()
    arguments = [*ARGUMENTS[program], f"--picture={tmp_path / 'new.png'}"]
    environment = {"XLA_FLAGS": "", "PYTHONPATH": f"{ROOT}:{os.environ.get('PYTHONPATH')}"}
    shown = python(EXAMPLES / program, *arguments, is_silent=True, **environment)
    page = (EXAMPLES / "README.md").read_text()
    (wanted,) = re.findall(rf"^\| \[{program}\]\({program}\).*\| `([^`]*)` \|$", page, re.MULTILINE)
    tolerance = 9 if "--steps=500" in ARGUMENTS[program] else 0.34
    printed = shown.splitlines()
    assert any(alike(line, wanted, tolerance) for line in printed), shown
    if program == "tropical_attention.py":  # on the largest graphs
        ours, others = (float(NUMBER.findall(line)[-2]) for line in printed)
        assert ours < 0.7 * others
    picture = pathlib.Path("docs/images", program).with_suffix(".png")
    assert f"../images/{picture.name}" in page
    for path in (tmp_path / "new.png", ROOT / picture):
        assert path.read_bytes()[:4] == b"\x89PNG"
        assert path.stat().st_size < LARGEST


# A C++ kernel


def needs_a_compiler():
    if not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("no C++ compiler")


@pytest.fixture(scope="module")
def ffi_kernel(tmp_path_factory):
    needs_a_compiler()
    module = importlib.import_module("ffi_kernel")
    module.by_function = jax.jit(lambda x, up: module.isotonic(x, increasing=up), static_argnums=1)
    for size in SIZES:
        for up in (True, False):
            module.by_function(np.zeros(size, np.float32), up)
    module.add_kernel(tmp_path_factory.mktemp("kernel"))
    return module


SIZES = (1, 2, 7, 40)


@pytest.mark.parametrize("up", [True, False])
def test_isotonic_fits_are_those_of_scipy(ffi_kernel, up):
    by_kernel = jax.jit(lambda x: ffi_kernel.isotonic(x, increasing=up))
    rng = np.random.default_rng(0)
    for size in SIZES:
        for x in [*rng.normal(size=(times(5), size)), rng.integers(3, size=size)]:
            x = np.float32(x)
            want = scipy.optimize.isotonic_regression(x, increasing=up).x
            np.testing.assert_allclose(by_kernel(x), want, rtol=1e-6, atol=1e-7)
            np.testing.assert_allclose(ffi_kernel.by_function(x, up), want, rtol=1e-5, atol=1e-5)
        (rows,) = rng.normal(size=(1, 3, size)).astype(np.float32)
        for row, fit in zip(rows, jax.vmap(by_kernel)(rows)):
            np.testing.assert_array_equal(by_kernel(row), fit)


def test_the_gradient_of_isotonic_fits_by_differences_of_scipy(ffi_kernel):
    fits, gradient = ffi_kernel.judged(ffi_kernel.noisy(30, rows=2))
    assert fits < 1e-6
    assert gradient < 1e-4
    for some_nan in (np.full(3, np.nan, np.float32), np.float32([1, np.nan, 0])):
        assert np.isnan(ffi_kernel.isotonic(some_nan)).all()


def test_without_a_compiler_the_program_says_so(ffi_kernel, monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(SystemExit, match="No C\\+\\+ compiler 'no-such-compiler': install g"):
        ffi_kernel.add_kernel(tmp_path)


# Decisions on a grid


def test_routes_and_losses_against_all_routes_of_the_grid():
    """SPO+ by its definition, and its gradient by PyEPO's formula, twice the difference of routes."""
    grid = importlib.import_module("grid_decisions")
    edge = dict(zip(zip(*map(np.asarray, (grid.GRID.senders, grid.GRID.receivers))), range(40)))
    routes = np.zeros((70, 40))
    for row, downs in zip(routes, itertools.combinations(range(8), 4)):
        node = 0
        for turn in range(8):
            after = node + (grid.SIDE if turn in downs else 1)
            row[edge[node, after]], node = 1, after
    known = grid.days(3, 4, seed=5)
    for costs, guess in zip(
        np.asarray(known.costs), np.random.default_rng(0).normal(3, 2, (3, 40))
    ):
        best, other = (routes[np.argmin(routes @ x)] for x in (costs, 2 * guess - costs))
        np.testing.assert_allclose(grid.least_cost(costs), (routes @ costs).min(), rtol=1e-6)
        np.testing.assert_array_equal(grid.route(costs), best)
        loss, slope = jax.value_and_grad(grid.spo_plus)(guess.astype(np.float32), costs)
        want = (routes @ (costs - 2 * guess)).max() + 2 * guess @ best - costs @ best
        np.testing.assert_allclose(loss, want, rtol=1e-5)
        np.testing.assert_allclose(slope, 2 * (best - other), atol=1e-5)


# A shortest path as a layer


def test_a_learned_map_against_dijkstra_and_networkx():
    layer = importlib.import_module("shortest_path_layer")
    maps = layer.maps(2, 12, seed=3)
    learned = layer.learned_times(layer.eqx.nn.MLP(3, "scalar", 8, 1, key=jax.random.key(1)), maps)
    assert np.isinf(learned).any()
    np.testing.assert_allclose(layer.least_times(learned), layer.dijkstra(learned), rtol=1e-6)
    taken = layer.time_taken(learned, maps.times)
    for graph, real, chosen in zip(taken, maps.times, np.asarray(learned)):
        roads = nx.from_numpy_array(
            np.where(np.isfinite(chosen), chosen, 0), create_using=nx.DiGraph
        )
        for source, target in itertools.permutations(range(12), 2):
            path = nx.dijkstra_path(roads, source, target)
            want = sum(real[road] for road in itertools.pairwise(path))
            assert graph[source, target] == pytest.approx(want, rel=1e-5)


# A conditional random field


def test_a_tagger_against_crfsuite(tmp_path):
    """Its weights give the same tags, chances and likelihoods in both; our training finds a loss
    that is no greater.
    """
    judge = pytest.importorskip("pycrfsuite")
    crf = importlib.import_module("crf_tagger")
    known, new = crf.lines(fnmatch), crf.lines(graphlib)

    def items(lines):
        for seen, tags, inside in zip(lines.seen, lines.tags, lines.inside):
            names = [[f"{i}:{code}" for i, code in enumerate(near)] for near in seen[inside]]
            yield names, [crf.TAGS[tag] for tag in tags[inside]]

    every = dict.fromkeys(("feature.possible_states", "feature.possible_transitions"), True)
    trainer = judge.Trainer(verbose=False)
    trainer.set_params({"c1": 0, "c2": 1.0, "max_iterations": 300, **every})
    for line in items(known):
        trainer.append(*line)
    trainer.train(str(tmp_path / "model"))
    tagger = judge.Tagger()
    tagger.open(str(tmp_path / "model"))
    weights = tagger.info()
    theirs = crf.Model(
        np.zeros((len(crf.NEAR), crf.CHARACTERS, len(crf.TAGS)), np.float32),
        np.zeros((len(crf.TAGS), len(crf.TAGS)), np.float32),
    )
    for (name, tag), weight in weights.state_features.items():
        theirs.seen[(*map(int, name.split(":")), crf.TAGS.index(tag))] = weight
    for pair, weight in weights.transitions.items():
        theirs.follows[tuple(map(crf.TAGS.index, pair))] = weight
    found = crf.chains(theirs, new)
    best, chances = np.asarray(found.best().states), np.asarray(found.marginals().states)
    likelihoods = np.asarray(found.log_prob(new.tags))
    for line, (names, right) in enumerate(items(new)):
        tagger.set(names)
        assert tagger.tag() == [crf.TAGS[tag] for tag in best[line, : len(names)]]
        assert np.log(tagger.probability(right)) == pytest.approx(likelihoods[line], abs=2e-3)
        for place in range(0, len(names), 5):
            want = [tagger.marginal(tag, place) for tag in crf.TAGS]
            np.testing.assert_allclose(chances[line, place], want, atol=1e-3)
    loss = trainer.logparser.last_iteration["loss"]
    assert crf.loss(theirs, known) == pytest.approx(loss, rel=1e-3)
    assert crf.loss(crf.train(known, 100), known) < 1.001 * loss


# Tropical attention


def test_tropical_attention_is_the_naive_form_with_less_memory():
    layer = importlib.import_module("tropical_attention")
    q, k, v = np.random.default_rng(0).normal(size=(3, 2, 3, 20, 8)).astype(np.float32)
    distance = [
        [np.ptp(q[..., i, :] - k[..., j, :], axis=-1) for j in range(20)] for i in range(20)
    ]
    want = (v[..., None, :, :] - np.transpose(distance, (2, 3, 0, 1))[..., None]).max(-2)
    np.testing.assert_allclose(layer.tropical(q, k, v), want, rtol=1e-5, atol=1e-5)
    gradients = [
        jax.grad(lambda *qkv, f=f: (f(*qkv) ** 2).sum(), (0, 1, 2))(q, k, v)
        for f in (layer.tropical, layer.naive)
    ]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), *gradients)
    told = layer.compare((2, 64, 8))
    before, after = map(int, re.search(r"gradient .* (\d+) -> (\d+) MiB", told).groups())
    assert after <= before


def test_the_shortest_paths_to_learn_against_networkx():
    given, lengths = importlib.import_module("tropical_attention").graphs(1, 5, seed=4)
    roads = nx.Graph()
    for i, (x, y, entry) in enumerate(given[0].tolist()):
        roads.add_edge("source", i, weight=entry)
        for j in range(i):
            roads.add_edge(i, j, weight=np.abs(given[0, j, :2] - [x, y]).max())
    want = nx.single_source_dijkstra_path_length(roads, "source")
    np.testing.assert_allclose(lengths[0], [want[i] for i in range(5)], rtol=1e-6)
