"""The computation of a contraction step in lax and Pallas, with its definition in NumPy."""
