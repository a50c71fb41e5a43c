"""What a command shows: text on any terminal, exit codes, the time that a long step takes."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TextIO

from ..graph.printing import plain

OK, FAILED, USAGE = 0, 1, 2


def show(text: str, stream: TextIO | None = None) -> None:
    """Print, whatever the terminal can write, and nothing that steers it; quietly where nobody reads on."""
    stream, text = stream or sys.stdout, plain(text, kept="\n\t")
    encoding = stream.encoding or "utf-8"
    try:
        print(text.encode(encoding, "replace").decode(encoding), file=stream, flush=True)
    except BrokenPipeError:
        with open(os.devnull, "w") as nowhere:  # else the interpreter complains once more when it ends
            os.dup2(nowhere.fileno(), stream.fileno())


def refused(problem: str) -> int:
    """Say in one line why the command cannot be carried out; its exit code."""
    show(f"error: {' '.join(problem.split())}", sys.stderr)
    return USAGE


@contextlib.contextmanager
def timed(name: str, every: float = 5.0) -> Iterator[None]:
    """On stderr, how long a step took, and every few seconds while it goes on that it does."""
    start, done = time.perf_counter(), threading.Event()

    def tell() -> None:
        while not done.wait(every):
            show(f"{name}: {time.perf_counter() - start:.0f} s so far", sys.stderr)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        done.set()
        teller.join()
    show(f"{name}: {time.perf_counter() - start:.2f} s", sys.stderr)
