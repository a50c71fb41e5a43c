"""conformance_tests: one test a check, skipped with its reason where it does not apply."""

import os
import pathlib
import re
import subprocess
import sys

import numpy as np
import pytest

from tenferro_jax.conformance import conformance_tests
from tenferro_jax.conformance.checks import CHECKS
from tenferro_jax.errors import ConformanceError
from tenferro_jax.extension import ExtensionRuleSet

from ..helpers import each_ends_in, ends_in
from .broken_ops import Cube, CubeRule

ROOT = pathlib.Path(__file__).parent.parent.parent
X = np.array([0.5, -1.25, 2.0])
SUITE = """
import numpy as np
from tenferro_jax.conformance import conformance_tests
from tenferro_jax.extension import ExtensionRuleSet
from tests.conformance.broken_ops import Cube, CubeRule

test_cube = conformance_tests(Cube(), np.array([0.5, 2.0]), rules=ExtensionRuleSet(CubeRule("0.05 %")), oracle=lambda x: (x**3,))
"""


@pytest.mark.slow
def test_a_suite_of_a_user(tmp_path):
    (tmp_path / "test_cube.py").write_text(SUITE)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-v",
        "-rs",
        "-p",
        "no:cacheprovider",
        "--import-mode=importlib",
        str(tmp_path),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    verdicts = dict(re.findall(r"::test_cube\[(\S+)\] (\w+)", done.stdout))
    assert list(verdicts) == [f"{c.law}-{c.name}" for c in CHECKS], done.stdout
    assert [name for name, verdict in verdicts.items() if verdict == "FAILED"] == ["L3-jvp"]
    skipped = {name for name, verdict in verdicts.items() if verdict == "SKIPPED"}
    alone = {
        "L2-others",
        "L3-differentiable_form",
        "L3-linear_in_cotangent",
        "L3-linear_transpose",
        "L3-vjp",
        "L5-host_form",
        "L5-sharding_rule",
    }
    assert skipped == {"L3-second_order", "L3-precisions", *alone}  # the former wait for jvp
    assert "no other ops were given" in done.stdout
    assert "FAILED L3 jvp: clause X10.6" in done.stdout


def test_one_check_alone():
    test = conformance_tests(Cube(), X, rules=ExtensionRuleSet(CubeRule("affine")))
    test("meta")
    each_ends_in(
        (lambda: test("host_form"), pytest.skip.Exception, "no host form"),
        (lambda: test("linear"), ConformanceError, r"clause X10\.6"),
    )


def test_nothing_runs_before_a_test_does():
    test = conformance_tests(Cube(), "no array")
    ends_in(lambda: test("meta"), TypeError, "no array")
