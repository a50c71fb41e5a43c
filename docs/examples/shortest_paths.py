"""All-pairs shortest paths in the network of characters of Les Miserables: the closure of a
min-plus matrix.

Paths come from the winners; the gradient of the sum of all distances counts how many shortest paths
take each edge.
"""

from __future__ import annotations

from typing import Any

import jax
import networkx as nx
import numpy as np

from ext_tropical import closure, min_plus
from ext_tropical.graphs import ClosureResult


def characters() -> tuple[list[str], np.ndarray]:
    """Names and lengths of edges, float64 (77, 77), inf where there is none: 1 / (chapters in which
    both appear).

    D. E. Knuth, The Stanford GraphBase, 1993; networkx ships the counts.
    """
    graph = nx.les_miserables_graph()
    counts = nx.to_numpy_array(graph)
    return list(graph), np.divide(1, counts, out=np.full_like(counts, np.inf), where=counts > 0)


def path(paths: ClosureResult, source: int, target: int) -> list[int]:
    """The nodes of a shortest path."""
    return paths.walk(source, target).tolist()


def uses(lengths: Any) -> Any:
    """How many of the shortest paths, one for each ordered pair, take each edge: the gradient of
    the sum of distances, (n, n).
    """
    return jax.grad(lambda lengths: closure(lengths, semiring=min_plus).value.sum())(lengths)


def main() -> None:
    """One path, and the nodes that most paths pass through."""
    with jax.enable_x64(True):
        names, lengths = characters()
        paths = closure(lengths, semiring=min_plus)
        source, target = names.index("Napoleon"), names.index("Jondrette")
        on_the_way = " - ".join(names[node] for node in path(paths, source, target))
        print(f"Napoleon to Jondrette: {paths.value[source, target]:.4f} by {on_the_way}")
        ends = (
            len(names) - 1
        )  # of the paths that enter a node, one from every other node ends there
        passing = np.asarray(uses(lengths)).sum(0) - ends
        for node in np.argsort(-passing, stable=True)[:5]:
            print(
                f"{names[node]:>12} is inside {passing[node]:4.0f} of {len(names) * ends} "
                f"shortest paths"
            )


if __name__ == "__main__":
    main()
