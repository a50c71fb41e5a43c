"""The native library for CPUs. `library` finds it and calls it; the C++ beside it is read from the
headers: `solve.h` (one step), `network.h`, `chains.h`, `alignments.h`, `paths.h`, `at_winner.h`.
"""
