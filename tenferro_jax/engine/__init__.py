"""Compile a graph once, run it many times: what an engine and its programs report. Re-exports only."""

from ..bounded_cache import CacheStats
from .exec_program import Cost, Memory, Progress

__all__ = ["CacheStats", "Cost", "Memory", "Progress"]
