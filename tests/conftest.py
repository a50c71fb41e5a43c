"""Strict numerics for every test: x64 on, no implicit promotion of dtypes or ranks, warnings are
errors, eight devices.
"""

from __future__ import annotations

import atexit
import collections
import os
import resource
import shutil
import sys
import tempfile

if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
    # What one run compiles it compiles once: pytest's workers and the processes that tests start
    # share a folder, empty at first.
    os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="tenferro_jax_tests_")
    os.environ |= {
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1",
    }
    atexit.register(shutil.rmtree, os.environ["JAX_COMPILATION_CACHE_DIR"], ignore_errors=True)
if sys.dont_write_bytecode:
    # Where Python keeps no compiled modules, an import of JAX takes each process three seconds more.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = tempfile.mkdtemp(prefix="tests_pyc_")
    sys.dont_write_bytecode = False
    atexit.register(shutil.rmtree, sys.pycache_prefix, ignore_errors=True)
import chex
import hypothesis
import jax
import pytest

from .sweep import ALL, few

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
)

hypothesis.settings.register_profile("fixed sample", derandomize=True, deadline=None, database=None)
hypothesis.settings.register_profile("all", deadline=None, database=None)
hypothesis.settings.load_profile("all" if ALL else "fixed sample")

# LLVM's optimiser takes a third of the time, and is not what quick tests and those outside
# ext_tropical judge; `make test-all` runs with it.
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(not ALL))
jax.config.update("jax_disable_most_optimizations", not ALL)
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_dtype_promotion", "strict")
jax.config.update("jax_numpy_rank_promotion", "raise")


# So JAX computes derivatives of windowed maxima there, in plain programs too.
JAX_WARNS_ON_GPUS = "ignore:Using reduced precision for gradient of reduce-window:UserWarning"

MOST_MEMORY = 2 * 1024**3

# How many times as many cases of a test marked few the quick and slow tests together have.
TIMES_AS_MANY = 2


def memory() -> int:
    """The most bytes that this process has held; on Linux what it holds now."""
    try:
        with open("/proc/self/statm") as pages:
            return int(pages.read().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
            1 if sys.platform == "darwin" else 1024
        )


@pytest.fixture(autouse=True, scope="module")
def _forget_programs():
    """Programs serve the files after this one too, until they take too much memory."""
    yield
    if memory() > MOST_MEMORY:
        jax.clear_caches()


@pytest.fixture(autouse=True, scope="module")
def _optimise_kernels(request):
    """`make test-slow` tests what XLA makes of the tropical kernels as users have it."""
    kernels = {"ext_tropical", "test_examples.py"} & set(request.path.parts)
    quickly = not ALL and ("not slow" in request.config.option.markexpr or not kernels)
    if quickly != jax.config.read("jax_disable_most_optimizations"):
        jax.clear_caches()
        jax.config.update("jax_disable_most_optimizations", quickly)
        os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = str(int(quickly))


@pytest.fixture(autouse=True)
def _count_traces_anew():
    """chex.assert_max_traces knows a function by its text: the next case of a test is no second
    trace.
    """
    chex.clear_trace_counter()


@pytest.fixture
def as_users_have_it():
    """JAX's own promotion of dtypes and ranks."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def pytest_configure(config):
    """Quick tests compile without MLIR for fusions, which a later XLA always takes: it doubles the
    time of a compilation. The slow tests have it, as users do.
    """
    if jax.__version_info__ < (0, 11) and config.option.markexpr == "not slow" and not ALL:
        os.environ["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    """Of a test marked few(n), `make test` has n cases, `make test-slow` as many others, and
    `make test-all` all. With a GPU or TPU tests marked cpu are skipped.
    """
    if jax.default_backend() != "cpu":
        why = pytest.mark.skip(reason="it needs kernels for the CPU, or eight devices")
        warned = pytest.mark.filterwarnings(JAX_WARNS_ON_GPUS)
        for item in items:
            item.add_marker(why if item.get_closest_marker("cpu") else warned)
    by_function = collections.defaultdict(list)
    for item in items:
        if item.get_closest_marker("few") and not ALL:
            by_function[item.nodeid.split("[")[0]].append(item)
    left_out = set()
    for cases in by_function.values():
        (count,) = cases[0].get_closest_marker("few").args
        chosen = few(cases, TIMES_AS_MANY * count)
        for item in chosen[count:]:
            item.add_marker("slow")
        left_out |= set(map(id, cases)) - set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) in left_out])
    items[:] = [item for item in items if id(item) not in left_out]
