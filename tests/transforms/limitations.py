"""Kinds of extensions and transforms that do not work together, and why; docs/spec/transforms.md
shows them.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Limitation(NamedTuple):
    """What is missing, why, and what the user gets or can do."""

    subject: str
    reason: str
    instead: str


HOST_CODE_AND_KERNELS_IN_AN_EXPORT: Final = Limitation(
    "host code and kernels in an exported program",
    "an exported program is only StableHLO and runs without the author's Python and native code",
    "`Unsupported` when it is exported; give the op a lowering",
)
KERNELS_WHERE_XLA_PARTITIONS: Final = Limitation(
    "an op with only a kernel, on several devices under jit",
    "XLA cannot split a kernel, and would gather the whole array on every device",
    "`Unsupported` when it is compiled; call inside `jax.shard_map`, or give the op a lowering",
)
UNKNOWN_OUTPUT_SHARDING: Final = Limitation(
    "host code and kernels on a mesh with explicit axes",
    "on an explicit mesh the type of a value includes its sharding, which only a lowering or the "
    "author can give",
    "`InvalidConfig`; override `sharding_rule`, or call inside `jax.shard_map` or "
    "`jax.sharding.auto_axes`",
)
DERIVATIVES_OF_INTEGERS: Final = Limitation(
    "reverse-mode derivatives of integer outputs",
    "an integer has no tangent; in forward mode JAX gives one of dtype float0",
    "JAX's TypeError",
)
TRANSPOSE_OF_A_NONLINEAR_OP: Final = Limitation(
    "`jax.linear_transpose` of an op that is not linear",
    "only a linear map has a transpose; `jax.vjp` transposes the derivative of the op",
    "`ADRuleError` of kind transpose",
)
REVERSE_MODE_OF_WHILE: Final = Limitation(
    "reverse-mode derivatives of `jax.lax.while_loop`",
    "reverse mode keeps values of every iteration, and the number of iterations is not known when "
    "memory is planned",
    "JAX's ValueError; use `jax.lax.scan` or forward mode",
)

# All of them.
LIMITATIONS: Final = (
    HOST_CODE_AND_KERNELS_IN_AN_EXPORT,
    KERNELS_WHERE_XLA_PARTITIONS,
    UNKNOWN_OUTPUT_SHARDING,
    DERIVATIVES_OF_INTEGERS,
    TRANSPOSE_OF_A_NONLINEAR_OP,
    REVERSE_MODE_OF_WHILE,
)
