"""Tropical einsums of many operands: plans, slices, assignments."""
