"""What a command shows: text on any terminal, exit codes, the time that a long step takes."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TextIO

from ..graph.printing import plain

OK, FAILED, USAGE = 0, 1, 2


def show(text: str, stream: TextIO | None = None) -> None:
    """Print what the terminal can write and nothing that steers it; quiet where nobody reads on."""
    stream, text = stream or sys.stdout, plain(text, kept="\n\t")
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # else the interpreter complains when it ends
            os.dup2(nowhere.fileno(), stream.fileno())


@contextlib.contextmanager
def timed(name: str) -> Iterator[None]:
    """On stderr, how long a step took."""
    start = time.perf_counter()
    yield
    show(f"{name}: {time.perf_counter() - start:.2f} s", sys.stderr)
