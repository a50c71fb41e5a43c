"""The programs of docs/examples print what their page says, and what they compute is right in the
eyes of other people's code.
"""

import importlib
import itertools
import re
import runpy

import bayesian_network
import independent_sets
import jax
import networkx as nx
import numpy as np
import pytest
import shortest_paths
import spin_glass
import viterbi_decoding

from ext_tropical import Chain

from .helpers import python
from .house import ROOT
from .sweep import times

pytestmark = pytest.mark.slow

EXAMPLES = ROOT / "docs/examples"
PROGRAMS = sorted(
    path.name
    for path in EXAMPLES.glob("*.py")
    if "def main()" in path.read_text() and "--picture" not in path.read_text()
)  # those with pictures have a file of their own


# Spin glasses


def around_squares(rows, columns, bonds):
    """The product of what the four bonds of each square have."""
    split = rows * (columns - 1)
    across, down = (
        bonds[:split].reshape(rows, columns - 1),
        bonds[split:].reshape(rows - 1, columns),
    )
    return across[:-1] * across[1:] * down[:, :-1] * down[:, 1:]


def least_energy_of_a_planar_lattice(rows, columns, couplings):
    """The bonds that cost energy are a least-weight matching of the frustrated squares, by way of
    squares and the outside.
    """
    neighbours = nx.Graph()
    for r, c in np.ndindex(rows, columns - 1):
        neighbours.add_edge((r - 1, c) if r else "outside", (r, c) if r < rows - 1 else "outside")
    for r, c in np.ndindex(rows - 1, columns):
        neighbours.add_edge(
            (r, c - 1) if c else "outside", (r, c) if c < columns - 1 else "outside"
        )
    frustrated = [
        tuple(square)
        for square in np.argwhere(around_squares(rows, columns, couplings) < 0).tolist()
    ]
    if len(frustrated) % 2:
        frustrated.append("outside")
    steps = dict(nx.all_pairs_shortest_path_length(neighbours))
    pairs = nx.Graph()
    pairs.add_weighted_edges_from(
        (a, b, steps[a][b]) for a, b in itertools.combinations(frustrated, 2)
    )
    return -len(couplings) + 2 * sum(steps[a][b] for a, b in nx.min_weight_matching(pairs))


def judge_printed_energies(printed):
    """The mean of integers that are each at least the least: one that is not would show in the
    fourth place.
    """
    for line in printed[:2]:
        size, mean = re.fullmatch(
            r"(\d) x \1: the ground states of 100 samples have (\S+) energy a spin", line
        ).groups()
        size = int(size)
        couplings = spin_glass.random_couplings(
            spin_glass.square_lattice(size, size), samples=100, seed=0
        )
        least = [least_energy_of_a_planar_lattice(size, size, sample) for sample in couplings]
        assert mean == f"{np.mean(least) / size**2:.4f}"


def test_the_gradient_tells_the_unsatisfied_bonds():
    """Any set of bonds that is odd around the frustrated squares alone belongs to some spins; as
    few as these, to a ground state.
    """
    bonds = spin_glass.square_lattice(4, 4)
    for couplings in spin_glass.random_couplings(bonds, times(10), seed=2):
        costly = np.asarray(spin_glass.unsatisfied(bonds, couplings))
        np.testing.assert_array_equal(
            around_squares(4, 4, 1 - 2 * costly.astype(int)), around_squares(4, 4, couplings)
        )
        assert 2 * costly.sum() - len(bonds) == least_energy_of_a_planar_lattice(4, 4, couplings)


# Independent sets


def judge_printed_sets(printed):
    """They are independent, and as large as the literature says."""
    assert len(printed) == len(independent_sets.KNOWN) == 10
    for line in printed:
        name, *numbers, members = re.fullmatch(
            r" *(\w+): +(\d+) of +(\d+) nodes, known +(\d+): ([\d ]+)", line
        ).groups()
        nodes = set(map(int, members.split()))
        graph = independent_sets.named_graph(name)
        assert list(map(int, numbers)) == [len(nodes), len(graph), len(nodes)]
        assert nodes <= set(graph)
        assert not graph.subgraph(nodes).edges


# Shortest paths


def test_the_gradient_counts_the_paths_through_an_edge():
    """Lengths without ties, so that the shortest paths are those of networkx, and its counts by
    Brandes' algorithm the judge.
    """
    _, lengths = shortest_paths.characters()
    noise = np.random.default_rng(0).uniform(1, 1.01, lengths.shape)
    lengths = lengths * (noise + noise.T)
    uses = np.asarray(shortest_paths.uses(lengths))
    graph = nx.from_numpy_array(np.where(np.isinf(lengths), 0, lengths))
    want = np.zeros_like(lengths)
    for edge, count in nx.edge_betweenness_centrality(
        graph, normalized=False, weight="weight"
    ).items():
        want[edge] = want[edge[::-1]] = count
    np.testing.assert_allclose(uses, want, atol=1e-9)


# Alignment of sequences


def random_sequence(rng, length):
    return "".join(rng.choice(list("ARNDCQEGHILKMFPSTVWY"), length))


