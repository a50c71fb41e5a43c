"""What the ops of paths take and give, by name."""

from __future__ import annotations

from typing import NamedTuple

import jax


class PathInputs(NamedTuple):
    """The arrays of a search in a graph of n nodes and E edges.

    Attributes:
      senders: int32 (E,), the node where each edge begins.
      receivers: int32 (E,), where it leads.
      weights: (E,).
      sources: int32 (S,), where paths begin; a scalar for one.
      targets: int32 (K,), to which paths are wanted; empty for all nodes.
    """

    senders: jax.Array
    receivers: jax.Array
    weights: jax.Array
    sources: jax.Array
    targets: jax.Array


class PathOutputs(NamedTuple):
    """What a search finds from each source.

    Attributes:
      values: (n,), of the best path to each node.
      last: int32 (n,), the last edge of this path; -1 where there is none.
    """

    values: jax.Array
    last: jax.Array


class TreeInputs(NamedTuple):
    """The arrays of sums along the trees of S sources.

    Attributes:
      last: int32 (S, n), as a search gives it.
      senders: int32 (E,).
      x: (E,), or (S, n) for sums onto the edges.
    """

    last: jax.Array
    senders: jax.Array
    x: jax.Array
