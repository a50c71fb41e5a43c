"""Engines and compiled programs. Re-exports only."""

from .engine import Engine, compile_std_to_exec
from .exec_program import ExecProgram

__all__ = [
    "Engine",
    "ExecProgram",
    "compile_std_to_exec",
]
