"""Hypothesis: slices cost at most 1 ms each beside their work, two workers of one core each reach
0.85 of twice the work of one, and four numbers say what many devices cost.

The large contraction has five labels, each in a table with every other: its largest intermediate
result has an entry for each value of four of them.

    python -m benchmarks.slices [--size 96] [--tasks 16] [--devices 8]
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import functools
import itertools
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np

from ext_tropical import plan_tropical_einsum, tropical_einsum
from ext_tropical.network.tropical_slices import TropicalPlan

from .measure import header

EQUATION = ",".join(map("".join, itertools.combinations("abcde", 2))) + "->"
TRIANGLE = "ij,jk,ki->"


class Machine(NamedTuple):
    """What the model knows of a device.

    Attributes:
      rate: multiplications a second.
      start: seconds of a slice beside its work.
      bandwidth: bytes a second that it receives while it sends as many.
      latency: seconds a message.
    """

    rate: float
    start: float
    bandwidth: float
    latency: float


class Cost(NamedTuple):
    """What the model says.

    Attributes:
      each: slices of the device that has most.
      operands, merge: bytes that a device receives.
      work, wait: seconds of the slices, and of the bytes.
    """

    each: int
    operands: int
    merge: int
    work: float
    wait: float


def cost_of(plan: TropicalPlan, devices: int, machine: Machine) -> Cost:
    """The slices of a device one after another; whole operands sent before, and afterwards a share
    of the result from every device, and to every device.
    """
    each = -(-plan.slices // devices)
    sizes = dict(plan.whole)
    bytes = [math.prod(sizes[c] for c in term) * plan.dtype.itemsize for term in plan.plan.terms]
    entries = math.prod(sizes[label] for label in plan.output)
    merge = 2 * (devices - 1) * -(-entries // devices) * plan.dtype.itemsize
    work = each * (machine.start + plan.plan.cost / machine.rate)
    wait = (sum(bytes) + merge) / machine.bandwidth + 2 * (devices - 1) * machine.latency
    return Cost(each, sum(bytes), merge, work, wait)


def tables(count: int, size: int) -> list[np.ndarray]:
    """Square tables of normal numbers."""
    return list(np.random.default_rng(0).normal(size=(count, size, size)).astype(np.float32))


def least(run: Callable[[], Any], repeats: int = 3) -> float:
    """Seconds of the fastest of some runs after the first."""
    jax.block_until_ready(run())
    times = []
    for _ in range(repeats):
        begun = time.perf_counter()
        jax.block_until_ready(run())
        times.append(time.perf_counter() - begun)
    return min(times)


# --- what a slice costs beside its work -----------------------------------------------------------


def overheads(slices: int) -> dict[str, tuple[int, float]]:
    """For each way to run slices without work: their number, and the seconds of one."""
    x = np.ones((slices, 8), np.float32)
    plan = plan_tropical_einsum("ni,ni,ni->i", x, x, x, slices=slices)
    best = jax.jit(functools.partial(tropical_einsum, "ni,ni,ni->i", memory_limit=plan.peak))
    few = min(slices, 1000)
    parts = [plan.run(i, x, x, x) for i in range(few)]
    every = [parts[0]._replace(number=i) for i in range(plan.slices)]
    found = {
        "tropical_einsum, memory_limit": (plan.slices, least(lambda: best(x, x, x)) / plan.slices),
        "plan.run": (few, least(lambda: [plan.run(i, x, x, x) for i in range(few)]) / few),
        "plan.merge": (plan.slices, least(lambda: plan.merge(every).value, 1) / plan.slices),
    }
    for name, (count, seconds) in found.items():
        print(f"{name:>32} | {count:6} slices | {seconds * 1e6:7.2f} us a slice")
    return found


# --- workers --------------------------------------------------------------------------------------

_held: dict[str, list[np.ndarray]] = {}


def one_slice(plan: TropicalPlan, size: int, folder: str, number: int) -> int:
    """A slice on a core of this worker's own."""
    if not _held:
        for core in sorted(os.sched_getaffinity(0)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(f"{folder}/{core}")
                os.sched_setaffinity(0, {core})
                break
        _held.update(operands=tables(3, size))
    plan.run(number, *_held["operands"])
    return os.getpid()


def workers(size: int, tasks: int) -> tuple[float, float]:
    """The seconds of one and of two processes."""
    plan = plan_tropical_einsum(TRIANGLE, *tables(3, size), slices=tasks)
    numbers = [i % plan.slices for i in range(tasks)]
    times, spawn = [], multiprocessing.get_context("spawn")
    for count in (1, 2):
        with (
            tempfile.TemporaryDirectory() as folder,
            concurrent.futures.ProcessPoolExecutor(count, mp_context=spawn) as pool,
        ):
            run = functools.partial(pool.map, functools.partial(one_slice, plan, size, folder))
            while len(set(run(numbers[: 2 * count]))) < count:  # all have compiled
                pass
            list(run(numbers[: 2 * count]))
            begun = time.perf_counter()
            list(run(numbers))
            times.append(time.perf_counter() - begun)
    print(
        f"{'processes':>32} | {tasks} slices of {times[0] / tasks * 1e3:.0f} ms: 1 worker "
        f"{times[0]:.2f} s, 2 workers {times[1]:.2f} s, "
        f"{times[0] / times[1] / 2:.2f} of ideal (goal 0.85)"
    )
    return times[0], times[1]


# --- the model ------------------------------------------------------------------------------------


def model(size: int, devices: int) -> dict[int, tuple[float, float]]:
    """For 1 to all devices the seconds that the model says, and those of a run.

    The devices of a host share its cores: n of them have the rate of one, divided by n.
    """
    arrays = tables(10, size)
    free = plan_tropical_einsum(EQUATION, *arrays, optimize="greedy")
    limit = free.plan.largest_intermediate * 4 // 16
    how: dict[str, Any] = {"optimize": "greedy", "memory_limit": limit}
    plan = plan_tropical_einsum(EQUATION, *arrays, **how)
    print(
        f"a network whose largest intermediate result, {16 * limit / 2**20:.0f} MiB, is 16 times "
        f"the limit: {plan.slices} slices, {plan.cost / free.cost:.2f} times the multiplications"
    )
    nothing = tables(10, 1)
    empty = plan_tropical_einsum(EQUATION, *nothing, optimize="greedy")
    start = least(lambda: empty.run(0, *nothing), 20)  # beside the work of a call
    whole = least(lambda: plan.run(0, *arrays), 10)
    seconds = max(whole - start, whole / 10)  # a clock does not tell small work from none
    host = Machine(plan.plan.cost / seconds, 0.0, math.inf, 0.0)
    found = {}
    for count in [n for n in (1, 2, 4, 8) if n <= devices]:
        mesh = jax.make_mesh((count,), ("d",), devices=jax.devices()[:count])
        with jax.set_mesh(mesh):
            run = jax.jit(functools.partial(tropical_einsum, EQUATION, over="d", **how))
            took = least(lambda run=run: run(*arrays))
        said = cost_of(plan, count, host._replace(rate=host.rate / count))
        found[count] = (said.work + said.wait, took)
        print(
            f"{count} devices: {said.each} slices each; the model says {said.work + said.wait:.3f} "
            f"s, a run took {took:.3f} s, {took / (said.work + said.wait):.2f} times that"
        )
    return found


def paper() -> list[Cost]:
    """The same contraction with 1024 values a label, on devices of stated speed."""
    shapes = [(1024, 1024)] * 10
    machine = Machine(2e10, 1e-4, 1e9, 1e-4)
    print(
        f"on paper: 1024 values a label, 8 GiB a device; {machine.rate:.0e} multiplications a "
        f"second, {machine.bandwidth:.0e} bytes a second, {machine.latency:.0e} s a message"
    )
    found = []
    for devices in (1, 8, 64, 1000, 4096):
        plan = plan_tropical_einsum(
            EQUATION, *shapes, optimize="greedy", memory_limit=2**33, slices=devices
        )
        cost = cost_of(plan, devices, machine)
        first = 2**50 / machine.rate / devices
        print(
            f"{devices:5} devices | {plan.slices} slices, {cost.each:4} each | "
            f"{(cost.operands + cost.merge) / 2**20:5.1f} MiB received a device | "
            f"{cost.work:8.1f} s of work, {cost.wait:5.2f} s of waiting | "
            f"{first / (cost.work + cost.wait):.2f} of ideal"
        )
        found.append(cost)
    return found


def main(size: int = 96, tasks: int = 16, devices: int = 8, triangle: int = 1600) -> None:
    """Print all tables."""
    print(header(__doc__))
    overheads(10_000)
    workers(triangle, tasks)
    model(size, devices)
    paper()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--size", type=int, default=96)
    parser.add_argument("--tasks", type=int, default=16)
    parser.add_argument("--devices", type=int, default=8)
    given = parser.parse_args()
    flag = f"--xla_force_host_platform_device_count={given.devices}"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}"  # read by the first call
    main(given.size, given.tasks, given.devices)
