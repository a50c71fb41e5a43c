"""Engines and compiled programs, their statistics and costs. Re-exports only."""

from ..bounded_cache import CacheStats
from .engine import Engine, compile_std_to_exec
from .exec_program import Cost, ExecProgram, Memory

__all__ = [
    "CacheStats",
    "Cost",
    "Engine",
    "ExecProgram",
    "Memory",
    "compile_std_to_exec",
]
