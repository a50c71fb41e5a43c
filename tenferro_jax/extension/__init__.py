"""The names that the author of an extension op imports."""

from .contract import NOT_DIFFERENTIABLE, ExtensionOp, LinearInput
from .primitive import apply
from .registry import extension_op, lookup_extension_factory, register_extension
from .rules import ExtensionAdRule, ExtensionRuleSet
from .runtimes import ExtensionRuntimeSet, Kernel
from .scope import require_equal
from .sharding import Shard, ShardingRule

__all__ = [
    "NOT_DIFFERENTIABLE",
    "ExtensionAdRule",
    "ExtensionOp",
    "ExtensionRuleSet",
    "ExtensionRuntimeSet",
    "Kernel",
    "LinearInput",
    "Shard",
    "ShardingRule",
    "apply",
    "extension_op",
    "lookup_extension_factory",
    "register_extension",
    "require_equal",
]
