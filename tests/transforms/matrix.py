"""Transforms times kinds of ops: every pair runs, or its refusal is shown to be real."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tenferro_jax.errors import ADRuleError, InvalidConfig, Unsupported

from ..cases import CASES, KINDS, ids
from ..helpers import ends_in
from ..sweep import ALL
from . import limitations

TRANSFORMS = (
    "eager",
    "jit",
    "disable_jit",
    "ahead of time",
    "donation",
    "checking_leaks",
    "enable_checks",
    "x64 off",
    "grad with x64 off",
    "vmap",
    "vmap of vmap",
    "vmap(spmd_axis_name)",
    "grad of vmap, vmap of grad",
    "jvp",
    "linearize",
    "vjp",
    "grad",
    "hessian",
    "linear_transpose",
    "inside custom_jvp",
    "inside custom_vjp",
    "scan",
    "grad of scan",
    "while",
    "jvp of while",
    "grad of while",
    "cond",
    "switch",
    "grad of cond, of switch",
    "checkpoint",
    "checkpoint with save_families",
    "shard_map",
    "scan in shard_map",
    "vmap(spmd_axis_name) of shard_map",
    "grad inside shard_map, and of it",
    "grad of shard_map, replicated inputs",
    "NamedSharding",
    "grad with NamedSharding",
    "explicit mesh",
    "explicit mesh of two axes",
    "mesh with an explicit and an automatic axis",
    "grad on an explicit mesh",
    "export",
    "export with symbolic sizes",
    "export for several platforms",
    "export with vjp_order=1",
)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Pairs that cannot exist.

    Attributes:
      limitation: why, and what to do instead.
      error: the class that the user gets.
      message: a part of its text, as a regular expression.
      transforms, kinds: the pairs.
    """

    limitation: limitations.Limitation
    error: type[Exception]
    message: str
    transforms: tuple[str, ...]
    kinds: tuple[str, ...] = KINDS


EXPORTS = tuple(t for t in TRANSFORMS if t.startswith("export"))
EXPLICIT = tuple(t for t in TRANSFORMS if "explicit" in t)
PARTITIONED = ("vmap(spmd_axis_name)", "NamedSharding", "grad with NamedSharding")
REVERSE = tuple(
    t
    for t in TRANSFORMS
    if any(word in t for word in ("grad", "checkpoint", "hessian", "inside custom", "vjp_order"))
)
LINEAR = tuple(kind for kind in KINDS if "linear" in kind or "two inputs" in kind)
HOST = tuple(kind for kind in KINDS if "host only" in kind)

REFUSALS = (
    Refusal(
        limitations.DERIVATIVES_OF_INTEGERS,
        TypeError,
        "real-valued outputs|float0",
        REVERSE,
        ("integer outputs",),
    ),
    Refusal(
        limitations.DERIVATIVES_OF_INTEGERS,
        TypeError,
        "linear_transpose only supports",
        ("linear_transpose",),
        ("integer outputs",),
    ),
    Refusal(
        limitations.REVERSE_MODE_OF_WHILE,
        ValueError,
        "Reverse-mode differentiation does not work",
        ("grad of while",),
    ),
    Refusal(
        limitations.TRANSPOSE_OF_A_NONLINEAR_OP,
        ADRuleError,
        r"transpose of extension [\w-]+\.\w+\.v1",
        ("linear_transpose",),
        tuple(kind for kind in KINDS if kind not in LINEAR),
    ),
    Refusal(
        limitations.HOST_CODE_AND_KERNELS_IN_AN_EXPORT,
        Unsupported,
        r"extension test-package\.\w+\.v1.* in an export",
        EXPORTS,
        ("kernel only", "declined lowering", *HOST),
    ),
    Refusal(
        limitations.UNKNOWN_OUTPUT_SHARDING,
        InvalidConfig,
        r"extension test-package\.\w+\.v1 on an explicit mesh.*known output shardings.*shard_map",
        EXPLICIT,
        (
            "kernel only",
            "declined lowering",
            *(kind for kind in HOST if kind != "host only, sharding rule"),
        ),
    ),
    Refusal(
        limitations.KERNELS_WHERE_XLA_PARTITIONS,
        Unsupported,
        r"extension test-package\.\w+\.v1.*its kernel cannot be partitioned, use jax\.shard_map",
        PARTITIONED,
        ("kernel only",),
    ),
)
# The transforms that a test sweeps; test_matrix.py holds it equal to TRANSFORMS.
SWEPT: set[str] = set()


