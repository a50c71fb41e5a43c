"""Sequences: Markov chains and alignments.

`chain`
    `Chain`: best paths, sums, marginals, samples; `viterbi`.
`chain_arguments`
    What `Chain` is given, checked and made to the inputs of an op. `leading_axes`: functions of one
    chain, mapped over those of a batch.
`chain_op`
    Its ops and their gradients, of `ctc_loss` too. `chain_inputs`: the arrays of a chain by name,
    which all of the following take. `chain_messages`: from the first time to the last;
    `chain_paths`: back to the first, the best path and samples; `chain_k_best`; `chain_entropy`;
    `chain_constants`: numbers that all scores of an array share.
`chain_sums`
    The score of all sequences and its derivatives, in one of three ways: `by_logs`,
    `chain_scaled.by_scaled`, `chain_exponents.by_exponents`. `chain_uses`: what each gives.
`ctc`
    Texts in frames: `ctc_loss`, `ctc_chain`.
`alignments`
    `align`: edit distances, global and local alignments, time warping.
`alignment_op`
    Its ops and their gradients. `alignment_inputs`: the arrays of an alignment by name;
    `alignment_recurrence`: the ways in which it is found in standard ops; `alignment_arguments`:
    what functions about alignments are given, checked.
`symbol_alignments`
    `align_symbols`: the same of symbols, by the scores of pairs of symbols. `symbol_alignment_op`:
    its op.
`vectors`
    Forms of arrays that several recurrences need.
"""

from .alignments import AlignResult, align
from .chain import Chain, ChainMarginals, ChainPath, viterbi
from .ctc import ctc_chain, ctc_loss
from .symbol_alignments import align_symbols

__all__ = [
    "AlignResult",
    "Chain",
    "ChainMarginals",
    "ChainPath",
    "align",
    "align_symbols",
    "ctc_chain",
    "ctc_loss",
    "viterbi",
]
