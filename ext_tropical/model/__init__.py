"""Graphical models: what can be asked of a network of tables."""
