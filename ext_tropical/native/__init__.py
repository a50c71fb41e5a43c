"""The native library for CPUs.

`library`
    Finds it and calls it; `*_handler.cc` are XLA's side of the calls.
`solve.h`, `at_winner.h`
    One step and its derivative. A tie: `blocks.inc` decides which group of candidates has the
    winner, `winners.inc` which of the group; `lines.inc`, `folds.inc` and `bits.inc` decide small
    steps, vectors and booleans.
`network.h`, `chains.h`, `alignments.h`, `paths.h`
    Networks, chains, alignments, shortest paths.
"""
