"""Maximum independent sets of named graphs: one max-plus einsum, an operand (0, weight) a node and
one a forbidden pair.

The size is its value, the set is its best assignment, and its gradient by the weights is the set's
indicator.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import networkx as nx
from opt_einsum import get_symbol

from ext_tropical import best_assignment, tropical_einsum

# Independence numbers as E. W. Weisstein's MathWorld lists them, graph by graph.
KNOWN = {
    "chvatal": 4,
    "desargues": 10,
    "dodecahedral": 8,
    "frucht": 5,
    "heawood": 7,
    "icosahedral": 3,
    "moebius_kantor": 8,
    "pappus": 9,
    "petersen": 4,
    "tutte": 19,
}


def named_graph(name: str) -> nx.Graph:
    """The graph that networkx gives by this name."""
    return getattr(nx, f"{name}_graph")()


def network(graph: nx.Graph, weights: Any) -> list[Any]:
    """The arguments of an einsum to a scalar. The label of a node is 1 in the set: then it has its
    weight; both ends of an edge -inf.
    """
    label = {node: get_symbol(i) for i, node in enumerate(graph)}
    not_both = jnp.asarray([[0, 0], [0, -jnp.inf]], weights.dtype)
    nodes = [jnp.stack([jnp.zeros_like(weight), weight]) for weight in weights]
    terms = [*label.values(), *(label[a] + label[b] for a, b in graph.edges)]
    return [",".join(terms) + "->", *nodes, *[not_both] * graph.number_of_edges()]


def maximum_independent_set(graph: nx.Graph, weights: Any) -> tuple[Any, list[Any]]:
    """The greatest total weight of an independent set, and the nodes of one such set. `weights` is
    (nodes,), in their order.
    """
    best = best_assignment(*network(graph, weights))
    return best.value, [node for i, node in enumerate(graph) if best.labels[get_symbol(i)]]


def indicator(graph: nx.Graph, weights: Any) -> Any:
    """The gradient of the greatest total weight by the weights: 1.0 for the nodes of one
    best set.
    """
    return jax.grad(lambda weights: tropical_einsum(*network(graph, weights)))(weights)


def main() -> None:
    """A line for each graph, with its set."""
    for name, known in KNOWN.items():
        graph = named_graph(name)
        size, nodes = maximum_independent_set(graph, jnp.ones(len(graph)))
        print(
            f"{name:>14}: {size:2.0f} of {len(graph):2} nodes, known {known:2}: "
            f"{' '.join(map(str, nodes))}"
        )


if __name__ == "__main__":
    main()
