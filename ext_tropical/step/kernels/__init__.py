"""The computation of a contraction step: `reference` is the definition, `choose` selects the
lowering, `blocked` or `direct`.
"""
