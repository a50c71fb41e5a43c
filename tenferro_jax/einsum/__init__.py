"""Wing on floors 0 to 3: einsum text, plans, nodes."""