# A kind for every way that a call is carried out.
CARRIED_OUT = ("two inputs", "batch level", "kernel and lowering", "host only", "tropical einsum")

# Kinds that take a way of their own through the transforms whose name has this in it.
FURTHER = {
    "vmap": ("own batched form", "kernel only"),
    "grad": ("linear", "one integer output"),
    "jvp": ("two outputs", "one integer output"),
    "linear": ("linear", "host only, linear"),
    "mesh": ("host only, sharding rule", "declined lowering"),
    "Sharding": ("host only, sharding rule", "declined lowering"),
    "shard_map": ("kernel only", "integer outputs"),
    "export": ("own batched form", "two outputs"),
}


def quick_kinds(transform: str) -> set[str]:
    """The kinds that `make test` sweeps: two ways to carry out a call, others for the next
    transform, and every refusal.
    """
    i = TRANSFORMS.index(transform)
    return {CARRIED_OUT[(i + turn) % 5] for turn in (0, 2)} | {
        kind for kind in KINDS if refusal_of(transform, kind)
    }


def slow_kinds(transform: str) -> set[str]:
    """The kinds that `make test-slow` sweeps too: every way to carry out a call, and those with a
    way of their own.
    """
    return {
        *CARRIED_OUT,
        *(kind for word, kinds in FURTHER.items() if word in transform for kind in kinds),
    }


def refusal_of(transform: str, kind: str) -> Refusal | None:
    """The refusal of a pair, or None where the pair runs."""
    return next((r for r in REFUSALS if transform in r.transforms and kind in r.kinds), None)


def sweep(transform: str) -> Callable[[Callable[..., None]], Any]:
    """Run a test for every case as a check of the transform; where the pair is refused, the test
    must end in that error.
    """
    SWEPT.add(transform)

    def decorate(check: Callable[..., None]) -> Any:
        @functools.wraps(check)
        def test(case: Any, **arguments: Any) -> None:
            refusal = refusal_of(transform, case.kind)
            if refusal is None:
                check(case, **arguments)
            else:
                ends_in(lambda: check(case, **arguments), refusal.error, refusal.message)

        kinds = quick_kinds(transform)
        quick, slow = (
            {c.kind: c for c in reversed(CASES) if c.kind in chosen}
            for chosen in (kinds, slow_kinds(transform) - kinds)
        )
        chosen = CASES if ALL else [*quick.values(), *slow.values()]
        cases = [
            c if quick.get(c.kind) is c else pytest.param(c, marks=pytest.mark.slow) for c in chosen
        ]
        return pytest.mark.parametrize("case", cases, ids=ids(chosen))(test)

    return decorate


def agree(got: Any, want: Any, tolerance: float = 1e-12) -> None:
    """The same number of arrays, the same shapes and dtypes; integers exactly, others within the
    tolerance.
    """
    got, want = list(got), list(want)
    assert len(got) == len(want)
    for g, w in zip(got, want):
        assert (g.shape, g.dtype) == (w.shape, w.dtype)
        near = 0 if w.dtype.kind == "i" else tolerance
        np.testing.assert_allclose(g, w, rtol=near, atol=near)


def agree_numerically(got: Any, want: Any, tolerance: float = 1e-5) -> None:
    """Derivatives against finite differences."""
    agree(got, want, tolerance)
