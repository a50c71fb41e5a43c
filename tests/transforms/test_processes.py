"""Two processes, joined by jax.distributed on this machine, run one sharded program and agree with
one process.
"""

import os
import pathlib
import socket
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from . import two_processes

ROOT = pathlib.Path(__file__).parents[2]
SECONDS = 60


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_both(folder):
    """Run the two processes to their end: their return codes and all that they printed."""
    port = str(free_port())
    environment = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    running = []
    for rank in range(2):
        with open(folder / f"{rank}.txt", "w") as said:
            arguments = [
                sys.executable,
                "-m",
                "tests.transforms.two_processes",
                str(rank),
                port,
                str(folder / f"{rank}.npz"),
            ]
            running.append(
                subprocess.Popen(
                    arguments, cwd=ROOT, env=environment, stdout=said, stderr=subprocess.STDOUT
                )
            )
    end = time.monotonic() + SECONDS
    try:
        for process in running:
            process.wait(max(0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        pass
    finally:
        for process in running:
            process.kill()
            process.wait()
    said = "".join(
        f"--- process {rank}\n{(folder / f'{rank}.txt').read_text()}" for rank in range(2)
    )
    return [process.returncode for process in running], said


@pytest.mark.cpu
@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    codes, said = run_both(tmp_path)
    if (
        "address already in use" in said.lower()
    ):  # another program took the port between asking for it and using it
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
