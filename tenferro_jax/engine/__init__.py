"""Engines and compiled programs.

`engine`
    `Engine`: compiles a graph once for each set of sizes, and keeps the programs.
`exec_program`
    `ExecProgram`: segments for XLA, and steps of the host between them.
"""

from .engine import Engine, compile_std_to_exec
from .exec_program import ExecProgram

__all__ = [
    "Engine",
    "ExecProgram",
    "compile_std_to_exec",
]
