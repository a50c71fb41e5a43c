"""What a long compilation or a run of several steps reports while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias


class Progress(NamedTuple):
    """One step that is done.

    Attributes:
      phase: "lower" or "compile" of a segment, "run" of a step of a program that has several.
      number: which one, from 0.
      total: of how many.
      seconds: wall time it took; for a segment that runs on an accelerator, the time to dispatch it.
    """

    phase: str
    number: int
    total: int
    seconds: float


ProgressCallback: TypeAlias = Callable[[Progress], object]
"""Called in the thread that works, after each step; what it raises ends the work."""
