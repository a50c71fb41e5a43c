"""What needs processes of its own: two, joined by jax.distributed, agree with one; and ops that are
split over devices and call Python code on the host have the right value, and crash nothing.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from ..helpers import python
from ..house import ROOT
from . import host_calls, two_processes

SECONDS = 240


def run_both(folder):
    """Run the two processes to their end: their return codes and all that they printed."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    running = []
    for rank in "01":
        told = [rank, port, str(folder / f"{rank}.npz")]
        with open(folder / f"{rank}.txt", "w") as said:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "tests.transforms.two_processes", *told],
                    cwd=ROOT,
                    env=os.environ | flags | {"PYTHONPATH": str(ROOT)},
                    stdout=said,
                    stderr=subprocess.STDOUT,
                )
            )
    end = time.monotonic() + SECONDS
    for process in running:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0, end - time.monotonic()))
    for process in running:
        process.kill()
        process.wait()
    said = "\n".join((folder / f"{rank}.txt").read_text() for rank in "01")
    return [process.returncode for process in running], said


@pytest.mark.cpu
@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    codes, said = run_both(tmp_path)
    if "address already in use" in said.lower():  # another program took the port
        codes, said = run_both(tmp_path)
    assert codes == [0, 0], (
        f"the two processes ended with {codes} (-9: killed after {SECONDS} s); they said:\n{said}"
    )
    one = two_processes.results(
        jax.make_mesh(
            (two_processes.DEVICES,),
            ("d",),
            axis_types=(jax.sharding.AxisType.Auto,),
            devices=jax.devices()[:4],
        )
    )
    first, second = (np.load(tmp_path / f"{rank}.npz") for rank in range(2))
    assert set(first.files) == set(second.files) == set(one)
    for name, want in one.items():
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        np.testing.assert_allclose(first[name], want, rtol=1e-12, atol=1e-12, err_msg=name)
    case = two_processes.SHARED[0]
    np.testing.assert_allclose(
        first[f"{case.name}, values, 0"], case.stacked(*case.batch(4))[0], rtol=1e-12
    )


@pytest.mark.parametrize(
    "case",
    [
        ("printed", "automatic", "eager"),
        ("in_cond", "explicit", "jit"),
        ("kernel by_numpy", "automatic", "grad"),
        ("on_device by an op of the host", "automatic", "vmap"),
    ],
)
def test_a_call_has_the_right_value(case):
    host_calls.case(*case)


@pytest.mark.slow
def test_every_call_and_check_has_the_right_value_on_two_devices():
    names = [*host_calls.BODIES, *host_calls.KERNELS, *host_calls.ON_DEVICE]
    cases = len(names) * len(host_calls.MESHES) * len(host_calls.TRANSFORMS)
    printed = python("-m", "tests.transforms.host_calls", JAX_PLATFORMS="cpu")
    assert printed.count("right: ") == cases + 3
