"""The names that the author of an extension op imports."""

# What stands where, from the ground up:
#
# - `contract`: the methods of an op class; `runtimes` and `rules`: kernels and AD rules as values;
#   `family`: the family_id; `registry`: how a class becomes a family that files find.
# - `carrier`: an op with its batch levels, as graphs and JAX hold it; `sharding`: how it splits.
# - `routes`: which way a call takes; `execution`: that way; `primitive`: `apply`, and the primitive
#   of JAX with its rules.
# - `authored`: what the author of a function wrote; `function_extension`: the class of its ops;
#   `function_op`: what `tenferro_jax.op` returns; `nesting`: how arrays are nested, as text.

from typing import TYPE_CHECKING

from ..errors import no_attribute
from .contract import NOT_DIFFERENTIABLE, ExtensionOp, LinearInput, ShardingRule, require_equal
from .primitive import apply
from .registry import extension_op, register_extension
from .rules import ExtensionAdRule, ExtensionRuleSet
from .runtimes import ExtensionRuntimeSet, Kernel

__all__ = [
    "NOT_DIFFERENTIABLE",
    "ExtensionAdRule",
    "ExtensionOp",
    "ExtensionRuleSet",
    "ExtensionRuntimeSet",
    "Kernel",
    "LinearInput",
    "ShardingRule",
    "apply",
    "extension_op",
    "register_extension",
    "require_equal",
]

ROOMS = ("registry", "sharding", "carrier", "family", "rules", "runtimes", "routes", "primitive")
"""The modules whose names stood here before."""

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        raise no_attribute(__name__, name, [f"{__name__}.{room}" for room in ROOMS])
