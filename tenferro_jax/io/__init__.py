"""Graphs and exported programs as files.

`wire`
    A graph as bytes and back: `graph_writer` writes records, `graph_reader` reads them.
`export`, `exported`
    Programs as StableHLO: how they are made, and how they are read.
`container`
    What both kinds of files have in common, and the `Limits` of a reader.
`trees`
    Pytrees of arguments and results, and the names of their classes in files.
"""

from .container import Limits
from .trees import register_pytree_name

__all__ = ["Limits", "register_pytree_name"]
