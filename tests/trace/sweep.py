"""Traces, runs, exports, loads and runs again every public function of jax.numpy, jax.nn, jax.scipy
and jax.random.

python -m tests.trace.sweep [NAME ...] prints those that fail, each with the reason.
"""

import sys
import warnings

import jax
import jax.export
import numpy as np

import tenferro_jax as tj

from .calls import call_of, functions

# Functions whose runs are compiled together: as functions, as graphs, as exported programs.
CHUNK = 24

# Functions whose numbers are whatever the memory held.
UNINITIALISED = {"jax.numpy.empty", "jax.numpy.empty_like"}


def sweep(names, run=None):
    """Failures of the functions named: name -> 'trace' or 'export' -> the typed error. Those in
    `run`, or all, are run and compared.
    """
    found, failures = functions(), {}
    with (
        jax.numpy_dtype_promotion("standard"),
        jax.numpy_rank_promotion("allow"),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # of functions that JAX deprecates
        for start in range(0, len(names), CHUNK):
            prepared = {}
            for name in names[start : start + CHUNK]:
                fn, arrays = call_of(name, found[name])
                forms = [fn]
                for stage, make in {"trace": _traced, "export": _exported}.items():
                    try:
                        forms.append(make(fn, arrays))
                    except tj.TenferroError as error:
                        failures.setdefault(name, {})[stage] = error
                        if stage == "export":
                            _require_that_jax_refuses_too(name, fn, arrays)
                if forms[1:] and (run is None or name in run):
                    prepared[name] = forms, arrays
            _compare(prepared)
    return failures


def _traced(fn, arrays):
    return tj.trace(fn, *arrays).to_jax()


def _exported(fn, arrays):
    return tj.load_exported(tj.export(fn, *arrays).to_bytes()).call


def _require_that_jax_refuses_too(name, fn, arrays):
    try:
        jax.export.export(jax.jit(fn), platforms=("cpu", "cuda", "tpu"))(*arrays).serialize()
    except Exception:  # JAX refuses in many ways
        return
    raise AssertionError(f"{name}: plain jax.export writes it")


def _compare(prepared):
    """All forms of each function give what the function gives."""
    inputs = {name: arrays for name, (_, arrays) in prepared.items()}
    run = jax.jit(
        lambda inputs: {
            name: [form(*inputs[name]) for form in forms] for name, (forms, _) in prepared.items()
        }
    )
    for name, (want, *others) in run(inputs).items():
        for got in others:
            jax.tree.map(lambda a, b, name=name: _same(a, b, name), got, want)


def _same(got, want, name):
    assert (got.dtype, got.shape) == (want.dtype, want.shape), name
    if name in UNINITIALISED:
        return
    if jax.dtypes.issubdtype(want.dtype, jax.dtypes.prng_key):
        got, want = jax.random.key_data(got), jax.random.key_data(want)
    tolerance = 1e-5 if want.dtype == np.float32 else 1e-9
    np.testing.assert_allclose(
        np.asarray(got), np.asarray(want), rtol=tolerance, atol=tolerance, err_msg=name
    )


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    chosen = sys.argv[1:] or list(functions())
    failed = sweep(chosen)
    for failing, stages in failed.items():
        print(
            failing,
            *(f"{stage}: {type(error).__name__}: {error}" for stage, error in stages.items()),
            sep="\n    ",
        )
    print(f"{len(chosen)} functions, {len(failed)} fail")
