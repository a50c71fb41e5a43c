"""Graphical models: what can be asked of a network of tables.

`network`
    `Network`, a method for each question.
`factors`
    Tables and their variables: made, read, changed, printed. `variables`: names and their checks;
    `uai`: files.
`answers`
    Questions that need more than one einsum: samples, the k best, shares.
`factor_sums`
    Sums of products of the tables as they are, and their logs.
`counts`
    Exact numbers of assignments, in NumPy.
`bounds`, `optimum`
    Bounds of the best score, and the best assignment by them, for networks that are too wide to be
    eliminated. `certificate`: a judge of bounds in fractions.
`toulbar2`
    The best assignment by toulbar2, which searches. `toulbar2_process`: its process.
`relative`
    Scores less constants, which change no probability.
`chain_form`
    A network that is a chain, as `ext_tropical.sequences` takes it.
"""

from .bounds import Bounds
from .certificate import certificate_problem
from .factor_sums import SignAndLog
from .network import Network

__all__ = ["Bounds", "Network", "SignAndLog", "certificate_problem"]
