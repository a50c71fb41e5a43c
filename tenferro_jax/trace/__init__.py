"""Tracing: JAX functions as graphs."""
