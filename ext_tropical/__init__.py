"""Tropical tensors for JAX: einsum, models, sequences and graphs over semirings, with winners and
gradients.

Every function that a user calls is here. By subject:

- einsums: `tropical_einsum`, `tropical_einsum_with_argmax`, `best_assignment`,
  `plan_tropical_einsum`, `tropical_dot_general`, `tropical_reduce_sum`, `min_plus_dot_general`
- models: `Network`
- sequences: `Chain`, `viterbi`, `ctc_loss`, `align`, `align_symbols`
- graphs: `shortest_paths`, `k_shortest_paths`, `count_shortest_paths`, `EdgeGraph`, `closure`,
  `segment_max`, `segment_min`
- semirings: `max_plus`, `min_plus`, `max_mul`, `min_max`, `or_and`, `log_sum_exp`,
  `sum_product`; `Semiring`, `SelectiveSemiring`, `register_semiring`, `broken_laws`; the scalars
  `MaxPlus`, `MinPlus`, `MaxMul`
- for authors of graphs: `TropicalEinsum`, `register`

What these return, and functions that few need, are in the rooms: `ext_tropical.einsums`, `.models`,
`.sequences`, `.graphs`, `.semirings` and, the ops, `.steps`.
"""

from typing import TYPE_CHECKING

from tenferro_jax import __version__ as __version__
from tenferro_jax.errors import no_attribute

from .einsums.call import best_assignment, tropical_einsum, tropical_einsum_with_argmax
from .einsums.dot_general import min_plus_dot_general, tropical_dot_general, tropical_reduce_sum
from .einsums.planning import plan_tropical_einsum
from .families import register
from .graphs.all_pairs import closure
from .graphs.k_paths import k_shortest_paths
from .graphs.path_counts import count_shortest_paths
from .graphs.paths import EdgeGraph, shortest_paths
from .graphs.segments import segment_max, segment_min
from .models.network import Network
from .semirings.laws import broken_laws
from .semirings.registered import register_semiring
from .semirings.scalar import MaxMul, MaxPlus, MinPlus
from .semirings.semiring import SelectiveSemiring, Semiring
from .semirings.shipped import (
    log_sum_exp,
    max_mul,
    max_plus,
    min_max,
    min_plus,
    or_and,
    sum_product,
)
from .sequences.alignments import align
from .sequences.chain import Chain, viterbi
from .sequences.ctc import ctc_loss
from .sequences.symbol_alignments import align_symbols
from .steps.einsum_op import TropicalEinsum

__all__ = [
    "Chain",
    "EdgeGraph",
    "MaxMul",
    "MaxPlus",
    "MinPlus",
    "Network",
    "SelectiveSemiring",
    "Semiring",
    "TropicalEinsum",
    "align",
    "align_symbols",
    "best_assignment",
    "broken_laws",
    "closure",
    "count_shortest_paths",
    "ctc_loss",
    "k_shortest_paths",
    "log_sum_exp",
    "max_mul",
    "max_plus",
    "min_max",
    "min_plus",
    "min_plus_dot_general",
    "or_and",
    "plan_tropical_einsum",
    "register",
    "register_semiring",
    "segment_max",
    "segment_min",
    "shortest_paths",
    "sum_product",
    "tropical_dot_general",
    "tropical_einsum",
    "tropical_einsum_with_argmax",
    "tropical_reduce_sum",
    "viterbi",
]

ROOMS = ("einsums", "models", "sequences", "graphs", "semirings", "steps")
"""The packages whose public names are not all here."""

if not TYPE_CHECKING:  # a checker of types would take every name

    def __getattr__(name: str) -> object:
        """Says in which room a name is."""
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])
