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

from ..errors import answers
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

if not TYPE_CHECKING:  # a checker of types would take every name
    __getattr__ = answers(
        __name__,
        {
            "tenferro_jax.": "TensorMeta host_errors",
            "tenferro_jax.dimensions.": "SymDim",
            "tenferro_jax.extension.ExtensionRuleSet": "NO_RULES",
            "tenferro_jax.extension.ExtensionRuntimeSet": "NO_RUNTIMES",
            "tenferro_jax.extension.LinearInput": "LinearMode",
            "tenferro_jax.extension.apply": "RuleContext",
            "tenferro_jax.extension.carrier.": "Extension",
            "tenferro_jax.extension.family.": "FamilyId parse_family_id",
            "tenferro_jax.extension.primitive.": "save_families",
            "tenferro_jax.extension.registry.": "ExtensionFactory lookup_extension_factory",
            "tenferro_jax.extension.require_equal": "ShapeContext",
            "tenferro_jax.extension.routes.": "Route RouteKind",
            "tenferro_jax.extension.sharding.": "Shard",
            "tenferro_jax.shapes.": "as_array as_operand",
            "jax.numpy": "Builder",
        },
    )
