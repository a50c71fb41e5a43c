"""How the benchmarks measure: compile time apart from run time, medians with their spread, ratios against a peer."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np


class Timing(NamedTuple):
    """Seconds: compilation, then median, lowest and highest of the runs."""

    compile: float
    median: float
    low: float
    high: float


def time_jitted(fn: Callable[..., Any], *args: Any, repeats: int) -> Timing:
    """Time a function under jit; every run waits for its result."""
    start = time.perf_counter()
    compiled = jax.jit(fn).lower(*args).compile()
    compile_seconds = time.perf_counter() - start
    jax.block_until_ready(compiled(*args))
    return Timing(compile_seconds, *spread(lambda: jax.block_until_ready(compiled(*args)), repeats))


def spread(run: Callable[[], Any], repeats: int) -> tuple[float, float, float]:
    """Median, lowest and highest seconds of a call."""
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds)), min(seconds), max(seconds)


def header(question: str) -> str:
    """The question, and the machine and versions that answer it."""
    cpu = next((line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")), platform.processor())
    device = jax.devices()[0].device_kind
    return f"{question}\n{os.cpu_count()} cores {cpu}; {device}; Python {platform.python_version()}, JAX {jax.__version__}"


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return file.readlines()
    except OSError:
        return []
