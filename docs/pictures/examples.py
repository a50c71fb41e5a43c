"""The pictures of examples that draw none themselves; `docs.pictures.draw` saves them."""

import itertools
import pathlib
import sys
from collections.abc import Iterator

import jax
import matplotlib.pyplot as plt
import networkx as nx
import numpy as np
from matplotlib.figure import Figure

from ext_tropical import closure, min_plus

sys.path.append(str(pathlib.Path(__file__).parent.parent / "examples"))

import independent_sets
import sequence_alignment
import shortest_paths
import spin_glass
import viterbi_decoding


def graph_picture(graph: nx.Graph, places: dict, chosen: list, edges: list) -> Figure:
    """A graph with some of its nodes and edges in red."""
    figure, axes = plt.subplots(figsize=(6, 3.6))
    colors = ["C3" if node in set(chosen) else "0.75" for node in graph]
    nx.draw_networkx_edges(graph, places, ax=axes, edge_color="0.85")
    nx.draw_networkx_edges(graph, places, edges, ax=axes, edge_color="C3", width=2)
    nx.draw_networkx_nodes(graph, places, ax=axes, node_color=colors, node_size=50)
    axes.axis("off")
    return figure


def pictures() -> Iterator[tuple[str, Figure]]:
    """Name and picture of each."""
    names, lengths = shortest_paths.characters()
    graph = nx.les_miserables_graph()
    way = closure(np.float32(lengths), semiring=min_plus)
    found = shortest_paths.path(way, names.index("Napoleon"), names.index("Jondrette"))
    on_it = [names[node] for node in found]
    places = nx.spring_layout(graph, seed=1)
    figure = graph_picture(graph, places, on_it, list(itertools.pairwise(on_it)))
    for name in on_it:
        figure.axes[0].annotate(name, places[name], fontsize=9)
    yield "shortest_paths", figure

    graph = independent_sets.named_graph("tutte")
    _, nodes = independent_sets.maximum_independent_set(graph, np.ones(len(graph), np.float32))
    yield "independent_sets", graph_picture(graph, nx.kamada_kawai_layout(graph), nodes, [])

    bonds = spin_glass.square_lattice(6, 6)
    (couplings,) = spin_glass.random_couplings(bonds, samples=1, seed=0)
    _, spins = spin_glass.ground_state(bonds, couplings)
    costly = np.asarray(spin_glass.unsatisfied(bonds, couplings))
    figure, axes = plt.subplots(figsize=(3.6, 3.6))
    for (a, b), bad in zip(bonds.tolist(), costly):
        (y, v), (x, u) = np.divmod([a, b], 6)
        axes.plot([x, u], [y, v], color="C3" if bad else "0.8", linewidth=3 if bad else 2, zorder=0)
    rows, columns = np.divmod(np.arange(36), 6)
    axes.scatter(columns, rows, c=np.where(spins > 0, "black", "white"), edgecolors="black", s=90)
    axes.axis("off")
    yield "spin_glass", figure

    with jax.enable_x64(True):
        _, dice = viterbi_decoding.by_scan(viterbi_decoding.casino(viterbi_decoding.ROLLS))
    figure, axes = plt.subplots(figsize=(8, 2))
    rolls = [int(roll) for roll in viterbi_decoding.ROLLS]
    axes.plot(rolls, ".", markersize=3, label="roll")
    axes.fill_between(range(len(dice)), 0.5, 6.5, where=np.equal(dice, 1), alpha=0.3, color="C3")
    axes.set(xlabel="the rolls; red: decoded as loaded", ylabel="face")
    yield "viterbi_decoding", figure

    first, second = sequence_alignment.ALPHA, sequence_alignment.BETA
    scores = sequence_alignment.pair_scores(first, second)
    path = sequence_alignment.columns(scores, 8)
    pairs = path[path.min(1) >= 0]
    figure, axes = plt.subplots(figsize=(5, 4.6))
    axes.imshow(scores, cmap="Greys", vmin=0)
    axes.plot(pairs[:, 1], pairs[:, 0], "C3.", markersize=2)
    axes.set(xlabel="beta chain", ylabel="alpha chain")
    yield "sequence_alignment", figure
