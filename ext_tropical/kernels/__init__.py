"""How one contraction step is computed: `reference` is the definition, `blocked` the lowering."""
