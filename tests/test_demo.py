"""The demo as a user runs it."""

import pytest

from tenferro_jax.extension.routes import current_platform

from .helpers import python


@pytest.mark.slow
def test_the_main_job(tmp_path):
    environment = {"XLA_FLAGS": "", "JAX_DISABLE_MOST_OPTIMIZATIONS": "0"}
    printed = python("docs/demo.py", "--out", tmp_path, **environment)
    for text in (
        "450 held out",
        f"tenferro-ext-tropical.einsum.v1 on {current_platform()}: ",
        "for cpu, cuda, tpu; extension families tenferro-ext-tropical.einsum.v1",
        "alone predicts the same at batch sizes 1 and 32",
    ):
        assert text in printed, text
    assert (tmp_path / "digits.png").read_bytes()[:4] == b"\x89PNG"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["digits.png", "digits.tenferro"]
