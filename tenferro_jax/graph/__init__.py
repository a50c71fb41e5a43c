"""Graphs of ops and their parts. Re-exports only."""

from ..dimensions import Guard
from .builder import Value
from .graph import Node

__all__ = ["Guard", "Node", "Value"]
