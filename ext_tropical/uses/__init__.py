"""Named uses of the tropical einsum: closure, chains, alignments, dot_general and others."""
