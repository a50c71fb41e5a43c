"""Graphs and exported programs as files: the limits of readers. Re-exports only."""

from .container import Limits

__all__ = ["Limits"]
