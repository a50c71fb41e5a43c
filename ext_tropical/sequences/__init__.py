"""Sequences: Markov chains and alignments.

`chain`
    `Chain`: best paths, sums, marginals, samples; `viterbi`.
`chain_op`
    Its ops and their gradients, of `ctc_loss` too. `chain_recurrence`: messages from the first time
    to the last, and sums; `chain_paths`: best paths, one or k, and samples; `chain_entropy`;
    `chain_constants`: numbers that all scores of an array share.
`ctc`
    Texts in frames: `ctc_loss`, `ctc_chain`.
`alignments`
    `align`: edit distances, global and local alignments, time warping. `alignment_op`: its op.
"""

from .alignments import AlignResult, align
from .chain import Chain, ChainMarginals, ChainPath, viterbi
from .ctc import ctc_chain, ctc_loss

__all__ = [
    "AlignResult",
    "Chain",
    "ChainMarginals",
    "ChainPath",
    "align",
    "ctc_chain",
    "ctc_loss",
    "viterbi",
]
