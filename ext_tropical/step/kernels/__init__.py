"""How one contraction step is computed: `reference` is the definition, `choose` the lowering, by `blocked` or `direct`."""