def test_alignment_against_biopython():
    gap = 4.0
    judge = pytest.importorskip("Bio.Align")
    sequence_alignment = importlib.import_module("sequence_alignment")  # which imports it too
    rng = np.random.default_rng(0)
    cases = [
        (sequence_alignment.ALPHA, sequence_alignment.BETA),
        *((random_sequence(rng, 12), random_sequence(rng, 9)) for _ in range(times(5))),
    ]
    aligner = judge.PairwiseAligner(
        mode="global", substitution_matrix=judge.substitution_matrices.load("BLOSUM62")
    )
    aligner.gap_score = -gap
    for first, second in cases:
        scores = sequence_alignment.pair_scores(first, second)
        path = sequence_alignment.columns(scores, gap)
        pairs = [(i, j) for i, j in path.tolist() if min(i, j) >= 0]
        assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))
        alone = len(path) - len(pairs)
        assert sum(scores[pair] for pair in pairs) - gap * alone == aligner.score(first, second)
        top, middle, bottom = sequence_alignment.lines(first, second, path)
        assert (top.replace("-", ""), bottom.replace("-", "")) == (first, second)
        assert len(top) == len(middle) == len(bottom) == len(path)
        assert middle.count("|") == sum(first[i] == second[j] for i, j in pairs)


# Bayesian networks


# Evidence, and its probability as pyAgrum 3.3.1 has it from the BIF file (it keeps entries of
# tables in float32).
ALARMS = [
    ({36: 0, 8: 2}, 0.30776427),
    ({36: 0, 8: 2, 1: 2, 25: 3, 15: 1}, 0.024045477),
    ({17: 0, 25: 3, 0: 0, 21: 2}, 0.0010225858),
]


@pytest.mark.parametrize(("evidence", "probability"), ALARMS, ids=str)
def test_alarm_has_the_published_probabilities(evidence, probability):
    network = bayesian_network.read("alarm").network
    assert len(network.variables) == 37
    assert np.exp(network.given(evidence).log_partition()) == pytest.approx(probability, rel=3e-7)


# Hidden Markov models


def random_chain(rng, states, symbols, steps):
    initial, *transition = rng.dirichlet(np.ones(states), states + 1)
    faces = rng.dirichlet(np.ones(symbols), states)
    return initial, np.array(transition), faces, rng.integers(symbols, size=steps)


def test_decoding_against_hmmlearn():
    hmm = pytest.importorskip("hmmlearn.hmm")
    rng = np.random.default_rng(0)
    casino = (
        viterbi_decoding.INITIAL,
        viterbi_decoding.TRANSITION,
        viterbi_decoding.FACES,
        np.array(list(viterbi_decoding.ROLLS), int) - 1,
    )
    for initial, transition, faces, seen in [
        casino,
        *(random_chain(rng, 4, 5, 50) for _ in range(times(5))),
    ]:
        judge = hmm.CategoricalHMM(n_components=len(initial), n_features=faces.shape[1])
        judge.startprob_, judge.transmat_, judge.emissionprob_ = initial, transition, faces
        want, states = judge.decode(seen[:, None], algorithm="viterbi")
        chain = viterbi_decoding.Chain(
            np.log(initial), np.log(transition), np.log(faces[:, seen].T)
        )
        score, found = viterbi_decoding.by_scan(chain)
        assert score == pytest.approx(want, rel=1e-12)
        assert found == states.tolist()
        posterior = Chain(*chain).marginals()
        assert posterior.log_partition == pytest.approx(judge.score(seen[:, None]), rel=1e-12)
        np.testing.assert_allclose(posterior.states, judge.predict_proba(seen[:, None]), atol=1e-9)


def test_one_einsum_finds_the_same_path():
    chain = viterbi_decoding.casino(viterbi_decoding.ROLLS[:40])
    score, states = viterbi_decoding.by_scan(chain)
    again, found = viterbi_decoding.by_one_einsum(chain)
    assert again == pytest.approx(score, rel=1e-13)
    assert found == states


# The programs

JUDGES = {"independent_sets.py": judge_printed_sets, "spin_glass.py": judge_printed_energies}


def judge_page(program, printed):
    (shown,) = re.findall(
        rf"^\| \[{program}\]\({program}\) \|.*\| `([^`]*)` \|$",
        (EXAMPLES / "README.md").read_text(),
        re.MULTILINE,
    )
    assert shown in map(str.strip, printed)


@pytest.mark.parametrize(
    "program", [p for p in PROGRAMS if p != "shortest_paths.py"]
)  # that one runs below
def test_a_program_prints_what_the_page_says(program, capsys):
    if program == "sequence_alignment.py":
        pytest.importorskip("Bio")
    with jax.enable_x64(False):  # a program that needs 64 bits says so
        runpy.run_path(str(EXAMPLES / program), run_name="__main__")
    printed = capsys.readouterr().out.splitlines()
    judge_page(program, printed)
    JUDGES.get(program, len)(printed)


def test_a_program_runs_as_a_user_runs_it(tmp_path):
    program = EXAMPLES / "shortest_paths.py"
    environment = {"XLA_FLAGS": "", "PYTHONPATH": str(ROOT)}
    printed = python(program, folder=tmp_path, is_silent=True, **environment)
    judge_page("shortest_paths.py", printed.splitlines())
