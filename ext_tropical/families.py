"""The families of this package, to be registered."""

from __future__ import annotations

from tenferro_jax.extension import register_extension
from tenferro_jax.extension.registry import ExtensionFactory, lookup_extension_factory

from .graphs.k_paths import PathRanking
from .graphs.path_op import PathSearch, TreeSums
from .models.toulbar2 import Toulbar2Best
from .networks.bound import NetworkBound, TablesDot
from .networks.former import Rows
from .networks.log_derivatives import (
    NetworkCurvature,
    NetworkCurvatureV1,
    NetworkShares,
    NetworkSharesV1,
)
from .networks.many import NetworkBest, NetworkSamples
from .networks.sums import NetworkSum, NetworkSumDerivative
from .networks.value import TropicalNetwork
from .networks.walk import NetworkEntries
from .semirings.registered import SemiringKey
from .semirings.shipped import LogSumExp, max_plus, min_plus
from .sequences.alignment_op import (
    Alignment,
    AlignmentCounts,
    SemiglobalAlignment,
    SemiglobalCounts,
)
from .sequences.chain_op import ChainByEmission, ChainSamples, ChainScore
from .sequences.duration_op import DurationsSamples, DurationsScore
from .sequences.symbol_alignment_op import SymbolAlignment
from .steps.at_winner import AtWinner
from .steps.einsum_op import TropicalEinsum
from .steps.log_einsum import LogEinsum, LogEinsumV1, LogEinsumV2
from .steps.sum_einsum import SumEinsum
from .steps.weighted_sum import WeightedSum


def register() -> None:
    """Register every family of this package, so that graphs and payloads can be read from bytes. It
    may be called more than once.

    This function is the package's entry point in the group "tenferro_jax.extensions".

    Example:
      >>> from tenferro_jax.extension.registry import lookup_extension_factory
      >>> register()
      >>> lookup_extension_factory("tenferro-ext-tropical.einsum.v1").version
      1
    """
    equation, semiring = "ij,jk->ik", SemiringKey.of(max_plus)
    ours = (
        TropicalEinsum(semiring, equation),
        AtWinner(equation),
        LogEinsum(1.0, equation),
        LogEinsumV2(1.0, equation),
        LogEinsumV1(1.0, equation),
        WeightedSum(semiring, equation),
        TropicalNetwork(semiring, "a->|0:"),
        NetworkEntries("a", "", (("a", 1),)),
        NetworkSamples(1.0, "a->|0:"),
        NetworkBest("a->|0:", 1),
        NetworkBound("a", 1),
        TablesDot("a", (("a", 1),)),
        NetworkShares(1.0, "a->|0:", (0,)),
        NetworkSharesV1(1.0, "a->|0:", (0,)),
        NetworkCurvature(1.0, "a->|0:", (0,)),
        NetworkCurvatureV1(1.0, "a->|0:", (0,)),
        NetworkSum("a->|0:"),
        NetworkSumDerivative("a->|0:", (0,)),
        Rows(1),
        Alignment(semiring, False, False, False),
        AlignmentCounts(1.0, False, False, False),
        SemiglobalAlignment(semiring, False, False, False),
        SemiglobalCounts(1.0, False, False, False),
        SymbolAlignment(semiring, False, False),
        ChainScore(semiring),
        ChainByEmission(SemiringKey.of(LogSumExp())),
        ChainSamples(),
        DurationsScore(semiring),
        DurationsSamples(),
        PathSearch(SemiringKey.of(min_plus), 4),
        TreeSums(),
        PathRanking(4, 3),
        Toulbar2Best(((0,),)),
    )
    of_authors = ExtensionFactory(SumEinsum)  # no semiring of ours sums
    for factory in (*[ExtensionFactory(type(op), op) for op in ours], of_authors):
        if lookup_extension_factory(factory.family_id) is None:
            register_extension(factory)
