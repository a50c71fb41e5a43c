"""Shared by the commands: exit codes and output."""

from __future__ import annotations

import sys
from typing import TextIO

from ..graph.printing import plain

OK, FAILED, USAGE = 0, 1, 2


def show(text: str, stream: TextIO | None = None) -> None:
    """Print text that the terminal can show, without control characters."""
    stream, text = stream or sys.stdout, plain(text, kept="\n\t")
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
