"""Lazy tensors: operations are recorded, and an engine runs them."""
