"""Graphical models: what can be asked of a network of tables.

`network`
    `Network`, a method for each question.
`factors`
    Tables and their variables: made, read, changed, printed. `variables`: names and their checks;
    `uai`: files.
`answers`
    Questions that need more than one einsum: samples, the k best, shares.
`counts`
    Exact numbers of assignments, in NumPy.
`relative`
    Scores less constants, which change no probability.
`chain_form`
    A network that is a chain, as `ext_tropical.sequences` takes it.
"""

from .network import Network

__all__ = ["Network"]
