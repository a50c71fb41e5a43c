"""Two processes, joined by jax.distributed, agree with one; and ops that are
split over devices and call Python code on the host have the right value, and crash nothing.
"""

import concurrent.futures
import itertools
import socket

import jax
import numpy as np
import pytest

import tenferro_jax as tj

from ..helpers import python
from . import host_calls, two_processes


def run_both(folder):
    """Run the two processes to their end."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    told = lambda rank: (rank, port, folder / f"{rank}.npz")
    run = lambda rank: python("-m", "tests.transforms.two_processes", *told(rank), **flags)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        list(pool.map(run, "01"))


@pytest.mark.cpu
@pytest.mark.slow
def test_two_processes_agree_with_one(tmp_path):
    run_both(tmp_path)
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


NAMES = (*host_calls.BODIES, *host_calls.KERNELS, *host_calls.ON_DEVICE)
QUICK = {
    ("printed", "automatic", "eager"),
    ("in_cond", "explicit", "jit"),
    ("kernel by_numpy", "automatic", "grad"),
    ("on_device by an op of the host", "automatic", "vmap"),
}


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[] if case in QUICK else pytest.mark.slow)
        for case in itertools.product(NAMES, host_calls.MESHES, host_calls.TRANSFORMS)
    ],
    ids=", ".join,
)
def test_a_call_has_the_right_value(case):
    host_calls.case(*case)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["printed", "by_numpy", "on_device printed"])
def test_the_checks_of_such_an_op_pass(name):
    """But for an export, which holds no callback."""
    failures = tj.check(host_calls.made(name), host_calls.X).failures
    assert {found.check for found in failures} <= {"exported"}
