"""Ops that are split over devices and call Python code on the host: the right value, no crash."""

import os
import subprocess
import sys

import pytest

from ..house import ROOT
from . import host_calls


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
    done = subprocess.run(
        [sys.executable, "-m", "tests.transforms.host_calls"],
        cwd=ROOT,
        env=os.environ | {"JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, (done.returncode, done.stdout[-300:], done.stderr[-3000:])
    assert done.stdout.count("right: ") == cases + 3
