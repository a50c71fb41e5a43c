"""Floor 4: the einsum under the names of its uses."""
