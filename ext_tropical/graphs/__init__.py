"""Graphs: paths between nodes, in dense matrices and in lists of edges.

`all_pairs`
    `closure`: the best walks between all nodes of a matrix.
`paths`
    `EdgeGraph`, `shortest_paths`, `sparse_matvec`: edges as arrays.
`k_paths`
    `k_shortest_paths`: the k best paths between two nodes. `path_counts`: `count_shortest_paths`,
    how many best ones there are.
`path_op`
    The ops of searches and of sums along their trees, with their gradients. `path_inputs`: what
    they take and give by name; `path_search` and `path_trees`: the two in standard ops.
`segments`
    `segment_max`, `segment_min`: the best entry of each group, and which one it is.
"""

from .all_pairs import ClosureResult, closure
from .k_paths import KShortestPaths, k_shortest_paths
from .path_counts import count_shortest_paths
from .paths import EdgeGraph, ShortestPaths, shortest_paths, sparse_matvec
from .segments import Segments, segment_max, segment_min

__all__ = [
    "ClosureResult",
    "EdgeGraph",
    "KShortestPaths",
    "Segments",
    "ShortestPaths",
    "closure",
    "count_shortest_paths",
    "k_shortest_paths",
    "segment_max",
    "segment_min",
    "shortest_paths",
    "sparse_matvec",
]
