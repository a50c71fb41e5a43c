"""Floor 2: one contraction step as extension ops, with kernels and AD rules."""
