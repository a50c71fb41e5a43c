"""One contraction step as extension ops, with kernels and AD rules."""
