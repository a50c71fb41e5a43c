"""Named uses of the tropical einsum: closure, Viterbi, dot_general and others."""
