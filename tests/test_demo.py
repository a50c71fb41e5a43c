"""The demo as a user runs it, and its failures."""

import os
import pathlib
import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

ROOT = pathlib.Path(__file__).parent.parent


def demo(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "ext_tropical.demo", *arguments],
        cwd=ROOT, capture_output=True, text=True, timeout=300, check=False, env={**os.environ, "XLA_FLAGS": "", **environment},
    )  # fmt: skip


def test_the_main_job(tmp_path):
    done = demo("--out", str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    for text in (
        "450 held out",
        "tenferro-ext-tropical.einsum.v1 on cpu: ",
        "for cpu, cuda, tpu; extension families tenferro-ext-tropical.einsum.v1",
        "alone predicts the same at batch sizes 1 and 32",
    ):
        assert text in done.stdout, text
    assert (tmp_path / "digits.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits.png", "digits.tenferro"]


def test_too_little_training_fails_with_a_message(tmp_path):
    done = demo("--out", str(tmp_path), "--epochs", "1")
    assert done.returncode == 1
    assert "demo failed: DemoError" in done.stderr
    assert "95% are needed" in done.stderr


def test_an_output_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    done = demo("--out", str(tmp_path / "file"), "--epochs", "1")
    assert done.returncode == 1
    assert "demo failed: FileExistsError" in done.stderr


def test_a_missing_optional_package_is_named(tmp_path):
    (tmp_path / "optax.py").write_text("raise ImportError('hidden', name='optax')")
    done = demo("--out", str(tmp_path), PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "The demo needs optax: pip install 'tenferro-jax[demo]'" in done.stderr
