"""Floor 4: JAX functions to graphs."""
