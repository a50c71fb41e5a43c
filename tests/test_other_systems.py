"""IREE compiles what is exported, ONNX Runtime runs what is written out: both agree with JAX. Needs
the extras iree and onnx.
"""

import importlib.util
import json
import re

import pytest

from .helpers import python
from .house import ROOT
from .other_systems import FAILURES, programs

PAGE = ROOT / "docs/guides/other_programs.md"


def differences(system):
    printed = python("-m", "tests.other_systems", system, JAX_PLATFORMS="cpu")
    return dict(map(json.loads, printed.splitlines()))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "packages"),
    [("iree", ("iree.compiler", "iree.runtime")), ("onnx", ("jax2onnx", "onnxruntime"))],
)
def test_each_program_does_what_the_page_says(system, packages):
    if any(importlib.util.find_spec(package.split(".")[0]) is None for package in packages):
        pytest.skip(f"not installed: pip install '.[{system}]' ({', '.join(packages)})")
    found = differences(system)
    fails = FAILURES[system]
    assert found.keys() == programs().keys()
    for name, far in found.items():
        if name in fails:
            assert fails[name] in str(far), f"{name} is {far}: correct FAILURES and the page"
        else:
            assert not isinstance(far, str), (name, far)
            assert far <= 1e-6, name


AFTER = """
import jax
from tests.other_systems import programs, with_onnx
f, args = programs()["viterbi"]
with_onnx(f, args)
try:
    f(*args)
except NotImplementedError as error:
    print("NotImplementedError")
jax.clear_caches()
print(f(*args).shape)
"""


@pytest.mark.slow
def test_a_conversion_to_onnx_leaves_traces_in_jits_caches():
    if importlib.util.find_spec("jax2onnx") is None:
        pytest.skip("not installed: pip install '.[onnx]' (jax2onnx, onnxruntime)")
    assert python("-c", AFTER, JAX_PLATFORMS="cpu").splitlines() == ["NotImplementedError", "(9,)"]


def test_the_page_has_a_row_for_each_program():
    rows = re.findall(r"^\| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", PAGE.read_text(), re.MULTILINE)
    said = {name: told for name, *told in rows if name in programs()}
    want = {
        name: ["no" if name in FAILURES[system] else "yes" for system in ("iree", "onnx")]
        for name in programs()
    }
    assert {name: [x.split(":")[0] for x in told] for name, told in said.items()} == want
