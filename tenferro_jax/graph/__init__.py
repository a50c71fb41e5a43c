"""Graphs of ops and their parts. Re-exports only."""

from ..dimensions import Guard
from . import primitives as primitives  # fills the table of JAX primitives that a builder reads
from .builder import GraphBuilder, Value
from .graph import Node

__all__ = ["GraphBuilder", "Guard", "Node", "Value"]
