"""How the benchmarks measure: compile time apart from run time, medians with their spread, ratios
against a peer.
"""

from __future__ import annotations

import hashlib
import importlib
import os
import pathlib
import platform
import re
import time
import warnings
from collections.abc import Callable, Sequence
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


def alternating(runs: Sequence[Callable[[], Any]], repeats: int) -> list[tuple[float, float]]:
    """Median and lowest seconds of each of several calls, made in turn so that a change of the
    machine's speed hits all.

    Each turn makes one call without timing and then one with timing, so that caches and waiting
    threads of the other calls do not affect it.
    """
    for run in runs:
        jax.block_until_ready(run())
    seconds: list[list[float]] = [[] for _ in runs]
    for _ in range(repeats):
        for run, kept in zip(runs, seconds, strict=True):
            jax.block_until_ready(run())
            start = time.perf_counter()
            jax.block_until_ready(run())
            kept.append(time.perf_counter() - start)
    return [(float(np.median(kept)), min(kept)) for kept in seconds]


def lowest(runs: Sequence[Callable[[], Any]], seconds: float, most: int = 1000) -> list[float]:
    """Lowest seconds of each of several calls, made in turn until each has taken so many seconds
    altogether, or had so many turns; the first three may take ten times as long.

    Short calls are made once without timing in each turn, as in `alternating`. Take calls that were
    made before.
    """
    spent, best = [0.0] * len(runs), [float("inf")] * len(runs)
    for turn in range(most):
        for i, run in enumerate(runs):
            if spent[i] >= (seconds if turn > 2 else 10 * seconds):
                continue
            took = min(spread(lambda run=run: jax.block_until_ready(run()), 1))
            if took < seconds / 4:
                spent[i] += took
                took = min(spread(lambda run=run: jax.block_until_ready(run()), 1))
            spent[i] += took
            best[i] = min(best[i], took)
    return best


def installed(name: str) -> Any:
    """A module of a peer, or None."""
    # Else threads of torch spin for a while on cores that the next one needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError:
        return None


def threads_at_work(run: Callable[[], Any]) -> int:
    """How many threads of this process share the work of a call: those that take more than a fifth
    of the busiest one's time. 0 where Linux does not say.
    """

    def spent() -> dict[str, int]:
        return {
            task.name: int((task / "schedstat").read_text().split()[0])
            for task in pathlib.Path("/proc/self/task").iterdir()
        }

    try:
        before = spent()
        run()
        used = [ns - before.get(task, 0) for task, ns in spent().items()]
    except OSError:
        return 0
    return sum(5 * ns > max(used) for ns in used)


def canonical_hlo(text: str) -> str:
    """Optimised HLO without module name, metadata and source tables, and without names or an order
    of instructions.

    Every instruction is written with what its operands compute in place of their names, so that two
    texts are equal when they are the same instructions on the same values.
    """
    text = re.sub(r", metadata=\{[^}]*\}", "", text)
    names: dict[str, str] = {}  # of instructions and computations -> a digest of what they are
    lines: list[str] = []
    done = ""
    for line in text.splitlines():
        if match := re.match(r"(?:ENTRY )?%(\S+) \(.*\{$", line):
            lines, done = [], match[1]
        elif match := re.match(r"  (ROOT )?%(\S+) = (.*)$", line):
            meaning = re.sub(r"%([\w.\-]+)", lambda m: names.get(m[1], m[1]), match[3])
            names[match[2]] = hashlib.sha256(meaning.encode()).hexdigest()[:16]
            lines.append((match[1] or "") + meaning)
        elif line == "}":
            names[done] = hashlib.sha256("\n".join(sorted(lines)).encode()).hexdigest()[:16]
    return "\n".join(sorted(lines))  # of the last computation, the entry


def header(doc: str | None) -> str:
    """The first paragraph of a module's docstring, and the machine and versions that answer it."""
    question = " ".join((doc or "").split("\n\n")[0].split())
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _cpuinfo() if line.startswith("model name")),
        platform.processor(),
    )
    device = jax.devices()[0].device_kind
    return (
        f"{question}\n{os.cpu_count()} cores {cpu}; {device}; Python "
        f"{platform.python_version()}, JAX {jax.__version__}"
    )


def load() -> str:
    """What else ran: as many processes as the benchmark's own threads is a quiet machine."""
    return f"load of the machine, in the last minute: {os.getloadavg()[0]:.1f}"


def _cpuinfo() -> list[str]:
    try:
        with open("/proc/cpuinfo") as file:
            return file.readlines()
    except OSError:
        return []
