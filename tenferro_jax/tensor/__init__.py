"""Floor 7: lazy tensors, recorded as they are used and run by an engine."""
