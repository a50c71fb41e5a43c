"""Semirings, their laws and their scalars."""
