"""Every public function of arrays in jax.numpy, jax.nn, jax.scipy and jax.random: traced, exported
and run, or refused as listed here.
"""

import re

import pytest

from ..sweep import some
from . import sweep

EIG = {"export": "primitive 'eig' not found for platforms .*tpu"}
SCHUR = {"trace": "'schur'", "export": "primitive 'schur' not found for platforms .*cuda"}
RESULT = {
    "export": "unregistered type .*(Result|unique)"
}  # a class of JAX's own that JAX has no bytes for

FAILS = {
    **dict.fromkeys(
        [
            "jax.numpy.linalg.eig",
            "jax.numpy.linalg.eigvals",
            "jax.numpy.roots",
            "jax.scipy.linalg.rsf2csf",
        ],
        EIG,
    ),
    **dict.fromkeys(
        [f"jax.scipy.linalg.{name}" for name in ("funm", "schur", "solve_sylvester", "sqrtm")],
        SCHUR,
    ),
    **dict.fromkeys(
        [f"jax.numpy.linalg.{name}" for name in ("eigh", "qr", "slogdet", "svd")], RESULT
    ),
    **dict.fromkeys([f"jax.numpy.unique_{name}" for name in ("all", "counts", "inverse")], RESULT),
    **dict.fromkeys(["jax.scipy.optimize.minimize", "jax.scipy.stats.mode"], RESULT),
    "jax.scipy.linalg.hessenberg": {
        "trace": "'hessenberg'",
        "export": "primitive 'hessenberg' not found for platforms .*cuda",
    },
    "jax.scipy.linalg.qr_multiply": {"trace": "'geqrf'", "export": "'cusolver_ormqr_ffi'"},
    "jax.nn.scaled_matmul": {
        "trace": "'scaled_matmul_wrapper'",
        "export": "'scaled_matmul' not found|block_scaled_dot",
    },
}
"""Name -> where it fails -> what the reason has in it. Plain jax.export fails too, wherever
`export` does.
"""


def require_listed(failures, names):
    assert set(failures) == set(FAILS) & set(names)
    for name, stages in failures.items():
        assert set(stages) == set(FAILS[name]), name
        for stage, error in stages.items():
            assert re.search(FAILS[name][stage], str(error)), f"{name}, {stage}: {error}"
            assert error.fix, name


@pytest.mark.few(1)
@pytest.mark.slow
@pytest.mark.parametrize("part", range(6))
def test_every_public_function(part):
    """All are traced, exported and loaded; a third of them is run, and all where everything is
    swept.
    """
    names = list(sweep.functions())
    assert len(names) >= 660
    require_listed(
        sweep.sweep(names[part::6], run=set(some(names, len(names) // 3))), names[part::6]
    )
