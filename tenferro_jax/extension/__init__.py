"""The names that the author of an extension op imports."""

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
