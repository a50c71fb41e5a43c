"""The demo as a user runs it."""

import os
import pathlib
import subprocess
import sys

import pytest

from tenferro_jax.extension.routes import current_platform

ROOT = pathlib.Path(__file__).parent.parent


@pytest.mark.slow
def test_the_main_job(tmp_path):
    command = [sys.executable, ROOT / "docs/demo.py", "--out", str(tmp_path)]
    environment = os.environ | {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
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
