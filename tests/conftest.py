"""Strict numerics for every test: x64 on, no implicit promotion of dtypes or ranks, warnings are errors, eight devices."""

from __future__ import annotations

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import hypothesis
import jax
import pytest

from .sweep import ALL

hypothesis.settings.register_profile("fixed sample", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("all", deadline=None, database=None)
hypothesis.settings.load_profile("all" if ALL else "fixed sample")

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """What a file compiled is of no use to the next one; kept, it comes to gigabytes."""
    yield
    jax.clear_caches()
