"""The demo as a user runs it, and its failures."""

import importlib
import os
import pathlib
import runpy
import subprocess
import sys

import pytest

from tenferro_jax.extension.routes import current_platform

from .helpers import ends_in

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent


def test_the_main_job(tmp_path):
    command = [sys.executable, "-m", "ext_tropical.demo", "--out", str(tmp_path)]
    done = subprocess.run(
        command,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "450 held out",
        f"tenferro-ext-tropical.einsum.v1 on {current_platform()}: ",
        "for cpu, cuda, tpu; extension families tenferro-ext-tropical.einsum.v1",
        "alone predicts the same at batch sizes 1 and 32",
    ):
        assert text in done.stdout, text
    assert (tmp_path / "digits.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits.png", "digits.tenferro"]


def test_failures_are_told_in_a_line(tmp_path, monkeypatch):
    demo = importlib.import_module("ext_tropical.demo")
    monkeypatch.setattr(demo, "train", lambda *arguments: ({}, demo.History([1.0], [0.5], 0.0)))
    (tmp_path / "file").write_text("")
    for out, message in (
        (tmp_path, "DemoError: 50.0% .* 95% are needed"),
        (tmp_path / "file", "FileExistsError"),
    ):
        monkeypatch.setattr(sys, "argv", ["demo", "--out", str(out), "--epochs", "1"])
        ends_in(demo.main, SystemExit, f"demo failed: {message}")


def test_a_missing_optional_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "optax", None)
    ends_in(
        lambda: runpy.run_path(str(ROOT / "ext_tropical/demo.py")),
        SystemExit,
        r"The demo needs optax: pip install 'tenferro-jax\[demo\]'",
    )
