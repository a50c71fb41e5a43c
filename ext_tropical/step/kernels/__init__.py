"""The computation of a contraction step: `blocked` selects the lowering, its own or `direct`."""
