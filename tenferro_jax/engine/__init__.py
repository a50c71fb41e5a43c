"""Engines and compiled programs: statistics, costs, progress. Re-exports only."""

from ..bounded_cache import CacheStats
from .exec_program import Cost, Memory, Progress

__all__ = ["CacheStats", "Cost", "Memory", "Progress"]
