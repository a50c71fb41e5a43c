"""Graphs of ops.

`graph`
    `Graph`, `Node`, `Value`: flat and immutable.
`builder`
    A jaxpr becomes a graph; `primitives`: which JAX primitive becomes which op. `signature`: dtypes
    and shapes of outputs.
`verify`
    Which graphs are well formed, a table of rules.
`passes`
    Rewrites that XLA does not make.
`printing`, `pictures`
    Graphs as text and as boxes.
"""

from ..dimensions import Guard
from . import primitives as primitives  # fills the table of JAX primitives that a builder reads
from .builder import GraphBuilder, Value
from .graph import Node

__all__ = ["GraphBuilder", "Guard", "Node", "Value"]
