"""Graphs of ops and their parts. Re-exports only."""

from ..dimensions import Guard
from .builder import GraphBuilder, Value
from .graph import Node

__all__ = ["GraphBuilder", "Guard", "Node", "Value"]
